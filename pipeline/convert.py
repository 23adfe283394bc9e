"""Convert to GGUF with llama.cpp's own converters: the merged model, the untuned base, and the adapter alone.

Reads `models/base/`, `models/adapter/`, `models/merged/`.
Writes `models/gguf/NAME-F16.gguf`, `NAME-base-F16.gguf` and `NAME-lora.gguf`.
Command: `python -m pipeline convert`
"""

from pathlib import Path

from pipeline.llamacpp.gguf_file import check_gguf
from pipeline.llamacpp.tools import Toolchain, find_toolchain, run_converter
from pipeline.params import Params
from pipeline.publish import need_disk, publishing


def convert(*, base: Path, adapter: Path, merged: Path, folder: Path, name: str, tools: Toolchain) -> list[Path]:
    """Write the three GGUFs to `folder` and return their paths, each read back before it is published.

    Raises `DataError` where a GGUF can't be read back whole, `ToolError` where the converter fails.
    """
    need_disk(folder, 2 * sum(shard.stat().st_size for shard in merged.glob("*.safetensors")))
    jobs: tuple[tuple[Path, str, list[str | Path]], ...] = (
        (folder / f"{name}-F16.gguf", "convert_hf_to_gguf.py", [merged, "--outtype", "f16", "--model-name", name]),
        (folder / f"{name}-base-F16.gguf", "convert_hf_to_gguf.py", [base, "--outtype", "f16", "--model-name", f"{name}-base"]),
        (folder / f"{name}-lora.gguf", "convert_lora_to_gguf.py", [adapter, "--base", base, "--outtype", "f16"]),
    )
    for target, script, arguments in jobs:
        with publishing(target, check_gguf) as aside:
            run_converter(tools, script, [*arguments, "--outfile", aside])
    return [target for target, _, _ in jobs]


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    made = convert(
        base=root / "models/base",
        adapter=root / "models/adapter",
        merged=root / "models/merged",
        folder=root / "models/gguf",
        name=params.convert.name,
        tools=find_toolchain(params.llamacpp.home),
    )
    print("convert: " + ", ".join(f"{path.name} {path.stat().st_size / 1e6:.0f} MB" for path in made))
