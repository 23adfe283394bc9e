"""Map a model's parameters to names and row order in its GGUF, and prove that file and model are one to one.

llama.cpp's rotary embedding rotates neighbors, transformers' the two halves of a head. So in q and k the
converter puts row i of both halves side by side. It also orders the value heads of delta nets
(`pipeline.gguf.delta_heads`), in one linear by its columns. Blocks lie along a row, so moving rows keeps
every weight; columns stay where they are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from pipeline.config.targets import is_router, part_of, together
from pipeline.core.errors import DataError
from pipeline.gguf.delta_heads import DeltaHeads
from pipeline.gguf.families.base import Family
from pipeline.gguf.sources import in_folder, mapped_name
from pipeline.gguf.tensors import GgufTensor

LISTED = 3  # names listed in an error


class Place(NamedTuple):
    """Place of values in a GGUF: a tensor and, if it contains all experts of a layer, which part of it. None
    is the entire tensor.
    """

    tensor: str
    part: int | None


@dataclass(frozen=True)
class Names:
    """Names of a model's parameters in its GGUF, and the parameters that llama.cpp orders differently."""

    file: Path
    map: Any  # gguf's TensorNameMap
    heads: dict[str, int]  # attention heads, by linear with reordered rows
    family: Family
    delta: DeltaHeads | None  # heads of its delta nets, if it has any

    def of(self, parameter: str) -> str:
        """Return the GGUF's name of a parameter, one for all experts of a layer.

        Raises `DataError` if it has none.
        """
        name = mapped_name(together(parameter), self.map)
        if name is None:
            raise DataError(
                "Q-MODELS-027",
                f"{self.file} can't hold {parameter}, for which llama.cpp has no name: take another base",
            )
        return name

    def place(self, parameter: str, ending: str = "") -> Place:
        """Return the place of a parameter's values, in a tensor whose name ends with `ending`."""
        return Place(f"{self.of(parameter)}{ending}", part_of(parameter))

    def row_places(self, parameter: str, rows: int) -> torch.Tensor | None:
        """Return the place in the file of each of a parameter's `rows` rows; None if no row moves."""
        heads = self.heads.get(parameter.rpartition(".")[0].rpartition(".")[2])
        if heads:
            halves = torch.arange(rows).reshape(heads, rows // heads // 2, 2)
            return halves.transpose(1, 2).reshape(-1)
        order = self.delta.rows(parameter) if self.delta else None
        return None if order is None else torch.from_numpy(order).argsort()

    def grid(self, parameter: str) -> tuple[int, int] | None:
        """Return the order of a parameter's columns (`DeltaHeads.grid`); None if no column moves."""
        return self.delta.grid(parameter) if self.delta else None

    def in_order(self, parameter: str, rows: torch.Tensor) -> torch.Tensor:
        """Return rows (R, …) of the file in the order of the model's parameter."""
        places = self.row_places(parameter, len(rows))
        return rows if places is None else rows[places]

    def in_file_order(self, parameter: str, rows: torch.Tensor) -> torch.Tensor:
        """Return rows (R, …) of the model's parameter in the file's order."""
        places = self.row_places(parameter, len(rows))
        return rows if places is None else rows[places.argsort()]

    def in_model(self, parameter: str, values: torch.Tensor) -> torch.Tensor:
        """Return the values of a parameter from those that the file has for it."""
        return cast(torch.Tensor, in_folder(self.of(parameter), self.family, values))


def values_at(tensors: Mapping[str, GgufTensor], place: Place) -> GgufTensor | None:
    """Return the tensor or part at a place; None if there is none."""
    tensor = tensors.get(place.tensor)
    if tensor is None or place.part is None:
        return tensor
    return tensor.part(place.part) if len(tensor.shape) == 3 and place.part < tensor.shape[0] else None


def left_over(tensors: Mapping[str, GgufTensor], places: Iterable[Place]) -> list[str]:
    """Return the tensors that are not, or not in all their parts, at one of `places`.

    Each place is listed once.
    """
    taken = Counter(place.tensor for place in places)
    return [
        name
        for name, tensor in tensors.items()
        if taken[name] != (tensor.shape[0] if len(tensor.shape) == 3 else 1)
    ]


def is_matrix(path: str, module: Any) -> bool:
    """Return True if a GGUF can store the weight of the module at `path` in blocks: that of a linear or of
    embeddings, never that of a router.
    """
    return isinstance(module, torch.nn.Linear | torch.nn.Embedding) and not is_router(path)


def prove_complete(model: Any, tensors: dict[str, GgufTensor], names: Names) -> None:
    """Raise `DataError` unless the file's tensors and the model's parameters are one to one and every
    parameter has values.
    """
    used: dict[Place, str] = {}
    for parameter, values in model.named_parameters():  # A tied parameter is listed under its first name.
        place = names.place(parameter)
        if values.is_meta:
            raise DataError(
                "Q-MODELS-032", f"{names.file}: nothing in it filled {parameter}: take another base"
            )
        if place in used:
            raise DataError(
                "Q-MODELS-032",
                f"{names.file}: {place.tensor} filled both {used[place]} and {parameter}: take another base",
            )
        used[place] = parameter
    left = left_over(tensors, used)
    if left:
        more = f" and {len(left) - LISTED} more" if len(left) > LISTED else ""
        raise DataError(
            "Q-MODELS-029",
            f"{names.file} holds {', '.join(left[:LISTED])}{more}, which config.json has no place for: run "
            "`snakemake --force base`",
        )
    empty = next((name for name, values in model.named_buffers() if values.is_meta), None)
    if empty:
        raise DataError(
            "Q-MODELS-032",
            f"{names.file}: {empty} of {type(model).__name__} is in no file and was not computed: take "
            "another base",
        )
