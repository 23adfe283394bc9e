"""The chat template of a folder, and what of it the Modelfile says to Ollama."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import go_template
import pytest
from report_inputs import CHATML_WITH_DEFAULT

from pipeline.chat.template import compiled
from pipeline.core.errors import DataError
from pipeline.llamacpp.tools import Toolchain
from pipeline.pages.templating import fill
from pipeline.ship.ollama import CHATML, OllamaTemplate, chat_template, default_system, ollama_template

PLAIN = CHATML_WITH_DEFAULT.replace("loop.first and", "false and")
BY_TOKENS = PLAIN.replace("'<|im_start|>' +", "bos_token +").replace("'<|im_end|>'", "eos_token")


@pytest.mark.parametrize(
    ("jinja", "expected"),
    [
        (CHATML_WITH_DEFAULT, "You are a helpful assistant"),
        (PLAIN, ""),
        (BY_TOKENS, ""),
        # what Ollama would trim, what ends its value, what is no turn of the system
        (CHATML_WITH_DEFAULT.replace("You are", " You are"), None),
        (CHATML_WITH_DEFAULT.replace("You are", '"""You are'), None),
        (CHATML_WITH_DEFAULT.replace("system\nYou", "tool\nYou"), None),
        # looks like ChatML, renders otherwise
        (PLAIN.replace("message['content']", "message['content'] | trim + ' '"), None),
        (PLAIN.replace("im_end", "eot"), None),
        # differs from the second turn on
        (PLAIN.replace("message['role'] +", "message['role'] | replace('assistant', 'model') +"), None),
        ("{{ raise_exception('no') }}", None),
        ("{% for message in tools %}{% endfor %}", None),
        ("{% broken", None),
        (None, None),
    ],
)
def test_a_go_template_only_where_rendering_proves_it(jinja: str | None, expected: str | None) -> None:
    assert default_system(jinja) == expected


IN_CONFIG = b'{"chat_template": "of the config"}'


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"chat_template.jinja": "ä".encode()}, "ä"),
        ({"chat_template.jinja": b"of the file", "tokenizer_config.json": IN_CONFIG}, "of the file"),
        ({"tokenizer_config.json": IN_CONFIG}, "of the config"),
        ({"tokenizer_config.json": b"[]"}, None),
        ({"tokenizer_config.json": b'{"chat_template": [{"name": "default", "template": "a"}]}'}, None),
    ],
)
def test_the_template_of_a_folder(tmp_path: Path, files: dict[str, bytes], expected: str | None) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert chat_template(tmp_path) == expected


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(DataError, match="Q-SHIP-007: "):
        chat_template(tmp_path)


# another dialect: no type around a function, other marks, every result in a turn of its own
OWN_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}"
    "{{ messages[0].content + '\n\n' }}{% endif %}{{ 'Tools:' }}{% for tool in tools %}"
    "{{ '\n- ' + tool.function | tojson }}{% endfor %}{{ '\n<|im_end|>\n' }}{% endif %}"
    "{% for message in (messages[1:] if tools and messages[0].role == 'system' else messages) %}"
    "{{ '<|im_start|>' + message.role }}{% if message.content or not message.tool_calls %}"
    "{{ '\n' + message.content }}{% endif %}{% for call in message.tool_calls or [] %}"
    '{{ \'\n[CALL] {"tool": "\' + call.function.name + \'", "input": \' }}'
    "{{ call.function.arguments | tojson + '}' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PUBLISHED = ("Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "MiMo-VL")


def published(tools: Toolchain, name: str) -> str:
    """A template of llama.cpp's collection."""
    return (tools.source / f"models/templates/{name}.jinja").read_text(encoding="utf-8")


def function(name: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks up.",
            "parameters": {"type": "object", "properties": properties, "required": [*properties]},
        },
    }


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = [function("get_weather", city={"type": "string", "enum": ["Paris", "Köln"]}), function("now")]
ASKED = {"role": "user", "content": "How warm is it?"}
BRIEF = {"role": "system", "content": "Be brief."}
PARIS = {
    "role": "assistant",
    "content": "",
    "tool_calls": [call("get_weather", city="Paris"), call("now", zone=None, exact=True)],
}
KOELN = {"role": "assistant", "content": "Another one.", "tool_calls": [call("get_weather", city="Köln")]}
FOUND = {"role": "tool", "content": "17"}
SAID = {"role": "assistant", "content": "17 degrees."}
CHATS = [
    [ASKED],
    [BRIEF, ASKED],
    [BRIEF, ASKED, PARIS, FOUND, FOUND],
    [ASKED, PARIS, FOUND, FOUND, KOELN, FOUND, SAID, ASKED],
    [BRIEF, ASKED, SAID, ASKED, KOELN, FOUND],
]


