"""The authors of a chat between people, for an error: the user has to set which one is the assistant."""

from collections.abc import Mapping
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.core.text import quoted, safe

SHOWN = 5  # authors


def with_authors(why: BadLine, row: Mapping[str, Any], file: str) -> BadLine:
    """Return the reason why a row has no assistant, with the authors of its turns and the line that names one
    of them. Return any other reason as it is.
    """
    turns = row.get("messages")
    if why.code != "no_assistant" or not isinstance(turns, list):
        return why
    stated = [turn.get("author") for turn in turns if isinstance(turn, dict)]
    authors = list(dict.fromkeys(name for name in stated if isinstance(name, str) and name))
    if not authors:
        return why
    names = ", ".join(safe(name, 60) for name in authors[:SHOWN])
    if len(authors) > SHOWN:
        names += ", …"
    line = f"curate.fields: {{{quoted(file)}: {{roles: {{{quoted(authors[-1])}: assistant}}}}}}"
    return BadLine(why.code, f"{why}: its authors are {names}; name the one who answers, as in {line}")
