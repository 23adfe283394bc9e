"""Records of the origin of data in data/raw: `NAME.source.json` next to the folder or file NAME, written by
`quench data get`. A record contains no rows.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SUFFIX = ".source.json"


@dataclass(frozen=True)
class Source:
    """The origin of a folder or a file."""

    address: str  # OWNER/NAME on the hub, or an address without its secrets
    revision: str | None  # the commit
    config: str | None
    split: str | None
    license: str | None
    columns: list[str]
    files: dict[str, dict[str, Any]]  # {name below the folder: sha256 and bytes}
    left_out: int  # number of the data set's files that were not fetched
    fetched: str  # date and time in UTC

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file["bytes"] for file in self.files.values())

    def is_same(self, other: "Source") -> bool:
        """Return True if both have one origin, whenever it was fetched."""
        return (self.address, self.revision, self.config, self.split) == (
            other.address,
            other.revision,
            other.config,
            other.split,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as they are written."""
        return asdict(self)


def record_path(target: Path) -> Path:
    """Return the path of the record of a folder or file in data/raw."""
    return target.with_name(target.name + SUFFIX)


def read_source(path: Path) -> Source | None:
    """Return a record; None if it is missing or invalid."""
    try:
        return Source(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def said_license(card: Mapping[str, Any]) -> str | None:
    """Return the license that a data set's card names, in one line."""
    named = card.get("license")
    entries = named if isinstance(named, list) else [named]
    names = [str(name) for name in entries if name]
    if names == ["other"] and card.get("license_name"):
        names = [str(card["license_name"])]
    return " ".join(", ".join(names).split())[:200] or None