def as_ollama_has_it(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"Function": {"Name": made["function"]["name"], "Arguments": made["function"]["arguments"]}}
        for made in message.get("tool_calls", [])
    ]
    return {"Role": message["role"], "Content": message["content"], "ToolCalls": calls}


@pytest.mark.parametrize("name", [*PUBLISHED, "own"])
@pytest.mark.parametrize("declared", [WEATHER, []], ids=["tools", "none"])
def test_tools_are_written_as_in_training_but_for_the_spelling_of_json(
    name: str, declared: list[dict[str, Any]], tools: Toolchain
) -> None:
    """Compared by running Go's template, on conversations that the proof doesn't have."""
    jinja = OWN_TOOLS if name == "own" else published(tools, name)
    written = ollama_template(jinja)
    assert written and written.tools and not written.unwritten
    chats = CHATS if declared else [[ASKED], [BRIEF, ASKED, SAID, ASKED]]
    for chat in chats:
        expected = compiled(jinja)(messages=chat, tools=declared, add_generation_prompt=True)
        # Ollama puts the Modelfile's SYSTEM before a conversation that has none
        default = [{"role": "system", "content": written.system}] if written.system else []
        messages = chat if chat[0] == BRIEF else [*default, *chat]
        values = {
            "Messages": [as_ollama_has_it(message) for message in messages],
            "Tools": [{"Function": tool["function"]} for tool in declared],
        }
        dumps = partial(json.dumps, ensure_ascii=False)
        assert go_template.run(written.template, values, dumps) == expected
        assert not declared or '{"name":"now","description"' in go_template.run(written.template, values)


@pytest.mark.parametrize("name", PUBLISHED)
def test_ollama_finds_the_mark_of_a_call(name: str, tools: Toolchain) -> None:
    """It is the text after the condition on `.ToolCalls`, up to a brace."""
    written = ollama_template(published(tools, name))
    assert written
    _, _, rest = written.template.partition("{{ if .ToolCalls }}{{ range .ToolCalls }}")
    assert rest.partition("{")[0].strip() == "<tool_call>"


@pytest.mark.parametrize("edit", [("tojson", "tojson(indent=2)"), ("[CALL] {", "{{"), ("[CALL]", '"""')])
def test_tools_that_go_s_template_would_not_write_so_are_said_to_be_missing(edit: tuple[str, str]) -> None:
    """JSON over several lines; texts that are an action of Go's, or the end of the value."""
    old, new = edit
    jinja = OWN_TOOLS.replace(old, new.replace('"', '\\"'))
    assert jinja != OWN_TOOLS
    assert ollama_template(jinja) == OllamaTemplate(CHATML, "", tools=False, unwritten=True)


def modelfile(ollama: OllamaTemplate | None) -> str:
    return fill(
        "Modelfile.jinja",
        name="mine",
        level="Q4_K_M",
        advice=SimpleNamespace(model="Q4_K_M"),
        bundle=None,
        gguf="models/gguf/mine-Q4_K_M.gguf",
        lora=None,
        serve=SimpleNamespace(ctx_size=512),
        inputs=SimpleNamespace(base={"eos_token": "<|im_end|>"}),
        ollama=ollama,
        system_prompt="",
        system_fault="",
    )


def test_the_modelfile_says_what_becomes_of_tools(tools: Toolchain) -> None:
    """Calls as XML have no template; a base that knows no tools needs no word about them."""
    assert "With tools" in modelfile(ollama_template(published(tools, PUBLISHED[0])))
    as_xml = ollama_template(published(tools, "Qwen3-Coder"))
    assert as_xml and as_xml.unwritten and "Without tools" in modelfile(as_xml)
    assert "tools" not in modelfile(ollama_template(PLAIN)).lower()
