"""divergence: float32 terms are exact enough, figures follow llama-perplexity's definitions, and a long row
takes no more memory than a short one.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_figures import divergence, log_softmax, nmse
from tiny import tiny_gguf

from pipeline.config.products import ModelFiles
from pipeline.core.errors import DataError
from pipeline.gguf.header import read_header
from pipeline.llamacpp.logits import CHUNK, open_gguf
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.divergence import Prompt
from pipeline.stages.evaluate import divergence as measures
from pipeline.stages.evaluate.divergence import compare_logits, divergence_of

VOCABULARY = 1000


class Model:
    """A model whose logits are a table: row `n` after the token `n`, independent of what came before."""

    def __init__(self, table: Any) -> None:
        self.table, self.vocabulary, self.read = np.asarray(table, np.float32), len(table[0]), 0

    def stream(self, ids: list[int], start: int = 0) -> Any:
        for place in range(start, len(ids), 7):
            some = ids[place : place + 7]
            self.read += len(some)
            yield self.table[some].copy()


def models(seed: int = 0, noise: float = 0.3, sharp: float = 12.0) -> tuple[Model, Model]:
    random = np.random.default_rng(seed)
    table = random.normal(5, 3, (VOCABULARY, VOCABULARY)).astype(np.float32)
    table[np.arange(VOCABULARY), random.integers(0, VOCABULARY, VOCABULARY)] += sharp
    return Model(table + random.normal(0, noise, table.shape).astype(np.float32)), Model(table)


def small_models() -> tuple[Model, Model]:
    random = np.random.default_rng(3)
    table = random.normal(0, 3, (50, 50))
    return Model(table + random.normal(0, 0.3, table.shape)), Model(table)


class Reset(Model):
    """Says where it was asked to start, as a model with memory must."""

    def stream(self, ids: list[int], start: int = 0) -> Any:
        # what is not read again must be what is in memory
        assert ids[:start] == getattr(self, "held", [])[:start]
        self.held = ids
        yield from super().stream(ids, start)


def perplexity_of(model: Model, some: list[Prompt]) -> float:
    rows = [(log_softmax(model.table[row.ids[:-1]]), row.ids[1:]) for row in some]
    logs = [logs[np.arange(len(following)), following] for logs, following in rows]
    return float(np.exp(-np.concatenate(logs).mean()))


def rows(count: int, seed: int = 0) -> list[Prompt]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        ids = random.integers(0, VOCABULARY, int(random.integers(3, 40))).tolist()
        positions = random.choice(len(ids) - 1, max(1, len(ids) // 3), replace=False)
        made.append(Prompt(ids, sorted(positions.tolist())))
    return made


@given(
    st.integers(0, 1 << 31),
    st.sampled_from((1e-3, 1e-2, 0.3, 3.0)),
    st.sampled_from((0.0, 12.0, 30.0)),
    st.sampled_from((-1e4, 0.0, 1e4)),
)
def test_float32_terms_are_right_to_1e_7(seed: int, noise: float, sharp: float, offset: float) -> None:
    random = np.random.default_rng(seed)
    reference = random.normal(0, 4, (3, 5000)).astype(np.float32) + np.float32(offset)
    reference[:, 7] += np.float32(sharp)
    model = reference + random.normal(0, noise, reference.shape).astype(np.float32)
    following, before = random.integers(0, 5000, 3), np.array([model, reference])
    found = compare_logits(model, reference, following)
    assert np.array_equal([model, reference], before)
    ours, theirs = log_softmax(model), log_softmax(reference)
    assert found.kld == pytest.approx(divergence(theirs, ours), abs=1e-7, rel=1e-5)
    at = np.arange(3), following
    assert found.loss == pytest.approx(-ours[at], rel=1e-6, abs=1e-6)
    assert found.delta_p == pytest.approx(np.exp(ours[at]) - np.exp(theirs[at]), abs=1e-6)
    assert found.same.tolist() == (model.argmax(-1) == reference.argmax(-1)).tolist()
    itself = compare_logits(model, model.copy(), following)
    assert itself.kld.tolist() == itself.delta_p.tolist() == [0.0] * 3


def test_the_assistants_tokens_and_all_of_them_are_what_a_plain_sum_gives() -> None:
    model, reference = models()
    some = rows(9)
    found = divergence_of(model, reference, some, "x")  # type: ignore[arg-type]
    loss, kld, mine, dp, same = [], [], [], [], []
    for row in some:
        ours, theirs = (log_softmax(one.table[row.ids[:-1]]) for one in (model, reference))
        at = np.arange(len(row.ids) - 1), row.ids[1:]
        loss += (-ours[at]).tolist()
        kld += divergence(theirs, ours).tolist()
        dp += (np.exp(ours[at]) - np.exp(theirs[at])).tolist()
        same += (ours.argmax(-1) == theirs.argmax(-1)).tolist()
        mine += [position in row.positions for position in range(len(row.ids) - 1)]
    assistant = np.array(mine)
    assert found["all_tokens"]["tokens"] == len(loss) > found["perplexity_tokens"] == assistant.sum()
    assert found["all_tokens"]["kld_mean"] == pytest.approx(np.mean(kld), rel=1e-5)
    own = np.array(kld)[assistant]
    # llama-perplexity interpolates its percentiles the same way
    wanted = {"kld_mean": own.mean(), "kld_median": np.median(own), "kld_p999": np.quantile(own, 0.999)}
    wanted |= {"kld_max": own.max(), "same_top": np.mean(np.array(same)[assistant])}
    wanted |= {"rms_dp": np.sqrt(np.mean(np.array(dp)[assistant] ** 2))}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert found["perplexity"] == pytest.approx(np.exp(np.mean(np.array(loss)[assistant])), rel=1e-6)
    assert found["all_tokens"]["perplexity"] == pytest.approx(np.exp(np.mean(loss)), rel=1e-6)
    assert found["perplexity_rows"] == 9
    assert found["self_divergence"] is None


def test_a_model_is_compared_with_itself_on_a_few_rows_and_measured_on_all() -> None:
    model, _ = models()
    again = Model(model.table)
    some = rows(9)
    found = divergence_of(model, again, some, "x", itself=True)  # type: ignore[arg-type]
    assert found["self_divergence"] == found["kld_mean"] == found["rms_dp"] == 0.0
    assert found["all_tokens"]["kld_max"] == 0.0
    assert found["same_top"] == 1.0
    assert again.read == sum(len(row.ids) - 1 for row in some[: measures.SELF_ROWS])
    assert found["all_tokens"]["tokens"] == model.read == sum(len(row.ids) - 1 for row in some)
    assert found["all_tokens"]["perplexity"] == pytest.approx(perplexity_of(model, some), rel=1e-6)


@given(st.integers(0, 1 << 31), st.booleans())
def test_what_rows_have_in_common_is_read_once_and_counts_for_each(seed: int, itself: bool) -> None:
    random = np.random.default_rng(seed)
    model, reference = small_models()
    prompts = [random.integers(0, 50, int(random.integers(1, 20))).tolist() for _ in range(3)]
    some = []
    for _ in range(8):
        ids = prompts[random.integers(3)] + random.integers(0, 50, int(random.integers(0, 9))).tolist() + [0]
        some.append(Prompt(ids, [len(ids) - 2]))
    plain, shared = (Reset(reference.table if itself else model.table) for _ in range(2))
    found = divergence_of(shared, reference, some, "x", itself=itself)  # type: ignore[arg-type]
    assert found["all_tokens"]["tokens"] == sum(len(row.ids) - 1 for row in some) >= shared.read
    assert found["all_tokens"]["perplexity"] == pytest.approx(perplexity_of(plain, some), rel=1e-5, abs=1e-4)
    if not itself:
        tables = [[log_softmax(one.table[row.ids[:-1]]) for one in (reference, model)] for row in some]
        kld = np.concatenate([divergence(*both) for both in tables]).mean()
        assert found["all_tokens"]["kld_mean"] == pytest.approx(kld, rel=1e-5, abs=1e-7)


def test_a_model_that_is_not_the_same_is_not_taken_for_itself() -> None:
    model, reference = models()
    assert divergence_of(model, reference, rows(9), "x", itself=True)["self_divergence"] > 1e-3  # type: ignore[arg-type]


def test_strange_logits_are_an_error_and_say_whose() -> None:
    for strange in (np.nan, np.inf):
        model, reference = models()
        model.table[:, 3] = strange
        with pytest.raises(DataError, match="Q-EVALUATE-002"):
            divergence_of(model, reference, rows(3), "x")  # type: ignore[arg-type]
        with pytest.raises(DataError, match="Q-EVALUATE-002"):
            divergence_of(reference, model, rows(3), "x")  # type: ignore[arg-type]


def test_other_vocabularies_are_refused() -> None:
    model, _ = models()
    with pytest.raises(DataError, match="Q-EVALUATE-001"):
        divergence_of(model, Model([[0.0, 1.0]]), rows(1), "x")  # type: ignore[arg-type]


def wide_gguf(file: Path, words: int) -> Path:
    """A tiny GGUF with a vocabulary of `words` tokens."""
    more = [f"word{number}" for number in range(words - 261)]
    fields = {
        "llama.vocab_size": words,
        "llama.context_length": 4096,
        "tokenizer.ggml.token_type": [1] * 258 + [3] * 3 + [1] * len(more),
    }
    known = read_header(tiny_gguf(file)).fields["tokenizer.ggml.tokens"]
    embedding = np.random.default_rng(1).normal(0, 0.1, (words, 32)).astype(np.float16)
    fields["tokenizer.ggml.tokens"] = known + more
    return tiny_gguf(file, tensors={"token_embd.weight": embedding}, **fields)


@pytest.mark.slow
def test_a_streamed_row_is_the_row_and_takes_no_more_memory_than_a_piece(
    tools: Toolchain, tmp_path: Path
) -> None:
    """A row of 2,048 tokens at a vocabulary of 152k would be 1.2 GB of logits for each model."""
    file, status = wide_gguf(tmp_path / "wide.gguf", 151_936), Path("/proc/self/status")
    ids = np.random.default_rng(0).integers(0, 150_000, 2048).tolist()
    with open_gguf(Llama(tools), ModelFiles(file), ctx_size=2048) as model:
        before = resident(status) if status.exists() else 0
        assert sum(1 for _ in model.stream(ids)) == 2048 // CHUNK
        assert not before or resident(status) - before < 600e6
        whole = model.logits(ids[:300], list(range(300)))
        pieces = [piece.copy() for piece in model.stream(ids[:300])]
        assert [len(piece) for piece in pieces] == [CHUNK, 300 - CHUNK]
        assert nmse(whole, np.concatenate(pieces)) < 1e-4
        # a row that begins like the one before
        other = ids[:200] + ids[500:600]
        whole = model.logits(other, list(range(300)))
        list(model.stream(ids[:300]))
        assert nmse(whole[150:], np.concatenate([piece.copy() for piece in model.stream(other, 150)])) < 1e-4
        with pytest.raises(ValueError, match="does not fit"):
            next(model.stream([1] * 2049))


def resident(status: Path) -> int:
    return next(
        int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmRSS")
    )
