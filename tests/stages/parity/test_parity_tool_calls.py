"""parity checks.tool_calls: llama-server's parser reads the calls that training's template writes, or the row
and turn are named.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from families import byte_folder

from pipeline.chat.tokens import load_tokenizer
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Parity
from pipeline.core.checks import Check
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.stages.parity import routes
from pipeline.stages.parity.check import CTX_SIZE, Measure, measured
from pipeline.stages.parity.probe_inputs import ARGUMENTS, FRACTIONS, SCHEMAS, assistant, call, tool, user
from pipeline.stages.parity.tool_calls import (
    follows_schema,
    holds_calls,
    split_reasoning,
    tool_calls,
)

TOOLS = [tool("tool_0", SCHEMAS[0]), tool("tool_1", SCHEMAS[1])]
RESULT = {"role": "tool", "content": "22 °C", "tool_call_id": "call00000", "name": "tool_1"}
ASKS, DONE = user("Do it."), assistant("Done.")
Checked = Callable[..., Check]


def row(*turns: dict[str, Any], tools: Any = TOOLS) -> dict[str, Any]:
    return {"id": "r1", "kind": "chat", "messages": list(turns)} | ({"tools": tools} if tools else {})


def calls(*arguments: dict[str, Any], text: str = "", **more: Any) -> dict[str, Any]:
    """A turn of the assistant's that calls a tool with each of `arguments`."""
    return assistant(
        text, tool_calls=[call("tool_1", each, place) for place, each in enumerate(arguments)], **more
    )


