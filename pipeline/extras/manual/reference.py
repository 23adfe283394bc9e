"""Make the pages of every setting and of every command from the schema and from the command line itself."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer

from pipeline.config.params import Params
from pipeline.config.params_text import as_yaml, value_at
from pipeline.config.sections.values import Key, group_of, keys_of
from pipeline.extras.manual.schema import Schema, words_of

# Text that Markdown would take for HTML or for emphasis: OWNER/<name>, *.gguf, __init__.
MARKS = re.compile(r"([\\*_<>\[\]])")
QUOTED = re.compile(r"(`[^`]*`)")
OPEN = re.compile(r"^(example|examples): ")


def plain(text: str) -> str:
    """Return a text for Markdown in which only backquotes have a meaning, on one line."""
    parts = QUOTED.split(" ".join(text.split()))
    return "".join(part if part.startswith("`") else MARKS.sub(r"\\\1", part) for part in parts)


def cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return text.replace("|", "\\|")


def setting_anchor(name: str) -> str:
    """Return the place of a setting (`train.r`) or a section on the page of settings."""
    return name.replace(".", "-")


def settings_page() -> str:
    """Return the page of every key of `params.yaml`."""
    defaults = Params().model_dump(mode="json")
    parts = [
        "# Settings\n\nEvery key of `params.yaml`, with the value that it has if the file leaves it out (for "
        "`base` the demo's). `quench config show KEY` prints the same, with the value in your project.\n"
    ]
    for place, field in keys_of(Params):
        name = ".".join(place)
        parts.append(f"{'#' * min(len(place) + 1, 4)} {name} {{ #{setting_anchor(name)} }}\n")
        if field.description:
            parts.append(f"{plain(field.description)}\n")
        if not group_of(field):
            default = as_yaml(value_at(defaults, place))
            parts.append("\n\n".join([f"Default: `{default}`", *_allowed(place)]) + "\n")
    return "\n".join(parts)


def _allowed(place: Key) -> Iterator[str]:
    words = words_of(_schema_of(place), _schemas()["$defs"])
    if words:
        yield f"Values: {words}"


@cache
def _schemas() -> Schema:
    return Params.model_json_schema()


def _schema_of(place: Key) -> Schema:
    """Return the schema of a key."""
    whole = _schemas()
    schema: Schema = whole
    for name in place:
        if "$ref" in schema:
            schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
        schema = schema["properties"][name]
    return schema


def commands_page() -> str:
    """Return the page of every command of `quench`, from its own help."""
    from pipeline.cli import app

    parts = ["# Commands\n\nEvery command, with what `--help` says of it.\n"]
    for words, command in _commands(typer.main.get_command(app), ("quench",)):
        parts.append(_command(words, command))
    return "\n".join(parts)


def _commands(command: Any, words: Sequence[str]) -> Iterator[tuple[Sequence[str], Any]]:
    """Yield the words of every command that can be typed, with the command."""
    inner = {name: one for name, one in getattr(command, "commands", {}).items() if not one.hidden}
    if len(words) > 1:
        yield words, command
    for name, one in inner.items():
        yield from _commands(one, [*words, name])


def _command(words: Sequence[str], command: Any) -> str:
    name = " ".join(words)
    context = command.context_class(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    lines = [f"{'#' * len(words)} {name}", "", f"```text\n{usage}\n```", ""]
    lines += [plain(paragraph) + "\n" for paragraph in (command.help or "").split("\n\n")]
    if command.epilog:
        lines += [f"Example:\n\n```sh\n{OPEN.sub('', command.epilog)}\n```\n"]
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    rows = [_parameter(param, context) for param in shown if "--help" not in param.opts]
    if rows:
        lines += ["| argument or option | what it does |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


def _parameter(param: Any, context: Any) -> str:
    name, text = param.get_help_record(context)
    return f"| `{cell(name)}` | {cell(plain(text))} |"
