"""The outputs of models: a finished project's chain, and the meaning of its figures."""

import gc
import json
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parity_outputs import LIMITS, PROMPTS, bench, chain, halves

from pipeline.core.errors import DataError, GateError
from pipeline.llamacpp.converters import quantize_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.divergence import Prompt, Reference, compare, gguf_divergence, kept_logits, spread
from pipeline.metrics.forward import in_float32, plain_model, run_settings
from pipeline.stages.parity.outputs import base_at_level, output_checks, trained_outputs

# --- a whole chain ---


def test_a_finished_project_loses_nothing(finished: Path, tmp_path: Path, tools: Toolchain) -> None:
    gguf = finished / "models/gguf"
    own = {"base_gguf": gguf / "tiny-base-F16.gguf", "lora": gguf / "tiny-lora.gguf"}
    checks = output_checks(chain(finished), bench(tmp_path, tools), LIMITS, {}, **own)
    parts = ("sixteen", "trained", "gguf", "q4_k_m", "lora", "lora_q4_k_m")
    wanted = {f"outputs_{part}": "pass" for part in parts}
    assert {key: check.verdict for key, check in checks.items()} == wanted
    for check in checks.values():
        assert set(check.figures) == {"nmse", "kld_max", "same_top", "positions", "kld_trained"}
    assert 0 < checks["outputs_sixteen"].figure < 1e-4 < checks["outputs_q4_k_m"].figure
    assert not list((tmp_path / "scratch").iterdir())  # hundreds of megabytes, in a real run


def test_a_level_of_the_base_that_was_made_is_not_made_again(
    finished: Path, tmp_path: Path, tools: Toolchain
) -> None:
    base, made = finished / "models/gguf/tiny-base-F16.gguf", tmp_path / "made.gguf"
    here = bench(tmp_path, tools)
    here.scratch.mkdir()
    quantize_gguf(Llama(tools), base, made, "Q4_K_M")
    with base_at_level(chain(finished, untuned={"Q4_K_M": made}), "Q4_K_M", base, here) as taken:
        assert taken == made and not list(here.scratch.rglob("*.gguf"))
    with base_at_level(chain(finished), "Q4_K_M", base, here) as quantized:
        assert quantized.is_relative_to(here.scratch)
        assert quantized.read_bytes() == made.read_bytes()
    assert not list(here.scratch.rglob("*.gguf"))


def test_an_adapter_that_was_not_merged_is_named(finished: Path, tmp_path: Path, tools: Toolchain) -> None:
    """Its weights are made large: the tiny adapter of two steps changes next to nothing."""
    from safetensors.torch import load_file, save_file

    for name in ("adapter", "merged"):
        shutil.copytree(finished / "models" / name, tmp_path / name)
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    file = adapter / "adapter_model.safetensors"
    save_file({name: value * 30 for name, value in load_file(file).items()}, file)
    shutil.copyfile(finished / "models/base/model.safetensors", merged / "model.safetensors")
    base_gguf = finished / "models/gguf/tiny-base-F16.gguf"
    models = chain(finished, adapter=adapter, merged=merged, gguf=base_gguf, levels={})
    checks = output_checks(models, bench(tmp_path, tools), LIMITS, {})
    assert (checks["outputs_sixteen"].verdict, checks["outputs_gguf"].verdict) == ("fail", "pass")
    assert "not merged" in checks["outputs_sixteen"].remedy


def test_an_adapter_without_a_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"settings": {"r": 4}}), encoding="utf-8")
    with pytest.raises(DataError, match="doesn't say how the adapter was trained"):
        run_settings(tmp_path)


def test_a_gguf_of_another_vocabulary_cannot_be_compared(tmp_path: Path, tools: Toolchain) -> None:
    from tiny import tiny_gguf

    file, prompt = tiny_gguf(tmp_path / "other.gguf"), Prompt([1, 2, 3], [2])
    with (
        kept_logits([prompt], says([halves(1, 8)]), tmp_path) as reference,
        pytest.raises(GateError, match="the vocabularies have 8 and"),
    ):
        gguf_divergence(reference, file, threads=1, tools=tools)


