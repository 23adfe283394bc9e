"""Write the adapter as a GGUF that llama-server puts on the base's own file: what was trained is what is
served.

Reads `models/base/`, `models/base.json`, `models/adapter/`.
Writes `models/gguf/NAME-lora.gguf`, which names the base's file by its sha256.
Command: `python -m pipeline lora`
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.publish import need_disk, publishing
from pipeline.gguf.base_files import MODEL_FILE, file_trained_on
from pipeline.gguf.provenance import BASE_FILE, adapter_fields
from pipeline.llamacpp.converters import base_fields, lora_to_gguf
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.serve.adapter import matching_adapter


def lora(*, base: Path, adapter: Path, lineage: Path, target: Path, tools: Toolchain) -> None:
    """Publish the adapter in the PEFT folder `adapter` as the GGUF `target`, proven to fit the GGUF in `base`
    tensor by tensor.

    `lineage` is models/base.json. Raises `DataError` if the base's file is not the one that was trained on,
    `ToolError` if the converter fails, `MachineError` if the disk is too small.
    """
    trained_on, model = file_trained_on(base, adapter, lineage), base / MODEL_FILE
    need_disk(target.parent, (adapter / "adapter_model.safetensors").stat().st_size)
    fields = {
        **base_fields(lineage, tools),
        **adapter_fields(adapter),
        BASE_FILE: trained_on,
        "general.name": target.stem,
    }
    with publishing(target, lambda written: matching_adapter(model, written)) as aside:
        lora_to_gguf(tools, adapter, base, aside, "F16", fields)


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    target = root / "models/gguf" / f"{params.convert.name}-lora.gguf"
    lora(
        base=root / "models/base",
        adapter=root / "models/adapter",
        lineage=root / "models/base.json",
        target=target,
        tools=find_toolchain(params.machine.llama_cpp),
    )
    print(
        f"lora: {target.name} {target.stat().st_size / 1e6:.1f} MB, for {root / 'models/base' / MODEL_FILE}"
    )
