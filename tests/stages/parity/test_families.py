"""Each family on its entire way: merge, 16-bit GGUF, Q4_K_M, llama-server, with every parity check green; and
the models are such that none of it would be green if a tensor were lost.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from families import GEMMA, MODEL_TYPES, NAMES, family, family_adapter
from qwen2_variants import lineage_of

from pipeline.config.params import Params
from pipeline.config.sections import Convert
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain, find_llama
from pipeline.stages.convert.stage import Sources, convert
from pipeline.stages.merge.stage import merge
from pipeline.stages.parity.check import Measure, measured
from pipeline.stages.parity.outputs import Chain
from pipeline.stages.parity.routes import merged_probes

LEVEL = "Q4_K_M"
NAME = "tiny"  # llama.cpp takes a file for a Phi-3 by its name, and asks for tokens of its vocabulary then
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
@pytest.mark.base_cells("merged", "levels", "parity", "served", families="name", called=MODEL_TYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_family_keeps_everything_on_its_way(
    name: str, tools: Toolchain, tiny_params: dict[str, Any], tmp_path: Path
) -> None:
    tiny_params["parity"] |= {"depth": "full", "conversations": 20}
    params = Params.model_validate(tiny_params)
    base = family(name, tmp_path / "base", tools)
    adapter = family_adapter(tmp_path / "adapter", base, params.training_on("cpu"))
    merged, folder = tmp_path / "merged", tmp_path / "gguf"
    folder.mkdir()
    merge(base=base, adapter=adapter, merged=merged, dtype="float16", merge_base="16-bit")
    models = Sources(base, adapter, merged, lineage_of(tmp_path / "base.json"))
    convert(models, folder, Convert(name=NAME, type="F16"), tools)
    gguf, level = folder / f"{NAME}-F16.gguf", folder / f"{NAME}-{LEVEL}.gguf"
    quantize_gguf(Llama(tools), gguf, level, LEVEL)
    probes = merged_probes(
        Chain(base, adapter, merged, gguf, {LEVEL: level}),
        Measure(ROWS, params.parity, replace(find_llama(params.machine), tools=tools), tmp_path),
        base_gguf=folder / f"{NAME}-base-F16.gguf",
        lora=folder / f"{NAME}-lora.gguf",
    )
    checks = measured(probes, params.parity.depth)
    # a random model never ends an answer, so nothing can be said about that
    assert checks.pop("behavior_answers_end").verdict == "not measured"
    assert {
        key: (check.sentence, check.remedy) for key, check in checks.items() if check.verdict != "pass"
    } == {}
    assert len(checks) >= 15


# Granite's factors and SmolLM3's four layers let one tensor say less than outputs can tell. Of these and of
# the families that are not here, the weights are compared bit for bit above.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["qwen2", "qwen3", "llama", "qwen2_moe", "gemma2", "gemma3_text", "olmo2", "phi3"]
)
def test_every_tensor_of_a_family_counts(
    name: str, tools: Toolchain, tiny_params: dict[str, Any], tmp_path: Path
) -> None:
    """Without one of them, or with two of a layer exchanged, a model says what an exact hand-over refuses."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(family(name, tmp_path, tools), dtype=torch.float32).eval()
    ends = model.config.eos_token_id
    start = (ends[0] if isinstance(ends, list) else ends) - 1
    ids = torch.tensor([[start, *range(500, 560), start, *range(1000, 1010)]])

    def says() -> Any:
        with torch.no_grad():
            return model(ids, use_cache=False, logits_to_keep=12).logits[0].log_softmax(-1)

    expected = says()
    divergences = {
        fault: float((expected.exp() * (expected - says())).sum(-1).mean()) for fault in faults(model)
    }
    assert len(divergences) > (15 if name == "phi3" else 40)  # a Phi-3's matrices are fused
    limit = 2 * 1e-3  # what parity allows where nothing may be lost
    assert {fault: kld for fault, kld in divergences.items() if kld <= limit} == {}


def faults(model: Any) -> Iterator[str]:
    """Plant one fault after the other, and take it back; the name of each."""
    import torch

    tensors = dict(model.named_parameters())
    for name, values in tensors.items():
        kept = values.data
        norm = values.dim() == 1 and not name.endswith("bias")
        # a Gemma's norm that holds nothing multiplies by one
        plain = torch.ones_like if norm and model.config.model_type not in GEMMA else torch.zeros_like
        values.data = plain(kept)
        yield f"{name} is lost"
        values.data = kept
    for (name, one), (other_name, other) in combinations(tensors.items(), 2):
        if one.shape == other.shape and name.split(".")[:3] == other_name.split(".")[:3]:
            one.data, other.data = other.data, one.data
            yield f"{name} and {other_name} are exchanged"
            one.data, other.data = other.data, one.data
