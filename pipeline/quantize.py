"""Quantise the F16 GGUF to one level with llama.cpp's own quantiser.

Reads `models/gguf/NAME-F16.gguf`.
Writes `models/gguf/NAME-LEVEL.gguf`.
Command: `python -m pipeline quantize@Q4_K_M`
"""

from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.llamacpp.gguf_file import check_gguf
from pipeline.llamacpp.tools import Toolchain, find_toolchain, run_tool
from pipeline.params import Params
from pipeline.publish import need_disk, publishing


def quantize(*, source: Path, target: Path, level: str, nthreads: int, tools: Toolchain) -> int:
    """Write `source` at `level` (llama.cpp's name) to `target`, read it back, and return its bytes.

    Raises `ToolError` where llama-quantize fails.
    """
    need_disk(target.parent, source.stat().st_size)  # an upper bound: no level is larger than F16
    with publishing(target, check_gguf) as aside:
        run_tool([tools.tool("llama-quantize"), source, aside, level, str(nthreads)])
    return target.stat().st_size


def main(params: Params, root: Path, level: str) -> None:
    """Run the stage for one level on the files below `root`."""
    if level not in params.quantize.levels:
        raise ConfigError(f"{level} is not in quantize.levels ({', '.join(params.quantize.levels)}): add it there, spelt the same")
    folder, name = root / "models/gguf", params.convert.name
    size = quantize(
        source=folder / f"{name}-F16.gguf",
        target=folder / f"{name}-{level}.gguf",
        level=level.upper(),
        nthreads=params.quantize.nthreads,
        tools=find_toolchain(params.llamacpp.home),
    )
    print(f"quantize: {name}-{level}.gguf {size / 1e6:.0f} MB")
