"""Settings from a command line: `quench run train train.r=8`, `snakemake train --config 'train={r: 8}'`.

They are written into `params.yaml`, as `dvc exp run -S train.r=8` does. Every stage reads that file and DVC
records it, so the settings of a run can be seen, compared and restored.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.representer import RoundTripRepresenter

from pipeline.config.faults import nearest
from pipeline.config.params import Params, Read, checked, read_params
from pipeline.config.params_text import as_yaml, change, completed, line_end, value_at
from pipeline.config.sections.values import Key, group_of, keys_of
from pipeline.core.errors import ConfigError
from pipeline.core.publish import publishing
from pipeline.core.text import safe
from pipeline.core.yaml_readers import read_strict, read_value

Given = Mapping[Key, Any]


class _Representer(RoundTripRepresenter):
    """A representer that writes null where the library would write nothing."""


_Representer.add_representer(
    type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", "null")
)


def from_words(words: Sequence[str]) -> Given:
    """Return the settings of `train.r=8` and the like, with YAML values.

    Raises `ConfigError` for an unknown key, or a value that can't be read.
    """
    settings = {}
    for word in words:
        name, _, text = word.partition("=")
        place = place_of(name)
        settings[place] = read_value(text, word)
    return settings


def from_sections(config: Mapping[str, Any]) -> Given:
    """Return the settings of Snakemake's `--config 'train={r: 8}'`.

    Raises `ConfigError` as `from_words` does.

    Snakemake leaves every value inside of braces a text, so texts are parsed here.
    """
    return {place_of(name): _read_again(value, name) for name, value in _flat(config, "")}


def override(file: Path, given: Given) -> list[str]:
    """Write settings into a `params.yaml` and keep its other text.

    Return a line on each change: "train.r: 16 → 8".

    Raises `ConfigError` if the settings would then be invalid.
    """
    file = file.resolve()  # A link stays a link.
    read = read_params(file)
    before = read.params.model_dump(mode="json")
    values = _values_with(read, given)
    wanted = Read(checked(file, values, {}), read.values, read.lines)
    after = wanted.params.model_dump(mode="json")
    changed = [place for place in given if value_at(before, place) != value_at(after, place)]
    if changed:
        names = ", ".join(".".join(place) for place in changed)
        text = _text(file)
        problem = f"{names} can't be put into the text of {file}: edit it"
        try:
            _write(file, completed(text, wanted, set(given), overwrite=True), values, problem)
        except ConfigError:  # Several keys are in one line.
            _write(file, _with(text, given), values, problem)
    return [change(place, before, after) for place in changed]


def settings_with(given: Given, read: Read, file: Path) -> Params:
    """Return the settings of the `params.yaml` that was `read`, updated with the `given` ones.

    Raises `ConfigError` if they would be invalid.
    """
    return checked(file, _values_with(read, given), {})


def _values_with(read: Read, given: Given) -> Any:
    values = deepcopy(read.values)
    for place, value in given.items():
        put(values, place, value)
    return values


@cache
def _fields() -> Mapping[str, FieldInfo]:
    return {".".join(place): field for place, field in keys_of(Params)}


def place_of(name: str) -> Key:
    """Return the place of a key, "train.r".

    Raises `ConfigError`, with the closest key, if there is no such key.
    """
    fields = _fields()
    if name not in fields:
        remedy = nearest(name, list(fields))
        raise ConfigError("Q-CONFIG-005", f"no key is called {safe(name, 80)!r}: {remedy}")
    if group_of(fields[name]):
        raise ConfigError(
            "Q-CONFIG-005",
            f"{name} is a section: name its keys, as in {name}.KEY=VALUE (`quench config show {name}`)",
        )
    return tuple(name.split("."))


def _flat(config: Mapping[str, Any], section: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of each key, with sections flattened."""
    fields = _fields()
    for key, value in config.items():
        name = f"{section}{key}"
        is_section = name in fields and group_of(fields[name])
        # A fault in an unknown section is reported with the section's first key, if it has one.
        if isinstance(value, Mapping) and (is_section or (value and not section)):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _read_again(value: Any, name: str) -> Any:
    match value:
        case str():
            return read_value(value, f"{name}={value}")
        case list():
            return [_read_again(item, name) for item in value]
        case dict():
            return {key: _read_again(item, name) for key, item in value.items()}
    return value


def put(values: Any, place: Key, value: Any) -> None:
    """Set `value` at a place of nested mappings, which are created if missing."""
    for name in place[:-1]:
        if not isinstance(values.get(name), dict):
            values[name] = type(values)()
        values = values[name]
    values[place[-1]] = value


def _text(file: Path) -> str:
    """Return the file's text with its original line ends."""
    return file.read_bytes().decode("utf-8")


def _with(text: str, given: Given) -> str:
    """Return `text` with the settings `given`."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.preserve_quotes = True
    yaml.width = 1 << 16
    values = yaml.load(text.replace(line_end(text), "\n")) or {}
    for place, value in given.items():
        if isinstance(value, list | dict):
            value = yaml.load(as_yaml(value))
        put(values, place, value)
    written = StringIO()
    yaml.dump(values, written)
    return written.getvalue().replace("\n", line_end(text))


def _write(file: Path, text: str, values: Any, problem: str) -> None:
    """Replace the entire file with `text`.

    Raises `ConfigError` (`problem`) if it would not contain `values`.
    """
    with publishing(file) as aside:
        aside.write_text(text, encoding="utf-8", newline="")
        shutil.copymode(file, aside)
        if not _holds(aside, values):
            raise ConfigError("Q-CONFIG-005", problem)


def _holds(file: Path, values: Any) -> bool:
    """Return True if the file can be read and contains these values."""
    try:
        return bool(read_strict(file)[0] == values)
    except ConfigError:
        return False
