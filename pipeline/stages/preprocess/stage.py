"""Turn rows into the trainer's input: token ids, labels only on what is to be learned, packed rows. Only the
kinds of rows that `train.method` learns from are used.

Reads `data/final/{train,val}.jsonl`, the rows that stage augment added to each (`augment.kinds`), and
tokenizer, template and configuration in `models/base/`. Writes `data/tokens/{train,val}.parquet`
(`pipeline.stages.preprocess.tables`; for prompts also the scorers' input,
`data/tokens/questions-{train,val}.jsonl`), `data/tokens/manifest.json`, `reports/labels.json` and
`reports/labels.html`. Command: `python -m pipeline preprocess`
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pipeline.chat.manifest import NAME, manifest
from pipeline.chat.prompts import QUESTIONS, REWARDS, with_prompts
from pipeline.chat.rendering import Unrenderable, own_system_prompt
from pipeline.chat.sequences import encode_rows
from pipeline.chat.template_probe import SHOWING_TOOLS
from pipeline.chat.tokens import NOT_LEARNED, load_tokenizer
from pipeline.chat.trial import OF_THE_BASE, USUAL, base_fault, failures
from pipeline.config.methods import METHODS, REWARD, Method, unused_sentences
from pipeline.config.params import Params
from pipeline.config.sections import Train
from pipeline.config.sections.adapters import DEFAULT_TARGETS
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.publish import publishing, write_json, write_text
from pipeline.core.text import most, plural
from pipeline.models.own_targets import fitted
from pipeline.models.packed_rows import rows_apart
from pipeline.stages.preprocess.packing import best_fit, in_order, need_rows_apart
from pipeline.stages.preprocess.page import render_labels_page, sample, unused
from pipeline.stages.preprocess.proof import load_base, prove
from pipeline.stages.preprocess.rewards import Weighting, account, sentences, weighting
from pipeline.stages.preprocess.stats import SplitStats, row_name, rows_in
from pipeline.stages.preprocess.stretches import Base
from pipeline.stages.preprocess.tables import (
    Written,
    copy_rewards,
    sequence,
    to_table,
    token_lengths,
    write_questions,
    write_rows_of,
)

SPLITS = ("train", "val")
TOO_LONG = "too_long"  # reason for a row that is longer than preprocess.max_length


def preprocess(
    *,
    rows_folder: Path,
    base: Path,
    tokens_folder: Path,
    max_length: int,
    packing: bool,
    max_left_out: float = 1.0,
    train: Train | None = None,
    augmented: Sequence[str] = (),
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Tokenize and pack both splits, prove the result and publish the folder. Return its statistics, and
    some rows to look at. `augmented` are the kinds of rows that are added from data/augmented, next to
    `rows_folder`.

    The method, the order and the weights of rewards come from `train`. A row is left out and counted by
    reason if it is longer than `max_length` tokens (a pair: both answers together), if the template can't
    render it whole and with exact labels, or if the method has no use for its kind. Nothing is cut. With
    `train.train_on_prompt` the prompts are learned too, not only the answers.

    Raises `DataError` if no training row is left, if more than the share `max_left_out` of those that the
    method learns from is left out, if tokenizer and configuration contradict each other, or if
    the proof fails. Raises `ConfigError` if the base lacks the targets of `train`, or can't keep rows apart
    that the method or a batch computes together. Rows that it can't keep apart are not packed.
    """
    tokenizer = load_tokenizer(base)
    loaded_base = load_base(base, tokenizer)
    train = train or Train()
    learning = METHODS[train.method]
    if train.target_modules != DEFAULT_TARGETS:
        fitted(train, base)  # Stage train would raise it too, but only after the rows are tokenized.
    never_packed = ""
    # A pair's answers share a row. So do the answers to a prompt, but the prompt itself is not packed.
    if learning.answers:
        need_rows_apart(base, train.method)
    elif packing or train.per_device_train_batch_size > 1:
        never_packed = rows_apart(base).reason
    if never_packed and train.per_device_train_batch_size > 1:
        raise ConfigError(
            "Q-PREPROCESS-016",
            f"a batch of {train.per_device_train_batch_size} rows is computed as one, and {never_packed}: "
            "set train.per_device_train_batch_size to 1, and raise train.gradient_accumulation_steps instead",
        )
    packing = packing and not learning.prompts and not never_packed
    to_tokens = Tokenization(loaded_base, max_length, packing, train)
    stats: dict[str, Any] = {
        "method": train.method,
        "max_length": max_length,
        "packing": packing,
        **({"never_packed": never_packed} if never_packed else {}),
        **({"prompts": True} if train.train_on_prompt else {}),
        "template_system_prompt": own_system_prompt(tokenizer),
        "splits": {},
    }
    all_stats = {split: SplitStats() for split in SPLITS}
    added = rows_folder.parent / "augmented"
    files = {}
    for split in SPLITS:
        files[split] = [rows_folder / f"{split}.jsonl"]
        files[split] += [added / f"{kind}-{split}.jsonl" for kind in augmented]
    with publishing(tokens_folder) as aside:
        aside.mkdir()
        for split, split_stats in all_stats.items():
            rows = files[split]
            target = aside / f"{split}.parquet"
            weighed = stats["splits"].get("train", {}).pop("weighting", None)
            stats["splits"][split] = write_split(rows, target, to_tokens, split_stats, weighed)
            if learning.prompts:
                write_questions(aside / f"{QUESTIONS}-{split}.jsonl", target, rows)
        if learning.prompts:
            copy_rewards(aside / REWARDS, train.grpo, tokens_folder.parent.parent)
        stats["splits"]["val"].pop("weighting")
        trained = stats["splits"]["train"]
        if not trained["rows"]:
            raise nothing_trained(tokenizer, all_stats["train"], rows_folder / "train.jsonl", train.method)
        check_left_out(all_stats["train"], rows_folder / "train.jsonl", max_left_out)
        stats["trained_share"] = round(trained["trained_tokens"] / trained["tokens"], 4)
        sources = [file for split in SPLITS for file in files[split]]
        write_json(aside / NAME, manifest(aside, sources, base, tokenizer, stats))
        written = Written(aside / "train.parquet")
        samples = [
            sample(kind, name, written, loaded_base.plain)
            for kind, names in all_stats["train"].examples.items()
            for name in names
        ]
    return stats, samples


