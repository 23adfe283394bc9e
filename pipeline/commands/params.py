"""Show every setting that is in effect with its origin: `params.yaml`, a recipe's value there, or a default.
With --idle, show the settings that do nothing here, and what each would need.

Reads `params.yaml` and the recipe that it names. With --write, adds the keys that the file leaves out. Writes
nothing else.
"""

import difflib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.commands.recipes import RECIPES, TITLE, recipe_names
from pipeline.config.conditions import idle
from pipeline.config.params import Params, Read, read_params
from pipeline.config.params_text import as_yaml, comment_of, value_at
from pipeline.config.sections import AUTO
from pipeline.config.sections.values import Key, group_of, keys_of
from pipeline.core.errors import ConfigError
from pipeline.llamacpp.devices import sees_gpu
from pipeline.workflow.state.settings import complete as complete_file

LAYERS = "machine.n_gpu_layers"
WIDEST = 44  # columns of a value; a longer one moves the rest of the line


class Setting(NamedTuple):
    """A key, its value in effect and the origin of that value."""

    name: str
    value: Any
    origin: str  # "params.yaml", "recipe" or "default"
    line: int | None  # line in the file; None if the key is left out there


def main(file: Path, section: str | None, *, as_json: bool, complete: bool, only_idle: bool = False) -> None:
    """Print the settings of `file`, or only those of `section` (or of one key) if it is given.

    With `complete`, complete the file first. With `only_idle`, print a sentence on each setting that does
    nothing here.
    """
    read = read_params(file)
    if complete:
        complete_file(file, read)
        read = read_params(file)
    recipe = recipe_of(file)
    shown = [
        setting
        for setting in settings(read, recipe)
        if section is None or setting.name == section or setting.name.startswith(f"{section}.")
    ]
    if not shown:
        names = {name for setting in settings(read, recipe) for name in _with_sections(setting.name)}
        near = difflib.get_close_matches(str(section), sorted(names), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            "Q-COMMANDS-001",
            f"no section or key is called {section!r}: {hint}`quench config show` shows all",
        )
    if only_idle:
        names = {setting.name for setting in shown}
        sentences = {key: why for key, why in idle_settings(read.params).items() if key in names}
        if as_json:
            print(json.dumps(sentences, indent=2))
        else:
            print("\n".join(sentences.values()) or "none")
    elif as_json:
        values = {
            setting.name: {"value": setting.value, "from": setting.origin, "line": setting.line}
            for setting in shown
        }
        print(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        longest = max(len(setting.name) for setting in shown)
        for setting in shown:
            print(
                f"{setting.name:<{longest}}  {as_yaml(setting.value):<{WIDEST}}  "
                f"{_sentence(setting, file.name, recipe)}"
            )
            if section is not None:
                print("\n".join(comment_of(tuple(setting.name.split(".")))))


def settings(read: Read, recipe: str | None) -> list[Setting]:
    """Return every key in the schema's order. `recipe` is the one that the file was written from."""
    values = read.params.model_dump(mode="json")
    defaults = Params().model_dump(mode="json")
    written: dict[str, Any] = {}
    if recipe is not None:
        written = read_params(RECIPES / f"{recipe}.yaml").params.model_dump(mode="json")
    return [
        _setting(place, read, values, defaults, written)
        for place, field in keys_of(Params)
        if not group_of(field)
    ]


def _with_sections(key: str) -> list[str]:
    """Return a dotted key, and the sections that it is in."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def recipe_of(file: Path) -> str | None:
    """Return the recipe named by a comment at the top of `file`, as `quench config use` writes it.

    None if missing.
    """
    title = re.search(rf"^# {TITLE} ([\w.-]+):", file.read_text(encoding="utf-8")[:2000], re.MULTILINE)
    return title[1] if title and title[1] in recipe_names() else None


def _setting(place: Key, read: Read, values: Any, defaults: Any, written: Any) -> Setting:
    value = value_at(values, place)
    line = read.lines.get(place)
    origin = "recipe" if written and value == value_at(written, place) else "params.yaml"
    if line is None or value == value_at(defaults, place):
        origin = "default"
    return Setting(".".join(place), value, origin, line)


def _sentence(setting: Setting, file: str, recipe: str | None) -> str:
    if setting.line is None:
        return "default (left out)"
    reasons = {"params.yaml": "", "recipe": f", as in recipe {recipe}", "default": ", the default"}
    return f"{file}:{setting.line}{reasons[setting.origin]}"


def idle_settings(params: Params) -> dict[str, str]:
    """Return {key: a sentence on why it does nothing} for settings that are not their defaults. The reason is
    another setting (`pipeline.config.conditions`), or that llama.cpp finds no GPU.
    """
    sentences = {setting.key: str(setting) for setting in idle(params)}
    layers = params.machine.n_gpu_layers
    # A stage that should put them on a GPU fails with Q-LLAMACPP-024.
    if layers not in (0, AUTO) and not sees_gpu(params.machine.llama_cpp):
        sentences[LAYERS] = f"{LAYERS} is {layers}, and the llama.cpp here sees no GPU"
    return sentences
