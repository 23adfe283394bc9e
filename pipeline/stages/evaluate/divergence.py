"""Divergence of one GGUF from another: perplexity, KL divergence, same top token and Δp on held-out chats, as
llama-perplexity defines them.

Both models are in memory and read each row in parallel, a few positions at a time. Nothing of size vocabulary
× tokens is stored anywhere. A beginning that a row shares with the row before (a system prompt) isn't read
again; its figures are the same and count for both rows.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.core.errors import DataError
from pipeline.core.progress import progress
from pipeline.core.text import common_start
from pipeline.llamacpp.logits import Floats, GgufModel, Ids
from pipeline.metrics.divergence import BLOCK, Prompt
from pipeline.metrics.log_probabilities import kl_divergence, negative_log, perplexity, shifted

SELF_ROWS = 4  # rows on which a model is compared with itself


class Comparison(NamedTuple):
    """Comparison of a model with a reference after each of T positions; all arrays are (T,).

    `loss` is −log p, with p the model's probability of the next token. `kld` is KL(reference ‖ model). Both
    are in nats. `same` is True if both give the same token the highest probability. `delta_p` is p minus the
    reference's.
    """

    loss: Floats
    kld: Floats
    same: np.ndarray[Any, np.dtype[np.bool_]]
    delta_p: Floats

    def at(self, chosen: Any) -> "Comparison":
        """Return the comparison at some of the positions, by index or mask."""
        return Comparison(*(values[chosen] for values in self))

    @staticmethod
    def joined(parts: Iterable["Comparison"]) -> "Comparison":
        """Return the comparisons concatenated."""
        return Comparison(*map(np.concatenate, zip(*parts, strict=True)))


NOTHING = Comparison(np.empty(0), np.empty(0), np.empty(0, np.bool_), np.empty(0))


def divergence_of(
    model: GgufModel,
    reference: GgufModel,
    rows: Sequence[Prompt],
    label: str,
    *,
    itself: bool = False,
    by_row: bool = False,
) -> dict[str, Any]:
    """Return the figures of `model` at the assistant's tokens, and at all tokens under `all_tokens`.

    With `itself`, `reference` is a second context of the same model. It is compared on the first `SELF_ROWS`
    rows, to prove that the divergence is 0 (`self_divergence`, the largest KL divergence in nats), and on the
    others only its perplexity is measured. With `by_row` the result also contains each compared row's
    contribution (`rows_summary`), which gives the interval for the share of a damage that was recovered.
    Raises `DataError` if the models' vocabularies differ or logits are not finite.
    """
    if model.vocabulary != reference.vocabulary:
        raise DataError(
            "Q-EVALUATE-001",
            f"{label}: the model has a vocabulary of {model.vocabulary:,} tokens and its reference one of "
            f"{reference.vocabulary:,}, so they can't be compared: leave the model out of evaluate.models",
        )
    marked = [np.isin(np.arange(len(row.ids) - 1), row.positions) for row in rows]
    comparisons, losses = read_rows(model, reference, rows, label, SELF_ROWS if itself else len(rows))
    comparison = Comparison.joined(comparisons)
    loss = np.concatenate(losses)
    assistant = np.concatenate(marked)
    for name, values in (("the model", loss), ("its reference", comparison.kld)):
        strange = int((~np.isfinite(values)).sum())
        if strange:
            raise DataError(
                "Q-EVALUATE-002",
                f"{label}: {name} gives no finite numbers at {strange} of {len(values)} positions: make its "
                "file again, with convert.type BF16 where weights are too large for F16",
            )
    return {
        "perplexity_rows": len(rows),
        "perplexity_tokens": int(assistant.sum()),
        **summary(loss[assistant], comparison.at(assistant[: len(comparison.kld)])),
        "all_tokens": {"tokens": len(loss), **summary(loss, comparison)},
        "self_divergence": float(comparison.kld.max()) if itself else None,
        **({"by_row": rows_summary(comparisons, marked)} if by_row else {}),
    }


def read_rows(
    model: GgufModel, reference: GgufModel, rows: Sequence[Prompt], label: str, compare: int
) -> tuple[list[Comparison], list[Floats]]:
    """Return the comparisons of the first `compare` rows, and the model's loss at every position
    of all rows.
    """
    comparisons: list[Comparison] = []
    losses: list[Floats] = []
    before: list[int] = []
    comparison = NOTHING
    loss = NOTHING.loss
    # The caller checks all logits at once for values that are not finite.
    with progress(label, sum(len(row.ids) for row in rows)) as advance, np.errstate(invalid="ignore"):
        for number, row in enumerate(rows):
            start = same_start(row.ids, before)
            if number < compare:
                comparison = Comparison.joined(
                    [comparison.at(slice(start)), *compared(model, reference, row, start)]
                )
                comparisons.append(comparison)
                loss = comparison.loss
            else:
                loss = np.concatenate([loss[:start], *measured(model, row, start)])
            losses.append(loss)
            before = row.ids
            advance(len(row.ids))
    return comparisons, losses


def rows_summary(
    comparisons: Sequence[Comparison], marked: Sequence[np.ndarray[Any, np.dtype[np.bool_]]]
) -> dict[str, dict[str, list[float]]]:
    """Return for each row the number of positions compared, the sum of their KLD (nats) and the number of
    same top tokens: at the assistant's tokens and at all.
    """
    assistant = [comparison.at(chosen) for comparison, chosen in zip(comparisons, marked, strict=False)]
    return {
        name: {
            "tokens": [len(part.kld) for part in parts],
            "kld": [round(float(part.kld.sum()), 6) for part in parts],
            "same": [int(part.same.sum()) for part in parts],
        }
        for name, parts in (("assistant", assistant), ("all_tokens", comparisons))
    }


def summary(loss: Floats, comparison: Comparison) -> dict[str, float]:
    """Return the published figures of positions; `loss` may have more of them than `comparison`."""
    value, error = perplexity(loss)
    kld = comparison.kld
    return {
        "perplexity": round(value, 4),
        "perplexity_error": round(error, 4),
        "kld_mean": float(kld.mean()),
        "kld_median": float(np.median(kld)),
        "kld_p999": float(np.percentile(kld, 99.9)),
        "kld_max": float(kld.max()),
        "same_top": round(float(comparison.same.mean()), 4),
        "rms_dp": round(float(np.sqrt((comparison.delta_p**2).mean())), 6),
    }


def same_start(ids: list[int], before: list[int]) -> int:
    """Return the number of first positions at which two rows agree and the same token follows (a system
    prompt). They are measured once.
    """
    return max(common_start(ids, before) - 1, 0)


def compared(model: GgufModel, reference: GgufModel, row: Prompt, start: int) -> Iterator[Comparison]:
    """Compare both models after every position of a row from `start` on, except the last.

    No token follows the last one.
    """
    return (
        compare_logits(logits, expected, following)
        for following, logits, expected in blocks(row, start, model, reference)
    )


def measured(model: GgufModel, row: Prompt, start: int) -> Iterator[Floats]:
    """Return only the loss at the same positions."""
    return (negative_log(shifted(logits), following) for following, logits in blocks(row, start, model))


def blocks(row: Prompt, start: int, *models: GgufModel) -> Iterator[tuple[Any, ...]]:
    """Yield a few positions at a time: the tokens that follow them (T,), and each model's logits (T, V)."""
    following = np.array(row.ids[1:], np.intp)
    for pieces in zip(*(model.stream(row.ids[:-1], start) for model in models), strict=True):
        for at in range(0, len(pieces[0]), BLOCK):
            chunks = [piece[at : at + BLOCK] for piece in pieces]
            yield following[start : start + len(chunks[0])], *chunks
            start += len(chunks[0])


def compare_logits(model: Floats, reference: Floats, following: Ids) -> Comparison:
    """Compare two models' float32 logits (T, V) at the same positions, before the tokens `following` (T,)."""
    of_model, of_reference = shifted(model), shifted(reference)
    loss, expected = negative_log(of_model, following), negative_log(of_reference, following)
    kld = kl_divergence(of_reference, of_model)
    return Comparison(loss, kld, of_model.top == of_reference.top, np.exp(-loss) - np.exp(-expected))
