"""What `curate` reads: which files, and which chat formats; each becomes system (or none), then user and assistant in turn.

docs/data-formats.md shows an example of each and lists the reasons.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.jsonl import BadLine

Turn = dict[str, str]  # role, content
Row = Mapping[str, Any]

SUFFIXES = (".jsonl", ".json")
ROLES = {role: role for role in ("system", "user", "assistant")}
SHAREGPT_ROLES = ROLES | {"human": "user", "prompter": "user"} | dict.fromkeys(("gpt", "chatgpt", "bot", "model", "bing", "bard"), "assistant")


class BadRow(BadLine):
    """A JSON object that is no usable conversation; `code` is the stable reason, the text says more (never the row's text)."""


def raw_files(raw: Path) -> list[tuple[str, Path]]:
    """(name, path) of every file below `raw`, sorted by name; hidden ones (`.gitkeep`) are not data. Raises `DataError` if none is JSONL."""
    found = [path for path in raw.rglob("*") if path.is_symlink() or not path.is_dir()]
    # a name that is not UTF-8 must still go into JSON
    named = [(path.relative_to(raw).as_posix().encode("utf-8", "backslashreplace").decode(), path) for path in found]
    files = sorted(item for item in named if not any(part.startswith(".") for part in item[0].split("/")))
    if not any(path.suffix.lower() in SUFFIXES for _, path in files):
        others = f" (none of its {len(files)} files is *.jsonl)" if files else ""
        raise DataError(f"no data in {raw}{others}: put JSONL there (or `make demo` writes an example)")
    return files


def refusal(path: Path) -> BadLine | None:
    """Why a whole file isn't read, or None if it is."""
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        return BadLine("not_jsonl", "only files *.jsonl and *.json are read, as one JSON object a line")
    with opened(path) as file:
        array = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")
    if array and path.suffix.lower() == ".json":
        return BadLine("json_array", "one JSON array: write one object a line (`jq -c '.[]'` does)")
    return None


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """The file, open for reading bytes; `DataError` where the machine can't."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror}): mend its rights or take it away") from error
    with file:
        yield file


def to_messages(row: Row, format: str = "auto") -> list[Turn]:
    """The row's conversation, its strings untouched; `format` is a name in `FORMATS` or auto (the first that fits). Raises `BadRow`."""
    for field in ("tools", "functions"):
        if row.get(field):
            raise BadRow("unsupported_field", f"{field} would be lost")
    _, read = FORMATS[format_of(row, format)]
    turns = read(row)
    check_order(turns)
    return turns


def format_of(row: Row, wanted: str = "auto") -> str:
    """The name of the row's format, judged by its keys. Raises `BadRow` where it has none, or not the `wanted` one."""
    fitting = [name for name, (keys, _) in FORMATS.items() if row.keys() >= set(keys)]
    if wanted == "auto":
        if not fitting:
            raise BadRow("unknown_format", f"has none of the keys {'; '.join(' + '.join(keys) for keys, _ in FORMATS.values())}")
        return fitting[0]
    if wanted not in fitting:
        found = f"this row is {fitting[0]}" if fitting else "this row is no known format"
        raise BadRow("wrong_format", f"curate.format is {wanted}, which needs {' + '.join(FORMATS[wanted][0])}; {found}")
    return wanted


def check_order(turns: list[Turn]) -> None:
    """Raise `BadRow` unless user and assistant alternate after at most one system turn, the assistant is last and nobody says nothing."""
    system = int(bool(turns) and turns[0]["role"] == "system")
    for position, turn in enumerate(turns[system:]):
        due = ("user", "assistant")[position % 2]
        number = system + position + 1
        if turn["role"] != due:
            raise BadRow("bad_order", f"turn {number} is {turn['role']}, where {due} is due")
        if not turn["content"].strip():
            raise BadRow("empty_turn", f"turn {number} ({due}) is empty")
    if not turns or turns[-1]["role"] != "assistant":
        raise BadRow("bad_order", "the last turn is not the assistant's")


def _messages(row: Row) -> list[Turn]:
    return _system(row) + _turns(row["messages"], "messages", ROLES)


def _sharegpt(row: Row) -> list[Turn]:
    return _system(row) + _turns(row["conversations"], "conversations", SHAREGPT_ROLES)


def _alpaca(row: Row) -> list[Turn]:
    turns = _system(row)
    history = _list(row.get("history") or [], "history")
    for number, pair in enumerate(history, start=1):
        asked, answered = _pair(pair, f"history {number}")
        turns += [_turn("user", asked, f"history {number}"), _turn("assistant", answered, f"history {number}")]
    question = [_text(row[field], field) for field in ("instruction", "input") if row.get(field)]
    return [*turns, _turn("user", "\n\n".join(question), "instruction"), _turn("assistant", row["output"], "output")]


def _prompt_completion(row: Row) -> list[Turn]:
    turns = _system(row)
    for field, role in (("prompt", "user"), ("completion", "assistant")):
        value = row[field]
        turns += _turns(value, field, ROLES) if isinstance(value, list) else [_turn(role, value, field)]
    return turns


# name → the keys a row needs, how it is read; auto takes the first that fits
FORMATS: dict[str, tuple[tuple[str, ...], Callable[[Row], list[Turn]]]] = {
    "messages": (("messages",), _messages),
    "sharegpt": (("conversations",), _sharegpt),
    "alpaca": (("instruction", "output"), _alpaca),
    "prompt_completion": (("prompt", "completion"), _prompt_completion),
}


def _turns(value: Any, field: str, roles: Mapping[str, str]) -> list[Turn]:
    turns = []
    for number, item in enumerate(_list(value, field), start=1):
        where = f"{field} {number}"
        if not isinstance(item, dict):
            raise BadRow("bad_shape", f"{where} is {_kind(item)}, not an object")
        if item.get("tool_calls") or item.get("function_call") or item.get("weight") not in (None, 1):
            raise BadRow("unsupported_field", f"{where}: tool_calls, function_call or weight would be lost")
        role = item.get("role", item.get("from"))
        if not isinstance(role, str) or role not in roles:
            raise BadRow("bad_role", f"{where}: the role is none of {', '.join(roles)}")
        turns.append(_turn(roles[role], item.get("content", item.get("value")), where))
    return turns


def _turn(role: str, content: Any, where: str) -> Turn:
    return {"role": role, "content": _text(content, where)}


def _system(row: Row) -> list[Turn]:
    system = row.get("system")
    return [_turn("system", system, "system")] if system else []


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise BadRow("content_not_text", f"{where} is {_kind(value)}, not text")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRow("bad_shape", f"{where} is {_kind(value)}, not a list")
    return value


def _pair(value: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise BadRow("bad_shape", f"{where} is not a pair of question and answer")
    return value[0], value[1]


def _kind(value: Any) -> str:
    """What JSON calls it."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number", type(None): "null or missing"}
    return names[type(value)]
