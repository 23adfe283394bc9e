"""Parser of tool calls and tool results that are written as text, as in agents' logs.

The form alone distinguishes them from prose: a tag that opens a line, outside of a code block, in front of an
object with a name and arguments, and only more calls after it. The decision that such a text is a call in its
row is made by `pipeline.stages.curate.rules.calls`.
"""

import ast
import json
import math
import re
import warnings
from typing import Any, NamedTuple

import orjson

from pipeline.core.jsonl import BadLine, parse_value

# The tag in front of a call, and the one after it, if there is one: Hermes and Qwen, Glaive, Granite and Phi,
# Llama, Mistral.
CLOSING = {
    "<tool_call>": "</tool_call>",
    "<function_call>": "</function_call>",
    "<functioncall>": "</functioncall>",
    "<|tool_call|>": "<|/tool_call|>",
    "<|python_tag|>": "",
    "[TOOL_CALLS]": "",
}
MARKS = (*CLOSING, "<function=")
# Control tokens with which logs end a turn.
ENDS = ("<|eom_id|>", "<|eot_id|>", "<|endoftext|>", "<|im_end|>", "</s>")
OPENING = re.compile(rf"(?:^|\n|</think>)[ \t]*({'|'.join(map(re.escape, CLOSING))})\s*")
NAMED = re.compile(r"(?:^|\n|</think>)[ \t]*<function=([^<>\s]+)>\s*")  # Llama: <function=NAME>{…}</function>
NAMED_CLOSING = "</function>"
NEXT = re.compile(rf"\s*({'|'.join(map(re.escape, CLOSING))})\s*")
NEXT_NAMED = re.compile(r"\s*<function=([^<>\s]+)>\s*")
CODE = "<|python_tag|>"  # Llama also writes code after it.
END = re.compile("|".join(map(re.escape, (*CLOSING, *filter(None, CLOSING.values()), NAMED_CLOSING, *ENDS))))
BEHIND = re.compile(rf"(?:\s|[;,]|{'|'.join(map(re.escape, ENDS))})*")
FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
# Glaive writes the arguments as JSON between single quotes.
GLAIVE = re.compile(
    r"""\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*'(.*)'\s*\}""", re.DOTALL
)
RESULT_TAGS = ("tool_response", "function_response", "tool_result")
RESULT_OPENINGS = tuple(f"<{tag}>" for tag in RESULT_TAGS)
BLANK = re.compile(r"\s*")
GLAIVE_RESULT = "FUNCTION RESPONSE:"
LONGEST_LITERAL = 1 << 16  # characters that are parsed as Python
MOST_CALLS = 256  # calls of one turn
DECODER = json.JSONDecoder()


class TextCalls(NamedTuple):
    """A turn's text before its calls, and the calls as objects with a name and arguments."""

    before: str
    calls: list[dict[str, Any]]


class NotCalls(ValueError):
    """Error for a text with a call's tag that is not a text followed by calls.

    `whole` is True if the tag opens the text, so that it was meant as a call in any row.
    """

    def __init__(self, why: str, whole: bool) -> None:
        super().__init__(why)
        self.whole = whole


def find_calls(text: str) -> TextCalls | None:
    """Return the calls at the end of a text and the text before them; None if no tag opens a line.

    Raises `NotCalls` for a tag that is not in front of calls, or with text after them.
    """
    if not any(mark in text for mark in MARKS):
        return None
    start = _start(text)
    if start is None:
        return None
    before = text[: start.start(1) if start.re is OPENING else text.index("<function=", start.start())]
    calls: list[dict[str, Any]] = []
    tag: re.Match[str] | None = start
    place = start.end()
    try:
        while tag:
            place = _read_tagged(text, tag, calls)
            tag = NEXT.match(text, place) or NEXT_NAMED.match(text, place)
    except ValueError as error:
        raise NotCalls(str(error), _is_whole(text, before, start)) from None
    if text[place:].strip():
        raise NotCalls("text follows the call", False)
    return TextCalls(before.rstrip(), calls)


def untagged_calls(text: str) -> list[dict[str, Any]] | None:
    """Return the calls of a text that consists only of calls, without a tag; None if it is something else.

    The forms are JSON (Llama 3.2) and `[name(key=value)]` (Llama 4, ToolACE).
    """
    words = text.strip()
    for end in ENDS:
        words = words.removesuffix(end).rstrip()
    if not words.startswith(("{", "[")):
        return None
    try:
        return calls_of(parse_value(words.encode()))
    except (BadLine, ValueError):
        return _python_calls(words)


