"""Bring chat logs into one form, split them, and account for every line.

Reads `data/raw/**` (JSONL in the formats of `pipeline.formats`) and `models/base.json` (the tokenizer's added tokens).
Writes `data/final/{train,val,test}.jsonl`, `data/rejects.jsonl` (every dropped line and its reason) and
`reports/data.json` (counts).

    python -m pipeline curate
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from pipeline.errors import DataError
from pipeline.formats import Turn, opened, raw_files, refusal, to_messages
from pipeline.jsonl import MAX_LINE_BYTES, BadLine, parse_line, read_raw_lines, to_line
from pipeline.params import Params
from pipeline.progress import progress
from pipeline.publish import need_disk, publishing, write_json

SPLITS = ("train", "val", "test")


def added_tokens(base: Path) -> list[str]:
    """The tokenizer's added tokens, which no text may hold (they would become control tokens); those of white space alone are harmless."""
    try:
        tokens = json.loads(base.read_text(encoding="utf-8"))["added_tokens"]
        return [token for token in tokens if token.strip()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{base} is missing or has no list added_tokens: run `python -m pipeline base` first") from None


def row_id(messages: list[Turn]) -> str:
    """16 hexadecimal digits of the conversation's SHA-256: equal conversations, equal ids."""
    canonical = json.dumps(messages, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()[:16]


def split_of(identity: str, *, seed: int, val_fraction: float, test_fraction: float) -> str:
    """A row's split, from its id and the seed alone: it stays there when rows are added, and test when `val_fraction` changes."""
    draw = int.from_bytes(hashlib.sha256(f"{seed}:{identity}".encode()).digest()[:8], "big") / 2**64  # uniform, 0 to 1
    if draw < test_fraction:
        return "test"
    return "val" if draw >= 1 - val_fraction else "train"


def to_row(line: bytes | None, source: str, format: str, tokens: Sequence[str]) -> dict[str, Any]:
    """The canonical row of one line (None: it was too long). Raises `BadLine` with the reason where there is none."""
    if line is None:
        raise BadLine("too_long", f"longer than {MAX_LINE_BYTES} bytes")
    if not line.strip():
        raise BadLine("blank", "nothing on this line")
    messages = to_messages(parse_line(line), format)
    for number, turn in enumerate(messages, start=1):
        for token in tokens:
            if token in turn["content"]:
                raise BadLine("control_token", f"turn {number} holds {token}, which the tokenizer takes for its own")
    return {"id": row_id(messages), "source": source, "messages": messages}


class Sorter:
    """Sends rows to the file of their split and dropped lines to the rejects, and counts both."""

    def __init__(self, splits: dict[str, IO[str]], rejects: IO[str], choose: Callable[[str], str]) -> None:
        self.out, self.rejects, self.choose = splits, rejects, choose
        self.files: dict[str, dict[str, Any]] = {}
        self.splits: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.files_rejected: Counter[str] = Counter()
        self.examples: dict[str, str] = {}  # reason → where it was first met
        self.sources: dict[str, str] = {}  # id → source of the first row with it

    def add(self, row: dict[str, Any]) -> None:
        """Write a row to its split. Raises `BadLine` if an equal one was there before."""
        first = self.sources.setdefault(row["id"], row["source"])
        if first != row["source"]:
            raise BadLine("duplicate", f"the same conversation as {first}")
        split = self.choose(row["id"])
        self.out[split].write(to_line(row))
        self.splits[split] += 1

    def drop(self, name: str, line: int | None, offset: int | None, why: BadLine) -> None:
        """Write a line (or, without a number, a whole file) to the rejects: where it is and why, never its text."""
        self.rejects.write(to_line({"file": name, "line": line, "offset": offset, "reason": why.code, "detail": str(why)}))
        (self.files_rejected if line is None else self.rejected)[why.code] += 1
        self.examples.setdefault(why.code, f"{name}{f' line {line}' if line else ''}: {why}")

    def sort(self, name: str, path: Path, format: str, tokens: Sequence[str], advance: Callable[[int], None]) -> None:
        """Every line of one file; `advance` is told the bytes."""
        rows = kept = at = 0
        with opened(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            for number, offset, line in read_raw_lines(file):
                rows += 1
                try:
                    self.add(to_row(line, f"{name}:{number}", format, tokens))
                    kept += 1
                except BadLine as why:
                    self.drop(name, number, offset, why)
                advance(offset - at)
                at = offset
        advance(path.stat().st_size - at)
        self.files[name] = {"rows": rows, "kept": kept, "rejected": rows - kept, "sha256": digest}

    def counts(self, seed: int) -> dict[str, Any]:
        """What `reports/data.json` holds."""
        return {
            "rows_read": sum(file["rows"] for file in self.files.values()),
            "rows_kept": self.splits.total(),
            "rows_rejected": self.rejected.total(),
            "rejected": dict(self.rejected),
            "files_rejected": dict(self.files_rejected),
            "splits": {split: self.splits[split] for split in SPLITS},
            "files": self.files,
            "seed": seed,
        }


def check_account(counts: dict[str, Any], folder: Path, rejects: Path) -> None:
    """Compare the counts with each other and with the files written; a difference is a bug of ours."""
    written = {split: count_lines(folder / f"{split}.jsonl") for split in SPLITS}
    dropped = counts["rows_rejected"] + sum(counts["files_rejected"].values())
    if counts["rows_read"] != counts["rows_kept"] + counts["rows_rejected"] or written != counts["splits"] or count_lines(rejects) != dropped:
        raise RuntimeError(f"curate's account does not balance: {counts}, written {written} and {count_lines(rejects)} rejects")


def count_lines(path: Path) -> int:
    """Newline bytes in a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def refuse_empty(sorter: Sorter, counts: dict[str, Any], raw: Path, val_fraction: float, test_fraction: float) -> None:
    """Raise `DataError` where there is nothing to train on, or nothing to measure on though `test_fraction` asks for it."""
    kept, splits = counts["rows_kept"], counts["splits"]
    if not kept:
        commonest = (sorter.rejected + sorter.files_rejected).most_common(3)
        reasons = ", ".join(f"{count} {code}" for code, count in commonest) or "no line in it"
        example = f"; first {sorter.examples[commonest[0][0]]}" if commonest else ""
        raise DataError(f"none of the {counts['rows_read']} rows in {raw} can be used ({reasons}{example}): docs/data-formats.md shows what is read")
    for split, wanted in (("train", True), ("test", test_fraction > 0)):
        if wanted and not splits[split]:
            raise DataError(
                f"{kept} rows in {raw} leave no {split} row at val_fraction {val_fraction} and test_fraction {test_fraction} "
                f"({counts['rows_rejected']} were rejected): add rows or change these fractions"
            )


def curate(*, raw: Path, base: Path, final: Path, rejects: Path, report: Path, format: str,
           val_fraction: float, test_fraction: float, seed: int) -> dict[str, Any]:  # fmt: skip
    """Sort every line below `raw` into a split or into `rejects`, publish both and the counts, and give the counts.

    Fractions are of the kept rows, 0 to 0.5. Streams: of a kept row only id and place stay in memory. Raises
    `DataError` where no row can be used or a wanted split is empty; then nothing is published.
    """
    files, tokens = raw_files(raw), added_tokens(base)
    refused = {name: why for name, path in files if (why := refusal(path))}
    files = [(name, path) for name, path in files if name not in refused]
    total_bytes = sum(path.stat().st_size for _, path in files)
    need_disk(final.parent, 2 * total_bytes)

    def choose(identity: str) -> str:
        return split_of(identity, seed=seed, val_fraction=val_fraction, test_fraction=test_fraction)

    with publishing(final) as folder, publishing(rejects) as dropped:
        folder.mkdir()
        with ExitStack() as stack:
            paths = [*(folder / f"{split}.jsonl" for split in SPLITS), dropped]
            *splits, rejects_file = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths]
            sorter = Sorter(dict(zip(SPLITS, splits, strict=True)), rejects_file, choose)
            for name, why in refused.items():
                sorter.drop(name, None, None, why)
            advance = stack.enter_context(progress("curate", total_bytes))
            for name, path in files:
                sorter.sort(name, path, format, tokens, advance)
        counts = sorter.counts(seed)
        check_account(counts, folder, dropped)
        refuse_empty(sorter, counts, raw, val_fraction, test_fraction)
    write_json(report, counts)
    return counts


def main(params: Params, root: Path) -> None:
    """Run the stage on the data below `root` and say what became of the rows."""
    data = root / "data"
    counts = curate(
        raw=data / "raw",
        base=root / "models/base.json",
        final=data / "final",
        rejects=data / "rejects.jsonl",
        report=root / "reports/data.json",
        **params.curate.model_dump(),
    )
    splits = ", ".join(f"{split} {counts['splits'][split]}" for split in SPLITS)
    print(f"curate: {counts['rows_read']} rows read, {counts['rows_kept']} kept ({splits}), {counts['rows_rejected']} rejected")
    if counts["rejected"] or counts["files_rejected"]:
        print(f"curate: why, and where: {data / 'rejects.jsonl'} (reasons in docs/data-formats.md)")
