"""Choose the files of a data set's repository to download: those of one config and split, as `datasets` finds
them, by the card's `configs` or otherwise by the files' names.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

from pipeline.core.errors import ConfigError, DataError
from pipeline.core.text import first_line, plural, safe
from pipeline.intake.files.documents import DOCUMENTS
from pipeline.intake.files.files import READ, suffixes
from pipeline.intake.files.saved_folders import DESCRIPTIONS

ALL = "all"  # value of split that stands for every one
NAMED = 12  # names in a sentence
PREFERRED = (".parquet", ".json", ".csv")  # order of preference of kinds with equally many files
TEXTS = (".txt", ".md")
USED = {"config_name", "data_files", "data_dir", "default", "description", "drop_labels", "features"}


@dataclass(frozen=True)
class Choice:
    """The files to fetch."""

    config: str | None
    split: str
    files: list[str]
    unused: list[str]  # keys of the config that control how another reader reads


@dataclass(frozen=True)
class Repository:
    """A data set's files and the metadata of its card."""

    name: str
    files: Sequence[str]
    card: Mapping[str, Any]

    def choose(self, config: str | None, split: str) -> Choice:
        """Return the files of a config and a split. Raises `ConfigError` if there is no such config or split,
        and `DataError` if the data set needs a script or has no file that curate reads.
        """
        configs = self._configs()
        chosen = self._named_config(configs, config) if configs else config
        settings = configs[chosen] if configs and chosen else {}
        folder = str(settings.get("data_dir") or ("" if configs else config or "")).strip("/")
        if not configs:
            self._need_no_script()
            self._need_folder(folder)
        splits = self._splits(settings.get("data_files"), folder)
        readable = {name: self._readable(files) for name, files in splits.items()}
        readable = {name: files for name, files in readable.items() if files}
        if not readable:
            kinds = Counter(PurePosixPath(name).suffix or name for name in self.files)
            raise DataError(
                "Q-GET-005",
                f"{self.name} has no file that is read (it has {_named([*kinds])}): only {READ} are; ask for "
                f"the hub's own Parquet of it, {self.name}@refs/convert/parquet",
            )
        if split != ALL and split not in readable:
            raise ConfigError(
                "Q-GET-006",
                f"{self.name} has no split {safe(split)!r}: name one of {_named([*readable])} with --split, "
                f"or {ALL}",
            )
        files = readable[split] if split != ALL else [*chain.from_iterable(readable.values())]
        return Choice(chosen, split, sorted(set(files)), sorted(settings.keys() - USED))

    def _configs(self) -> dict[str, dict[str, Any]]:
        """Return the configs that the card describes, by name."""
        listed = self.card.get("configs")
        if not listed or (isinstance(listed, list) and all(isinstance(name, str) for name in listed)):
            return {}
        from datasets.utils.metadata import MetadataConfigs

        try:
            return dict(MetadataConfigs.from_dataset_card_data(dict(self.card)))  # type: ignore[arg-type]
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise DataError(
                "Q-GET-007",
                f"{self.name}: the configs of its card can't be understood ({first_line(error)}): take a "
                "commit whose card is right, or fetch its files by their https:// addresses",
            ) from error

    def _named_config(self, configs: Mapping[str, Mapping[str, Any]], config: str | None) -> str:
        if config is not None and config not in configs:
            raise ConfigError(
                "Q-GET-004",
                f"{self.name} has no config {safe(config)!r}: name one of {_named([*configs])} with --config",
            )
        default = next((name for name, settings in configs.items() if settings.get("default")), None)
        single = next(iter(configs)) if len(configs) == 1 else None
        chosen = config or default or single or ("default" if "default" in configs else None)
        if chosen is None:
            raise ConfigError(
                "Q-GET-004",
                f"{self.name} has {plural(len(configs), 'config')}: name one of {_named([*configs])} with "
                "--config",
            )
        return chosen

    def _need_no_script(self) -> None:
        script = f"{self.name.rpartition('/')[2]}.py"
        if script in self.files:
            raise DataError(
                "Q-GET-003",
                f"{self.name} is made by a script ({script}), which is not run: ask for the hub's own "
                f"Parquet of it, {self.name}@refs/convert/parquet, or another data set",
            )

    def _need_folder(self, folder: str) -> None:
        """Raise `ConfigError` if the named config is not a folder. Also raise it if several folders are
        configs (as in the hub's own Parquet, CONFIG/SPLIT/0000.parquet) and none is named.
        """
        parts = [name.split("/") for name in self.files if suffixes(name)[0]]
        tops = dict.fromkeys(part[0] for part in parts if len(part) > 1)
        is_converted = all(re.fullmatch(r"\d{4,}\.parquet", part[-1]) and len(part) == 3 for part in parts)
        if folder and folder not in tops:
            there = f"name one of {_named([*tops])} with --config" if tops else "leave out --config"
            raise ConfigError("Q-GET-004", f"{self.name} has no config {safe(folder)!r}: {there}")
        if not folder and is_converted and len(tops) > 1:
            raise ConfigError(
                "Q-GET-004",
                f"{self.name} has {plural(len(tops), 'config')}: name one of {_named([*tops])} with --config",
            )

    def _splits(self, data_files: Any, folder: str) -> dict[str, list[str]]:
        """Return the files of each split, in `folder`."""
        # The rules are those of datasets, so that the splits are those that its users know.
        from datasets.data_files import _get_data_files_patterns, sanitize_patterns

        inside = f"{folder}/" if folder else ""

        def matching(pattern: str) -> list[str]:
            names = [name.removeprefix(inside) for name in self.files if name.startswith(inside)]
            return [inside + name for name in _matching(names, pattern)]

        try:
            patterns = sanitize_patterns(data_files) if data_files else _get_data_files_patterns(matching)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise DataError(
                "Q-GET-007",
                f"{self.name}: its splits can't be understood ({first_line(error)}): take a commit whose "
                "card is right, or fetch its files by their https:// addresses",
            ) from error
        return {
            str(split): [file for pattern in globs for file in matching(str(pattern))]
            for split, globs in patterns.items()
        }

    @staticmethod
    def _readable(files: Sequence[str]) -> list[str]:
        """Return the files of the most frequent kind that curate reads.

        Files of two kinds may contain the same rows.
        """
        kinds = {
            file: suffixes(file)[0]
            for file in dict.fromkeys(files)
            if PurePosixPath(file).name not in DESCRIPTIONS
        }
        rows = Counter(kind for kind in kinds.values() if kind and kind not in DOCUMENTS)
        count = rows or Counter(filter(None, kinds.values()))
        if not count:
            return []

        def rank(kind: str) -> tuple[bool, int, int]:
            # Texts next to tables are mostly about them.
            return kind not in TEXTS, count[kind], -[*PREFERRED, kind].index(kind)

        best = max(count, key=rank)
        return [file for file, kind in kinds.items() if kind == best]


def _matching(names: Sequence[str], pattern: str) -> list[str]:
    """Return the names that a pattern of `datasets` matches."""
    from datasets.data_files import FILES_TO_IGNORE
    from fsspec.utils import glob_translate

    if pattern in names:
        return [pattern]
    expression = re.compile(glob_translate(pattern))
    return [
        name
        for name in names
        if expression.match(name)
        and PurePosixPath(name).name not in FILES_TO_IGNORE
        and not any(part.startswith((".", "__")) for part in name.split("/"))
    ]


def _named(names: Sequence[str]) -> str:
    more = ", …" if len(names) > NAMED else ""
    return safe(", ".join(names[:NAMED]) + more, 400)
