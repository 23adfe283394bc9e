"""Find the rows of a Hugging Face folder that each tensor of its GGUF is made of, for the architectures whose
conversion is known.

Names are mapped by the package gguf. What llama.cpp's converter does to values is implemented again here,
from its description. It orders the rows of q and k (Llama's and others') for its own rotary embedding. It
adds one to Gemma's norms and puts the experts of a layer into one tensor. It splits Granite 4's feed-forward
layers and multiplies Falcon-H1's weights. It orders the value heads of Qwen3.5's delta nets
(`pipeline.gguf.delta_heads`) and counts its layers for drafting among the others. What one family needs is in
its file (`pipeline.gguf.families`).

Mixtral's tensors have other names in its files than in transformers' model: `block_sparse_moe` for `mlp`, and
an expert's `w1`, `w3` and `w2` for `gate_proj`, `up_proj` and `down_proj`. So have Nemotron-H's: `backbone`
for `model`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.core.publish import read_json
from pipeline.gguf.delta_heads import DeltaHeads
from pipeline.gguf.families.base import Family
from pipeline.gguf.families.registry import family_of
from pipeline.gguf.header import CONFIG_FIELDS, LOCAL_ROPE_BASE
from pipeline.gguf.rope import factors_of
from pipeline.gguf.safetensors_rows import Entry, read_rows
from pipeline.gguf.tensors import BLOCK, Floats

STORED = re.compile(r"\.block_sparse_moe\.(?:gate\.|experts\.\d+\.w[123]\.)")
PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
# The renamings above as patterns, for transformers' `from_pretrained`.
KEY_MAPPING = {
    r"\.block_sparse_moe\.gate\.": ".mlp.gate.",
    **{
        rf"\.block_sparse_moe\.experts\.(\d+)\.{old}\.": rf".mlp.experts.\1.{new}."
        for old, new in PARTS.items()
    },
}
ONE_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
FUSED_EXPERTS = re.compile(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)(?:\.weight)?")
# Parameters that contain a linear of each of a layer's experts: the linears whose rows follow each other in
# one.
FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
# Granite 4's feed-forward linears: those of a dense layer whose rows follow each other in one.
SHARED = re.compile(r"(.*)\.shared_mlp\.(input_linear|output_linear)\.weight")
SHARED_PARTS = {"input_linear": ("gate_proj", "up_proj"), "output_linear": ("down_proj",)}
# {key of config.json: field of a GGUF's header} for settings that a model is computed with and that no
# tensor's shape proves, as a family's `settings`.
SETTINGS = {
    **{key: CONFIG_FIELDS[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")},
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "num_experts_per_tok": "expert_used_count",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": LOCAL_ROPE_BASE,
}
NOT_CONVERTED = (".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
# Prefixes of names in a model with a vision tower: its text part, and parts that the text's GGUF lacks.
TEXT_PART = "model.language_model."
VISION_PART = "model.visual."
# A layer for drafting (MTP), which follows the others in the file, and the tensors outside its layer.
DRAFT_LAYER = re.compile(r"mtp\.layers\.(\d+)\.(.+)")
DRAFTS = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}


def in_model(name: str) -> str:
    """Return the name in transformers' model of the tensor `name` in its file; for other models the same."""
    for pattern, new in KEY_MAPPING.items() if STORED.search(name) else ():
        name = re.sub(pattern, new, name)
    return re.sub(r"^backbone\.", "model.", name)


def plus_one(rows: Any) -> Any:
    """Return one more than each value, as in the file."""
    return rows + 1


def minus_exp(rows: Any) -> Any:
    """Return the decays of a state space, as in the file, from their stored logarithms."""
    return -rows.exp()


def in_folder(tensor: str, family: Family, values: Any) -> Any:
    """Return the folder's values for those of the GGUF's `tensor`, a torch tensor: the inverse."""
    change = value_change(tensor, family)
    if change is minus_exp:
        return (-values).log()
    return values - 1 if change is plus_one else values


