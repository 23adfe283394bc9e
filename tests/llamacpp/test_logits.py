"""logits: divergences by hand, and a GGUF's logits against PyTorch's through the real converter."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny
from plain_figures import nmse
from qwen2_variants import random_adapter

from pipeline.config.products import ModelFiles
from pipeline.llamacpp.converters import lora_to_gguf
from pipeline.llamacpp.logits import Floats, GgufModel, Token, open_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.log_probabilities import kl_divergence, perplexity, shifted


def test_divergence_by_hand() -> None:
    p, q = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    by_hand = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    assert kl_divergence(shifted(p), shifted(q)) == pytest.approx([by_hand])
    assert kl_divergence(shifted(p), shifted(p)) == pytest.approx([0.0])


def test_perplexity_and_its_error() -> None:
    value, error = perplexity(np.log([2.0, 8.0]))
    assert value == pytest.approx(4.0)
    assert error == pytest.approx(4.0 * np.std(np.log([2.0, 8.0]), ddof=1) / np.sqrt(2))


def test_a_ggufs_logits_are_the_models(tiny_qwen2: Path, tiny_gguf_base: Path, tools: Toolchain) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    ids = [970, 11, 1879, 0, tiny.END, 198]
    model = AutoModelForCausalLM.from_pretrained(tiny_qwen2, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    with open_gguf(Llama(tools), ModelFiles(tiny_gguf_base), ctx_size=64) as gguf:
        assert gguf.vocabulary == tiny.ROWS
        every = gguf.logits(ids, list(range(6)))
        some = gguf.logits(ids, [1, 4])
        with pytest.raises(ValueError, match="does not fit"):
            gguf.logits([1] * 65, [0])
    assert nmse(expected, every) < 1e-3
    assert (expected.argmax(-1) == every.argmax(-1)).mean() >= 5 / 6
    assert np.allclose(some, every[[1, 4]], atol=1e-2)
    assert nmse(expected, every[::-1]) > 0.1  # the measure sees a wrong order


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tokens of each pass over the weights."""
    tokens_of: list[int] = []
    decode = GgufModel._decode

    def counted(self: GgufModel, tokens: Sequence[Token]) -> Floats:
        tokens_of.append(len(tokens))
        return decode(self, tokens)

    monkeypatch.setattr(GgufModel, "_decode", counted)
    return tokens_of


FIRST = [970, 11, 1879, 0, tiny.END]
SECOND = [970, 11, 1879, 198, 0, 11]


def test_what_a_row_shares_with_the_one_before_is_not_read_again(
    tiny_gguf_base: Path, tools: Toolchain, read: list[int]
) -> None:
    with open_gguf(Llama(tools), ModelFiles(tiny_gguf_base), ctx_size=64, rows=2) as gguf:
        alone = gguf.logits(SECOND, [2, 5])
        gguf.logits(FIRST, [4])
        after_another = gguf.logits(SECOND, [2, 5])
        gguf.read_together([(FIRST, range(2, 4)), (SECOND, range(2, 4))])
        after_both = gguf.logits(SECOND, [2, 5])
    assert read == [6, 2, 4, 8, 6]  # Position 2 is wanted, so its token is read again.
    assert np.allclose(alone, after_another, atol=1e-4)
    assert np.array_equal(alone, after_both)


def test_what_rows_share_with_those_before_is_not_read_again(
    tiny_gguf_base: Path, tools: Toolchain, read: list[int]
) -> None:
    third = [970, 11, 5, 6]
    rows = [(FIRST, range(2, 5)), (SECOND, range(3, 6))]
    with open_gguf(Llama(tools), ModelFiles(tiny_gguf_base), ctx_size=64, rows=3) as gguf:
        alone = [gguf.logits(ids, list(places)) for ids, places in rows]
        read.clear()
        gguf.read_together([(third, range(2, 4)), (FIRST, range(2, 4))])
        together = [values.copy() for values in gguf.read_together(rows)]
        again = [values.copy() for values in gguf.read_together(rows)]
        more = gguf.read_together([*rows, (third, range(2, 4))])  # one row has no tokens yet
    assert read == [7, 6, 6, 10]
    for found in (together, again, more):
        for expected, values in zip(alone, found, strict=False):
            assert np.allclose(expected, values, atol=1e-4)


def test_with_an_adapter_on_it_they_are_pefts(
    tiny_qwen2: Path, tiny_gguf_base: Path, tools: Toolchain, tmp_path: Path
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    ids, places = [970, 11, 1879, 0, tiny.END, 198], list(range(6))
    adapter, lora = random_adapter(tmp_path / "adapter"), tmp_path / "lora.gguf"
    lora_to_gguf(tools, adapter, tiny_qwen2, lora, "F16")
    model = AutoModelForCausalLM.from_pretrained(tiny_qwen2, dtype=torch.float32)
    with torch.no_grad():
        bare = model(torch.tensor([ids])).logits[0].numpy()
        expected = PeftModel.from_pretrained(model, adapter)(torch.tensor([ids])).logits[0].numpy()
    with open_gguf(Llama(tools), ModelFiles(tiny_gguf_base, lora), ctx_size=64) as gguf:
        found = gguf.logits(ids, places)
    assert nmse(expected, found) < 1e-3 < 0.1 < nmse(expected, bare)


def test_two_ggufs_at_once(tiny_gguf_base: Path, tools: Toolchain) -> None:
    """A log callback collected with the first model once crashed the process when the second was freed."""
    load = Llama(tools), ModelFiles(tiny_gguf_base)
    for _ in range(2):
        with open_gguf(*load, ctx_size=64) as one, open_gguf(*load, ctx_size=64) as two:
            assert np.array_equal(one.logits([970, 11], [0, 1]), two.logits([970, 11], [0, 1]))
