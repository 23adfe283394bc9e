"""A chat template without transformers, which takes a second and 110 MB to load in each worker process.

`pipeline.chat.template` compiles it.
"""

import json
from pathlib import Path
from typing import Any

from pipeline.chat.rows import BadRow, Row, conversations, has_tools
from pipeline.chat.template import SPECIAL, compiled
from pipeline.chat.template_probe import probe, shown
from pipeline.core.errors import DataError
from pipeline.core.publish import read_if_there
from pipeline.core.text import shortened

# A conversation with a call, for checking that a template shows all of it.
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}
CALLING: list[dict[str, Any]] = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "r", "name": "f", "tool_call_id": "c"},
    {"role": "assistant", "content": "a"},
]
PARAMETERS = {
    "type": "object",
    "properties": {"x": {"type": "string", "description": "d"}},
    "required": ["x"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": PARAMETERS}}
]


class ChatTemplate:
    """The template in a Hugging Face folder.

    Raises `ValueError`, `OSError` or jinja2's errors if it is broken. It may be missing, because texts don't
    need one. Rendering then raises `DataError`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        file = folder / "special_tokens_map.json"
        named = read_if_there(file) | settings
        tokens = {name: named[name] for name in SPECIAL if named.get(name) is not None}
        self.special = {
            name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()
        }
        self.templates = {
            name: compiled(text) for name, text in _sources(folder, settings.get("chat_template")).items()
        }

    def render(self, messages: list[dict[str, Any]], tools: Any = None, *, prompt: bool = False) -> str:
        """Return the text of a conversation, with the opening of an answer if `prompt`. Raises `BadRow` if
        the template refuses it.
        """
        from jinja2 import TemplateError

        if not self.templates:
            raise DataError(
                "Q-CHAT-001", f"{self.folder} has no chat template: choose an instruct model as base"
            )
        template = self.templates["tool_use" if tools and "tool_use" in self.templates else "default"]
        turns = [
            {"thinking": turn["reasoning_content"], **turn} if "reasoning_content" in turn else turn
            for turn in messages
        ]
        try:
            return template(
                messages=turns,
                tools=tools or None,
                documents=None,
                add_generation_prompt=prompt,
                **self.special,
            )
        except TemplateError as error:
            raise BadRow("template_refuses", f"the chat template says: {shortened(error)}") from error
        except Exception as error:  # A template is a program, which can raise anything.
            raise BadRow(
                "template_refuses", f"the chat template fails on it ({type(error).__name__})"
            ) from error

    def rendered(self, row: Row) -> list[str]:
        """Return the texts that a row is trained as: one, two for a preference, one for each segment.

        Raises `BadRow`.
        """
        if row["kind"] == "text":
            return [segment["text"] for segment in row["segments"]]
        tools = row.get("tools")
        return [self.render(turns, tools, prompt=row["kind"] == "prompt") for turns in conversations(row)]

    def shows_calls(self) -> bool:
        """Return True if the template shows tools, calls with their arguments, and results."""
        return self._shows(CALLING, TOOLS)

    def shows_tools_of(self, row: Row) -> bool:
        """Return True if the template shows the row's tools, calls and results, or if it has none."""
        return not has_tools(row) or all(self._shows(turns, row.get("tools")) for turns in conversations(row))

    def _shows(self, turns: list[dict[str, Any]], tools: Any) -> bool:
        """Return True if the template shows these tools and turns, apart from reasoning."""
        bare, bare_tools = probe(turns, tools)
        try:
            text = self.render(bare, bare_tools)
        except BadRow:
            return False
        return all(stand_in in text for _, stand_in in shown(bare, bare_tools, since=len(bare)))

    def shows_turns(self, row: Row) -> bool:
        """Return True if the template shows the content of every turn, in the row's order."""
        for turns in conversations(row):
            bare, tools = probe(turns, row.get("tools"))
            try:
                text = self.render(bare, tools)
            except BadRow:
                return False
            place = 0
            for turn in bare:
                place = text.find(turn["content"], place)
                if place < 0:
                    return False
        return True


def _sources(folder: Path, named: object) -> dict[str, str]:
    """Return the folder's chat templates by name, from the places where transformers finds them. `named` is
    the entry of tokenizer_config.json.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {"default": file.read_text(encoding="utf-8")}
    if isinstance(named, list):
        return {entry["name"]: entry["template"] for entry in named}
    return {"default": named} if isinstance(named, str) else {}
