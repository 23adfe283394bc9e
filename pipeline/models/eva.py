"""EVA: LoRA's A starts as the main directions of what its linear is given (arXiv:2410.07170).

B stays 0, so the model is the base until its first step, and the base's weights are not looked at: they may
be in 16 bit, in NF4 or in a GGUF's blocks. Ranks stay what they are (the paper's ρ = 1). PEFT's
`initialize_lora_eva_weights` repeats its batches until all directions have settled, however long that takes,
and without an end where no batch has as many vectors as directions are asked for; here each is seen once.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from peft.utils.incremental_pca import IncrementalPCA

from pipeline.chat.tokens import IGNORED
from pipeline.core.errors import ConfigError

SEED = 42  # of the randomized SVD, as in PEFT


class Directions:
    """The first `rank` main directions of vectors, which come bit by bit."""

    def __init__(self, rank: int) -> None:
        self.pca = IncrementalPCA(rank, lowrank=True, lowrank_seed=SEED)
        self.rank, self.seen, self.waiting = rank, 0, list[Any]()

    def add(self, vectors: Any) -> None:
        """Look at vectors (N, width) too, once there are `rank` of them."""
        self.seen += len(vectors)
        self.waiting.append(vectors.float())
        if sum(map(len, self.waiting)) >= self.rank:
            self.pca.partial_fit(torch.cat(self.waiting))
            self.waiting = []

    @property
    def found(self) -> Any:
        """The directions (rank, width), float32, each of length 1; None if too few vectors came."""
        return getattr(self.pca, "components_", None)


def start_by_eva(model: Any, batches: Iterable[Mapping[str, Any]]) -> int:
    """Give every A of `model` the main directions of its linear's inputs; the number of positions that were
    looked at.

    `model` is PEFT's, its adapter off, in evaluation mode. `batches` are the forward's arguments and `labels`
    (1, T): the positions with a label count, or all of a batch that has none. Raises `ConfigError` if they
    are too few.
    """
    layers = {name: one for name, one in model.named_modules() if isinstance(one, LoraLayer)}
    for name, one in layers.items():
        _check_rank(one, name.removeprefix("base_model.model."))
    directions = {name: Directions(one.r["default"]) for name, one in layers.items()}
    counting = torch.empty(0, dtype=torch.bool)

    def look(name: str, _: Any, inputs: Any) -> None:
        directions[name].add(inputs[0][counting])

    hooks = [one.register_forward_pre_hook(partial(look, name)) for name, one in layers.items()]
    positions = 0
    try:
        for batch in batches:
            counting = batch["labels"] != IGNORED
            counting = counting if bool(counting.any()) else torch.ones_like(counting)
            positions += int(counting.sum())
            given = {key: value for key, value in batch.items() if key != "labels"}
            model.get_base_model().model(**given, use_cache=False)  # without the head
    finally:
        for hook in hooks:
            hook.remove()
    for name, layer in layers.items():
        _fill(layer, directions[name], name.removeprefix("base_model.model."))
    return positions


def _check_rank(layer: Any, name: str) -> None:
    rank = layer.r["default"]
    if rank > layer.in_features:
        raise ConfigError(
            "Q-MODELS-036",
            f"train.init_lora_weights is eva, and {name} is given vectors of {layer.in_features} numbers, "
            f"which have no {rank} directions: lower train.r",
        )


def _fill(layer: Any, directions: Directions, name: str) -> None:
    start = layer.lora_A["default"].weight
    if directions.found is None:
        raise ConfigError(
            "Q-MODELS-036",
            f"train.init_lora_weights is eva, and {name} was given {directions.seen} vectors of "
            f"{layer.in_features} numbers, too few for {len(start)} directions: raise train.eva_rows, or "
            "lower train.r",
        )
    with torch.no_grad():
        start.copy_(directions.found)
