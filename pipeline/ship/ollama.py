"""The base's chat template for Ollama, which reads Go templates, not the GGUF's own Jinja one.

Without a TEMPLATE Ollama compares with templates it knows and falls back to the bare prompt
(https://docs.ollama.com/template). So if the base renders plain ChatML, proven by rendering, the Modelfile
has that template; else it says that there is none.
"""

from pathlib import Path

from pipeline.chat.template import compiled
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


def default_system(jinja: str | None) -> str | None:
    """The system text that `jinja` adds if a conversation has none, "" for none; None if `jinja` is not the
    template that `CHATML` is, or the text can't be written for Ollama."""
    if jinja is None or _render(jinja, DIALOGUE) != chatml(DIALOGUE):
        return None
    rest, single = chatml([QUESTION]), _render(jinja, [QUESTION]) or ""
    if single == rest:
        return ""
    before, after = "<|im_start|>system\n", "<|im_end|>\n" + rest
    system = single.removeprefix(before).removesuffix(after)
    # Ollama trims what it reads, and three quotes end a value
    is_plain = system == system.strip() and '"""' not in system
    return system if is_plain and single == before + system + after else None


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
    template = settings.get("chat_template") if isinstance(settings, dict) else None
    return template if isinstance(template, str) else None


def _render(jinja: str, messages: list[dict[str, str]]) -> str | None:
    """The conversation by the template, as transformers renders it; None if the template refuses it."""
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    try:
        return compiled(jinja)(messages=messages, add_generation_prompt=True, tools=None, **tokens)
    except Exception:  # a template is a program, which can stumble over anything
        return None
