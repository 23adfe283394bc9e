"""Download a data set into data/raw: fetched next to it, checked, then moved there complete, with its record.

quench data get OWNER/NAME@COMMIT --split train
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.commands.data.get.address import OnHub, file_name, need_plain_name, parsed_address
from pipeline.commands.data.get.file import fetch_file_at
from pipeline.commands.data.get.hub_set import fetch_set, found_set
from pipeline.config.sections.places import Url
from pipeline.core.errors import ConfigError, DataError, MachineError
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.locks import Held, take
from pipeline.core.publish import publishing, remove, write_json
from pipeline.core.sources import Source, read_source, record_path
from pipeline.core.text import plural
from pipeline.core.units import size_text
from pipeline.intake.files.files import READ, suffixes

SCRATCH = "data/.getting"  # folder for arriving files, below a name derived from the request
TRAIN = "train"


@dataclass(frozen=True)
class Options:
    """Part of a data set that is fetched, and its name below data/raw."""

    config: str | None = None
    split: str | None = None
    to: str | None = None


def main(root: Path, address: str, options: Options) -> None:
    """Fetch the data at an address, unless it is there already."""
    asked = parsed_address(address)
    target = _get_set(root, asked, options) if isinstance(asked, OnHub) else _get_file(root, asked, options)
    shown = target.relative_to(root)
    print(f"get: next: `quench data check {shown}`, and `dvc add data/raw` to record the data")


def _get_set(root: Path, asked: OnHub, options: Options) -> Path:
    hub_set = found_set(asked)
    if asked.revision != hub_set.commit:
        named = asked.revision or "no commit was named, and the current one"
        print(f"get: {named} is {hub_set.commit}", flush=True)
    split = options.split or TRAIN
    parts = [asked.repository.partition("/")[2], options.config, None if split == TRAIN else split]
    target = root / "data/raw" / need_plain_name(options.to or "-".join(filter(None, parts)), "--to")
    request = Source(asked.repository, hub_set.commit, options.config, split, None, [], {}, 0, "")
    if _is_there(target, request):
        return target
    with _fetching(root, request) as cache:
        source = fetch_set(hub_set, options.config, split, cache)
        _publish(target, source, {name: cache / name for name in source.files})
    return target


def _get_file(root: Path, asked: Url, options: Options) -> Path:
    if options.config or options.split:
        raise ConfigError(
            "Q-GET-001", f"{asked} is a file, without configs and splits: leave out both options"
        )
    name = need_plain_name(options.to or file_name(asked), "--to" if options.to else "the address's file")
    if not suffixes(name)[0]:
        raise ConfigError("Q-GET-002", f"{name} is no file that is read: give it a name with --to ({READ})")
    target = root / "data/raw" / name
    request = Source(str(asked), None, None, None, None, [], {}, 0, "")
    if _is_there(target, request):
        return target
    with _fetching(root, request) as cache:
        part = cache / "part"
        fetch_file_at(asked, part, name)
        _publish(target, replace(request, files={target.name: {}}), {target.name: part})
    return target


@contextmanager
def _fetching(root: Path, request: Source) -> Iterator[Path]:
    """Yield the folder in which this request's files arrive. It stays if the body raises, so that the next
    attempt continues there. Raises `MachineError` if another process uses it.
    """
    named = json_hash([request.address, request.revision, request.config, request.split])[:16]
    cache = root / SCRATCH / named
    cache.mkdir(parents=True, exist_ok=True)
    mark = cache.with_suffix(".lock")
    try:
        lock = take(mark)
    except Held as held:
        raise MachineError(
            "Q-GET-018",
            f"process {held} is fetching {request.address} into {root}: wait until it has ended",
        ) from None
    with lock:
        yield cache
        remove(cache)
        remove(mark)


def _is_there(target: Path, request: Source) -> bool:
    """Return True if the target is the requested data. Raises `ConfigError` if it is anything else."""
    if not target.exists():
        return False
    record = read_source(record_path(target))
    if record and (record.address, record.revision) == (request.address, request.revision):
        is_whole = all(
            _hash_or_none(_file_of(target, name)) == file["sha256"] for name, file in record.files.items()
        )
        is_choice = record.split == request.split and request.config in (None, record.config)
        if is_whole and is_choice:
            print(
                f"get: {target} is there already, {plural(len(record.files), 'file')}, "
                f"{size_text(record.bytes)}"
            )
            return True
    raise ConfigError(
        "Q-GET-016",
        f"{target} exists, and is not what is asked for now: name another with --to, or move it away",
    )


def _file_of(target: Path, name: str) -> Path:
    return target / name if target.is_dir() else target


def _hash_or_none(path: Path) -> str | None:
    return file_hash(path) if path.is_file() else None


def _publish(target: Path, source: Source, arrived: Mapping[str, Path]) -> None:
    """Move the arrived files to the target after writing the record, so that no data is without one."""
    record = record_path(target)
    files: dict[str, dict[str, Any]] = {
        name: {"sha256": file_hash(path), "bytes": path.stat().st_size} for name, path in arrived.items()
    }
    known = read_source(record)
    if known and not known.is_same(source):
        known = None
    if known and known.files.keys() == files.keys() and known.files != files:
        raise DataError(
            "Q-GET-017",
            f"{source.address} gives other bytes than {record} has: take that file away if the data was "
            "meant to change",
        )
    whole = replace(source, files=files, fetched=datetime.now(UTC).isoformat(timespec="seconds"))
    if known and known.files == files:
        write_json(record, known.as_dict())
    else:
        write_json(record, whole.as_dict())
    with publishing(target) as aside:
        if source.revision is None:
            (part,) = arrived.values()
            shutil.move(part, aside)
        else:
            for name, path in arrived.items():
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, aside / name)
    for line in _summary(whole, target, record):
        print(line)


def _summary(source: Source, target: Path, record: Path) -> list[str]:
    columns = f"; columns: {', '.join(source.columns)}" if source.columns else ""
    return [
        f"get: license: {source.license or 'not stated'}{columns}",
        f"get: {plural(len(source.files), 'file')} ({size_text(source.bytes)}) in {target}; {record.name} "
        "says where from",
    ]
