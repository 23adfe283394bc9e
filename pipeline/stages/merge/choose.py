"""Measure both merges, into the 16-bit base and into the NF4 base, at the level that ships, and choose."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.chat.selection import answerable_rows, encoded_rows
from pipeline.chat.tokens import Row, load_tokenizer, trained_positions
from pipeline.config.params import Params
from pipeline.config.sections import Evaluate, Merge
from pipeline.core.errors import DataError
from pipeline.core.publish import need_disk, publishing, remove, scratch_folder
from pipeline.llamacpp.converters import HeaderFields, Quantizing, quantize_gguf, to_gguf
from pipeline.llamacpp.pretokenizer import find_pre_tokenizer
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.answers import answer_rows, score_answers
from pipeline.metrics.divergence import Divergence, Prompt, gguf_divergence, thinned
from pipeline.metrics.forward import trained_logits
from pipeline.metrics.intervals import interval

MergeBase = Literal["16-bit", "nf4"]
FEWEST = 8  # rows: an interval of fewer says little, that of one row nothing
NAMES: Mapping[MergeBase, str] = {"16-bit": "16-bit base", "nf4": "NF4 base"}
SCRATCH = ".merging"  # beside the merged model
# in the order of measuring: the second, which is mostly the closer one, needn't be made again
MERGE_BASES: tuple[MergeBase, MergeBase] = "16-bit", "nf4"
# of a merge, by 16-bit type and level: divergence, and the task's points by row
Found = dict[str, tuple[Divergence, list[float | None] | None]]


@dataclass(frozen=True)
class Measured:
    """One merge at one level: per row mean divergence (nats), same first choices, the task's points."""

    klds: Sequence[float]
    same_top: float
    points: Sequence[float | None] | None  # a row's None: not measured


def decide(sixteen_bit: Measured, nf4: Measured, level: str) -> tuple[MergeBase, str]:
    """(winner, a sentence why); both were measured on the same rows.

    The rule, in this order, at the deciding level and row by row (paired, 95 % intervals of the mean
    difference):

    1. where the task was scored on at least `FEWEST` rows and the interval of the difference leaves out 0,
       the higher score wins;
    2. else, where the interval of the difference in divergence from the trained model leaves out 0 (again on
       at least `FEWEST` rows), the closer one wins;
    3. else the 16-bit weights: they are the published ones, and nothing speaks for others.
    """
    pairs = zip(sixteen_bit.points or (), nf4.points or (), strict=True)
    better = [100 * (a - b) for a, b in pairs if a is not None and b is not None]
    closer = [b - a for a, b in zip(sixteen_bit.klds, nf4.klds, strict=True)]
    task = ", and the task's scores do not differ measurably" if better else ""
    measures = (
        (better, "does the task better by {:.1f} to {:.1f} points, {} rows"),
        (closer, f"is closer to the trained model by {{:.4f}} to {{:.4f}} nats, {{}} rows{task}"),
    )
    for differences, verdict in measures:
        low, high = interval(differences) if len(differences) >= FEWEST else (0.0, 0.0)
        if low > 0 or high < 0:
            merge_base: MergeBase = "16-bit" if low > 0 else "nf4"
            ends = (low, high) if low > 0 else (-high, -low)  # as seen from the winner: both positive
            claim = verdict.format(*ends, len(differences))
            return merge_base, f"At {level} the merge into the {NAMES[merge_base]} {claim}"
    return (
        "16-bit",
        f"At {level} {len(closer)} rows can't tell the two merges apart, so it is the base's own 16-bit "
        "weights",
    )


@dataclass(frozen=True)
class Choice:
    """The base weights to merge into, why, and the figures of every merge and level that was measured."""

    merge_base: MergeBase
    reason: str
    level: str | None = None  # the deciding one
    candidates: Mapping[MergeBase, Mapping[str, Any]] = field(default_factory=dict)


def merge_the_better(
    make: Callable[[MergeBase, Path], dict[str, Any]], params: Params, root: Path, tools: Toolchain
) -> tuple[Choice, dict[str, Any]]:
    """Make both merges with `make(merge_base, folder)`, publish the one that measures better as
    `models/merged` below `root`; the choice and that merge's record.

    One merge, its 16-bit GGUF and one level are on the disk at a time: the first merge is deleted once it is
    measured, and made again if it wins (the same bytes; at 7B minutes, where both at once would take 15 GB
    more than all that is kept). The rows are read first: what is wrong with them should not be found after an
    hour.
    """
    base, adapter, merged = (root / "models" / name for name in ("base", "adapter", "merged"))
    rows = root / "data/final/val.jsonl"
    prompts, task_rows = held_out(rows, adapter, params.merge, params.evaluating)
    need_disk(merged.parent, 3 * sum(shard.stat().st_size for shard in base.glob("*.safetensors")))
    with scratch_folder(merged.with_name(SCRATCH)) as scratch:
        first, last = MERGE_BASES
        with trained_logits(base=base, adapter=adapter, prompts=prompts, scratch=scratch) as reference:
            make(first, scratch / first)
            measured = {first: measure(scratch / first, reference, task_rows, params, tools, root)}
            remove(scratch / first)
            record = make(last, scratch / last)
            measured[last] = measure(scratch / last, reference, task_rows, params, tools, root)
        choice = choose(measured, params.quantize.deciding, params.evaluating)
        if choice.merge_base == first:
            remove(scratch / last)
            record = make(first, scratch / first)
        with publishing(merged) as aside:
            (scratch / choice.merge_base).rename(aside)
    return choice, record


