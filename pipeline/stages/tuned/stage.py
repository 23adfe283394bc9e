"""Write the trained scales into a copy of the GGUF that they were trained in. The copy has the same size, and
any llama.cpp serves it at the same speed.

Reads `models/base/`, `models/base.json`, `models/adapter/`. Writes `models/gguf/NAME-tuned.gguf`, in which
every byte except the scales and the provenance is the base's. Command: `python -m pipeline tuned`
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.tuners import SCALES_FILE
from pipeline.core.errors import DataError
from pipeline.gguf.base_files import MODEL_FILE, file_trained_on
from pipeline.gguf.provenance import BASE_FILE, adapter_fields
from pipeline.gguf.tuned_file import write_tuned
from pipeline.llamacpp.converters import base_fields
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.models.tuners.scales import file_scales


def write(root: Path, adapter: Path, target: Path, tools: Toolchain) -> None:
    """Publish `target`: the GGUF of the base below `root` with the scales from the folder `adapter`.

    Raises `DataError` if the base's file is not the one that was trained on or `adapter` contains no scales,
    `MachineError` if the disk is too small.
    """
    base = root / "models/base"
    lineage = root / "models/base.json"
    trained_on = file_trained_on(base, adapter, lineage)
    if not (adapter / SCALES_FILE).is_file():
        raise DataError(
            "Q-TUNED-001",
            f"{adapter} does not hold trained scales ({SCALES_FILE}): set train.tuner to scales, then run "
            "`snakemake train`",
        )
    fields = {
        **base_fields(lineage, tools),
        **adapter_fields(adapter),
        BASE_FILE: trained_on,
        "general.name": target.stem,
    }
    write_tuned(base / MODEL_FILE, target, file_scales(base, adapter), fields)


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    target = root / "models/gguf" / f"{params.convert.name}-tuned.gguf"
    write(root, root / "models/adapter", target, find_toolchain(params.machine.llama_cpp))
    size = target.stat().st_size
    base = (root / "models/base" / MODEL_FILE).stat().st_size
    print(f"tuned: {target.name} {size / 1e6:.1f} MB, from {base / 1e6:.1f} MB and the trained scales")