def nothing_trained(tokenizer: Any, stats: SplitStats, rows: Path, method: Method) -> DataError:
    """Return the error for a training split without a trainable row. It is about the base if a plain chat
    fails on it like most rows do.
    """
    counts = ", ".join(f"{code}: {count}" for code, count in stats.rejected.most_common())
    beginning = f"no row of {rows} can be trained ({counts or 'there is none'})"
    fix = " ".join(unused_sentences(stats.untrained, method))
    if fix:
        return DataError("Q-PREPROCESS-001", f"{beginning}: {fix}")
    usual = next((code for code, _ in stats.rejected.most_common(1)), "")
    if usual in OF_THE_BASE and TOO_LONG not in stats.rejected:
        failed = failures(tokenizer)
        why = next((failed[kind] for kind in USUAL if kind in failed and failed[kind].code == usual), None)
        if why:
            sentence = base_fault(tokenizer, why, "the base").sentence
            return DataError(
                "Q-PREPROCESS-015", f"{beginning}, and the reason is the base, not the rows: {sentence}"
            )
        first = stats.rejects[usual][0]
        return DataError(
            "Q-PREPROCESS-001",
            f"{beginning}: row {first['row']}: {first['why']}: {_remedy(stats, usual)}",
        )
    fixes = []
    if stats.rejected.keys() != {TOO_LONG}:
        fixes.append("fix the rows")
    if TOO_LONG in stats.rejected:
        fixes.append("raise preprocess.max_length")
    return DataError("Q-PREPROCESS-001", f"{beginning}: {' or '.join(fixes)}")


def check_left_out(stats: SplitStats, rows: Path, most: float) -> None:
    """Raise `DataError` if more than the share `most` of the rows that the method learns from is left out."""
    kept = stats.kinds.total()
    reasons = stats.rejected.copy()
    del reasons[NOT_LEARNED]
    learned = kept + reasons.total()
    if reasons.total() <= most * learned:
        return
    usual, _ = reasons.most_common(1)[0]
    counts = ", ".join(f"{count:,} {code}" for code, count in reasons.most_common())
    first = stats.rejects[usual][0]
    raise DataError(
        "Q-PREPROCESS-017",
        f"{reasons.total():,} of {plural(learned, 'row')} of {rows} can't be trained ({counts}): row "
        f"{first['row']}: {first['why']}: {_remedy(stats, usual)}; preprocess.max_left_out: 1 trains the "
        f"other {kept:,} alone",
    )


def _remedy(stats: SplitStats, reason: str) -> str:
    """Return what to do about rows that are left out for this reason."""
    if reason == TOO_LONG:
        return "raise preprocess.max_length"
    if reason not in OF_THE_BASE:
        return "fix the rows"
    if 2 * stats.rejected_with_tools[reason] > stats.rejected[reason]:
        return f"choose a base whose chat template shows tools ({SHOWING_TOOLS}), or leave these rows out"
    return "choose a base whose chat template takes such rows, or change the rows"


@dataclass(frozen=True)
class Tokenization:
    """Settings that turn rows into tokens: base, at most `max_length` tokens, packed or not, method."""

    base: Base
    max_length: int
    packing: bool
    train: Train


