"""Convert to GGUF with llama.cpp's own converters: the merged model, the untuned base, and the adapter.

Reads `models/base/`, `models/base.json`, `models/adapter/`, `models/merged/`. Writes
`models/gguf/NAME-F16.gguf`, `NAME-base-F16.gguf` and `NAME-lora.gguf` (BF16 if `convert.type` is BF16). If
nothing needs `NAME-base-F16.gguf`, it is a placeholder that contains no weights. So is the adapter's file if
the adapter can only be merged (DoRA). Command: `python -m pipeline convert`
"""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.sections import Convert
from pipeline.config.targets import merged_only
from pipeline.core.errors import DataError
from pipeline.core.publish import need_disk, publishing, read_json
from pipeline.gguf.file import check_gguf, is_made, write_not_made
from pipeline.gguf.provenance import Fields, adapter_fields, folder_fields
from pipeline.llamacpp.converters import HeaderFields, base_fields, lora_to_gguf, to_gguf
from pipeline.llamacpp.ends import beginning_fields, end_fields
from pipeline.llamacpp.pretokenizer import PreTokenizer, need_convertible
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.stages.convert.consistency import contradictions

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
AGAIN = "run `snakemake --force train`"
TOGETHER = 2  # converters that run at the same time; each keeps one core busy, much of its time by importing


@dataclass(frozen=True)
class Found:
    """Facts that a conversion needs: pre-tokenizers, and tokenizer files that differ from the base's."""

    base: PreTokenizer
    merged: PreTokenizer
    differing: tuple[str, ...]


def preflight(*, base: Path, merged: Path, kind: str, tools: Toolchain) -> Found:
    """Check both folders before their conversion to `kind` (F16 or BF16).

    Raises `DataError` with all faults.
    """
    reasons: list[str] = []
    pre_tokenizers: list[PreTokenizer] = []
    differing = differing_files(base, merged)
    for folder in (base, merged):
        reasons += [f"{folder.name}: {reason}" for reason in contradictions(folder, kind)]
        try:
            pre_tokenizers.append(need_convertible(folder, tools))
        except DataError as error:
            changed_files = ""
            if folder == merged and differing:
                changed_files = f" (other than the base's: {', '.join(differing)})"
            reasons.append(f"{error.sentence}{changed_files}")
    if reasons:
        count = "1 reason" if len(reasons) == 1 else f"{len(reasons)} reasons"
        raise DataError("Q-CONVERT-002", f"{merged} can't be converted for {count}: {'; '.join(reasons)}")
    return Found(pre_tokenizers[0], pre_tokenizers[1], differing)


def differing_files(base: Path, merged: Path) -> tuple[str, ...]:
    """Return the names of tokenizer files that only one folder has or that differ. JSON files are compared by
    content, not by layout.
    """
    return tuple(name for name in TOKENIZER_FILES if _content(base / name) != _content(merged / name))


def _content(file: Path) -> object:
    if not file.exists():
        return None
    text = file.read_text(encoding="utf-8")
    return json.loads(text) if file.suffix == ".json" else text


@dataclass(frozen=True)
class Sources:
    """Folders to convert: base, adapter and merged model; `lineage` is models/base.json."""

    base: Path
    adapter: Path
    merged: Path
    lineage: Path


