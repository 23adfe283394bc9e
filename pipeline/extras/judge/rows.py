"""Read the chats for the comparison: rows of data/final as they are, others as stage curate reads them. Rows
that can't be asked are counted by reason.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.chat.rows import BadRow
from pipeline.chat.selection import drawn, endings, questions
from pipeline.chat.tokens import Row
from pipeline.config.sections import Curate
from pipeline.core.errors import DataError
from pipeline.core.text import plural
from pipeline.intake.files.containers import RawLine, raw_lines
from pipeline.intake.files.files import refusal
from pipeline.intake.rows.turns import read_tools, read_turns
from pipeline.stages.curate.clean import Cleaner, CleaningStats, Rejected

# settings that switch off the rules which would change, redact or drop a question
NO_RULES: dict[str, Any] = {"repair": [], "reject": [], "languages": [], "secrets": "keep", "personal": []}
# settings for the names and formats of data/raw, switched off
NO_NAMES: dict[str, Any] = {"formats": {}, "fields": {}, "transform": {}}


class Chats:
    """Chats of a file. `skipped` counts its other rows by reason.

    The settings `curate.formats`, `curate.fields` and `curate.transform` apply, except to files of
    data/final.
    """

    def __init__(self, file: Path, settings: Curate, root: Path) -> None:
        self.file = file
        self.skipped = Counter[str]()
        place = file.resolve()
        raw = (root / "data/raw").resolve()
        is_final = place.is_relative_to((root / "data/final").resolve())
        changes = NO_RULES | {"names": None} | (NO_NAMES if is_final else {})
        self.name = place.relative_to(raw).as_posix() if place.is_relative_to(raw) else file.name
        self.cleaner = Cleaner(settings.model_copy(update=changes), None, None, (), root / "data/guard")

    def __iter__(self) -> Iterator[Row]:
        max_bytes = self.cleaner.settings.max_line_bytes
        for line in raw_lines(self.file, self.name, max_line_bytes=max_bytes, notes=Counter()):
            for row in self._rows(line):
                if row.get("kind", "chat") == "chat":
                    yield row
                else:
                    self.skipped[f"of kind {row['kind']}"] += 1

    def _rows(self, line: RawLine) -> Iterator[Row]:
        """Yield the rows of a line. Each has an id: its own, or the line's number."""
        try:
            for stated in self.cleaner.stated(self.name, line):
                name = stated.value.get("id") or f"line-{stated.source.rpartition(':')[2]}"
                ready = as_it_is(stated.value)
                if ready:
                    yield ready | {"id": name}
                    continue
                cleaned = self.cleaner.clean(self.name, stated, CleaningStats(), [])
                yield from (row | {"id": name} for row in cleaned)
        except Rejected as rejected:
            self.skipped[rejected.why.code] += 1


def as_it_is(row: Row) -> Row | None:
    """Return a row with its turns and tools read as stage curate reads them. In a call's arguments OpenAI's
    form has a string and Quench's an object. Returns None if the row has no readable messages.
    """
    if row.get("kind", "chat") != "chat":
        return row
    try:
        turns = read_turns(row.get("messages"), "messages")
        tools = read_tools(row.get("tools") or [])
    except BadRow:
        return None
    if len(turns) < 2:
        return None
    rest = {key: value for key, value in row.items() if key != "tools"}
    return rest | {"messages": turns} | ({"tools": tools} if tools else {})


def held_out_rows(file: Path, count: int, scorers: Sequence[str], settings: Curate, root: Path) -> list[Row]:
    """Draw `count` chats of `file` whose last turn can be scored by one of `scorers`. Stage evaluate draws
    the same ones. The number of rows that can't be asked is printed on standard error.

    Raises `DataError` if the file is missing or can't be read, or if it contains no such chat.
    """
    if not file.is_file():
        raise DataError(
            "Q-JUDGE-005",
            f"{file} is missing, so there are no chats to ask: run `snakemake curate`, or name a file with "
            "--data",
        )
    why = refusal(file)
    if why:
        raise DataError("Q-JUDGE-006", f"{file} can't be asked: {why}: name another file with --data")
    chats = Chats(file, settings, root)
    rows = drawn(questions(chats, scorers), count)
    left_out = ""
    if chats.skipped:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in chats.skipped.most_common())
        left_out = f"{plural(chats.skipped.total(), 'row')} of {file} can't be asked: {reasons}"
    if not rows:
        why_none = f" ({left_out})" if left_out else ""
        raise DataError(
            "Q-JUDGE-006",
            f"{file} holds no chat that {endings(scorers)}{why_none}: name another "
            "file with --data, or map its keys in curate.fields (`quench data check FILE` proposes how)",
        )
    if left_out:
        print(f"judge: {left_out}", file=sys.stderr)
    return rows
