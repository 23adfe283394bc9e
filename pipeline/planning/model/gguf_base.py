"""Bytes of a base that is trained on as a GGUF.

They come from the file's header, or from a level and a shape before there is a file.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config.ggml_types import LEVELS, TYPES
from pipeline.core.errors import ConfigError, DataError
from pipeline.gguf.families.registry import LINEARS, family_in
from pipeline.gguf.header import CONFIG_FIELDS, Header, NotGguf, read_header, tensor_bytes
from pipeline.models.base_header import read_metadata, stated_config
from pipeline.planning.model.config_file import read_shape
from pipeline.planning.model.level_bytes import level_bytes, matrices
from pipeline.planning.model.shape import FUSED_TENSORS, SIZES, TENSORS, Shape

NAMES = "|".join({*TENSORS.values(), *FUSED_TENSORS.values(), *LINEARS.values()})
LINEAR = re.compile(rf"blk\.\d+\.({NAMES})(_exps|_shexp)?\.weight")
SAMPLED = 64  # One of so many blocks of rows is read.
AT_A_TIME = {"cpu": 1 << 20, "cuda": 1 << 24}  # weights
LEVEL_NAMES = "|".join(sorted((*LEVELS, "F16", "BF16", "F32")))
LEVEL = re.compile(rf"(?<![a-z0-9])({LEVEL_NAMES}|FP16)(?![a-z0-9_])", re.IGNORECASE)


@dataclass(frozen=True)
class QuantizedBase:
    """Bytes of the quantized matrices of a GGUF, and of the entire file.

    `head` is 0 if the embeddings are the head as well.
    """

    linears: int
    embeddings: int
    head: int
    file: int
    ggml_types: frozenset[str]  # ggml types of the matrices
    source: str  # origin of the sizes: "as in the file", "computed for Q4_K_M"
    # Bytes of the GGUF from which it is quantized here (`base.level`); 0 if the file is used unchanged.
    made_from: int = 0
    # (blk.0.attn_q, number of scales and minima in its blocks) for every linear of every layer.
    scales: tuple[tuple[str, int], ...] = ()
    layers: tuple[int, ...] = ()  # bytes of each layer's linears

    @property
    def tables(self) -> int:
        """Bytes of embeddings and head."""
        return self.embeddings + self.head

    def scratch(self, device: str, block: int) -> int:
        """Return the bytes for dequantizing `block` weights in addition to the result.

        `device` is "cpu" or "cuda" (Triton).
        """
        kinds = [TYPES[name] for name in self.ggml_types if name in TYPES]
        alone = [kind.scratch or 0 for kind in kinds if device != "cuda" or not kind.kernel]
        return min(block, AT_A_TIME[device]) * max(alone, default=0)


def quantized_file(file: Path) -> QuantizedBase:
    """Return the bytes of a GGUF, exact, from its header. Raises `DataError` if it is not complete."""
    from gguf import GGMLQuantizationType

    header = _header(file)
    sizes = {
        name: tensor_bytes(name, shape, ggml_type) for name, (shape, ggml_type) in header.tensors.items()
    }
    linears = [name for name in sizes if LINEAR.fullmatch(name) and not name.startswith(header.drafting)]
    types = {name: GGMLQuantizationType(header.tensors[name][1]).name for name in linears}
    tables = [name for name in ("token_embd.weight", "output.weight") if name in sizes]
    ggml_types = frozenset(GGMLQuantizationType(header.tensors[name][1]).name for name in (*linears, *tables))
    return QuantizedBase(
        sum(sizes[name] for name in linears),
        sizes.get("token_embd.weight", 0),
        sizes.get("output.weight", 0),
        file.stat().st_size,
        ggml_types,
        "as in the file",
        scales=tuple((name.removesuffix(".weight"), scales_of(types[name], sizes[name])) for name in linears),
        layers=by_layer((int(name.split(".")[1]), sizes[name]) for name in linears),
    )


def scales_of(ggml_type: str, stored: int) -> int:
    """Return the number of float16 scales and minima of the blocks in `stored` bytes; 0 for floats."""
    kind = TYPES[ggml_type]
    return stored // kind.bytes * (len(kind.scales) or 1) if kind.weights > 1 else 0


def quantized_level(shape: Shape, level: str) -> QuantizedBase:
    """Return the bytes of `level` before there is a file.

    Each tensor has the type that llama-quantize would give it.
    """
    sizes = {"linears": 0, "token_embd": 0, "output": 0}
    ggml_types = set()
    scales = []
    of_layers = []
    layers = iter([layer for layer, linears in enumerate(shape.by_layer) for _ in linears])
    for tensor, ggml_type, size in matrices(shape, level):
        if tensor not in sizes:
            layer = next(layers)
            scales.append((f"blk.{layer}.{tensor}", scales_of(ggml_type, size)))
            of_layers.append((layer, size))
        sizes[tensor if tensor in sizes else "linears"] += size
        ggml_types.add(ggml_type)
    return QuantizedBase(
        sizes["linears"],
        sizes["token_embd"],
        sizes["output"],
        level_bytes(shape, level),
        frozenset(ggml_types),
        f"computed for {level}",
        scales=tuple(scales),
        layers=by_layer(of_layers),
    )


def by_layer(sizes: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the sum of each layer's bytes, from (layer, bytes) in any order."""
    totals = Counter[int]()
    for layer, size in sizes:
        totals[layer] += size
    return tuple(totals[layer] for layer in range(len(totals)))


