"""Packing: which sequences share a packed row, so that hardly a token of it is empty; whether a model keeps
packed rows apart, measured on a small random one of the base's own architecture.

Packed rows have no attention mask, only positions that start again (TRL's `padding_free`). Attention that
reads them sees each row alone; a recurrent layer, or attention that ignores them, would let rows leak into
each other in silence.
"""

import json
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config.methods import Method
from pipeline.core.errors import ConfigError

LIMIT = 1e-4  # largest difference of a logit between packed and alone, in float32; leaks are some 0.01 to 25
# tokens of the rows that are packed; longer than `WINDOW`, so that sliding attention slides
LENGTHS = (7, 19, 12)
WINDOW = 8
INNER = 64  # features between gate or up and down, of a mixture's experts too
# sizes that make any architecture small; what a config lacks is left out
SMALL = {
    "vocab_size": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
}


class Asked(NamedTuple):
    """The setting that has rows packed, and what to do if the base can't have it."""

    by: str
    remedy: str


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The sequences, by number, of each packed row of at most `capacity` tokens; each sequence is in one,
    whole.

    Best-fit decreasing over all of them (as TRL's `bfd`, which does it for 1,000 at a time;
    arXiv:2404.10830): the longest first, each into the row that it fills best. Equal lengths keep their
    order, so equal input gives equal rows. Raises `AssertionError` where a sequence is longer than a row or
    empty: nothing is cut here.
    """
    rows: list[list[int]] = []
    by_space = defaultdict[int, list[int]](list)  # tokens left: the rows that have this many left
    spaces: list[int] = []  # its keys, ascending: the smallest that is large enough is the best fit
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[number]
        _check_fits(number, length, capacity)
        place = bisect_left(spaces, length)
        if place < len(spaces):
            space = spaces[place]
            row = by_space[space].pop()
            if not by_space[space]:
                spaces.pop(place)
        else:
            space, row = capacity, len(rows)
            rows.append([])
        rows[row].append(number)
        if space > length:
            if not by_space[space - length]:
                insort(spaces, space - length)
            by_space[space - length].append(row)
    return rows


def in_order(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The sequences, by number, of each packed row of at most `capacity` tokens, in the order given: a row
    ends before the sequence that doesn't fit any more.

    Raises `AssertionError` as `best_fit` does.
    """
    rows: list[list[int]] = []
    space = 0
    for number, length in enumerate(lengths):
        _check_fits(number, length, capacity)
        if length > space:
            rows.append([])
            space = capacity
        rows[-1].append(number)
        space -= length
    return rows


def _check_fits(number: int, length: int, capacity: int) -> None:
    if not 0 < length <= capacity:
        raise AssertionError(f"sequence {number} has {length} tokens, a packed row takes 1 to {capacity}")


BY_PACKING = Asked("preprocess.packing is true", "set it to false")


def packed_by(method: Method) -> Asked:
    """Return who packs rows if `preprocess.packing` is not asked: a method that learns from answers."""
    return Asked(
        f"train.method is {method}, which computes several answers as one row",
        "choose another base, or train.method sft with preprocess.packing false",
    )


def need_rows_apart(base: Path, asked: Asked = BY_PACKING) -> float:
    """Return the largest difference of a logit by packing. Raises `ConfigError` above `LIMIT` or if it can't
    be measured.
    """
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    kind = config.get("model_type")
    try:
        difference = packed_difference(small_model(config))
    except Exception as error:  # any architecture may demand sizes of its own
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            "Q-PREPROCESS-002",
            f"{asked.by}, but whether {kind} keeps packed rows apart could not be measured ({why}): "
            f"{asked.remedy}",
        ) from error
    if not difference <= LIMIT:
        raise ConfigError(
            "Q-PREPROCESS-003",
            f"{asked.by}, but {kind} can't keep rows apart (a packed row's logits differ by "
            f"{difference:.2g} from the same row's alone, {LIMIT:g} is the limit): {asked.remedy}",
        )
    return difference


def small_model(config: dict[str, Any]) -> Any:
    """A random float32 model by `config` (a decoded config.json): a layer of each type, narrow."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # some architectures advise to install kernels
    full = AutoConfig.for_model(**config).get_text_config()
    layers = _layers(full)
    values = full.to_dict()
    small = {key: value for key, value in SMALL.items() if values.get(key)}
    small |= {key: INNER for key in values if key.endswith("intermediate_size") and values[key]}
    small |= {"num_hidden_layers": layers, "hidden_size": 64}
    if heads := values.get("num_attention_heads"):
        # kept: rotary frequencies can be listed one by one
        head_size = values.get("head_dim") or values["hidden_size"] // heads
        groups = 1 if (values.get("num_key_value_heads") or heads) < heads else 2
        small |= {"num_attention_heads": 2, "num_key_value_heads": groups, "hidden_size": 2 * head_size}
    if values.get("expand"):
        small["intermediate_size"] = int(values["expand"] * small["hidden_size"])
    if values.get("sliding_window"):
        small["sliding_window"] = WINDOW
    if values.get("layer_types"):
        small["layer_types"] = values["layer_types"][:layers]
    ids = {key: 0 for key, value in values.items() if key.endswith("_token_id") and value is not None}
    left_out = {"quantization_config", "dtype", "torch_dtype"}
    kept = {key: value for key, value in values.items() if key not in left_out}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            type(full).from_dict(kept | small | ids), dtype=torch.float32
        )
    return model.eval()


def _layers(config: Any) -> int:
    """How many layers hold at least two, and one of every type."""
    types: list[str] = getattr(config, "layer_types", None) or []
    return min(int(config.num_hidden_layers), max([2, *(types.index(kind) + 1 for kind in set(types))]))


def packed_difference(model: Any) -> float:
    """The largest absolute difference of a logit between rows packed by TRL's collator and rows alone."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(1)
        rows = [torch.randint(1, model.config.vocab_size, (1, length)) for length in LENGTHS]
        alone = torch.cat([model(input_ids=row, use_cache=False).logits for row in rows], dim=1)
        packed = model(input_ids=torch.cat(rows, dim=1), use_cache=False, **packed_positions(LENGTHS)).logits
    return float((packed - alone).abs().max())


def packed_positions(lengths: tuple[int, ...]) -> dict[str, Any]:
    """What TRL's collator says of a packed row beside its ids: positions, rows' starts and numbers."""
    import torch

    sizes = torch.tensor(lengths)
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), sizes.cumsum(0).to(torch.int32)])
    return {
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        "cu_seq_lens_q": starts,
        "cu_seq_lens_k": starts,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "seq_idx": torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), sizes)[None],
    }
