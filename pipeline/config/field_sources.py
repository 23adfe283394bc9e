"""A reader of `curate.fields`: targets, each with the source of its value.

A source is a key or a dotted path, a template of several, or a constant. null drops a key of the row. The
settings keep a mapping as it was written. `fields_of` reads it: here to check it, in stage curate to use it.
"""

import difflib
from collections.abc import Iterator, Mapping
from string import Formatter
from typing import Any, NamedTuple

from pipeline.core.text import quoted

ROLES_KEY = "roles"
# These two make one exchange: a prompt and its answer, or in each item of a list of turns two turns.
USER = "user"
ASSISTANT = "assistant"
LISTS_OF_TURNS = ("messages", "conversations", "conversation")
# Keys of a row that formats read. tests/stages/curate/test_fields.py compares them with the formats.
ROW_TARGETS = (
    *LISTS_OF_TURNS,
    *("prompt", "completion", "question", "query", "instruction", "input", "context", "history"),
    *("output", "response", "answer", "answers", "other_references"),
    *("system", "system_prompt", "tools", "functions"),
    *("chosen", "rejected", "chosen_response", "rejected_response"),
    *("preferred_output", "non_preferred_output", "chosen_messages", "rejected_messages"),
    *("response_a", "response_b", "response_0", "response_1", "response_2"),
    *("conversation_a", "conversation_b"),
    *("preference", "preferred", "winner", "choice", "better", "better_response_id"),
    *("label", "kto_tag", "reward", "score", "domain", "category", "text", "segments"),
    *("reasoning_content", "reasoning", "thinking"),
    *("request", "choices", "contents", "candidates", "data"),
)
TURN_TARGETS = (
    *("role", "author", "content", "reasoning_content", "reasoning", "thinking"),
    *("tool_calls", "tool_call_id", "name", "train"),
)
OF_TURNS_ALONE = tuple(target for target in TURN_TARGETS if target not in ROW_TARGETS)
TARGETS = (*ROW_TARGETS, USER, ASSISTANT, *OF_TURNS_ALONE, ROLES_KEY)
ROLES = ("system", "user", "assistant", "tool")
# An exchange can't be mapped in addition to these, which are its prompt and its answer already.
PROMPTS = ("prompt", "question", "query", "instruction")
ANSWERS = ("completion", "output", "response", "answers")
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", '."', '!"', '?"')


class Constant(NamedTuple):
    """A text that is the same in every row."""

    text: str


class Path(NamedTuple):
    """A key of the row, or keys and indices joined by dots."""

    name: str


