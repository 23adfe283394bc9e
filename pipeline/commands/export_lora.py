"""Add an adapter to the weights of its base, to have one file: with llama.cpp's own llama-export-lora.

Reads one GGUF and an adapter's, as `quench serve` does. Writes `models/gguf/NAME-merged-TYPE.gguf` (of
another adapter its own name, and a scale or a model that is not the usual one is in the name too). With F16,
what the adapter changes becomes F16 whatever it was in the base, and the rest stays unchanged; with another
TYPE all of it is quantized after that.

    quench export-lora [MODEL] [--adapter FILE[=SCALE]] [--type F16]
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.commands.serve import choose_model, chosen_adapters, model_file
from pipeline.config.levels import level_problem, split_level
from pipeline.config.params import Params
from pipeline.config.sections import BASE, BASE_WITH_ADAPTER
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.publish import need_disk, publishing, scratch_folder
from pipeline.gguf.file import check_gguf, describe
from pipeline.gguf.header import tensor_bytes
from pipeline.gguf.provenance import OWN, Fields
from pipeline.llamacpp.lora import lora_arguments
from pipeline.llamacpp.tools import Toolchain, find_toolchain, run_tool
from pipeline.serve.adapter import Adapter, adapted_tensors, matching_adapters

SIXTEEN = "F16"  # the one type that llama-export-lora writes
F16 = 1  # its number in ggml
LONGEST = 127  # bytes of a text that llama-quantize writes into metadata


def export_lora(
    *, base: Path, adapter: Adapter, target: Path, type: str, threads: int, tools: Toolchain
) -> dict[str, Any]:
    """Write `base` with `adapter` in its weights as `target`, and describe it
    (`pipeline.gguf.file.describe`).

    Raises `ConfigError` for a type that is none, `DataError` if the adapter isn't the base's, `MachineError`
    if the disk is too small, `ToolError` if a tool fails or merges less than the adapter holds.
    """
    if type != SIXTEEN and (
        problem := level_problem(type) or ("an importance matrix" if split_level(type)[1] else "")
    ):
        raise ConfigError(
            "Q-COMMANDS-010",
            f"--type is {type!r} ({problem}): give F16, or a level of llama.cpp, Q4_K_M for example",
        )
    matching_adapters(base, [adapter])
    names, tensors = adapted_tensors(check_gguf(adapter.file)), check_gguf(base).tensors
    need_disk(
        target.parent,
        2 * (base.stat().st_size + sum(tensor_bytes(name, tensors[name][0], F16) for name in names)),
    )
    with (
        publishing(target, check_gguf) as aside,
        scratch_folder(target.with_name(f".{target.stem}.merging")) as folder,
    ):
        merged = folder / "merged.gguf"
        # a name that it can take, whatever the adapter is called
        given = folder / "adapter.gguf"
        given.symlink_to(adapter.file.resolve())
        output = run_tool(
            [
                tools.tool("llama-export-lora").resolve(),
                "--model",
                base.resolve(),
                *lora_arguments([(Path(given.name), adapter.scale)]),
                "--output",
                merged.name,
                "--threads",
                str(threads),
            ],
            cwd=folder,
        )
        found = re.search(r"merged (\d+) tensors", output)
        if not found or int(found[1]) != len(names):
            raise ToolError(
                "Q-COMMANDS-011",
                f"llama-export-lora merged {found[1] if found else 'no'} of {len(names)} tensors of "
                f"{adapter.file.name}, so nothing is written: run `make setup` again",
            )
        run_tool(
            [
                tools.tool("llama-quantize").resolve(),
                *([] if type == SIXTEEN else ["--allow-requantize"]),
                *override_flags(merged_fields(adapter) | {"general.name": target.stem}),
                merged,
                aside.resolve(),
                "COPY" if type == SIXTEEN else type.upper(),
                str(threads),
            ]
        )
    return describe(target)


def merged_fields(adapter: Adapter) -> Fields:
    """The adapter's provenance for the file that holds it, and how it came in there."""
    return {
        key: value
        for key, value in check_gguf(adapter.file).fields.items()
        if key.startswith((OWN, "general.license", "general.base_model."))
    } | {"quench.merge.method": "llama-export-lora", "quench.merge.scale": f"{adapter.scale:g}"}


def override_flags(fields: Mapping[str, str | int]) -> list[str]:
    """`fields` as llama-quantize takes them; those that it can't write are left out."""
    return [
        word
        for key, value in fields.items()
        if max(len(key.encode()), len(str(value).encode())) <= LONGEST
        for word in ("--override-kv", f"{key}={'int' if isinstance(value, int) else 'str'}:{value}")
    ]


def main(params: Params, root: Path, asked: str | None, given: str | None, type: str) -> None:
    """Export and say what was written; `ConfigError` if more than the project's or the one named adapter
    would be merged.
    """
    usual = f"base-{params.convert.type}" if params.graph == "merged" else BASE
    model = choose_model(params, root, asked or usual)
    (adapter,) = chosen_adapters(
        params,
        root,
        model if params.graph == "merged" else BASE,
        lora=not given,
        given=[given] if given else [],
    )
    # another pair, another file
    parts = (
        adapter.name if given else params.convert.name,
        f"{adapter.scale:g}" if adapter.scale != 1 else "",
        "merged",
        f"on-{model}" if model not in (usual, BASE_WITH_ADAPTER) else "",
        type.upper(),
    )
    target = root / "models" / "gguf" / f"{'-'.join(filter(None, parts))}.gguf"
    made = export_lora(
        base=model_file(params, root, model),
        adapter=adapter,
        target=target,
        type=type.upper(),
        threads=params.serve.threads,
        tools=find_toolchain(params.llamacpp.home),
    )
    print(
        f"export-lora: {target} {made['bytes'] / 1e6:.0f} MB, {made['bits_per_weight']:.2f} bits per weight"
    )