def collected(tools: Toolchain, name: str) -> str:
    """A template of llama.cpp's collection."""
    return (tools.source / "models" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture
def measure(tools: Toolchain, tmp_path: Path) -> Checked:
    """The check of rows by a file with this template, or the one of llama.cpp's collection of this name."""

    def run(template: str, *rows: dict[str, Any]) -> Check:
        text = template if "{%" in template else collected(tools, template)
        changed: dict[str, Any] = {"tokenizer__chat_template": text, "llama__context_length": CTX_SIZE}
        gguf = tiny.tiny_gguf(tmp_path / "model-F16.gguf", **changed)
        tokenizer = load_tokenizer(byte_folder(tmp_path / "folder", text))
        with serving(Llama(tools), ModelFiles(gguf), ctx_size=CTX_SIZE) as server:
            return tool_calls(rows, tokenizer, server, gguf)

    return run


ALL_SHAPES = [row(ASKS, calls(arguments)) for arguments in (*ARGUMENTS, FRACTIONS)]


@pytest.mark.parametrize("template", ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B"])
def test_every_shape_of_arguments_is_read(template: str, measure: Checked) -> None:
    check = measure(template, *ALL_SHAPES)
    assert (check.verdict, check.figures["turns"]) == ("pass", len(ALL_SHAPES)), check.sentence


@pytest.mark.parametrize("template", ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B"])
def test_each_turn_that_calls_is_read(template: str, measure: Checked) -> None:
    check = measure(
        template,
        row(
            ASKS,
            calls({"city": "A"}),
            RESULT,
            calls({"city": "B"}, {"city": "C"}),
            RESULT,
            assistant("Done."),
        ),
        row(ASKS, calls({"city": "A"}, text="I look it up.")),
        row(ASKS, calls({"city": "A"}) | {"train": False}, RESULT, DONE),
    )
    assert (check.verdict, check.figures) == ("pass", {"rows": 1.0, "turns": 3.0, "against_schema": 0.0})


def test_calls_after_reasoning_are_read(measure: Checked) -> None:
    thinking = calls({"city": "A"}, reasoning_content="They ask for the weather.\n\nSo be it.")
    check = measure("Qwen-Qwen3-0.6B", row(ASKS, thinking), row(ASKS, thinking | {"content": "I look."}))
    assert (check.verdict, check.figures["turns"]) == ("pass", 2.0), check.sentence


def test_what_is_not_compared_is_counted(measure: Checked) -> None:
    long = row(user("again and again " * 200), calls({"city": "A"}))
    untold = row(ASKS, calls({"city": "A"}), tools=None)
    check = measure("Qwen-Qwen2.5-7B-Instruct", long, untold, row(ASKS, calls({"city": "A"})))
    assert (check.verdict, check.figures["turns"]) == ("pass", 1.0)
    assert "1 longer than" in check.sentence and "1 without tools" in check.sentence
    assert measure("Qwen-Qwen2.5-7B-Instruct", untold).verdict == "not measured"
    # ChatML shows no calls, so training refuses the row
    assert "never trained" in measure(tiny.CHATML, row(ASKS, calls({"city": "A"}))).sentence


def test_a_row_holds_calls_if_a_trained_turn_calls_a_tool() -> None:
    assert holds_calls(row(ASKS, calls({})))
    assert not holds_calls(row(ASKS, assistant("Hi")))


# what Qwen2.5's template writes before, within and after a call, and its arguments
PIECES = (
    """'\\n<tool_call>\\n{"name": "'""",
    """'", "arguments": '""",
    """'}\\n</tool_call>'""",
    "tool_call.arguments | tojson",
)
# what stands there instead; None: the same
PLANTED = {
    "a list": ("""'\\n<tool_call>\\n["'""", """'", '""", """']\\n</tool_call>'""", None),
    "prose": ("""'\\nPlease run '""", """' with '""", """' now.'""", None),
    "JSON in JSON": (None, None, None, "tool_call.arguments | tojson | tojson"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_template_that_llama_server_cannot_read_is_found(
    fault: str, measure: Checked, tools: Toolchain
) -> None:
    template = collected(tools, "Qwen-Qwen2.5-7B-Instruct")
    for piece, instead in zip(PIECES, PLANTED[fault], strict=True):
        assert piece in template
        template = template.replace(piece, instead or piece)
    check = measure(template, row(ASKS, DONE, ASKS, calls({"city": "Zürich"})))
    assert (check.verdict, check.figure) == ("fail", 1.0), check.sentence
    for words in ("row r1, turn 4", "Zürich", "llama-server"):
        assert words in check.sentence
    assert "model-F16.gguf" in check.remedy


def test_a_call_against_its_tools_schema_warns_where_the_parser_goes_by_it(measure: Checked) -> None:
    """Qwen3-Coder writes arguments as XML, and their types are in the schema only."""
    follows = row(ASKS, calls({"city": "A"}))
    check = measure("Qwen3-Coder", row(ASKS, calls({"town": "A"})), follows)
    assert (check.verdict, check.figures["against_schema"]) == ("warn", 1.0), check.sentence
    assert "town" in check.sentence
    assert measure("Qwen3-Coder", follows).verdict == "pass"


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": ["integer", "null"]},
        "s": {"type": "string"},
        "any": {},
        "on": {"type": "boolean"},
    },
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("arguments", "follows"),
    [
        ({"n": 1, "s": "x", "any": [1], "on": True}, True),
        ({"n": None, "any": False}, True),
        ({"n": True}, False),
        ({"n": 1, "on": 1}, False),
        ({"n": "1"}, False),
        ({"s": "x"}, False),
        ({"n": 1, "other": 1}, False),
    ],
)
def test_arguments_follow_a_schema(arguments: dict[str, Any], follows: bool) -> None:
    assert follows_schema({"name": "f", "arguments": arguments}, {"f": SCHEMA}) == follows
    assert not follows_schema({"name": "g", "arguments": arguments}, {"f": SCHEMA})


def test_the_probe_serves_the_file_only_if_rows_hold_calls(tools: Toolchain, tmp_path: Path) -> None:
    template = collected(tools, "Qwen-Qwen2.5-7B-Instruct")
    changed: dict[str, Any] = {"tokenizer__chat_template": template, "llama__context_length": CTX_SIZE}
    gguf = tiny.tiny_gguf(tmp_path / "model-F16.gguf", **changed)
    tokenizer = load_tokenizer(byte_folder(tmp_path / "folder", template))
    calling = replace(
        Measure([], Parity(), Llama(tools), tmp_path), calling=[row(ASKS, calls({"city": "A"}))]
    )
    for depth, verdict in (("quick", "not measured"), ("standard", "pass")):
        probes = routes._tool_calls(gguf, tokenizer, calling)
        assert measured(probes, depth)["text_tool_calls"].verdict == verdict  # type: ignore[arg-type]
    assert routes._tool_calls(tmp_path / "missing.gguf", tokenizer, replace(calling, calling=[])) == []


@pytest.mark.parametrize(
    ("said", "tags", "thought", "content"),
    [
        ("<t>\nhm\n</t>\n\nCALL", ("<t>\n", "\n</t>\n\n"), "hm", "CALL"),
        ("<t>\n\n</t>\n\nCALL", ("<t>\n", "\n</t>\n\n"), "", "CALL"),
        ("hm\n</t>\n\nCALL", ("", "\n</t>\n\n"), "hm", "CALL"),  # the prompt ends in <t>
        ("CALL", ("<t>\n", "\n</t>\n\n"), None, "CALL"),
        ("CALL", ("", ""), None, "CALL"),
    ],
)
def test_reasoning_is_taken_off(said: str, tags: tuple[str, str], thought: str | None, content: str) -> None:
    found = split_reasoning(said, *tags)
    assert (found.get("reasoning_content"), found["content"]) == (thought, content)
