"""Measure the merges into the 16-bit and the NF4 base at the level that ships, and choose one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.chat.selection import encoded_rows
from pipeline.chat.tokens import load_tokenizer, trained_positions
from pipeline.config.params import Params
from pipeline.config.sections.models import MERGE_ROWS
from pipeline.core.errors import DataError
from pipeline.core.publish import need_disk, publishing, remove, scratch_folder
from pipeline.llamacpp.converters import HeaderFields, Quantizing, quantize_gguf, to_gguf
from pipeline.llamacpp.pretokenizer import find_pre_tokenizer
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.divergence import Divergence, Prompt, gguf_divergence, kept_logits, thinned
from pipeline.metrics.forward import trained_model
from pipeline.metrics.statistics import interval

MergeBase = Literal["16-bit", "nf4"]
FEWEST = 8  # Fewest rows for an interval: one of fewer rows tells little, that of one row nothing.
NAMES: Mapping[MergeBase, str] = {"16-bit": "16-bit base", "nf4": "NF4 base"}
SCRATCH = ".merging"  # folder next to the merged model
# In the order of measuring: the second merge is usually the closer one, and needn't be made again.
MERGE_BASES: tuple[MergeBase, MergeBase] = "16-bit", "nf4"
Divergences = dict[str, Divergence]  # divergences of one merge, by 16-bit type and level


def decide(sixteen_bit: Sequence[float], nf4: Sequence[float], level: str) -> tuple[MergeBase, str]:
    """Return the winner and a sentence why, by each merge's mean divergence from the trained model (nats) on
    the same rows, at the deciding level.

    The closer merge wins if the 95 % interval of the mean difference excludes 0. Differences are taken row by
    row, on at least `FEWEST` rows. Otherwise the 16-bit weights win, because they are the published ones and
    nothing argues for others.
    """
    differences = [b - a for a, b in zip(sixteen_bit, nf4, strict=True)]
    rows = len(differences)
    low, high = interval(differences) if rows >= FEWEST else (0.0, 0.0)
    if not (low > 0 or high < 0):
        return (
            "16-bit",
            f"At {level} {rows} rows can't tell the two merges apart, so it is the base's own 16-bit weights",
        )
    merge_base: MergeBase = "16-bit" if low > 0 else "nf4"
    least, most = sorted((abs(low), abs(high)))  # both positive, from the winner's side
    return (
        merge_base,
        f"At {level} the merge into the {NAMES[merge_base]} is closer to the trained model by {least:.4f} to "
        f"{most:.4f} nats, {rows} rows",
    )


@dataclass(frozen=True)
class Choice:
    """Choice of the base weights to merge into, its reason, the figures of each measured merge and level."""

    merge_base: MergeBase
    reason: str
    deciding_level: str | None = None
    candidates: Mapping[MergeBase, Mapping[str, Any]] = field(default_factory=dict)


def merge_the_better(
    make: Callable[[MergeBase, Path], dict[str, Any]], params: Params, root: Path, tools: Toolchain
) -> tuple[Choice, dict[str, Any]]:
    """Make both merges with `make(merge_base, folder)` and publish the one that measures better as
    `models/merged` below `root`. Return the choice and that merge's record.

    Only one merge, its 16-bit GGUF and one level are on the disk at a time. The first merge is deleted once
    it is measured, and made again (with the same bytes) if it wins. At 7B that takes minutes; keeping both
    would take 15 GB more than everything that is kept. The rows are read first, so that an error in them is
    reported before an hour of work.
    """
    base = root / "models/base"
    adapter = root / "models/adapter"
    merged = root / "models/merged"
    rows = root / "data/final/val.jsonl"
    prompts = held_out(rows, adapter, params.preprocess.max_length)
    need_disk(merged.parent, 3 * sum(shard.stat().st_size for shard in base.glob("*.safetensors")))
    with scratch_folder(merged.with_name(SCRATCH)) as scratch:
        first, last = MERGE_BASES
        print(f"merge: asking the trained model {len(prompts)} held-out rows", flush=True)
        with kept_logits(prompts, trained_model(base, adapter), scratch) as reference:
            print(f"merge: merging into the {NAMES[first]} and asking that", flush=True)
            make(first, scratch / first)
            measured = {first: measure(scratch / first, reference, params, tools)}
            remove(scratch / first)
            print(f"merge: merging into the {NAMES[last]} and asking that", flush=True)
            record = make(last, scratch / last)
            measured[last] = measure(scratch / last, reference, params, tools)
        choice = choose(measured, params.quantize.deciding)
        if choice.merge_base == first:
            remove(scratch / last)
            record = make(first, scratch / first)
        with publishing(merged) as aside:
            (scratch / choice.merge_base).rename(aside)
    return choice, record


def held_out(rows: Path, adapter: Path, context: int) -> list[Prompt]:
    """Return rows of at most `context` tokens from a split that was not trained on, with the positions that
    training teaches. Raises `DataError` if there are none.
    """
    encoded = encoded_rows(load_tokenizer(adapter), rows, MERGE_ROWS, context)
    prompts = [Prompt(row.ids, thinned(trained_positions(row))) for row in encoded]
    if not prompts:
        raise DataError(
            "Q-MERGE-001",
            f"{rows} has no chat or text that merge.base auto can measure: set it to 16-bit or nf4, or raise "
            "curate.val_fraction",
        )
    return prompts


def measure(merged: Path, reference: Any, params: Params, tools: Toolchain) -> Divergences:
    """Return the divergence from the trained model at the 16-bit type and at the deciding level, by type.
    `reference` contains the trained model's logits on held-out prompts. The GGUFs are made next to `merged`
    and deleted.
    """
    threads = params.machine.threads
    kind = params.convert.type
    level = params.quantize.deciding
    source = merged.with_name(f"{merged.name}-{kind}.gguf")
    gguf = merged.with_name(f"{merged.name}-{level}.gguf")
    header = HeaderFields(merged.name, find_pre_tokenizer(merged, tools).name)
    to_gguf(tools, merged, source, kind, header)
    measured: Divergences = {kind: gguf_divergence(reference, source, threads=threads, tools=tools)}
    options = Quantizing(tensor_types=params.quantize.tensor_types)
    quantize_gguf(Llama(tools, threads), source, gguf, level, options)
    measured[level] = gguf_divergence(reference, gguf, threads=threads, tools=tools)
    remove(gguf)
    remove(source)
    return measured


def choose(measured: Mapping[MergeBase, Divergences], level: str) -> Choice:
    """Choose the better of both merges by their divergence from the trained model; see `decide`."""
    merge_base, reason = decide(measured["16-bit"][level].kld_rows, measured["nf4"][level].kld_rows, level)
    candidates = {
        name: {model: figures(divergence) for model, divergence in models.items()}
        for name, models in measured.items()
    }
    return Choice(merge_base, reason, level, candidates)


def figures(divergence: Divergence) -> dict[str, Any]:
    """Return one merge's figures at one level for reports/merge.json: means with their 95 % intervals."""
    low, high = interval(divergence.kld_rows)
    return {
        "kld_mean": divergence.kld,
        "kld_low": low,
        "kld_high": high,
        "kld_max": divergence.kld_max,
        "same_top": round(divergence.same_top, 4),
        "nmse": divergence.nmse,
        "rows": len(divergence.kld_rows),
        "positions": divergence.positions,
    }
