"""Write a split in another trainer's format: ShareGPT or Alpaca. A row that the format can't express is
refused; nothing is dropped silently.

quench data export train.json --to sharegpt
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.chat.rows import OTHERS, BadRow, Row, is_unended
from pipeline.commands.data.versions import split_file
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import read_rows, to_line, write_rows
from pipeline.core.text import one_line, plural
from pipeline.intake.rows.turns import Turn

NAMED = 20  # excluded rows that are listed one by one
SPEAKERS = {"system": "system", "user": "human", "assistant": "gpt", "tool": "observation"}


def to_sharegpt(row: Row) -> dict[str, Any]:
    """Return a chat as ShareGPT: calls are turns `function_call`, results `observation`, and `tools` is JSON
    text, as LLaMA-Factory reads them.

    Ids and names of tools stay as further keys of their turns. An untrained turn has `weight` 0. Raises
    `BadRow` (`not_exportable`) for other kinds, for reasoning, and for a turn with both text and a call.
    """
    _chat_only(row, "ShareGPT")
    result: dict[str, Any] = {
        "conversations": [
            _spoken(turn, f"messages {number}") for number, turn in enumerate(row["messages"], start=1)
        ]
    }
    if "tools" in row:
        result["tools"] = _json(
            [tool["function"] if tool.keys() == {"type", "function"} else tool for tool in row["tools"]]
        )
    return result | {key: row[key] for key in ("reward", OTHERS) if key in row}


def to_alpaca(row: Row) -> dict[str, Any]:
    """Return a chat as Alpaca: earlier exchanges are `history`, the last one `instruction` and `output`.

    Raises `BadRow` (`not_exportable`) for other kinds, for tools, reasoning and untrained turns, and if user
    and assistant don't alternate after at most one system turn.
    """
    _chat_only(row, "Alpaca")
    messages = row["messages"]
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
    turns = messages[1:] if system else messages
    alternate = [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2)
    if (
        "tools" in row
        or not turns
        or not alternate
        or any(turn.keys() != {"role", "content"} for turn in messages)
    ):
        raise BadRow(
            "not_exportable",
            "Alpaca holds a system text, then questions and answers in turn, all of them trained, and "
            "nothing else",
        )
    texts = [turn["content"] for turn in turns]
    result: dict[str, Any] = {"instruction": texts[-2], "input": "", "output": texts[-1]}
    if system:
        result["system"] = system
    if len(texts) > 2:
        result["history"] = [list(pair) for pair in zip(texts[:-2:2], texts[1:-2:2], strict=True)]
    return result | {key: row[key] for key in ("reward", OTHERS) if key in row}


def _chat_only(row: Row, name: str) -> None:
    if any(map(is_unended, row["messages"])):
        raise BadRow(
            "not_exportable",
            f"{name} can't say that the end of an answer was cut off, so the model would learn to stop there",
        )
    if row["kind"] != "chat":
        raise BadRow("not_exportable", f"{name} holds chats, and this row is of kind {row['kind']}")


def _spoken(turn: Turn, where: str) -> dict[str, Any]:
    calls = turn.get("tool_calls")
    if "reasoning_content" in turn or (calls and turn["content"]):
        what = "a text beside a call" if calls and turn["content"] else "reasoning"
        raise BadRow("not_exportable", f"{where}: ShareGPT has no place for {what}")
    spoken = {"from": SPEAKERS[turn["role"]], "value": turn["content"]}
    if calls:
        plain = [call["function"] | ({"id": call["id"]} if "id" in call else {}) for call in calls]
        spoken = {"from": "function_call", "value": _json(plain if len(plain) > 1 else plain[0])}
    spoken |= {key: turn[key] for key in ("tool_call_id", "name") if key in turn}
    return spoken | ({"weight": 0} if turn.get("train") is False else {})


def _json(value: Any) -> str:
    return to_line(value).rstrip("\n")


def to_messages(row: Row) -> Row:
    """Return the row's content and domain in a form that stage curate reads."""
    return {key: value for key, value in row.items() if key not in ("id", "source", "kind") and value != []}


def export(source: Path, target: Path, format: str) -> tuple[int, list[tuple[str, BadRow]]]:
    """Write the rows of `source` to `target`. Return their number, and the rows that `format` can't express
    with the reason.
    """
    left: list[tuple[str, BadRow]] = []
    convert = {"sharegpt": to_sharegpt, "alpaca": to_alpaca, "messages": to_messages}[format]

    def rendered() -> Iterator[Row]:
        for row in read_rows(source):
            try:
                yield convert(row)
            except BadRow as why:
                left.append((str(row["source"]), why))

    return write_rows(target, rendered()), left


@dataclass(frozen=True)
class Options:
    """What is exported, and how. `skip` allows rows to be left out, `force` overwrites the file."""

    format: str
    split: str
    skip: bool = False
    force: bool = False
    as_json: bool = False


def main(root: Path, target: Path, options: Options) -> int:
    """Export and print which rows were left out. Return exit code 3 if some were and that is not allowed,
    otherwise 0.
    """
    source = split_file(root, options.split)
    if target.exists() and not target.is_file():
        raise ConfigError("Q-COMMANDS-017", f"{target} is not a regular file: name a file to write")
    if target.exists() and not options.force:
        raise DataError("Q-COMMANDS-018", f"{target} exists: name another file, or overwrite it with --force")
    written, left = export(source, target, options.format)
    code = 3 if left and not options.skip else 0
    counted = Counter(why.code for _, why in left)
    if options.as_json:
        report = {"file": str(target), "format": options.format, "rows": written, "left_out": dict(counted)}
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return code
    print(f"{target}: {plural(written, 'row')} of {options.split} as {options.format}")
    for place, why in left[:NAMED]:
        print(f"left out: {one_line(place)}: {why.code}: {one_line(str(why))}")
    if left:
        reasons = ", ".join(f"{number} {reason}" for reason, number in counted.most_common())
        print(f"{plural(len(left), 'row')} left out, which {options.format} can't say: {reasons}")
    return code
