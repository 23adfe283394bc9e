"""The part of Go's text/template that the Modelfile's TEMPLATE is written in, as Ollama runs it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
WORD = re.compile(r'"[^"]*"|\(|\)|:=|=|,|[^\s()",=:]+')
Node = tuple[str, Any]


def compact(value: Any) -> str:
    """JSON as Ollama's types print it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def run(template: str, values: Mapping[str, Any], dumps: Callable[[Any], str] = compact) -> str:
    """The text of a template. Raises `AssertionError` for what is no template of this part."""
    tokens = iter([*_tokens(template), ("end", "")])
    nodes, ending = _parse(tokens)
    assert ending == "end" and not list(tokens)
    return _write(nodes, values, [{"$": values, "dumps": dumps}])


def _tokens(template: str) -> Iterator[Node]:
    position = 0
    for action in ACTION.finditer(template):
        yield "text", template[position : action.start()]
        yield "action", action[1].strip()
        position = action.end()
    yield "text", template[position:]
    assert "{{" not in template[position:]


def _parse(tokens: Iterator[Node]) -> tuple[list[Node], str]:
    """The nodes up to an `end` or an `else`, and that one."""
    nodes: list[Node] = []
    for kind, text in tokens:
        if kind == "end" or (kind == "action" and (text == "end" or text.startswith("else"))):
            return nodes, text or kind
        if kind == "text":
            nodes.append((kind, text))
        elif text.startswith(("if ", "range ")):
            word, _, condition = text.partition(" ")
            nodes.append((word, (condition, *_branches(tokens))))
        else:
            nodes.append((kind, text))
    raise AssertionError("no end")


def _branches(tokens: Iterator[Node]) -> tuple[list[Node], list[Node]]:
    body, ending = _parse(tokens)
    if ending == "end":
        return body, []
    if ending == "else":
        otherwise, ending = _parse(tokens)
        assert ending == "end"
        return body, otherwise
    condition = ending.removeprefix("else if ")
    return body, [("if", (condition, *_branches(tokens)))]


def _write(nodes: list[Node], dot: Any, scopes: list[dict[str, Any]]) -> str:
    scopes = [*scopes, {}]
    text = ""
    for kind, content in nodes:
        if kind == "text":
            text += content
        elif kind == "if":
            condition, body, otherwise = content
            text += _write(body if _value(condition, dot, scopes) else otherwise, dot, scopes)
        elif kind == "range":
            condition, body, _ = content
            names, _, of = condition.partition(":=") if ":=" in condition else ("", "", condition)
            for place, item in enumerate(_value(of, dot, scopes) or []):
                keys = [name.strip() for name in names.split(",") if name.strip()]
                own = dict(zip(keys, (place, item), strict=True)) if keys else {}
                text += _write(body, item, [*scopes, own])
        elif match := re.fullmatch(r"(\$\w+)\s*(:?=)\s*(.*)", content):
            name, sign, of = match.groups()
            holder = scopes[-1] if sign == ":=" else next(s for s in reversed(scopes) if name in s)
            holder[name] = _value(of, dot, scopes)
        else:
            value = _value(content, dot, scopes)
            text += value if isinstance(value, str) else scopes[0]["dumps"](value)
    return text


def _value(text: str, dot: Any, scopes: list[dict[str, Any]]) -> Any:
    words = WORD.findall(text)
    value = _call(words, dot, scopes)
    assert not words, text
    return value


def _call(words: list[str], dot: Any, scopes: list[dict[str, Any]]) -> Any:
    if words[0] not in ("eq", "ne", "and", "or", "not"):
        return _operand(words, dot, scopes)
    function, given = words.pop(0), []
    while words and words[0] != ")":
        given.append(_operand(words, dot, scopes))
    if function in ("eq", "ne"):
        one, other = given
        assert type(one) is type(other)  # Go compares nothing else
        return (one == other) == (function == "eq")
    if function == "not":
        return not given[0]
    return next((one for one in given if bool(one) == (function == "or")), given[-1])


def _operand(words: list[str], dot: Any, scopes: list[dict[str, Any]]) -> Any:
    word = words.pop(0)
    if word == "(":
        value = _call(words, dot, scopes)
        assert words.pop(0) == ")"
        return value
    if word.startswith('"'):
        return word[1:-1]
    if word.isdigit():
        return int(word)
    name, *fields = word.split(".")
    value = next(scope[name] for scope in reversed(scopes) if name in scope) if name else dot
    for field in fields:
        value = (value or {}).get(field)
    return value
