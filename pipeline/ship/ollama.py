"""The base's chat template for Ollama, which reads Go templates, not the GGUF's own Jinja one.

Without a TEMPLATE Ollama compares with templates it knows and falls back to the bare prompt
(https://docs.ollama.com/template). So if the base renders plain ChatML, proven by rendering, the Modelfile
has that template; else it says that there is none.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.publish import read_json

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
    """A Go template and the system text that the base's template adds if a conversation has none ("" for
    none)."""

    template: str
    system: str


def ollama_template(jinja: str | None) -> OllamaTemplate | None:
    """The Go template that renders what `jinja` does; None if `jinja` is not ChatML (with or without a
    default system turn)."""
    if jinja is None:
        return None
    dialogue, single = _render(jinja, DIALOGUE), _render(jinja, [QUESTION])
    if dialogue != chatml(DIALOGUE) or single is None:
        return None
    rest = chatml([QUESTION])
    if single == rest:
        return OllamaTemplate(CHATML, "")
    before, after = "<|im_start|>system\n", "<|im_end|>\n" + rest
    if not (single.startswith(before) and single.endswith(after)):
        return None
    system = single[len(before) : -len(after)]
    # Ollama trims what it reads, and three quotes end a value
    return None if system != system.strip() or '"""' in system else OllamaTemplate(CHATML, system)


def chatml(messages: list[dict[str, str]]) -> str:
    """Plain ChatML with the opening of the assistant's turn: what `CHATML` renders."""
    turns = (f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return "".join(turns) + "<|im_start|>assistant\n"


def chat_template(model: Path) -> str | None:
    """The Jinja chat template of a Hugging Face folder; None if it has none or several. Raises `DataError` if
    it can't be read."""
    file, config = model / "chat_template.jinja", model / "tokenizer_config.json"
    again = "run `python -m pipeline train` again"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError("Q-SHIP-007", f"{file} can't be read ({error}): {again}") from error
    settings = read_json(config, again) if config.is_file() else {}
    found = settings.get("chat_template") if isinstance(settings, dict) else None
    return found if isinstance(found, str) else None


def _render(jinja: str, messages: list[dict[str, str]]) -> str | None:
    """The conversation by the template, as transformers renders it; None if the template refuses it."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> Any:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    try:
        return environment.from_string(jinja).render(
            messages=messages, add_generation_prompt=True, tools=None, **tokens
        )
    except (
        TemplateError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ):  # a foreign template may do anything
        return None
