"""Write a split in another tool's format.

quench data export train.json --to sharegpt
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pipeline.chat.rows import BadRow, Row
from pipeline.commands.data.versions import split_file
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.core.text import one_line, plural

NAMED = 20  # rows left out that are named one by one


def to_messages(row: Row) -> Row:
    """The row's content and domain, as stage curate reads them again."""
    return {key: value for key, value in row.items() if key not in ("id", "source", "kind") and value != []}


def export(source: Path, target: Path, format: str) -> tuple[int, list[tuple[str, BadRow]]]:
    """Write the rows of `source` to `target`; gives how many, and which `format` can't hold and why."""
    from pipeline.stages.curate.export import to_alpaca, to_sharegpt

    left: list[tuple[str, BadRow]] = []
    convert = {"sharegpt": to_sharegpt, "alpaca": to_alpaca, "messages": to_messages}[format]

    def rendered() -> Iterator[Row]:
        for row in read_rows(source):
            try:
                yield convert(row)
            except BadRow as why:
                left.append((str(row["source"]), why))

    return write_rows(target, rendered()), left


def main(root: Path, target: Path, format: str, split: str, *, skip: bool, force: bool) -> int:
    """Export and say what was left out; gives the exit code: 3 if something was and `skip` does not allow
    it.
    """
    source = split_file(root, split)
    if target.exists() and not target.is_file():
        raise ConfigError("Q-COMMANDS-017", f"{target} is a folder or no regular file: name a file to write")
    if target.exists() and not force:
        raise DataError("Q-COMMANDS-018", f"{target} exists: name another file, or overwrite it with --force")
    written, left = export(source, target, format)
    print(f"{target}: {plural(written, 'row')} of {split} as {format}")
    for place, why in left[:NAMED]:
        print(f"left out: {one_line(place)}: {why.code}: {one_line(str(why))}")
    if left:
        reasons = ", ".join(
            f"{number} {code}" for code, number in Counter(why.code for _, why in left).most_common()
        )
        print(f"{plural(len(left), 'row')} left out, which {format} can't say: {reasons}")
    return 3 if left and not skip else 0