def convert(
    models: Sources, folder: Path, settings: Convert, tools: Toolchain, *, with_base: bool = True
) -> Found:
    """Write NAME-TYPE.gguf, NAME-base-TYPE.gguf and NAME-lora.gguf to `folder`, each read back before it is
    published. Return the facts that the conversion depended on.

    Without `with_base` the base's file contains no weights: at 7B it would be 15 GB. Raises `DataError` with
    all faults before anything is converted, `ToolError` if a converter fails, `MachineError` if the disk is
    too small.
    """
    base = models.base
    adapter = models.adapter
    merged = models.merged
    name = settings.name
    type = settings.type
    sources = (base, merged, adapter) if with_base else (merged, adapter)
    need_disk(
        folder, sum(shard.stat().st_size for source in sources for shard in source.glob("*.safetensors"))
    )
    pre_tokenizers = preflight(base=base, merged=merged, kind=type, tools=tools)
    shared = base_fields(models.lineage, tools)
    tuned = adapter_fields(adapter)
    written = [(merged, f"{name}-{type}", pre_tokenizers.merged, tuned)]
    if with_base:
        written.append((base, f"{name}-base-{type}", pre_tokenizers.base, Fields()))
    else:
        write_not_made(
            folder / f"{name}-base-{type}.gguf",
            "nothing in params.yaml needs it, as base-… in evaluate.models would",
        )
    conversions = {
        folder / f"{target}.gguf": partial(
            to_gguf,
            tools,
            source,
            type=type,
            header=HeaderFields(
                target.removesuffix(f"-{type}"),
                pre.name,
                {
                    **shared,
                    **more,
                    **folder_fields(source),
                    **end_fields(source),
                    **beginning_fields(source),
                    "quench.tokenizer.found_by": pre.found_by,
                },
            ),
        )
        for source, target, pre, more in written
    }
    lora = folder / f"{name}-lora.gguf"
    config = read_json(adapter / "adapter_config.json", AGAIN)
    why = merged_only(config)
    if why:
        write_not_made(lora, f"train.{why}")
    else:
        fields = {**shared, **tuned, "general.name": f"{name}-lora"}
        conversions[lora] = partial(lora_to_gguf, tools, adapter, base, type=type, fields=fields)
    # If one conversion fails, nothing is published.
    with ExitStack() as published, ThreadPoolExecutor(TOGETHER) as pool:
        asides = [published.enter_context(publishing(target)) for target in conversions]
        running = [
            pool.submit(convert_to, target=aside)
            for aside, convert_to in zip(asides, conversions.values(), strict=True)
        ]
        try:
            for conversion in running:
                conversion.result()
        except BaseException:
            # Conversions that have not begun would be made for nothing.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return pre_tokenizers


def remark(pre: PreTokenizer, gguf: Path) -> str:
    """Return in a few words how the pre-tokenizer was found.

    If the converter chose it, report what `gguf` contains.
    """
    remarks = {
        "hash": f"pre-tokenizer {pre.name}",
        "structure": f"pre-tokenizer {pre.name} (llama.cpp does not list this vocabulary; normalizer, "
        f"patterns and merges are those of {pre.name})",
    }
    if pre.found_by in remarks:
        return remarks[pre.found_by]
    fields = check_gguf(gguf).fields
    kind = fields.get("tokenizer.ggml.model")
    name = fields.get("tokenizer.ggml.pre")
    return f"the converter takes the tokenizer for one of kind {kind} with pre-tokenizer {name}"


def size(path: Path) -> str:
    """Return the size of a GGUF in MB, or "not made" for a placeholder."""
    return f"{path.stat().st_size / 1e6:.0f} MB" if is_made(path) else "not made"


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    folder = root / "models/gguf"
    name = params.convert.name
    kind = params.convert.type
    models = Sources(
        base=root / "models/base",
        adapter=root / "models/adapter",
        merged=root / "models/merged",
        lineage=root / "models/base.json",
    )
    tools = find_toolchain(params.machine.llama_cpp)
    with_base = params.base_gguf
    pre_tokenizers = convert(models, folder, params.convert, tools, with_base=with_base)
    suffixes = [f"-{kind}", f"-base-{kind}", "-lora"] if with_base else [f"-{kind}", "-lora"]
    files = [folder / f"{name}{suffix}.gguf" for suffix in suffixes]
    others = ""
    if pre_tokenizers.differing:
        others = f"; other than the base's: {', '.join(pre_tokenizers.differing)}"
    print(
        f"convert: {', '.join(f'{path.name} {size(path)}' for path in files)}; "
        f"{remark(pre_tokenizers.merged, files[0])}{others}"
    )