def held_out(rows: Path, adapter: Path, merge: Merge, evaluate: Evaluate) -> tuple[list[Prompt], list[Row]]:
    """(prompts with the positions that training teaches, the task's rows) from a split not trained on."""
    encoded = encoded_rows(load_tokenizer(adapter), rows, merge.rows, evaluate.ctx_size)
    prompts = [Prompt(row.ids, thinned(trained_positions(row))) for row in encoded]
    if not prompts:
        raise DataError(
            "Q-MERGE-001",
            f"{rows} has no chat that merge.base auto can measure: set it to 16-bit or nf4, or raise "
            "curate.val_fraction",
        )
    scored = merge.task_rows and evaluate.scorer != "none"
    return prompts, answerable_rows(rows, merge.task_rows) if scored else []


def measure(
    merged: Path, reference: Any, task_rows: list[Row], params: Params, tools: Toolchain, root: Path
) -> Found:
    """{16-bit type and the level that decides: (divergence from the trained model, the task's points by
    row)}; the task is scored at that level only.

    `reference` has the trained model's logits on held-out prompts. The GGUFs are made beside `merged` and
    deleted. `root` is the project's: scorers of the user's own and the judge's key lie below it.
    """
    evaluate, kind = params.evaluating, params.convert.type
    source = merged.with_name(f"{merged.name}-{kind}.gguf")
    header = HeaderFields(merged.name, find_pre_tokenizer(merged, tools).name)
    to_gguf(tools, merged, source, kind, header)
    measured: Found = {
        kind: (gguf_divergence(reference, source, threads=evaluate.threads, tools=tools), None)
    }
    level = params.quantize.deciding
    gguf = merged.with_name(f"{merged.name}-{level}.gguf")
    options = Quantizing(tensor_types=params.quantize.tensor_types)
    quantize_gguf(Llama(tools, evaluate.threads), source, gguf, level, options)
    divergence, points = gguf_divergence(reference, gguf, threads=evaluate.threads, tools=tools), None
    if task_rows:
        answers = answer_rows(gguf, task_rows, evaluate, tools)
        score_answers(
            answers,
            evaluate.scorer,
            judge=evaluate.judge,
            external=evaluate.external,
            root=root,
        )
        points = [answer["score"] for answer in answers]
    measured[level] = (divergence, points)
    remove(gguf)
    remove(source)
    return measured


def choose(measured: Mapping[MergeBase, Found], level: str, evaluate: Evaluate) -> Choice:
    """Take the better of both merges, by figures against the trained model; see `decide`."""
    sixteen_bit, nf4 = (
        Measured(divergence.kld_rows, divergence.same_top, points)
        for divergence, points in (measured[merge_base][level] for merge_base in ("16-bit", "nf4"))
    )
    merge_base, reason = decide(sixteen_bit, nf4, level)
    candidates = {
        name: {model: figures(*pair, evaluate) for model, pair in models.items()}
        for name, models in measured.items()
    }
    return Choice(merge_base, reason, level, candidates)


def figures(divergence: Divergence, points: list[float | None] | None, evaluate: Evaluate) -> dict[str, Any]:
    """One merge at one level for reports/merge.json: means with their 95 % intervals."""
    low, high = interval(divergence.kld_rows)
    task = None
    if measured := [point for point in points or () if point is not None]:
        worst, best = interval(measured)
        task = {
            "scorer": evaluate.scorer,
            "score": round(sum(measured) / len(measured), 4),
            "low": round(worst, 4),
            "high": round(best, 4),
            "rows": len(measured),
        }
    return {
        "kld_mean": divergence.kld,
        "kld_low": low,
        "kld_high": high,
        "kld_max": divergence.kld_max,
        "same_top": round(divergence.same_top, 4),
        "nmse": divergence.nmse,
        "rows": len(divergence.kld_rows),
        "positions": divergence.positions,
        "task": task,
    }
