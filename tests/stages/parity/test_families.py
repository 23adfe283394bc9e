"""Each family on its entire way: merge, 16-bit GGUF, Q4_K_M, llama-server, with every parity check green."""

from pathlib import Path
from typing import Any

import pytest
from families import NAMES, family, family_adapter
from qwen2_variants import lineage_of

from pipeline.config.params import Params
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.convert.stage import convert
from pipeline.stages.merge.stage import merge
from pipeline.stages.parity.outputs import Chain
from pipeline.stages.parity.stage import Measure, parity
from pipeline.stages.quantize.stage import quantize

LEVEL = "Q4_K_M"
ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"What is {number} plus 3? – s'il vous plaît"},
            {"role": "assistant", "content": f"{number + 3} 🙂"},
        ]
    }
    for number in range(4)
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_family_keeps_everything_on_its_way(
    name: str, tools: Toolchain, tiny_params: dict[str, Any], tmp_path: Path
) -> None:
    tiny_params["parity"] |= {"depth": "full", "conversations": 20, "strings": 3000}
    params = Params.model_validate(tiny_params)
    base = family(name, tmp_path / "base", tools)
    adapter = family_adapter(tmp_path / "adapter", base, params.training_on("cpu"))
    merged, folder = tmp_path / "merged", tmp_path / "gguf"
    folder.mkdir()
    merge(base=base, adapter=adapter, merged=merged, dtype="float16", merge_base="16-bit")
    convert(
        base=base,
        adapter=adapter,
        merged=merged,
        lineage=lineage_of(tmp_path / "base.json"),
        folder=folder,
        name=name,
        type="F16",
        tools=tools,
    )
    gguf, level = folder / f"{name}-F16.gguf", folder / f"{name}-{LEVEL}.gguf"
    quantize(source=gguf, target=level, level=LEVEL, nthreads=1, tools=tools)
    checks = parity(
        Chain(base, adapter, merged, gguf, {LEVEL: level}),
        Measure(ROWS, params.parity, params.evaluate, tools, tmp_path),
        base_gguf=folder / f"{name}-base-F16.gguf",
        lora=folder / f"{name}-lora.gguf",
    )
    # a random model never ends an answer, so nothing can be said about that
    assert checks.pop("behavior_answers_end").verdict == "not measured"
    assert {
        key: (check.sentence, check.remedy) for key, check in checks.items() if check.verdict != "pass"
    } == {}
    assert len(checks) >= 17
