"""Rewrites that llama-server makes by design, with any template, applied to the input of training's renderer.

There are three (llama.cpp 0c1e57098). Numbers with a fraction keep six digits (`common/jinja/value.cpp`). A
tool keeps name, description and parameters, and gets the ones it lacks
(`common_chat_tools_to_json_oaicompat`). `trim` removes only ASCII white space.
"""

from typing import Any

from pipeline.chat.template_probe import Message

FIRST_STAND_IN = 0xF0000  # a private-use plane of Unicode, which no text and no template uses


class Rewrites:
    """Conversations as llama-server reads them, with stand-ins for content that JSON or templates change."""

    def __init__(self) -> None:
        self.stand_ins: dict[str, str] = {}
        self.reasons: set[str] = set()

    def tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        """Return the definition with the three keys that llama-server keeps, in its order."""
        function = tool["function"]
        kept = {
            "name": function["name"],
            "description": function.get("description", ""),
            "parameters": function.get("parameters", {}),
        }
        if list(kept) != list(function) or list(tool) != ["type", "function"]:
            self.reasons.add("a tool that has not just name, description and parameters")
        return {"type": "function", "function": kept | {"parameters": self.tree(kept["parameters"])}}

    def turn(self, message: Message) -> Message:
        """Return the turn with stand-ins for fractions in its calls and for white space beyond ASCII."""
        changed = message | {
            key: self.words(message[key]) for key in ("content", "reasoning_content") if key in message
        }
        if "tool_calls" in message:
            changed["tool_calls"] = [
                each
                | {"function": each["function"] | {"arguments": self.tree(each["function"]["arguments"])}}
                for each in message["tool_calls"]
            ]
        return changed

    def words(self, text: str) -> str:
        """Return the text with stand-ins for white space beyond ASCII, which no `trim` removes."""
        if text == text.strip() or text.strip() == text.strip(" \t\n\r\v\f"):
            return text
        self.reasons.add("white space beyond ASCII at the ends")
        return "".join(
            self.stand_in(char) if char.isspace() and not char.isascii() else char for char in text
        )

    def tree(self, value: Any) -> Any:
        """Return a JSON value with stand-ins for numbers with a fraction."""
        if isinstance(value, float) and f"{value:g}" != repr(value):
            self.reasons.add("numbers with a fraction")
            return self.stand_in(f"{value:g}")
        if isinstance(value, dict):
            return {key: self.tree(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        return value

    def stand_in(self, text: str) -> str:
        """Return a character that represents `text` until `put_back`."""
        character = chr(FIRST_STAND_IN + len(self.stand_ins))
        self.stand_ins[character] = text
        return character

    def put_back(self, text: str) -> str:
        """Return the text with the stand-ins replaced by what they represent. Numbers lose the quotes of JSON
        strings.
        """
        for character, stands_for in self.stand_ins.items():
            text = text.replace(f'"{character}"', stands_for).replace(character, stands_for)
        return text
