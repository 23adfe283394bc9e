"""Write the base's chat template for Ollama, which reads Go templates, not the GGUF's own Jinja one.

Without a TEMPLATE Ollama compares with templates it knows and falls back to the bare prompt
(https://docs.ollama.com/template). So if the base renders plain ChatML, proven by rendering, the Modelfile
has that template, with tools if these can be proven too. It reports what it does not write.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.chat.template import compiled
from pipeline.core.errors import DataError
from pipeline.core.publish import read_json
from pipeline.ship.listing import obeyed
from pipeline.ship.ollama_tools import TOOLS, Message, go_template, tool_texts

CHATML = (
    "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end "
    "}}<|im_start|>assistant\n"
)
QUESTION = {"role": "user", "content": "q1"}
DIALOGUE = [
    {"role": "system", "content": "s"},
    QUESTION,
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "q2"},
]


@dataclass(frozen=True)
class OllamaTemplate:
    """Parts of a base's chat template for the Modelfile."""

    template: str  # the Go template
    system: str  # system text of a conversation without one
    tools: bool  # `template` writes tools.
    unwritten: bool  # The base's template writes tools, `template` does not.


def ollama_template(jinja: str | None) -> OllamaTemplate | None:
    """Return the Go template of the base's Jinja template; None if that is not plain ChatML."""
    system = default_system(jinja)
    if jinja is None or system is None:
        return None
    texts = tool_texts(partial(_render, jinja))
    if texts:
        return OllamaTemplate(go_template(texts), system, tools=True, unwritten=False)
    ignored = _render(jinja, [QUESTION], TOOLS) == _render(jinja, [QUESTION])
    return OllamaTemplate(CHATML, system, tools=False, unwritten=not ignored)


def default_system(jinja: str | None) -> str | None:
    """Return the system text that `jinja` adds if a conversation has none, "" for none; None if `jinja` is
    not the template `CHATML`, or the text can't be written for Ollama.
    """
    if jinja is None or _render(jinja, DIALOGUE) != chatml(DIALOGUE):
        return None
    rest = chatml([QUESTION])
    single = _render(jinja, [QUESTION]) or ""
    if single == rest:
        return ""
    before = "<|im_start|>system\n"
    after = "<|im_end|>\n" + rest
    system = single.removeprefix(before).removesuffix(after)
    # Ollama trims what it reads, and three quotes end a value.
    is_plain = system == system.strip() and '"""' not in system
    return system if is_plain and single == before + system + after else None


def why_unwritten(system_prompt: str) -> str:
    """Return why a bundle's texts can't hold the system prompt of the training rows; "" if they can."""
    hidden = obeyed(system_prompt)
    if hidden:
        return f"it holds {hidden}, which can hide text"
    # Three quotes end a value of a Modelfile, also two of the text's own before the closing ones.
    return "it has three quotes or ends in one" if '"""' in f'{system_prompt}""' else ""


def chatml(messages: list[dict[str, str]]) -> str:
    """Return plain ChatML with the opening of the assistant's turn: the rendering of `CHATML`."""
    turns = (f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return "".join(turns) + "<|im_start|>assistant\n"


def chat_template(model: Path) -> str | None:
    """Return the Jinja chat template of a Hugging Face folder; None if it has none or more than one. Raises
    `DataError` if it can't be read.
    """
    file = model / "chat_template.jinja"
    config = model / "tokenizer_config.json"
    again = "run `python -m pipeline train` again"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError("Q-SHIP-007", f"{file} can't be read ({error}): {again}") from error
    settings = read_json(config, again) if config.is_file() else {}
    template = settings.get("chat_template") if isinstance(settings, dict) else None
    return template if isinstance(template, str) else None


def _render(jinja: str, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> str | None:
    """Return the conversation as transformers renders it; None if the template refuses it."""
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    try:
        return compiled(jinja)(messages=messages, add_generation_prompt=True, tools=tools, **tokens)
    except Exception:  # A template is a program and can raise anything.
        return None