def write_split(
    rows: Sequence[Path],
    target: Path,
    to_tokens: Tokenization,
    split_stats: SplitStats,
    weighed: Weighting | None,
) -> dict[str, Any]:
    """Write and prove the Parquet file of one split. Return its statistics, and count its rows in
    `split_stats`. Rewards are weighted by `weighed`, or by this split's own rewards if it is None.
    """
    base = to_tokens.base
    max_length = to_tokens.max_length
    train = to_tokens.train
    table = to_table(sequences(base.tokenizer, rows, max_length, train, split_stats))
    lengths = token_lengths(table)
    units = table["unit"].to_pylist()
    # the numbers of each unit's sequences, which are neighbors
    members = [list(unit) for _, unit in groupby(range(len(units)), key=units.__getitem__)]
    packed = members
    if to_tokens.packing:
        pack = in_order if train.order == "as_given" else best_fit
        unit_lengths = [sum(lengths[place] for place in unit) for unit in members]
        together = pack(unit_lengths, max_length)
        packed = [[place for unit in row for place in members[unit]] for row in together]
    rewards = table["reward"].to_numpy().astype(float)  # NaN if missing
    rule = train.reward if REWARD in METHODS[train.method].settings else "none"
    tokens = table["trained"].to_numpy()
    weighed = weighed or weighting(rule, rewards, tokens, train.reward_temperature)
    weights = weighed.weights(rewards)
    write_rows_of(target, table, packed, weights)
    del table  # The proof reads the file on the disk.
    proven = prove(target, rows, base, max_length, train, split_stats.rejected.total())
    if proven["tokens"] != sum(lengths):
        raise AssertionError(
            f"packing changed the number of tokens from {sum(lengths)} to {proven['tokens']}"
        )  # A bug, never the user's fault.
    density = round(sum(lengths) / (len(packed) * max_length), 4) if packed else 0.0
    return (
        proven
        | split_stats.stats(lengths)
        | {"packing_density": density, "weighting": weighed}
        | {"rewards": account(weighed, rewards, weights)}
    )


def sequences(
    tokenizer: Any, files: Sequence[Path], max_length: int, train: Train, split_stats: SplitStats
) -> Iterator[dict[str, Any]]:
    """Yield every sequence of the rows in `files` that the method can train as it is.

    `split_stats` counts all.
    """
    unit = 0
    pairs = METHODS[train.method].pairs
    rows = encode_rows(tokenizer, rows_in(files), train.method)
    rows = with_prompts(tokenizer, rows) if train.train_on_prompt else rows
    for number, (row, encoded) in enumerate(rows, start=1):
        name = row_name(row, files[0].name, number)
        if isinstance(encoded, Unrenderable):
            split_stats.reject(row, name, encoded.code, str(encoded))
            continue
        sizes = [len(encoding.ids) for encoding in encoded]
        longest = sum(sizes) if pairs else max(sizes)
        if longest > max_length:
            both = " in both answers" if pairs else ""
            split_stats.reject(
                row, name, TOO_LONG, f"{longest:,} tokens{both}, preprocess.max_length is {max_length:,}"
            )
            continue
        names = [encoding.name_in(name) for encoding in encoded]
        split_stats.keep(row, names)
        for place, (named, encoding) in enumerate(zip(names, encoded, strict=True)):
            if place == 0 or not pairs:
                unit += 1
            yield sequence(named, encoding, unit, row.get("reward"))


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    stats, samples = preprocess(
        rows_folder=root / "data/final",
        base=root / "models/base",
        tokens_folder=root / "data/tokens",
        max_length=params.preprocess.max_length,
        packing=params.preprocess.packing,
        max_left_out=params.preprocess.max_left_out,
        train=params.train,
        augmented=params.augment.kinds,
    )
    write_json(root / "reports/labels.json", stats)
    write_text(root / "reports/labels.html", render_labels_page(stats, samples))
    for line in summary(stats):
        print(f"preprocess: {line}")


def summary(stats: Mapping[str, Any]) -> Iterator[str]:
    """Yield the statistics in a few lines: what is trained, what was left out and why, what is unused."""
    train = stats["splits"]["train"]
    if "never_packed" in stats:
        yield f"rows are not packed, though preprocess.packing is true: {stats['never_packed']}"
    yield (
        f"{plural(train['rows'], 'training row')}, {plural(train['tokens'], 'token')}, "
        f"{stats['trained_share']:.0%} of them trained, {plural(train['packed_rows'], 'row')} of up to "
        f"{stats['max_length']} after packing; look at reports/labels.html"
    )
    rejected = sum((Counter(split["rejected"]) for split in stats["splits"].values()), Counter[str]())
    if rejected:
        yield (
            f"{plural(rejected.total(), 'row')} left out: "
            f"{', '.join(f'{rows:,} {code}' for code, rows in most(rejected))}"
        )
    yield from unused_sentences(unused(stats), stats["method"])
    scored = train["rewards"]["sequences"]
    if REWARD in METHODS[stats["method"]].settings:
        yield from sentences(train["rewards"])
    elif scored:
        yield f"{plural(scored, 'row')} with a reward: train.method {stats['method']} has no use for it"
