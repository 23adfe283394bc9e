"""Convert a Hugging Face folder to a GGUF, an adapter to a GGUF, and a GGUF to a level. Each file is
published only if it reads back completely.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pipeline.config.ggml_types import TYPES
from pipeline.config.targets import alpha_alone, merged_only
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import need_disk, publishing, read_json
from pipeline.gguf.file import check_gguf, need_quantized
from pipeline.gguf.provenance import lineage_fields
from pipeline.gguf.tensors import gguf_tensors
from pipeline.llamacpp.tools import VERSION, Llama, Toolchain, run_converter, run_tool

FloatType = Literal["F16", "BF16"]
Fields = Mapping[str, str | int | float]  # GGUF metadata; numbers are written as uint32 and float32
NO_FIELDS: Fields = MappingProxyType({})
NO_TYPES: Mapping[str, str] = MappingProxyType({})


def base_fields(lineage: Path, tools: Toolchain) -> dict[str, str | int]:
    """Return the provenance of every GGUF: the base (`lineage` is models/base.json) and llama.cpp. Raises
    `DataError` if the record can't be read.
    """
    return lineage_fields(lineage) | {
        "quench.llama_cpp.commit": tools.commit,
        "quench.llama_cpp.package": VERSION,
    }


@dataclass(frozen=True)
class HeaderFields:
    """Header of a GGUF to convert: general.name, tokenizer.ggml.pre (None: the converter looks it up in its
    list of hashes), and additional fields, which override the converter's own.
    """

    name: str
    pre: str | None = None
    fields: Fields = field(default_factory=dict)


def to_gguf(tools: Toolchain, folder: Path, target: Path, type: FloatType, header: HeaderFields) -> None:
    """Write the model in `folder` to `target` in 16-bit floats. Raises `ToolError` if the converter fails."""
    need_disk(target.parent, sum(shard.stat().st_size for shard in folder.glob("*.safetensors")))
    with publishing(target, check_gguf) as aside:
        run_converter(
            tools,
            "convert_hf_to_gguf.py",
            [folder, "--outtype", type.lower(), "--model-name", header.name, "--outfile", aside],
            header.pre,
            header.fields,
        )


def lora_to_gguf(
    tools: Toolchain, adapter: Path, base: Path, target: Path, type: FloatType, fields: Fields = NO_FIELDS
) -> None:
    """Write the adapter of the model in `base` as `target`, for `llama-server --lora`.

    Raises `DataError` if an adapter's GGUF can't represent it, `ToolError` if the converter fails.
    """
    config = read_json(adapter / "adapter_config.json", "run `snakemake --force train`")
    problem = merged_only(config)
    if problem:
        raise DataError(
            "Q-LLAMACPP-021", f"{adapter} can't be a GGUF of its own ({problem}): merge it into its base"
        )
    if config.get("use_rslora"):  # The converter reads only α.
        fields = {**fields, "adapter.lora.alpha": alpha_alone(config)}
    with publishing(target, check_gguf) as aside:
        run_converter(
            tools,
            "convert_lora_to_gguf.py",
            [adapter, "--base", base, "--outtype", type.lower(), "--outfile", aside],
            None,
            fields,
        )


@dataclass(frozen=True)
class Quantizing:
    """Options for a level in addition to its name.

    `imatrix` is an importance matrix's GGUF. `tensor_types` maps patterns (searched in tensor names, the
    first match wins) to types that replace the level's. `requantize` allows a source that is quantized
    already. `fields` are texts that are added to the header.
    """

    imatrix: Path | None = None
    tensor_types: Mapping[str, str] = field(default_factory=dict)
    requantize: bool = False
    fields: Fields = field(default_factory=dict)


PLAIN = Quantizing()


def quantize_gguf(llama: Llama, source: Path, target: Path, level: str, options: Quantizing = PLAIN) -> None:
    """Write `source` at `level` (llama.cpp's name) to `target`; the same bytes for any number of threads.

    Raises `ConfigError` if a pattern or type is invalid, `DataError` if `source` is incomplete or no row of
    it can be packed, `ToolError` if llama-quantize fails.
    """
    imatrix = options.imatrix
    tensor_types = options.tensor_types
    check_gguf(source)
    # An upper bound: no level is larger than 16-bit floats. Some levels are larger than a source that is
    # quantized already.
    need_disk(target.parent, source.stat().st_size * (2 if options.requantize else 1))
    flags = [
        word for pattern, kind in tensor_types.items() for word in ("--tensor-type", f"{pattern}={kind}")
    ]
    check_tensor_types(source, tensor_types, imatrix is not None)
    if options.requantize:
        flags.append("--allow-requantize")
    if imatrix:
        # llama-quantize writes the given file name into the level, so it must contain no folder of this
        # machine.
        flags += [
            "--imatrix",
            imatrix.name,
            "--override-kv",
            f"quench.imatrix.sha256=str:{file_hash(imatrix)}",
        ]
    for name, text in options.fields.items():
        flags += ["--override-kv", f"{name}=str:{text}"]
    with publishing(target, check_gguf) as aside:
        command: list[str | Path] = [
            llama.tools.tool("llama-quantize").resolve(),
            *flags,
            source.resolve(),
            aside.resolve(),
            level.upper(),
            str(llama.threads),
        ]
        run_tool(command, cwd=imatrix.parent if imatrix else None)
        prove_tensor_types(aside, tensor_types)
        need_quantized(aside, level)


# --- types given for single tensors (`quantize.tensor_types`)


def check_tensor_types(source: Path, tensor_types: Mapping[str, str], with_imatrix: bool) -> None:
    """Raise `ConfigError` if llama-quantize does not support a type, or a pattern is invalid or in no tensor
    name of `source`.
    """
    names = check_gguf(source).tensors if tensor_types else {}
    for pattern, ggml_type in tensor_types.items():
        key = f"quantize.tensor_types.{pattern}"
        if ggml_type.upper() not in TYPES:
            raise ConfigError(
                "Q-GGUF-010",
                f"{key} is {ggml_type}, which llama-quantize does not make: choose one of "
                f"{', '.join(sorted(TYPES))}",
            )
        if TYPES[ggml_type.upper()].needs_imatrix and not with_imatrix:
            raise ConfigError(
                "Q-GGUF-011",
                f"{key} is {ggml_type}, which needs an importance matrix: append -imatrix to the level's "
                "name",
            )
        if not any(_finds(pattern, name) for name in names):
            raise ConfigError(
                "Q-GGUF-012",
                f"{key} is in no tensor name of {source.name}: correct the pattern (names are like "
                f"{min(names)})",
            )


def prove_tensor_types(level: Path, tensor_types: Mapping[str, str]) -> None:
    """Raise `ConfigError` if a pattern changed nothing in the file `level`: norms and the like are never
    quantized, short rows fall back.
    """
    if not tensor_types:
        return
    left = {name: tensor.type for name, tensor in gguf_tensors(level)[1].items()}
    for pattern, ggml_type in tensor_types.items():
        # As in llama-quantize, the first pattern that matches wins.
        matched = {name: left.pop(name) for name in list(left) if _finds(pattern, name)}
        if ggml_type.upper() not in matched.values():
            if matched:
                reason = f"its tensors have {', '.join(sorted(set(matched.values())))}"
            else:
                reason = "patterns before it have taken all its tensors"
            raise ConfigError(
                "Q-GGUF-013",
                f"quantize.tensor_types.{pattern} asks for {ggml_type}, but {reason}: llama-quantize can't "
                "give it to them, take the key out",
            )


def _finds(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern.lower(), name) is not None  # llama-quantize lowers patterns too.
    except re.error as error:
        raise ConfigError(
            "Q-GGUF-014", f"quantize.tensor_types.{pattern} is not a regular expression ({error}): correct it"
        ) from error
