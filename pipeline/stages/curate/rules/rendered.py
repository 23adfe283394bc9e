"""The rule for chats that were rendered before: a turn whose text is such a chat becomes its turns.

The content of a column `text` arrives here as the only turn of the assistant. A prompt may end with the
header of the answer, an answer with the token that ends a turn: the base's own template writes both. Excerpts
show each turn with its role.
"""

import re
from collections.abc import Iterable

from pipeline.chat.rows import SIDES, TURN_LISTS, BadRow, Row
from pipeline.intake.rows.markup import (
    ENDS,
    MAYBE,
    REMEDY,
    Rendered,
    is_rendered,
    parse,
    parse_part,
    without_ends,
)
from pipeline.intake.rows.turns import Turn, shared_prompt
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts
from pipeline.stages.curate.rules.references import edit_references

# Form of markers, also of those that no dialect here has: neither a word nor a tag of HTML, which Gemma's
# tokenizer has as tokens too.
MARKER = re.compile(r"\s*<[|｜][^\s<>|｜]+[|｜]>")
OWN_MARKER = re.compile(r"[<\[〈][^\s<>]*[|｜_:][^\s<>]*[>\]〉]")
SYSTEM_HEADER = re.compile(r"\A\s*SYSTEM:\s*")
LONGEST_TAIL = 64  # characters in which the end of a turn is searched
LAST_CHARACTERS = frozenset(end[-1] for end in ENDS)
THINKS = "<think>"  # Some templates end a prompt with it.


class Markup:
    """Rule for rendered chats. Some of the added tokens may be markers of the base's own template. Ends of
    turns or texts in rows that were not rendered otherwise are removed only if `takes_ends`.
    """

    def __init__(self, added_tokens: Iterable[str], *, takes_ends: bool = True) -> None:
        self.own = tuple(filter(OWN_MARKER.fullmatch, added_tokens))
        self.takes_ends = takes_ends

    def __call__(self, row: Row, changes: Changes) -> Row:
        """Return the row with the turns of rendered chats. Raises `BadRow` if one cannot be parsed."""
        if row["kind"] == "text":
            segments = row["segments"]
            if len(segments) != 1 or not segments[0]["train"] or not is_rendered(segments[0]["text"]):
                return self._text(row, changes)
            whole = {"role": "assistant", "content": segments[0]["text"]}
            row = {key: row[key] for key in row if key != "segments"} | {"kind": "chat", "messages": [whole]}
        elif self.takes_ends:
            row = edit_references(row, without_ends, "markup", changes)
        if not _is_candidate(row):
            return row
        if not self.takes_ends and not any(
            is_rendered(turn["content"]) for field in TURN_LISTS for turn in row.get(field, ())
        ):
            return row
        read = dict(row)
        read["messages"], begun = _expanded(row["messages"], "messages", None, changes)
        if row["kind"] == "preference":
            chosen, rejected = (_side(row, side, begun, changes) for side in SIDES)
            messages, chosen, rejected = shared_prompt(read["messages"], chosen, rejected)
            return read | {"messages": messages, "chosen": chosen, "rejected": rejected}
        if begun and begun.strip() != THINKS:
            raise BadRow("markup", f"messages ends in the beginning of an answer: {REMEDY}")
        return read

    def _text(self, row: Row, changes: Changes) -> Row:
        """Return a text without the tokens around it. In several segments all markup is there on purpose."""
        if len(row["segments"]) != 1:
            return row
        segment = row["segments"][0]
        text = without_ends(segment["text"]) if self.takes_ends else segment["text"]
        if MARKER.match(text) or (self.own and text.lstrip().startswith(self.own)):
            raise BadRow("markup", f"segments 1 begins with a marker of no chat that is known: {REMEDY}")
        if text == segment["text"]:
            return row
        changes.append(Change("markup", "segments 1", *excerpts(segment["text"], text)))
        return row | {"segments": [{**segment, "text": text}]}


def _is_candidate(row: Row) -> bool:
    """Return True if the row may contain a rendered chat or the end of one. Most do not, so this is quick."""
    for field in TURN_LISTS:
        for turn in row.get(field, ()):
            content = turn["content"]
            if MAYBE.match(content):
                return True
            if turn["role"] == "assistant":
                tail = content[-LONGEST_TAIL:].rstrip()
                if tail[-1:] in LAST_CHARACTERS and tail.endswith(ENDS):
                    return True
    return False