def value_of(words: str) -> Any:
    """Return the value of an object or list that is JSON, Glaive's mixture of quotes, or a Python literal.

    Raises `ValueError` for other text.
    """
    try:
        return parse_value(words.encode())
    except BadLine:
        pass
    glaive = GLAIVE.fullmatch(words)
    if glaive:
        try:
            arguments = parse_value(glaive[2].replace("\\'", "'").encode())
            return {"name": parse_value(glaive[1].encode()), "arguments": arguments}
        except BadLine:
            pass  # It may be Python.
    return _checked(_literal(_parsed(words)))


def python_objects(words: str) -> list[dict[str, Any]]:
    """Return the list of objects in a text that is a Python literal, as pandas writes it into a cell.

    Raises `ValueError` for other text. Lists of texts are refused too: NumPy prints these without commas, and
    Python reads two of them as one.
    """
    value = _literal(_parsed(words.strip()))
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("not a list of objects")
    return list(_checked(value))


def calls_of(value: Any) -> list[dict[str, Any]]:
    """Return the calls in an object or a list of objects. Raises `ValueError` for other values."""
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(map(_is_call, calls)):
        raise ValueError("what the tag opens is not a name with arguments")
    return calls


def split_results(text: str) -> tuple[list[str], str]:
    """Return the results in tags at the start of a text, and the text after them."""
    if text.lstrip().startswith(GLAIVE_RESULT):
        return [text.lstrip().removeprefix(GLAIVE_RESULT).strip()], ""
    results: list[str] = []
    place = 0
    while opening := next(
        (tag for tag in RESULT_OPENINGS if text.startswith(tag, _text_start(text, place))), ""
    ):
        start = _text_start(text, place) + len(opening)
        end = text.find(opening.replace("<", "</"), start)
        if end < 0:
            break
        results.append(text[start:end].strip())
        place = end + len(opening) + 1
    return results, text[place:].strip()


def tagged(text: str, opening: str, closing: str) -> list[str]:
    """Return the text between each pair of tags, if it is not empty."""
    texts: list[str] = []
    end = 0
    while True:
        start = text.find(opening, end)
        end = text.find(closing, start) if start >= 0 else -1
        if end < 0:
            return texts
        texts += filter(None, [text[start + len(opening) : end].strip()])


def is_result(text: str) -> bool:
    """Return True if a text starts with a result in tags."""
    return text.lstrip().startswith((*RESULT_OPENINGS, GLAIVE_RESULT))


def _text_start(text: str, place: int) -> int:
    """Return the place of the first character from a place on that is not white space."""
    blank = BLANK.match(text, place)
    return blank.end() if blank else place


def _start(text: str) -> re.Match[str] | None:
    """Return the first tag that opens a line in front of a bracket or is at the start of the text."""
    thought = THOUGHT.match(text)
    place = thought.end() if thought else 0
    # The pattern needs to see the end of a thought in front of a tag.
    first = max(place - len("</think>"), 0)
    candidates = [*OPENING.finditer(text, first), *NAMED.finditer(text, first)]
    is_code = False
    counted = place
    for candidate in sorted(candidates, key=lambda match: match.start()):
        fences = FENCE.findall(text, counted, candidate.start() + 1)
        is_code ^= len(fences) % 2 == 1
        counted = max(candidate.start() + 1, place)
        if is_code:
            continue  # an example in a code block
        if candidate.re is NAMED or text[candidate.end() : candidate.end() + 1] in ("{", "["):
            return candidate
        if candidate is candidates[0] and not text[place : candidate.start(1)].strip():
            closing = CLOSING[candidate[1]]
            if candidate[1] == CODE or (closing and text.rstrip().endswith(closing)):
                return candidate
    return None


