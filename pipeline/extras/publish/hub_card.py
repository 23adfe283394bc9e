"""The card of a repository on the hub (its README.md): metadata, the levels that it has, how to use them.

What Quench writes is between two comments. Everything else in a card that is there stays: a text around it,
metadata that Quench does not know.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from pipeline.extras.publish.shipped import (
    UNKNOWN,
    Shipped,
    body_of,
    front_matter_of,
    known_license,
)
from pipeline.pages.templating import fill
from pipeline.ship.listing import SIGNATURE

BEGIN = "<!-- quench: the next `quench ship --push` replaces what is between this comment and its end -->"
END = "<!-- quench: end -->"
SECTION = re.compile(r"^## ", re.MULTILINE)
RELATION = "base_model_relation"


def repository_card(newest: Shipped, levels: Mapping[str, Shipped], repository: str, old: str) -> str:
    """Return the card of a repository with these `levels`, of which `newest` is pushed now; `old` is the card
    that is there.

    Raises `ValueError` if the old card's metadata can't be read.
    """
    known = front_matter_of(old)
    metadata = known | newest.metadata
    if known_license(newest.metadata) is None:
        metadata["license"] = known_license(known) or UNKNOWN
    relations = {level.metadata.get(RELATION) for level in levels.values()}
    if "quantized" in relations:
        metadata[RELATION] = "quantized"
    tags = [*_listed(known.get("tags")), *_listed(newest.metadata.get("tags"))]
    metadata["tags"] = list(dict.fromkeys(tags))
    own = fill("hub_card.md.jinja", **_values(newest, levels, repository)).strip()
    text = _placed(f"{BEGIN}\n\n{own}\n\n{END}", body_of(old).strip() or f"# {newest.name}")
    front = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True).rstrip()
    return f"---\n{front}\n---\n\n{text.strip()}\n"


def _values(newest: Shipped, levels: Mapping[str, Shipped], repository: str) -> dict[str, Any]:
    sections = _sections(newest.card)
    return {
        "repository": repository,
        "newest": newest,
        "levels": sorted(levels.values(), key=lambda level: level.evaluation.bytes),
        "intro": sections.get("", "").partition("\n**")[0].strip().partition("\n\n")[2],
        "sections": {title: sections[title] for title in ("Data", "Limits") if title in sections},
        "signature": SIGNATURE in newest.files,
    }


def _sections(card: str) -> dict[str, str]:
    """Return the text below each heading of the second order; "" has what is before the first."""
    first, *rest = SECTION.split(body_of(card))
    titled = (part.partition("\n") for part in rest)
    return {"": first} | {title.strip(): text.strip() for title, _, text in titled}


def _placed(own: str, old: str) -> str:
    """Return the old text with `own` in the place of what an earlier push wrote, otherwise at the end."""
    before, begun, rest = old.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if begun and ended:
        return f"{before}{own}{after}"
    return f"{old.replace(BEGIN, '').replace(END, '').rstrip()}\n\n{own}"


def _listed(value: Any) -> list[str]:
    return [str(tag) for tag in value] if isinstance(value, list) else []