@dataclass(frozen=True)
class Piece:
    """Rows [first, last) of a stored tensor. As `head`, they are one attention head whose rows are to be put
    in llama.cpp's order. The file contains `change` of each value, and the columns in the order of `columns`.
    """

    entry: Entry
    first: int
    last: int
    head: bool = False
    change: Callable[[Any], Any] | None = None
    columns: tuple[int, ...] = ()

    def blocks(self) -> Iterator[Floats]:
        """Yield the rows in llama.cpp's order, flat, in blocks of about `BLOCK` weights."""
        # Its first half and its second half alternate row by row (arXiv:2104.09864 pairs neighbors, Hugging
        # Face halves).
        if self.head:
            rows = self._read(self.first, self.last)
            yield np.stack(np.split(rows, 2), axis=1).reshape(-1)
            return
        step = max(1, BLOCK // max(self.entry.columns, 1))
        for first in range(self.first, self.last, step):
            yield self._read(first, min(first + step, self.last)).reshape(-1)

    def _read(self, first: int, last: int) -> Any:
        rows = self.stored(first, last)
        if self.change:
            # The converter computes in float16 if the tensor is float16, which rounds. It widens others
            # first.
            rows = self.change(rows if self.entry.dtype == "F16" else rows.float())
        values = rows.float().numpy()
        return values[:, list(self.columns)] if self.columns else values

    def stored(self, first: int, last: int) -> Any:
        """Return rows [first, last) as the folder has them, a torch tensor."""
        return read_rows(self.entry, first, last)


def sources(config: dict[str, Any], entries: dict[str, Entry]) -> dict[str, list[Piece]]:
    """Return {GGUF tensor: the pieces that follow each other in it}.

    The caller has checked that the family is known. A tensor whose name has no place in this architecture is
    listed under its own name.
    """
    family = known_family(config)
    config = text_config(config)
    layers = config["num_hidden_layers"]
    drafts = {int(match[1]) + 1 for match in map(DRAFT_LAYER.fullmatch, entries) if match}
    names = name_map(family, layers + max(drafts, default=0))
    heads = reordered_heads(family, config)
    delta = family.delta_heads(config)
    by_tensor: dict[str, list[Piece]] = {}
    stored = {in_model(name): name for name in entries}
    for name in sorted(stored, key=_expert_number):
        if name.endswith(NOT_CONVERTED) or name.startswith(VISION_PART):
            continue
        entry = entries[stored[name]]
        entry = replace(entry, shape=family.stored_shape(entry.name, entry.shape, config))
        for original, pieces in _parts(name, entry, heads, delta):
            tensor = _name_in_file(original, names, layers)
            change = value_change(tensor, family)
            changed = [replace(piece, change=change) for piece in pieces] if change else pieces
            products = family.products(original, entry.rows, config)
            if products:
                changed = [
                    replace(pieces[0], first=first, last=last, change=product)
                    for first, last, product in products
                ]
            by_tensor.setdefault(tensor, []).extend(changed)
    return by_tensor


def known_family(config: Mapping[str, Any]) -> Family:
    """Return the family of a config.json that is known to have one. Raises `KeyError` otherwise."""
    family = family_of(config)
    if family is None:
        raise KeyError(config.get("architectures"))
    return family


def value_change(tensor: str, family: Family) -> Callable[[Any], Any] | None:
    """Return the function that the converter applies to a GGUF tensor's values; None if there is none."""
    if tensor.endswith(".ssm_a"):
        return minus_exp
    if family.adds_one(tensor):
        return plus_one
    return None


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json's settings of the language model, separate in a model with a vision tower. The
    number of layers is among them, which transformers doesn't write for a Nemotron-H.
    """
    settings = dict(config)
    apart = config.get("text_config")
    if isinstance(apart, Mapping):
        whole = {key: config[key] for key in ("architectures", "tie_word_embeddings") if key in config}
        settings = {**apart, **whole}
    kinds = settings.get("layers_block_type")
    return {"num_hidden_layers": len(kinds), **settings} if kinds else settings


def _name_in_file(original: str, names: Any, layers: int) -> str:
    """Return the GGUF's name of a tensor; its own if it has none there."""
    if original in DRAFTS:
        return f"blk.{layers}.{DRAFTS[original]}"
    name = original.replace(TEXT_PART, "model.", 1)
    match = DRAFT_LAYER.fullmatch(original)
    if match:
        name = f"model.layers.{layers + int(match[1])}.{match[2]}"
    return mapped_name(name, names) or original


def mapped_name(name: str, names: Any) -> str | None:
    """Return the GGUF's name of transformers' tensor by the package gguf's map; None if it has none."""
    if name.endswith(".dt_bias"):  # The map has only the name that other models' linear gives it.
        name = name.replace(".dt_bias", ".dt_proj.bias")
    if name.endswith(".layer_scalar"):  # llama.cpp's converter names it so.
        name += ".weight"
    # The map has a Nemotron-H's layers by the names in its files.
    spelled = (name, re.sub(r"^model\.", "backbone.", name))
    found = (names.get_name(one, try_suffixes=(".weight", ".bias")) for one in spelled)
    return next(filter(None, found), None)


def name_map(family: Family, layers: int) -> Any:
    """Return the package gguf's map from transformers' names of tensors to llama.cpp's."""
    import gguf

    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == family.name)
    return gguf.get_tensor_name_map(number, layers)


