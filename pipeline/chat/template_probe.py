"""A conversation with placeholders as texts, which shows how a chat template renders turns of any content.

Placeholders (stand-ins) are nine letters and digits each (the form that Mistral's templates require of ids).
Rendered, they show the texts that the template drops. Tokenized, they show the control tokens that the turns
imply.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from pipeline.chat.rows import ToolCall
from pipeline.core.text import listed

Message = dict[str, Any]
Tools = list[dict[str, Any]] | None

# Recipes whose base shows tools, calls and results (tests/stages/curate/test_length.py), and how sentences
# name them.
TOOL_RECIPES = ("demo", "qwen2.5-0.5b", "qwen3-0.6b", "llama3.2-1b")
SHOWING_TOOLS = f"those of the recipes {listed(TOOL_RECIPES)} do"
# Strings of tools that templates test for. All other strings of a tool are the user's.
KEYWORDS = frozenset(
    {
        "type",
        "function",
        "name",
        "description",
        "parameters",
        "properties",
        "required",
        "items",
        "enum",
        "default",
        "strict",
        "title",
        "additionalProperties",
        "anyOf",
        "oneOf",
        "allOf",
        "const",
        "format",
        "nullable",
        "return",
        "returns",
        "response",
        "$ref",
        "$defs",
        "object",
        "string",
        "number",
        "integer",
        "boolean",
        "array",
        "null",
    }
)


class StandIns:
    """Stand-ins for texts. `of` returns equal stand-ins for equal texts, as ids and references need."""

    def __init__(self, letter: str) -> None:
        # `new` returns one that no other text has. It is not a method, because that would make a reference
        # cycle for every conversation.
        self.new = map(f"{letter}{{:08}}".format, itertools.count(1)).__next__
        self.of = defaultdict[str, str](self.new)

    def tree(self, value: Any) -> Any:
        """Return a JSON value with stand-ins for its texts, keys too. Numbers become 0."""
        if isinstance(value, str):
            return self.of[value]
        if isinstance(value, dict):
            return {self.of[key]: self.tree(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        return 0 if isinstance(value, int | float) and not isinstance(value, bool) else value


def probe(messages: list[Message], tools: Tools = None) -> tuple[list[Message], Tools]:
    """Return the same turns, tools and calls with stand-ins for every text. A blank text becomes empty."""
    words, arguments, schemas = StandIns("q"), StandIns("a"), StandIns("s")
    bare = [_bare_turn(message, words, arguments) for message in messages]
    if not tools:
        return bare, None
    schemas.of.update({word: word for word in KEYWORDS})
    return bare, [_bare_tool(tool, schemas) for tool in tools]


def shown(messages: list[Message], tools: Tools = None, since: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (description, stand-in) of everything in a template probe that a template must show. Reasoning of
    the turns before `since` is left out.
    """
    for number, tool in enumerate(tools or [], start=1):
        yield f"tool {number}", tool["function"]["name"]
    for number, message in enumerate(messages, start=1):
        for key in ("content", "reasoning_content"):
            if message.get(key) and (key == "content" or number > since):
                yield f"the {key} of turn {number}", message[key]
        for call in message.get("tool_calls", ()):
            for word in (call["function"]["name"], *call["function"]["arguments"]):
                yield f"a tool call of turn {number}", word


def _bare_turn(message: Message, words: StandIns, arguments: StandIns) -> Message:
    bare = {"role": message["role"], "content": words.new() if message["content"].strip() else ""}
    if message.get("reasoning_content"):
        bare["reasoning_content"] = words.new()
    if "tool_calls" in message:
        bare["tool_calls"] = [_bare_call(call, words, arguments) for call in message["tool_calls"]]
    return bare | {key: words.of[message[key]] for key in ("tool_call_id", "name") if key in message}


def _bare_call(call: ToolCall, words: StandIns, arguments: StandIns) -> ToolCall:
    bare: ToolCall = {
        "type": "function",
        "function": {"name": words.new(), "arguments": arguments.tree(call["function"]["arguments"])},
    }
    if "id" in call:
        bare["id"] = words.of[call["id"]]
    return bare


def _bare_tool(tool: dict[str, Any], schemas: StandIns) -> dict[str, Any]:
    bare: dict[str, Any] = schemas.tree(tool)
    return bare | {"function": bare["function"] | {"name": schemas.new()}}