def level_of(name: str) -> str:
    """Return the level in a GGUF's file name: Q4_K_M for "qwen2.5-7b-instruct-q4_k_m.gguf".

    Raises `ConfigError` if the name contains none.
    """
    levels = LEVEL.findall(name.rpartition("/")[2])
    if not levels:
        raise ConfigError(
            "Q-PLANNING-001",
            f"the name {name} says no level, so what is in it is not known before it is here: run "
            "`snakemake base`",
        )
    return str(levels[-1]).upper().replace("FP16", "F16")


def _would_be_tied(file: Path, header: Header) -> bool:
    # These import NumPy, which planning from a hub's config never needs.
    from pipeline.gguf.tensors import gguf_tensors
    from pipeline.gguf.tied import one_matrix

    return one_matrix(header, gguf_tensors(file)[1], SAMPLED) is not None


def gguf_shape(file: Path, unpacked: bool = False, *, build: bool = True) -> Shape:
    """Return the shape of the model in a GGUF, from its header.

    With `unpacked` it has the head that stage `base` would tie, by a sample of its rows. Raises `ConfigError`
    for an architecture whose header alone doesn't define its shape, or that would have to be built
    (`read_shape`) unless `build` is set, `DataError` for a damaged file and for one that can't be trained on.
    """
    header = _header(file)
    read_metadata(header, file)
    biased = "blk.0.attn_q.bias" in header.tensors
    stated = _family_settings(header, file) if build else None
    config = {
        **(stated or _sizes(header)),
        "pad_token_id": None,  # Some families' default is beyond a small vocabulary.
        "attention_bias": biased,
        "qkv_bias": biased,
        "mlp_bias": "blk.0.ffn_gate.bias" in header.tensors,
        **stated_config(header),
    }
    if unpacked and not config["tie_word_embeddings"]:
        config["tie_word_embeddings"] = _would_be_tied(file, header)
    return read_shape(config, str(file), build=stated is not None)


def _family_settings(header: Header, file: Path) -> dict[str, Any] | None:
    """Return config.json's settings of a family that its header describes; None for other families."""
    family = family_in(header.fields)
    if family is None or family.model_type is None:
        return None
    # This imports transformers.
    from pipeline.models.header_config import header_config

    settings: dict[str, Any] = header_config(header, family, file).to_dict()
    return settings


def _sizes(header: Header) -> dict[str, Any]:
    architecture = header.fields.get("general.architecture")
    sizes = {key: header.fields.get(f"{architecture}.{CONFIG_FIELDS[key]}") for key in SIZES}
    return {"model_type": architecture} | {key: value for key, value in sizes.items() if value is not None}


def _header(file: Path) -> Header:
    try:
        return read_header(file)
    except NotGguf as error:
        raise DataError(
            "Q-PLANNING-002", f"{file} is not a complete GGUF file ({error}): fetch it again"
        ) from None
    except OSError as error:
        raise DataError(
            "Q-PLANNING-002", f"{file} can't be read ({error.strerror}): run `snakemake base`"
        ) from None
