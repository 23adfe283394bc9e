"""Outcome of a split's rows: trained, unfolded, or left out with a reason; and the rows to look at."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.chat.rows import JUDGED, has_tools
from pipeline.chat.tokens import NOT_LEARNED, Row
from pipeline.core.jsonl import read_rows

EXAMPLES = 2  # examples of each kind of row, and of each reason
BINS = 32  # maximum bins of the histogram of lengths
FIRST_BIN = 16  # tokens in its narrowest bins


@dataclass
class SplitStats:
    """Counts, filled row by row. `examples` are the names of the first sequences of each kind of row."""

    rejected: Counter[str] = field(default_factory=Counter)
    rejected_with_tools: Counter[str] = field(default_factory=Counter)
    rejects: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    without_system: int = 0
    system_prompts: Counter[str] = field(default_factory=Counter)
    # rows of kinds that the method doesn't learn from
    untrained: Counter[str] = field(default_factory=Counter)

    def reject(self, row: Row, name: str, code: str, why: str) -> None:
        """Count a row that was left out."""
        self.rejected[code] += 1
        self.rejected_with_tools[code] += has_tools(row)
        if code == NOT_LEARNED:
            self.untrained[row.get("kind", "chat")] += 1
        examples = self.rejects.setdefault(code, [])
        if len(examples) < EXAMPLES:
            examples.append({"row": name, "why": why})

    def keep(self, row: Row, names: Sequence[str]) -> None:
        """Count a row that is trained as the sequences of these names."""
        kind = kind_of(row, unfolded="#" in names[0])
        self.kinds[kind] += 1
        most = 1 if kind == "unfolded" else EXAMPLES
        if self.kinds[kind] <= most:
            self.examples.setdefault(kind, []).extend(names[:EXAMPLES])
        if kind == "text":
            return
        first = row["messages"][0]
        if first["role"] == "system":
            self.system_prompts[first["content"]] += 1
        else:
            self.without_system += 1

    def stats(self, lengths: Sequence[int]) -> dict[str, Any]:
        """Return the counts for reports/labels.json, with a histogram of sequences' `lengths` in tokens."""
        return {
            "rows_read": self.kinds.total() + self.rejected.total(),
            "rejected": dict(sorted(self.rejected.items())),
            "rejects": dict(sorted(self.rejects.items())),
            "kinds": dict(sorted(self.kinds.items())),
            "rows_without_system": self.without_system,
            "untrained": dict(sorted(self.untrained.items())),
            "lengths": histogram(lengths),
            **self._commonest_system_prompt(),
        }

    def _commonest_system_prompt(self) -> dict[str, Any]:
        """Return the system prompt of most rows that have one, and how many these are; {} if none has one."""
        if not self.system_prompts:
            return {}
        [(text, rows)] = self.system_prompts.most_common(1)
        return {"system_prompt": {"text": text, "rows": rows}}


def rows_in(files: Sequence[Path]) -> Iterator[Row]:
    """Yield the rows of a split's files: curation's, then those that stage augment added."""
    for file in files:
        yield from read_rows(file)


def row_name(row: Row, file: str, number: int) -> str:
    """Return the row's id, or its file and line if it has none."""
    return row.get("id") or f"{file}:{number}"


def kind_of(row: Row, *, unfolded: bool) -> str:
    """Return the kind of a row for looking at it: its own kind, unfolded, text, tools, reasoning, untrained
    turn, or turns.
    """
    if row.get("kind") in JUDGED:
        return str(row["kind"])
    turns = row.get("messages", [])
    answers = [turn for turn in turns if turn["role"] == "assistant"]
    kinds = {
        "unfolded": unfolded,
        "text": row.get("kind", "chat") == "text",
        "tools": has_tools(row),
        "reasoning": any(turn.get("reasoning_content") for turn in turns),
        "untrained turn": any(turn.get("train") is False for turn in answers),
        "several turns": len(answers) > 1,
        "one exchange": True,
    }
    return next(kind for kind, fits in kinds.items() if fits)


def histogram(lengths: Sequence[int]) -> list[dict[str, int]]:
    """Return sequences by tokens: {"from", "to", "rows"}, `to` excluded.

    There are at most `BINS` bins, each 2ⁿ × `FIRST_BIN` wide.
    """
    width = FIRST_BIN
    while lengths and max(lengths) >= width * BINS:
        width *= 2
    counts = Counter(length // width for length in lengths)
    return [
        {"from": place * width, "to": (place + 1) * width, "rows": counts[place]}
        for place in range(max(counts, default=-1) + 1)
    ]