def reordered_heads(family: Family, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the attention heads by linear whose rows llama.cpp puts in another order."""
    if not family.turns_neighbors:
        return {}
    count = config["num_attention_heads"]
    return {"q_proj": count, "k_proj": config.get("num_key_value_heads") or count}


def _parts(
    name: str, entry: Entry, heads: dict[str, int], delta: DeltaHeads | None
) -> Iterator[tuple[str, list[Piece]]]:
    """Yield the parts of a stored tensor: (Hugging Face's name for all experts together, its pieces)."""
    module = name.rpartition(".")[0]
    order = delta.rows(name) if delta else None
    columns = delta.columns(name) if delta else None
    count = heads.get(module.rpartition(".")[2])
    if count and entry.rows % (2 * count) == 0:
        size = entry.rows // count
        yield name, [Piece(entry, head * size, (head + 1) * size, head=True) for head in range(count)]
    elif order is not None:
        yield name, [Piece(entry, first, last) for first, last in _runs(order)]
    elif columns is not None:
        yield name, [Piece(entry, 0, entry.rows, columns=tuple(columns))]
    elif match := ONE_EXPERT.fullmatch(name):
        yield f"{match[1]}.{match[3]}.weight", [Piece(entry, 0, entry.rows)]
    elif match := FUSED_EXPERTS.fullmatch(name):
        together = entry.shape[1]  # rows of one expert
        rows = together // len(FUSED[match[2]])
        for place, part in enumerate(FUSED[match[2]]):
            starts = range(place * rows, entry.rows, together)
            yield f"{match[1]}.{part}.weight", [Piece(entry, start, start + rows) for start in starts]
    elif match := SHARED.fullmatch(name):
        parts = SHARED_PARTS[match[2]]
        rows = entry.rows // len(parts)
        for place, part in enumerate(parts):
            yield f"{match[1]}.mlp.{part}.weight", [Piece(entry, place * rows, (place + 1) * rows)]
    else:
        yield name, [Piece(entry, 0, entry.rows)]


def _runs(order: Any) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of numbers that follow each other in `order`."""
    starts = [0, *(np.flatnonzero(np.diff(order) != 1) + 1).tolist(), len(order)]
    for begin, end in pairwise(starts):
        first = int(order[begin])
        yield first, first + end - begin


def _expert_number(name: str) -> tuple[str, int]:
    """Return a key that sorts the experts of a layer by their number, not as text."""
    match = ONE_EXPERT.fullmatch(name)
    return (f"{match[1]}.{match[3]}", int(match[2])) if match else (name, 0)


def gguf_settings(config: Mapping[str, Any]) -> dict[str, float]:
    """Return {GGUF field: its number in config.json}, for `SETTINGS` and for its family, which is known."""
    family = known_family(config)
    config = text_config(config)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    values = {**config, **rope.get("full_attention", rope)}
    values["rope_theta"] = family.rope_base(values)
    if "sliding_attention" in rope:  # transformers writes it so; published files have rope_local_base_freq.
        values["rope_local_base_freq"] = rope["sliding_attention"].get("rope_theta")
    return {
        f"{family.name}.{field}": values[key]
        for key, field in {**SETTINGS, **family.settings}.items()
        if isinstance(values.get(key), int | float)
    }


def rope_factors(merged: Path) -> dict[str, Floats]:
    """Return the factors that the GGUF of the model in a Hugging Face folder has; see `factors_of`."""
    from transformers import AutoConfig

    config = read_config(merged)
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        return {}
    return factors_of(AutoConfig.from_pretrained(merged, local_files_only=True, trust_remote_code=False))


def read_config(merged: Path) -> dict[str, Any]:
    """Return the config.json of a Hugging Face folder."""
    return dict(read_json(merged / "config.json", "run `snakemake --force merge`"))
