"""Bytes that stay from first step to last: weights, adapter, gradients, optimizer. Exact, by tensor."""

import json
from functools import lru_cache
from math import ceil

from pipeline.config.sections import Train
from pipeline.config.sections.adapters import TABLES
from pipeline.config.targets import (
    is_target,
    misfits,
    rank_of,
    tells_experts_apart,
    trains_in,
    with_own_targets,
)
from pipeline.core.errors import ConfigError
from pipeline.models.experts.targets import check_mixture
from pipeline.planning.model.shape import Linear, Shape
from pipeline.planning.setup import FLOAT, Setup, base_kind

# bitsandbytes' 8-bit optimizers
EIGHT_BIT_BLOCK = 256  # elements that share a scale
SMALLEST_EIGHT_BIT = 4096  # elements of the smallest tensor with 8-bit states
EIGHT_BIT_CODE = 256 * FLOAT  # bytes of a state's table
# States that an optimizer keeps per trained parameter, by its name in transformers: (number of states, True
# if they are 8 bit, True if there is a step tensor).
OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused"), (2, False, True)),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"), (2, True, False)),
    "paged_adamw_32bit": (2, False, False),
    **dict.fromkeys(("lion_8bit", "paged_lion_8bit"), (1, True, False)),
    **dict.fromkeys(("lion_32bit", "paged_lion_32bit"), (1, False, False)),
    "sgd": (0, False, False),
}
# Layers in memory at once if `train.offload: shared` moves their parts off a card; estimated, not measured on
# GPUs. These are the layer that runs, the next, which FSDP2 gathers ahead, and the buffer that it gathers
# into.
GATHERED = 3
Linears = tuple[Linear, ...]  # linears of a layer
# Settings that `misfits` reads.
ASKED = {"target_modules", "experts", "layers", "r", "lora_alpha"}
ASKED |= {"lora_variants", "rank_pattern", "offload", "tuner"}


def offloaded_bytes(setup: Setup) -> list[int]:
    """Return the bytes in main memory of each layer that is offloaded (`pipeline.models.offload`)."""
    return base_kind(setup).layers[: setup.train.offloaded_layers]


def shared_bytes(setup: Setup) -> tuple[int, int]:
    """Return (bytes of the layers' linears in other processes, bytes of the layers gathered at once).

    See `pipeline.models.sharded`. It is (0, 0) if every process has them all.
    """
    layers = base_kind(setup).layers
    gathered = min(GATHERED * max(layers), sum(layers)) if setup.parts > 1 else 0
    return sum(layers) - sum(layers) // setup.parts, gathered


def off_card_bytes(setup: Setup) -> int:
    """Return the bytes of an embedding that is in main memory.

    It is 0 for a GGUF's, and for one that is the head too.
    """
    base = base_kind(setup)
    movable = setup.device == "cuda" and not base.is_file and not setup.shape.tied
    return base.tables[0] // 2 if setup.train.embeddings_in_ram and movable else 0


def small_bytes(setup: Setup) -> int:
    """Return the bytes of norms and biases, and of the rotary embedding's two float32 frequency tables."""
    if setup.shape.built:
        return setup.shape.small_weights * setup.element + setup.shape.built.buffers
    return setup.shape.small_weights * setup.element + 2 * ceil(setup.shape.head_dim / 2) * FLOAT


def frozen_bytes(setup: Setup) -> int:
    """Return the bytes of all weights that don't train, on any device."""
    base = base_kind(setup)
    return base.linears + base.tables[0] + small_bytes(setup)


def targets(setup: Setup) -> tuple[Linears, ...]:
    """Return the linears that train, of each layer.

    Raises `ConfigError` for targets or layers that the model doesn't have, and as `check_mixture`.
    """
    shape = setup.shape
    train = setup.train
    check_mixture(train, mixture=shape.mixture)
    linears = _targets(shape, train.model_dump_json(include=ASKED))
    if isinstance(linears, str):
        raise ConfigError("Q-PLANNING-007", linears)
    return linears


@lru_cache(maxsize=64)  # A plan calls it often, and a mixture may have 18,432 experts' linears.
def _targets(shape: Shape, settings: str) -> tuple[Linears, ...] | str:
    """Return the result of `targets`, or the first of `misfits`.

    `settings` is JSON, which can be a key of the cache.
    """
    train = Train.model_construct(**json.loads(settings))
    apart = tells_experts_apart(train)
    paths = [
        linear.path(layer, copy)
        for layer, linears in enumerate(shape.adaptable)
        for linear in linears
        for copy in range(linear.copies if apart else 1)
    ]
    if not shape.mixture:
        train = with_own_targets(train, paths)
    problem = next(misfits(train, paths, shape.layers), None)
    if problem:
        return problem
    return tuple(
        tuple(linear for linear in linears if is_target(linear.path(layer), train))
        for layer, linears in enumerate(shape.adaptable)
    )