class Template(NamedTuple):
    """A text that contains the values of several paths.

    Each piece is a literal, then a path (None after the last).
    """

    pieces: tuple[tuple[str, str | None], ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths in the order of the text."""
        return tuple(path for _, path in self.pieces if path is not None)


Source = Constant | Path | Template


class Fields(NamedTuple):
    """A mapping: the sources of a row's keys and of its turns' keys, the dropped keys, and renamed roles."""

    row: Mapping[str, Source]
    turn: Mapping[str, Source]
    dropped: tuple[str, ...]
    roles: Mapping[str, str]  # keys in lower case


def fields_of(stated: Any) -> Fields:
    """Read a mapping as it is in `params.yaml`. Raises `ValueError` with a sentence on the first fault."""
    if not isinstance(stated, dict) or not stated:
        raise ValueError("give a mapping of targets to sources, {prompt: nl, completion: bash} for example")
    of_turns = _turn_targets(stated)
    row: dict[str, Source] = {}
    turn: dict[str, Source] = {}
    dropped = []
    for target, value in stated.items():
        if value is None:
            dropped.append(target)
        elif target != ROLES_KEY:
            if target not in TARGETS:
                raise ValueError(f"{quoted(target)} is no target: {_nearest(target)}")
            (turn if target in of_turns else row)[target] = source_of(target, value)
    for problem in _problems(row, turn):
        raise ValueError(problem)
    return Fields(row, turn, tuple(dropped), _roles(stated.get(ROLES_KEY)))


def source_of(target: str, value: Any) -> Source:
    """Read one source. Raises `ValueError`."""
    if isinstance(value, dict):
        text = value.get("text")
        if set(value) != {"text"} or not isinstance(text, str):
            raise ValueError(f"{target} is {quoted(value)}: a constant is written {{text: …}}")
        return Constant(text)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"{target} is {quoted(value)}: name a key of the rows, write a template, or {{text: …}} for a "
            "constant"
        )
    if target == "system" and _is_sentence(value):
        return Constant(value)
    if "{" in value or "}" in value:
        return _template(target, value)
    return Path(value)


def paths_of(source: Source) -> tuple[str, ...]:
    """Return the paths that a source reads; empty for a constant."""
    if isinstance(source, Path):
        return (source.name,)
    return source.paths if isinstance(source, Template) else ()


def checked_fields(stated: Any) -> Any:
    """Return a mapping unchanged, after a check."""
    fields_of(stated)
    return stated


def _turn_targets(stated: Mapping[str, Any]) -> frozenset[str]:
    """Return the targets that are keys of a turn in this mapping.

    A target that can belong to a row's answer or to a turn belongs to the turn if the mapping names keys of
    turns.
    """
    if stated.keys().isdisjoint((*LISTS_OF_TURNS, *OF_TURNS_ALONE, ROLES_KEY)):
        return frozenset()
    exchange = () if stated.keys().isdisjoint(LISTS_OF_TURNS) else (USER, ASSISTANT)
    return frozenset((*TURN_TARGETS, *exchange))


def _is_sentence(text: str) -> bool:
    """Return True for a system text that is written out.

    No key has a line break or ends like a sentence.
    """
    words = text.strip()
    is_text = "\n" in words or (len(words.split()) > 1 and words.endswith(SENTENCE_ENDS))
    return is_text and "{" not in words


def _template(target: str, value: str) -> Template:
    pieces: list[tuple[str, str | None]] = []
    try:
        for literal, name, form, conversion in Formatter().parse(value):
            if name is not None and (not name.strip() or form or conversion):
                raise ValueError("a brace holds one key or path, and nothing else")
            pieces.append((literal, name))
    except ValueError as error:
        raise ValueError(
            f"{target} is no template ({error}): write {{key}}, and {{{{ or }}}} for a brace"
        ) from None
    template = Template(tuple(pieces))
    if not template.paths:
        raise ValueError(f"{target} is a template that names no key: write a constant as {{text: …}}")
    return template


def _roles(stated: Any) -> dict[str, str]:
    """Return the renamed roles. Raises `ValueError`."""
    if stated is None:
        return {}
    if not isinstance(stated, dict) or not stated:
        raise ValueError(f"roles is {quoted(stated)}: give names, as in {{human: user, bot: assistant}}")
    for name, role in stated.items():
        if role not in ROLES:
            near = difflib.get_close_matches(str(role), ROLES, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"name one of {', '.join(ROLES)}"
            raise ValueError(f"roles names {quoted(role)} for {quoted(name)}: {remedy}")
    renamed = {name.strip().lower(): role for name, role in stated.items()}
    if len(renamed) < len(stated):
        raise ValueError("roles has a name twice (capitals don't count): name each once")
    return renamed


def _problems(row: Mapping[str, Source], turn: Mapping[str, Source]) -> Iterator[str]:
    """Yield sentences on targets that exclude each other."""
    for pseudo, others in ((USER, (*PROMPTS, *LISTS_OF_TURNS)), (ASSISTANT, (*ANSWERS, *LISTS_OF_TURNS))):
        beside = next((other for other in others if other in row), None)
        if pseudo in row and beside is not None:
            yield f"{pseudo} and {beside} say the same: name one of them"
    if ASSISTANT in row and USER not in row:
        yield "assistant needs user beside it: name the key of the question too"
    if USER in turn and "content" in turn:
        yield "user and assistant split each item of a list, and content names one turn: name either"


def _nearest(target: str) -> str:
    near = difflib.get_close_matches(target, TARGETS, n=1)
    known = "docs/data-formats.md, Other names, lists the targets"
    return f"did you mean {near[0]}?" if near else f"{known} (null drops any key)"
