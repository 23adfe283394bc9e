"""The chat template of a folder, and what of it the Modelfile says to Ollama."""

from pathlib import Path

import pytest
from report_inputs import CHATML_WITH_DEFAULT

from pipeline.core.errors import DataError
from pipeline.ship.ollama import chat_template, default_system

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
