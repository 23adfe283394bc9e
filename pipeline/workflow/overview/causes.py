"""What makes a stage out of date, by name: settings, inputs, code and outputs that differ from its record in
`dvc.lock`.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.config.params import load_params
from pipeline.config.params_text import as_yaml
from pipeline.core.errors import QuenchError, ToolError
from pipeline.core.git import ask_git
from pipeline.core.text import safe
from pipeline.core.yaml_readers import UNREADABLE, read_fast
from pipeline.workflow.keys.code_keys import FOLDER, LOCK
from pipeline.workflow.keys.imports import Package
from pipeline.workflow.overview.contents import Contents
from pipeline.workflow.project import is_project
from pipeline.workflow.stages import Values, code_of_stages, values_of
from pipeline.workflow.state.lockfile import Entry

PARAMS = "params.yaml"
NAMED = 3  # files that one line names, and causes
LONGEST = 40  # characters of a value on one line


class Kind(StrEnum):
    """What differs."""

    NO_RECORD = "no_record"
    COMMAND = "command"
    SETTING = "setting"
    INPUT = "input"
    CODE = "code"
    OUTPUT = "output"
    DAMAGE = "damage"  # of raw data
    MISSING = "missing"
    FOLLOWS = "follows"


@dataclass(frozen=True)
class Cause:
    """One reason. `name` is a key, a path or a stage; `before` and `after` are the two values of a setting;
    `files` are those that differ of a folder's or of the code, if they are known.
    """

    kind: Kind
    name: str
    before: Any = None
    after: Any = None
    files: tuple[str, ...] = ()

    def text(self, named: int = NAMED) -> str:
        """Return it in words, with at most `named` files."""
        match self.kind:
            case Kind.NO_RECORD:
                return "no run of it is recorded"
            case Kind.COMMAND:
                return "its command in dvc.yaml"
            case Kind.SETTING:
                return f"{self.name}: {_shown(self.before)} → {_shown(self.after)}"
            case Kind.CODE:
                return f"code: {_listed(self.files, named) or self.name}"
            case Kind.OUTPUT:
                return f"{self.name} is not what it wrote{_in_brackets(self.files, named)}"
            case Kind.DAMAGE:
                return f"{self.name} changed though its date did not{_in_brackets(self.files, named)}"
            case Kind.MISSING:
                return f"{self.name} is missing"
            case Kind.FOLLOWS:
                return f"follows {self.name}"
        return f"{self.name} changed{_in_brackets(self.files, named)}"


def in_words(causes: Sequence[Cause]) -> str:
    """Return the first causes on one line; all stages that are followed count as one.

    Two keys of code may have changed by the same files, which are said once.
    """
    parts = [*dict.fromkeys(cause.text() for cause in causes if cause.kind != Kind.FOLLOWS)]
    followed = tuple(cause.name for cause in causes if cause.kind == Kind.FOLLOWS)
    if followed:
        parts.append(f"follows {_listed(followed, NAMED)}")
    more = f" and {len(parts) - NAMED} more (`quench status --diff`)" if len(parts) > NAMED else ""
    return safe("; ".join(parts[:NAMED])) + more


class Now:
    """The project as it is now: settings in effect, keys of the code, contents of files."""

    def __init__(self, root: Path, values: Values, contents: Contents) -> None:
        self.root = root
        self.contents = contents
        self._values = values
        self._files: dict[str, Values] = {LOCK: values}
        self._git_failed = False

    def setting(self, file: str, key: str) -> Any:
        """Return the value of `key` as DVC would record it from `file`, once that has these settings."""
        if file not in self._files:
            self._files[file] = Values(_content(self.root / file))
        if file == PARAMS and self._written.at(key) != self._values.at(key):
            return self._values.at(key)  # The settings are other ones than those of the file.
        return self._files[file].at(key)

    def code(self, path: str) -> str | None:
        """Return the text of a key of code; None if `path` is none of this version."""
        if is_project(self.root):  # Only an upgrade writes them there.
            return _text(self.root / path)
        starts = self._starts.get(Path(path).stem)
        return self._package.key(*starts) if starts else None

    def code_before(self, path: str, md5: str) -> str | None:
        """Return the text of a key of code by its md5; None if it is lost.

        The next run writes the keys again. Then it is in DVC's cache, or in Git.
        """
        texts = chain(
            map(_text, filter(None, [self.root / path, self.contents.cached(md5)])),
            self._committed(path),
        )
        return next((text for text in texts if text is not None and _md5(text) == md5), None)

    def _committed(self, path: str) -> Iterator[str]:
        """Yield the texts that a file had in the commits of a project, newest first.

        If Git fails there are none; the first time that is reported.
        """
        if self._git_failed:
            return
        try:
            commits = ask_git(self.root, "log", "--format=%H", "-n", "50", "--", path) or b""
            for commit in commits.decode().split():
                text = ask_git(self.root, "show", f"{commit}:./{path}")
                if text is not None:
                    yield text.decode()
        except ToolError as error:
            self._git_failed = True
            print(f"which files of the code changed is not known: {error.sentence}", file=sys.stderr)

    @cached_property
    def _written(self) -> Values:
        try:
            return values_of(load_params(self.root / PARAMS))
        except QuenchError:
            return self._values

    @cached_property
    def _package(self) -> Package:
        return Package()

    @cached_property
    def _starts(self) -> Mapping[str, list[str]]:
        return code_of_stages()


def causes(entry: Entry, record: Mapping[str, Any] | None, now: Now) -> Iterator[Cause]:
    """Yield what differs between a stage's `record` and the project as it is `now`.

    A missing file alone is not a difference, as it is none for DVC.
    """
    if record is None:
        yield Cause(Kind.NO_RECORD, "dvc.lock")
        return
    if record.get("cmd") != entry.command:
        yield Cause(Kind.COMMAND, entry.command, record.get("cmd"), entry.command)
    for file, keys in entry.params.items():
        recorded = record.get("params", {}).get(file, {})
        for key in keys:
            yield from setting_causes(key, recorded.get(key), now.setting(file, key), new=key not in recorded)
    before = _md5s(record.get("deps", []))
    for path in entry.deps:
        if path.startswith(f"{FOLDER}/"):
            yield from _code(path, before.get(path), now)
        elif (md5 := now.contents.md5(path)) and md5 != before.get(path):
            yield Cause(Kind.INPUT, path, files=now.contents.changed_files(path, before.get(path)))
    written = _md5s(record.get("outs", []))
    for out in entry.outs:
        path = out.rstrip("/")
        if (md5 := now.contents.md5(path)) and md5 != written.get(path):
            yield Cause(Kind.OUTPUT, path, files=now.contents.changed_files(path, written.get(path)))


def setting_causes(key: str, before: Any, after: Any, *, new: bool = False) -> Iterator[Cause]:
    """Yield a cause for each setting in which two values differ, at any depth."""
    if isinstance(before, dict) and isinstance(after, dict) and before and after:
        for name in {**before, **after}:
            yield from setting_causes(f"{key}.{name}", before.get(name), after.get(name))
    elif before != after or new:
        yield Cause(Kind.SETTING, key, before, after)


def _code(path: str, md5: str | None, now: Now) -> Iterator[Cause]:
    text = now.code(path)
    if text is None or _md5(text) == md5:
        return
    before = now.code_before(path, md5) if md5 else None
    files = () if before is None else tuple(differing_files(before, text))
    yield Cause(Kind.CODE, Path(path).stem, files=files)


def differing_files(before: str, after: str) -> list[str]:
    """Return the files of the package in which two keys of code differ."""
    differing = set(before.splitlines()) ^ set(after.splitlines())
    return sorted({line.partition(" ")[2] for line in differing})


def _md5s(entries: list[Any]) -> dict[str, str]:
    return {entry["path"]: entry.get("md5", "") for entry in entries}


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _content(file: Path) -> Mapping[str, Any]:
    try:
        values = read_fast(file)
    except (OSError, *UNREADABLE):
        return {}
    return values if isinstance(values, dict) else {}


def _shown(value: Any) -> str:
    text = as_yaml(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _listed(files: tuple[str, ...], named: int) -> str:
    more = f" and {len(files) - named} more" if len(files) > named else ""
    return ", ".join(files[:named]) + more


def _in_brackets(files: tuple[str, ...], named: int) -> str:
    return f" ({_listed(files, named)})" if files else ""