def lora_shapes(setup: Setup) -> list[int]:
    """Return the elements of every tensor of the adapter.

    These are A (r × in) and B (out × r) of each targeted linear, under DoRA its magnitudes (out) too. It is
    empty if the linears' own numbers train. Raises what `targets` does.
    """
    tensors: list[int] = []
    for layer, linears in enumerate(targets(setup)):
        for linear in linears:
            rank = rank_of(linear.path(layer), setup.train)
            magnitudes = [linear.outputs] if setup.train.use_dora else []
            tensors += [rank * linear.inputs, rank * linear.outputs, *magnitudes] * linear.copies
    return [] if setup.train.tuning.inside else tensors


def saved_norms(setup: Setup) -> list[tuple[int, int]]:
    """Return (layer, elements) of every norm that trains fully; the last one's layer is the number of layers.

    Raises `ConfigError` for one that the model doesn't have.
    """
    shape = setup.shape
    train = setup.train
    sizes = dict.fromkeys(("input_layernorm", "post_attention_layernorm"), shape.hidden)
    if shape.qk_norms:
        sizes |= dict.fromkeys(("q_norm", "k_norm"), shape.head_dim)
    if shape.built:
        sizes = dict(norm for norms in shape.built.norms for norm in norms)
    layers = [layer for layer in range(shape.layers) if trains_in(layer, train)]
    norms = []
    for name in train.modules_to_save:
        if name in TABLES:
            continue
        if name != "norm" and name not in sizes:
            raise ConfigError(
                "Q-PLANNING-007",
                f"train.modules_to_save names {name}, which this model has not: take it out",
            )
        if name == "norm":  # the last one
            norms.append((shape.layers, shape.hidden))
        else:
            norms += [(layer, sizes[name]) for layer in layers]
    return norms


def saved_tables(setup: Setup) -> list[int]:
    """Return the elements of embeddings and head that train fully; one table for both counts once."""
    count = min(len(setup.train.saved_tables), 1 if setup.shape.tied else 2)
    return [setup.shape.table_weights] * count


def table_trains(name: str, setup: Setup) -> bool:
    """Return True if `name` (embed_tokens or lm_head) trains fully, also if it is tied to one that does."""
    named = setup.train.saved_tables
    return name in named or (bool(named) and setup.shape.tied)


def first_trained(setup: Setup) -> int:
    """Return the first layer in which something trains: the ones below have no backward."""
    if table_trains("embed_tokens", setup):
        return 0
    norms = [layer for layer, _ in saved_norms(setup)]
    return min([layer for layer, linears in enumerate(targets(setup)) if linears] + norms)


def lora_parameters(setup: Setup) -> int:
    """Return Σ r·(in + out) over the targeted linears (LoRA, arXiv:2106.09685); with DoRA + out."""
    return sum(lora_shapes(setup))


def lora_bytes(setup: Setup) -> int:
    """Return the bytes of the adapter's GGUF: Σ r·(in + out) × 2; its header is some kilobytes."""
    return lora_parameters(setup) * 2


def trained_tensors(setup: Setup) -> list[int]:
    """Return the elements of every tensor that trains.

    These are the adapter's matrices and the fully trained modules, or the scales of each targeted linear.
    Raises `ConfigError` for a target that the layers don't have, `AssertionError` if scales train and their
    number is missing.
    """
    if not setup.train.tuning.inside:
        return lora_shapes(setup) + [size for _, size in saved_norms(setup)] + saved_tables(setup)
    assert setup.quantized, "the scales of a GGUF train, and how many it has is missing"
    trained = {
        f"blk.{layer}.{linear.tensor}" for layer, linears in enumerate(targets(setup)) for linear in linears
    }
    return [count for name, count in setup.quantized.scales if name in trained]


def adapter_bytes(setup: Setup) -> int:
    """Return the bytes of the trained weights as they are saved. PEFT writes a tied table twice."""
    twice = setup.shape.table_weights if setup.train.saved_tables and setup.shape.tied else 0
    return FLOAT * (sum(trained_tensors(setup)) + twice)


def optimizer_bytes(setup: Setup) -> int:
    """Return the bytes of optimizer states for what trains, by torch's and bitsandbytes' `init_state`.

    An 8-bit state has a float32 scale per 256 elements and shares one table per state; a matrix below 4,096
    elements keeps 32-bit states. A paged one counts as on the card, because it leaves it only when memory
    runs short.
    """
    states, eight_bit, step = OPTIMIZERS[setup.train.optim]
    matrices = trained_tensors(setup)
    if not eight_bit:
        return states * FLOAT * sum(matrices) + (FLOAT * len(matrices) if step else 0)
    large = [size for size in matrices if size >= SMALLEST_EIGHT_BIT]
    small = sum(matrices) - sum(large)
    each = sum(size + ceil(size / EIGHT_BIT_BLOCK) * FLOAT for size in large) + small * FLOAT
    return states * (each + (EIGHT_BIT_CODE if large else 0))