def _read_tagged(text: str, tag: re.Match[str], calls: list[dict[str, Any]]) -> int:
    """Add the calls after a tag to `calls`; return their end. Raises `ValueError`."""
    is_named = tag.re in (NAMED, NEXT_NAMED)
    closing = NAMED_CLOSING if is_named else CLOSING[tag[1]]
    place = tag.end()
    while True:
        value, place = _read_value(text, place)
        calls += calls_of({"name": tag[1], "arguments": value} if is_named else value)
        if len(calls) > MOST_CALLS:
            raise ValueError(f"more than {MOST_CALLS} calls in one turn")
        place = _skip(text, place)
        if closing and text.startswith(closing, place):
            return _skip(text, place + len(closing))
        if not text.startswith(("{", "["), place):
            return place


def _read_value(text: str, start: int) -> tuple[Any, int]:
    """Return the value that starts at a place, and its end. Raises `ValueError`."""
    try:
        _, end = DECODER.raw_decode(text, start)
        # Parsed again, because the decoder accepts NaN and repeated keys.
        return parse_value(text[start:end].encode()), end
    except (ValueError, RecursionError):
        # Other forms than JSON don't mark their end.
        tag = END.search(text, start)
        end = tag.start() if tag else len(text)
    try:
        return value_of(text[start:end].strip()), end
    except ValueError:
        raise ValueError("what the tag opens is neither JSON nor a Python literal") from None


def _skip(text: str, place: int) -> int:
    """Return the place after white space, separators and control tokens that end a turn."""
    behind = BEHIND.match(text, place)
    return behind.end() if behind else place


def _is_whole(text: str, before: str, start: re.Match[str]) -> bool:
    """Return True if a text starts, apart from thoughts, with a tag that can only open a call."""
    is_prose = (
        start.re is OPENING and start[1] == CODE and text[start.end() : start.end() + 1] not in ("{", "[")
    )
    return not is_prose and not THOUGHT.sub("", before, count=1).strip()


def _is_call(value: Any) -> bool:
    """Return True for an object with a name and arguments, also inside `function`, and without other keys."""
    if not isinstance(value, dict):
        return False
    function = value.get("function", value)
    if not isinstance(function, dict) or ("function" in value and value.keys() - {"function", "type", "id"}):
        return False
    arguments = function.keys() & {"arguments", "parameters"}
    return (
        isinstance(function.get("name"), str)
        and len(arguments) == 1
        and not function.keys() - arguments - {"name", "id", "type"}
    )


def _parsed(words: str) -> ast.expr:
    """Return the syntax tree of one Python expression. Raises `ValueError`."""
    if len(words) > LONGEST_LITERAL:
        raise ValueError("too long to read as Python")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of "\d" in a text.
            return ast.parse(words, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("not a Python literal") from error


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal that JSON has too.

    Raises `ValueError` for others and for a repeated key.
    """
    match node:
        case ast.Dict(keys=keys, values=values):
            pairs = [(_literal(key), _literal(value)) for key, value in zip(keys, values, strict=True) if key]
            entries = dict(pairs)
            if len(entries) < len(keys) or not all(isinstance(key, str) for key in entries):
                raise ValueError("a key is not text, or is there twice")
            return entries
        case ast.List(elts=elements):
            return [_literal(element) for element in elements]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if (
            number != math.inf
        ):
            return -number
        case ast.Constant(value=None | bool() | int() | float() | str() as value) if value != math.inf:
            return value
    raise ValueError("not a literal that JSON has")


def _checked(value: Any) -> Any:
    """Return a literal's value as the strict JSON reader returns it.

    Raises `ValueError` beyond its limits.
    """
    try:
        return parse_value(orjson.dumps(value))
    except TypeError as error:  # orjson's error: a number of more than 64 bits, half of a surrogate pair
        raise ValueError(str(error)) from None


def _python_calls(words: str) -> list[dict[str, Any]] | None:
    """Return the calls of a Python list such as `[look(at="sea"), count(to=3)]`; None for anything else."""
    try:
        listed = _parsed(words)
        if not isinstance(listed, ast.List) or not listed.elts:
            return None
        return [_python_call(element) for element in listed.elts]
    except (ValueError, RecursionError):
        return None


def _python_call(node: ast.expr) -> dict[str, Any]:
    """Return a call with literals as keyword arguments as an object. Raises `ValueError`."""
    match node:
        case ast.Call(func=ast.Name() | ast.Attribute() as function, args=[], keywords=keywords):
            given = {word.arg: _literal(word.value) for word in keywords if word.arg}
            if len(given) == len(keywords):
                return {"name": ast.unparse(function), "arguments": given}
    raise ValueError("not a call with literals as keyword arguments")
