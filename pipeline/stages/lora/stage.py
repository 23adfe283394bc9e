"""Write the adapter as a GGUF that llama-server loads together with the base's own file. What was trained is
what is served.

Reads `models/base/`, `models/base.json`, `models/adapter/`. Writes `models/gguf/NAME-lora.gguf`, whose
metadata names the base's file by its SHA-256. Command: `python -m pipeline lora`
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.core.publish import need_disk, publishing
from pipeline.gguf.base_files import MODEL_FILE, file_trained_on
from pipeline.gguf.provenance import BASE_FILE, adapter_fields
from pipeline.llamacpp.converters import base_fields, lora_to_gguf
from pipeline.llamacpp.tools import find_toolchain
from pipeline.serve.adapter import matching_adapter


def main(params: Params, root: Path) -> None:
    """Run the stage below `root` and check tensor by tensor that the adapter's GGUF fits the base's.

    Raises `DataError` if the base's file is not the one that was trained on, `ToolError` if the converter
    fails, `MachineError` if the disk is too small.
    """
    base = root / "models/base"
    adapter = root / "models/adapter"
    lineage = root / "models/base.json"
    target = root / "models/gguf" / f"{params.convert.name}-lora.gguf"
    tools = find_toolchain(params.machine.llama_cpp)
    model = base / MODEL_FILE
    trained_on = file_trained_on(base, adapter, lineage)
    need_disk(target.parent, (adapter / "adapter_model.safetensors").stat().st_size)
    fields = {
        **base_fields(lineage, tools),
        **adapter_fields(adapter),
        BASE_FILE: trained_on,
        "general.name": target.stem,
    }
    with publishing(target, lambda written: matching_adapter(model, written)) as aside:
        lora_to_gguf(tools, adapter, base, aside, "F16", fields)
    print(f"lora: {target.name} {target.stat().st_size / 1e6:.1f} MB, for {model}")
