"""A level as its bundle describes it, here or in a repository on the hub."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from pipeline.gate.evaluations import Evaluation
from pipeline.gguf.provenance import ADAPTER
from pipeline.ship.bundle import CARD, EVALUATION, SUMS
from pipeline.ship.card import claimed
from pipeline.ship.listing import SIGNATURE, checksums, read_small

UNKNOWN = "unknown"  # license of a base that names none


@dataclass(frozen=True)
class Shipped:
    """One level: its evaluation, its card, and the checksums of its files."""

    folder: Path
    evaluation: Evaluation
    card: str
    sums: Mapping[str, str]  # sha256 by the path in the bundle

    @property
    def level(self) -> str:
        """Name of the level, and of its folder on the hub."""
        return self.evaluation.model

    @property
    def ggufs(self) -> list[str]:
        """Names of the GGUFs: one, or a base's and its adapter's."""
        return [name for name in self.sums if name.endswith(".gguf")]

    @property
    def files(self) -> list[str]:
        """Paths of all files in the bundle, also those that SHA256SUMS can't list."""
        signed = (self.folder / SIGNATURE).is_file()
        return [*self.sums, SUMS, *([SIGNATURE] if signed else [])]

    @property
    def name(self) -> str:
        """Name of the project: `demo` of demo-Q4_K_M.gguf."""
        return self.folder.name.removesuffix(f"-{self.level}")

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the card for the hub."""
        return front_matter_of(self.card)

    @property
    def license(self) -> str | None:
        """License of the base; None if it is not known."""
        return known_license(self.metadata)

    @property
    def adapter_sha256(self) -> str | None:
        """Hash of the trained weights, by which levels of one training are recognized."""
        sha256 = claimed(self.card).get(ADAPTER)
        return sha256 if isinstance(sha256, str) else None

    def placed(self) -> dict[str, str]:
        """Return the sha256 of each file by its path in the repository."""
        return {self.place(name): sha256 for name, sha256 in self.sums.items()}

    def place(self, name: str) -> str:
        """Return the path in the repository: a GGUF is at the top, as people look for it, the rest in a
        folder of the level.
        """
        return name if name in self.ggufs else f"{self.level}/{name}"


def read_bundle(folder: Path) -> Shipped:
    """Return the level whose bundle's texts are in `folder`.

    Raises `ValueError` (also pydantic's and `Hostile`) or OSError for texts that no bundle has.
    """
    evaluation = Evaluation.model_validate(json.loads(read_small(folder / EVALUATION)))
    card = read_small(folder / CARD)
    claimed(card)  # It raises for a damaged card.
    return Shipped(folder, evaluation, card, checksums(read_small(folder / SUMS)))


def front_matter_of(card: str) -> dict[str, Any]:
    """Return the metadata at a card's beginning; {} if it has none. Raises `ValueError` if it is damaged."""
    match = REGEX_YAML_BLOCK.search(card)
    try:
        metadata = yaml.safe_load(match[2]) if match else None
    except yaml.YAMLError as error:
        raise ValueError("the card's metadata is not YAML") from error
    if metadata is not None and not isinstance(metadata, dict):
        raise ValueError("the card's metadata is not an object")
    return dict(metadata or {})


def body_of(card: str) -> str:
    """Return a card without its metadata."""
    match = REGEX_YAML_BLOCK.search(card)
    return card[match.end() :] if match else card


def known_license(metadata: Mapping[str, Any]) -> str | None:
    """Return the license that a card's metadata names; None if there is none, or it is not known."""
    named = metadata.get("license")
    return named if isinstance(named, str) and named.lower() != UNKNOWN else None
