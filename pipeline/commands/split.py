"""Cut a GGUF into parts that fit a place with a limit (a hub, a FAT disk), and prove that nothing was lost on
the way.

Reads one GGUF of `models/gguf/`. Writes `models/split/NAME-LEVEL/NAME-LEVEL-00001-of-0000N.gguf` …; llama.cpp
is given the first one and finds the others beside it. If base.quantization is gguf:
`models/base/model.gguf`, `models/split/NAME-base/`, or the tuned file.

    quench split [MODEL] [--max-size 4G] [--to DIR]
"""

import re
from pathlib import Path

import numpy as np

from pipeline.commands.serve import choose_model, model_file
from pipeline.config.params import Params
from pipeline.config.sections import BASE, BASE_WITH_ADAPTER, TUNED
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.publish import need_disk, publishing
from pipeline.gguf.file import check_gguf
from pipeline.gguf.tensors import GgufTensor, gguf_tensors
from pipeline.llamacpp.logits import open_gguf
from pipeline.llamacpp.tools import Toolchain, find_toolchain, run_tool


def split(*, source: Path, folder: Path, max_size: str, tools: Toolchain) -> list[Path]:
    """Publish `folder` with the parts of `source`, each of at most `max_size` ("4G", "500M"; decimal) of
    tensors; the parts in order.

    Raises `ConfigError` for a size that is none and if the folder holds something else, `DataError` if the
    parts together are not the source, `ToolError` if llama-gguf-split fails or llama.cpp can't load them.
    """
    if not re.fullmatch(r"[1-9]\d*[MG]", max_size):
        raise ConfigError(
            "Q-COMMANDS-012",
            f"--max-size is {max_size!r}: give a whole number of megabytes or gigabytes, such as 500M or 4G",
        )
    limit = int(max_size[:-1]) * {"M": 10**6, "G": 10**9}[max_size[-1]]
    largest = max(gguf_tensors(source)[1].values(), key=lambda one: one.rows * one.row_bytes)
    if (needed := largest.rows * largest.row_bytes) > limit:
        raise ConfigError(
            "Q-COMMANDS-012",
            f"{largest.name} alone has {needed / 1e6:.0f} MB and no tensor can be cut: "
            f"give --max-size {-(-needed // 10**6)}M or more",
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError("Q-COMMANDS-013", f"{folder} is a file: give another folder with --to")
    part_name = re.compile(rf"{re.escape(source.stem)}-\d{{5}}-of-\d{{5}}\.gguf")
    if folder.exists() and (
        others := [path.name for path in folder.iterdir() if not part_name.fullmatch(path.name)]
    ):
        raise ConfigError(
            "Q-COMMANDS-013",
            f"{folder} holds {min(others)} and would be replaced: give another folder with --to",
        )
    need_disk(folder.parent, source.stat().st_size)
    with publishing(folder) as aside:
        aside.mkdir()
        run_tool(
            [
                tools.tool("llama-gguf-split"),
                "--split",
                "--split-max-size",
                max_size,
                source,
                aside / source.stem,
            ]
        )
        parts = sorted(aside.glob("*.gguf"))
        prove_complete(source, parts)
        with open_gguf(tools, parts[0], ctx_size=32, threads=1, n_gpu_layers=0):
            pass  # it loads
    return [folder / part.name for part in parts]


def prove_complete(source: Path, parts: list[Path]) -> None:
    """Raise `DataError` unless the parts together hold the source's metadata and every tensor, byte for byte
    and once.
    """
    header, wanted = gguf_tensors(source)
    found: dict[str, GgufTensor] = {}
    for part in parts:
        for name, tensor in gguf_tensors(part)[1].items():
            if name in found:
                raise DataError(
                    "Q-COMMANDS-014",
                    f"{name} is in {found[name].file.name} and in {part.name}: split {source} again",
                )
            found[name] = tensor
    if different := sorted(wanted.keys() ^ found.keys()):
        raise DataError(
            "Q-COMMANDS-014",
            f"{different[0]} is in {source.name} or in its parts, not in both ({len(different)} such "
            "tensors): split it again",
        )
    for name, tensor in wanted.items():
        other = found[name]
        if (tensor.shape, tensor.ggml_type) != (other.shape, other.ggml_type) or not all(
            np.array_equal(tensor.stored(*block), other.stored(*block)) for block in tensor.blocks()
        ):
            raise DataError(
                "Q-COMMANDS-014",
                f"{name} in {other.file.name} differs from the one in {source.name}: split it again",
            )
    fields = check_gguf(parts[0]).fields
    if lost := sorted(
        key
        for key, value in header.fields.items()
        if not key.startswith("split.") and fields.get(key) != value
    ):
        raise DataError(
            "Q-COMMANDS-014",
            f"{lost[0]} in {parts[0].name} differs from the one in {source.name} ({len(lost)} such fields): "
            "split it again",
        )


def main(params: Params, root: Path, model: str | None, max_size: str, to: Path | None) -> None:
    """Split the model that was asked for (else the recommended one) and say what to do with the parts."""
    chosen = choose_model(params, root, model)
    source = model_file(params, root, chosen)
    folder = (to or root / "models" / "split") / (
        source.stem if params.graph == "merged" or chosen == TUNED else f"{params.convert.name}-{BASE}"
    )
    parts = split(source=source, folder=folder, max_size=max_size, tools=find_toolchain(params.llamacpp.home))
    print(
        f"split: {source.name} is in {len(parts)} parts in {folder}, equal to the whole; give llama.cpp "
        f"{parts[0].name}"
    )
    if chosen == BASE_WITH_ADAPTER:
        print(
            "split: the adapter is a file of its own, which goes with them as --lora: "
            f"{root / 'models/gguf' / params.convert.name}-lora.gguf"
        )