def test_sixteen_bit_weights_are_computed_with_in_float32(finished: Path) -> None:
    """The same logits as of the entire model in float32, and 16-bit weights again after each forward."""
    import torch
    from transformers import AutoModelForCausalLM

    merged = finished / "models/merged"
    whole = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32, local_files_only=True)
    with torch.no_grad():
        logits = whole(torch.tensor([PROMPTS[0].ids]), use_cache=False).logits[0]
    expected = logits[PROMPTS[0].positions].numpy()
    with plain_model(merged) as speaker:
        first, again = speaker(PROMPTS[0]), speaker(PROMPTS[0])
    assert np.abs(first - expected).max() < 1e-5
    assert np.array_equal(first, again)


def test_what_a_model_reads_of_its_parts_itself_is_in_float32() -> None:
    """A Nemotron-H casts to the type of a norm's weight, and convolves by the weights of a convolution."""
    import torch

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.conv = torch.nn.RMSNorm(8), torch.nn.Conv1d(8, 8, 1)

        def forward(self, states: Any) -> Any:
            states = self.norm(states.to(self.norm.weight.dtype))
            return torch.nn.functional.conv1d(states.mT, self.conv.weight, self.conv.bias)

    block = Block().to(torch.bfloat16)
    states = torch.randn(1, 4, 8)
    with torch.no_grad():
        ours = in_float32(block)(states)
        assert ours.dtype == torch.float32 and ours.equal(block.float()(states))


def test_experts_are_cast_only_for_their_forward() -> None:
    """They are most of a mixture's weights, stacked in one tensor."""
    import torch

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(torch.randn(4, 8, 8, dtype=torch.bfloat16))

        def forward(self, states: Any) -> Any:
            return torch.einsum("td,edo->to", states, self.weights)

    experts = in_float32(Experts())
    assert experts(torch.randn(2, 8)).dtype == torch.float32
    assert experts.weights.dtype == torch.bfloat16


# --- divergence ---


@given(st.integers(1, 400), st.integers(1, 80))
def test_compared_positions_are_spread_over_the_prompt(length: int, most: int) -> None:
    positions = spread(list(range(length)), most).positions
    assert positions == sorted(set(positions))
    assert positions[-1] == length - 1 and positions[0] >= 0
    assert len(positions) == min(length, most)


@contextmanager
def says(values: list[Any]) -> Any:
    """A model that says `values`, a prompt after the other."""
    left = iter(values)
    yield lambda prompt: next(left)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(2, 70))
def test_figures_are_those_of_the_formula(lengths: list[int], width: int) -> None:
    before, after = (
        [halves(n * 20, width, seed=place + 10 * side) for place, n in enumerate(lengths)] for side in (0, 1)
    )
    found = compare(before, after)

    def softmax(x: Any) -> Any:
        e = np.exp(x.astype(np.float64))
        return e / e.sum(axis=-1, keepdims=True)

    pairs = [(softmax(a), softmax(b)) for a, b in zip(before, after, strict=True)]
    klds = [(a * np.log(a / b)).sum(axis=-1) for a, b in pairs]
    assert found.kld_rows == pytest.approx([each.mean() for each in klds])
    assert found.kld == pytest.approx(np.mean([each.mean() for each in klds]))
    assert found.kld_max == pytest.approx(max(each.max() for each in klds))
    assert found.positions == sum(lengths) * 20
    assert compare(before, before).kld == 0.0 and compare(before, before).same_top == 1.0


def test_logits_are_kept_as_long_as_the_body(tmp_path: Path) -> None:
    prompts, values = [Prompt([1, 2, 3], [0, 2]), Prompt([4], [0])], [halves(2, 6), halves(1, 6)]
    with kept_logits(prompts, says(values), tmp_path) as reference:
        assert all(np.array_equal(a, b) for a, b in zip(reference, values, strict=True))
        assert isinstance(reference, Reference) and reference.width == 6
    assert not list(tmp_path.iterdir())


def test_a_model_is_gone_before_the_next_one_is_loaded(
    finished: Path, tmp_path: Path, tools: Toolchain
) -> None:
    """Its logits outlive it: a chain of models of 15 GB each must fit a machine of 24."""
    import torch

    def linears() -> int:
        return sum(issubclass(type(thing), torch.nn.Linear) for thing in gc.get_objects())

    before = linears()
    with plain_model(finished / "models/merged") as speaker:
        assert linears() > before
        del speaker
    with kept_logits(PROMPTS, plain_model(finished / "models/merged"), tmp_path):
        assert linears() == before
    with ExitStack() as files:
        own, in_float32 = trained_outputs(chain(finished), bench(tmp_path, tools), files)
        assert linears() == before
        kld = compare(own, in_float32).kld
        assert 0 < kld < 1e-2