def _side(row: Row, field: str, begun: str | None, changes: Changes) -> list[Turn]:
    """Return the turns of one side of a pair. The prompt may have begun the first of them."""
    turns, rest = _expanded(row[field], field, begun, changes)
    if rest:
        raise BadRow("markup", f"{field} ends in the beginning of an answer: {REMEDY}")
    return turns


def _expanded(
    turns: list[Turn], field: str, begun: str | None, changes: Changes
) -> tuple[list[Turn], str | None]:
    """Return the turns, each rendered chat as its own turns, and the beginning of an answer in the last
    prompt that is not among them.

    `begun` is the beginning of the first answer.
    """
    expanded: list[Turn] = []
    is_whole = [turn["role"] for turn in turns if turn["role"] != "system"] == ["assistant"]
    for number, turn in enumerate(turns, start=1):
        place = f"{field} {number}"
        if turn["role"] == "assistant":
            inner = _answer(turn, place, expanded, alone=is_whole)
            if is_whole and inner != [turn]:
                expanded = [_without_header(system) for system in expanded]
                inner = inner[1:] if inner[:1] == expanded[-1:] else inner
            if begun and inner and inner[0]["role"] == "assistant":
                inner = [{**inner[0], "content": begun + inner[0]["content"]}, *inner[1:]]
            begun = None
        elif turn["role"] == "tool":
            inner = [turn]
        else:
            inner, begun = _prompt(turn, place)
        if inner != [turn]:
            shown = "\n".join(f"{inner_turn['role']}: {inner_turn['content']}" for inner_turn in inner)
            changes.append(Change("markup", place, *excerpts(turn["content"], shown)))
        expanded += inner
    return expanded, begun


def _prompt(turn: Turn, place: str) -> tuple[list[Turn], str | None]:
    """Return the turns of a user's or system turn, and the beginning of the answer if they end with it."""
    rendered = parse_part(turn["content"], place)
    if rendered is None:
        return [turn], None
    inner = rendered.turns
    begun = None
    if inner and inner[-1]["role"] == "assistant":
        begun = inner[-1]["content"]
        inner = inner[:-1]
        whole = rendered.ended or not rendered.dialect.ends_each
        if begun and begun.strip() != THINKS and whole:
            raise BadRow("markup", f"{place} ends with an answer: {REMEDY}")
    roles = {inner_turn["role"] for inner_turn in inner}
    if not inner or (turn["role"] == "system" and roles != {"system"}):
        raise BadRow("markup", f"{place} holds other turns than its own: {REMEDY}")
    return _with_keys_of(turn, inner, place), begun


def _answer(turn: Turn, place: str, before: list[Turn], *, alone: bool) -> list[Turn]:
    """Return the turns of an assistant's turn: its own, or those of a whole chat if it is the only turn next
    to the system's.
    """
    content = turn["content"]
    rendered = parse(content, place) if alone else parse_part(content, place)
    if rendered is None:
        text = without_ends(content)
        return [turn if text == content else {**turn, "content": text}]
    inner = _without_open_header(rendered)
    if alone and not any(inner_turn["role"] == "assistant" for inner_turn in inner):
        raise BadRow("markup", f"{place} begins like a rendered chat, but has no answer: {REMEDY}")
    if not alone:
        # An answer may repeat its prompt.
        if inner[: len(before)] == before:
            inner = inner[len(before) :]
        if not inner or any(inner_turn["role"] in ("user", "system") for inner_turn in inner):
            raise BadRow("markup", f"{place} holds other turns than its own: {REMEDY}")
    return _with_keys_of(turn, inner, place)


def _without_header(system: Turn) -> Turn:
    """Return the system turn next to a rendered chat without the header with which Glaive's rows begin it."""
    return {**system, "content": SYSTEM_HEADER.sub("", system["content"])}


def _without_open_header(rendered: Rendered) -> list[Turn]:
    """Return the turns without the header of an answer that does not follow."""
    last = rendered.turns[-1] if rendered.turns else None
    if last and last["role"] == "assistant" and not last["content"] and not rendered.ended:
        return rendered.turns[:-1]
    return rendered.turns


def _with_keys_of(turn: Turn, inner: list[Turn], place: str) -> list[Turn]:
    """Return the turns with the other keys of the turn, which only one turn can take over."""
    more = {key: turn[key] for key in turn if key not in ("role", "content")}
    if more and len(inner) != 1:
        raise BadRow("markup", f"{place} holds several turns, and {next(iter(more))} is of one: {REMEDY}")
    return [{**inner_turn, **more} for inner_turn in inner]
