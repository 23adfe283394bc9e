"""Turn chats and texts into what the trainer sees: token ids, labels on what is to be learned only, packed
rows.

Reads `data/final/{train,val}.jsonl`, and tokenizer, template and configuration in `models/base/`.
Writes `data/tokens/{train,val}.parquet` (`pipeline.stages.preprocess.tables`), `data/tokens/manifest.json`,
`reports/labels.json` and `reports/labels.html`. Command: `python -m pipeline preprocess`
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.chat.manifest import NAME, manifest
from pipeline.chat.prompt_labels import with_prompts
from pipeline.chat.rendering import Unrenderable, own_system_prompt
from pipeline.chat.tokens import Encoded, encode, load_tokenizer
from pipeline.config.params import Params
from pipeline.core.errors import DataError
from pipeline.core.jsonl import read_rows
from pipeline.core.publish import publishing, write_json, write_text
from pipeline.core.wording import most, plural, training_sentences
from pipeline.stages.preprocess.attention import need_rows_apart
from pipeline.stages.preprocess.packing import best_fit
from pipeline.stages.preprocess.page import render_labels_page, sample, untrained_and_scored
from pipeline.stages.preprocess.proof import load_base, prove
from pipeline.stages.preprocess.stats import SplitStats, row_name
from pipeline.stages.preprocess.stretches import Base
from pipeline.stages.preprocess.tables import Written, to_table, token_lengths, write_rows_of

SPLITS = ("train", "val")


def preprocess(
    *,
    rows_folder: Path,
    base: Path,
    tokens_folder: Path,
    max_length: int,
    packing: bool,
    prompts: bool = False,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Tokenize and pack both splits, prove what was written, publish the folder; the statistics of it, and
    some rows to look at.

    A row longer than `max_length` tokens, one that the template can't render whole and with exact labels, and
    one of a kind that supervised training has no use for is left out and counted by reason; nothing is cut.
    With `prompts` what is asked is learned too, not the answers alone.

    Raises `DataError` where no training row is left, where tokenizer and configuration contradict each other
    and where the proof fails, `ConfigError` if the base can't keep packed rows apart.
    """
    tokenizer = load_tokenizer(base)
    known = load_base(base, tokenizer)
    if packing:
        need_rows_apart(base)
    stats: dict[str, Any] = {
        "max_length": max_length,
        "packing": packing,
        **({"prompts": True} if prompts else {}),
        "template_system_prompt": own_system_prompt(tokenizer),
        "splits": {},
    }
    all_stats = {split: SplitStats() for split in SPLITS}
    with publishing(tokens_folder) as aside:
        aside.mkdir()
        for split, split_stats in all_stats.items():
            rows, target = rows_folder / f"{split}.jsonl", aside / f"{split}.parquet"
            stats["splits"][split] = write_split(
                rows, target, known, max_length, packing, split_stats, prompts
            )
        train = stats["splits"]["train"]
        if not train["rows"]:
            reasons = (
                ", ".join(f"{code}: {count}" for code, count in all_stats["train"].rejected.most_common())
                or "there is none"
            )
            raise DataError(
                "Q-PREPROCESS-001",
                f"no row of {rows_folder / 'train.jsonl'} can be trained ({reasons}): fix the rows or "
                "raise preprocess.max_length",
            )
        stats["trained_share"] = round(train["trained_tokens"] / train["tokens"], 4)
        write_json(
            aside / NAME,
            manifest(aside, [rows_folder / f"{split}.jsonl" for split in SPLITS], base, tokenizer, stats),
        )
        written = Written(aside / "train.parquet")
        samples = [
            sample(kind, name, written, known.plain)
            for kind, names in all_stats["train"].examples.items()
            for name in names
        ]
    return stats, samples


def write_split(
    rows: Path,
    target: Path,
    base: Base,
    max_length: int,
    packing: bool,
    split_stats: SplitStats,
    prompts: bool,
) -> dict[str, Any]:
    """Write one split's Parquet file and prove it; gives its statistics and counts its rows in
    `split_stats`.
    """
    table = to_table(sequences(base.tokenizer, rows, max_length, split_stats, prompts))
    lengths = token_lengths(table)
    packed = best_fit(lengths, max_length) if packing else [[number] for number in range(len(lengths))]
    write_rows_of(target, table, packed)
    del table  # the proof reads what is on the disk
    proven = prove(target, rows, base, max_length, split_stats.rejected.total(), prompts)
    if proven["tokens"] != sum(lengths):
        raise AssertionError(
            f"packing changed the number of tokens from {sum(lengths)} to {proven['tokens']}"
        )  # a bug, never the user's fault
    density = round(sum(lengths) / (len(packed) * max_length), 4) if packed else 0.0
    return proven | split_stats.stats(lengths) | {"packing_density": density}


def sequences(
    tokenizer: Any, path: Path, max_length: int, split_stats: SplitStats, prompts: bool = False
) -> Iterator[tuple[str, Encoded]]:
    """(row id, ids and labels) of every sequence of the rows in `path` that can be trained as they are;
    `split_stats` counts all.
    """
    rows = encode(tokenizer, read_rows(path))
    rows = with_prompts(tokenizer, rows) if prompts else rows
    for number, (row, encoded) in enumerate(rows, start=1):
        name = row_name(row, path.name, number)
        if isinstance(encoded, Unrenderable):
            split_stats.reject(row, name, encoded.code, str(encoded))
        elif (longest := max(len(one.ids) for one in encoded)) > max_length:
            split_stats.reject(
                row, name, "too_long", f"{longest:,} tokens, preprocess.max_length is {max_length:,}"
            )
        else:
            names = [one.name_in(name) for one in encoded]
            split_stats.keep(row, names)
            yield from zip(names, encoded, strict=True)


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`."""
    stats, samples = preprocess(
        rows_folder=root / "data/final",
        base=root / "models/base",
        tokens_folder=root / "data/tokens",
        max_length=params.preprocess.max_length,
        packing=params.preprocess.packing,
        prompts=params.train.train_on_prompt,
    )
    write_json(root / "reports/labels.json", stats)
    write_text(root / "reports/labels.html", render_labels_page(stats, samples))
    for line in summary(stats):
        print(f"preprocess: {line}")


def summary(stats: dict[str, Any]) -> Iterator[str]:
    """The statistics in a few lines: what is trained, what was left out and why, what training doesn't
    use.
    """
    train = stats["splits"]["train"]
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
    yield from training_sentences(*untrained_and_scored(stats))
