"""List and hash a folder from an untrusted source without following anything out of it: plain files only,
without waiting, in bounded memory.
"""

import hashlib
import json
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

SIGNATURE = "model.sig"  # the one file of a bundle that SHA256SUMS can't list
MAX_FILES = 1000
MAX_DEPTH = 4
MAX_SMALL = 16 << 20  # bytes of any file but the GGUF
# Unicode categories that a terminal or an editor interprets and does not show: controls but tab and newline,
# format characters (directions of writing, joiners, tags), separators of lines, private use.
OBEYED = ("Cc", "Cf", "Zl", "Zp", "Cs", "Co")
TAB_AND_NEWLINE = "\t\n"
FILLERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters and a symbol that are displayed as nothing
FILE_MODE, PROGRAM_MODE = 0o644, 0o755  # modes of a bundle's files; no others are allowed
KINDS = {stat.S_ISLNK: "a symbolic link", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")  # a line of `sha256sum`


class Hostile(ValueError):
    """Error for a folder with content that no bundle has; the text is a complete sentence."""


def plain_files(folder: Path) -> dict[str, int]:
    """Return the bytes by relative path (with /) of every file below `folder`.

    Raises `Hostile` at the first entry that is neither file nor folder, at an empty folder, and if there are
    more than `MAX_FILES` of both.
    """
    sizes: dict[str, int] = {}
    for seen, (name, size) in enumerate(_walk(folder, "", 0), 1):
        if seen > MAX_FILES:
            raise Hostile(f"There are more than {MAX_FILES:,} files and folders.")
        if size is not None:
            sizes[name] = size
    return sizes


def need_modes(folder: Path, names: Iterable[str]) -> None:
    """Raise `Hostile` for a file with modes no bundle has: writable by others, or run with other rights."""
    for name in names:
        handle = open_plain(folder / name)
        mode = os.fstat(handle).st_mode
        os.close(handle)
        if stat.S_IMODE(mode) not in (FILE_MODE, PROGRAM_MODE):
            right = PROGRAM_MODE if mode & stat.S_IXUSR else FILE_MODE
            raise Hostile(
                f"{name} has the rights {stat.filemode(mode)}, which no file of a bundle has: if a copy "
                f"changed them, `chmod {right:o}` it."
            )


def _walk(folder: Path, prefix: str, depth: int) -> Iterator[tuple[str, int | None]]:
    """Yield every file with its bytes, every folder with None; at most one more of each folder than is
    allowed in total.
    """
    if depth > MAX_DEPTH:
        raise Hostile(f"Folders are more than {MAX_DEPTH} deep: {prefix}")
    for entry in _entries(folder, prefix):
        name = prefix + entry.name
        status = entry.stat(follow_symlinks=False)
        if not entry.name.isprintable():
            raise Hostile(f"A file's name is not printable: {name!a}.")
        if stat.S_ISDIR(status.st_mode):
            yield name, None
            yield from _walk(Path(entry.path), f"{name}/", depth + 1)
        elif stat.S_ISREG(status.st_mode):
            yield name, status.st_size
        else:
            kind = next((words for test, words in KINDS.items() if test(status.st_mode)), "a device")
            raise Hostile(f"{name} is neither a file nor a folder but {kind}.")


def _entries(folder: Path, prefix: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(islice(entries, MAX_FILES + 1), key=lambda entry: entry.name)
    except OSError as error:
        raise Hostile(f"{prefix or 'The folder'} can't be listed ({error.strerror}).") from error
    if len(listed) > MAX_FILES:
        raise Hostile(f"There are more than {MAX_FILES:,} files and folders.")
    if not listed:
        raise Hostile(f"{prefix or 'The folder'} is empty, which no bundle has.")
    return listed


def open_plain(path: Path) -> int:
    """Return a descriptor of a plain file; never follows a link, never waits for a pipe. Raises `Hostile` if
    it has become something else.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Hostile(f"{path.name} can't be read ({error.strerror}).") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Hostile(f"{path.name} is not a plain file.")
    return handle


def read_small(path: Path) -> str:
    """Return a text of at most `MAX_SMALL` bytes. Raises `Hostile` if it is larger or not UTF-8."""
    with os.fdopen(open_plain(path), "rb") as file:
        data = file.read(MAX_SMALL + 1)
    if len(data) > MAX_SMALL:
        raise Hostile(f"{path.name} is larger than {MAX_SMALL >> 20} MB.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Hostile(f"{path.name} is not UTF-8 text ({error.reason} at byte {error.start}).") from error


def obeyed(text: str) -> str | None:
    """Return the first character of a text that is interpreted instead of shown, as "U+001B in line 3"; None
    if there is none.
    """
    match = _obeyed().search(text)
    if match is None:
        return None
    line = text.count("\n", 0, match.start()) + 1
    return f"U+{ord(match[0]):04X} in line {line}"


def escaped(text: str) -> str:
    """Return JSON with such characters as escapes: the same values, safe to look at."""
    return _obeyed().sub(lambda match: json.dumps(match[0])[1:-1], text)


@cache
def _obeyed() -> re.Pattern[str]:
    """Return a pattern for a character of `OBEYED` or `FILLERS`.

    It consists of ranges, because private use has 137,000 characters.
    """
    ranges: list[list[int]] = []
    for code, character in enumerate(map(chr, range(sys.maxunicode + 1))):
        hidden = unicodedata.category(character) in OBEYED and character not in TAB_AND_NEWLINE
        if hidden or character in FILLERS:
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    characters = "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in ranges)
    return re.compile(f"[{characters}]")


def hash_plain(path: Path) -> str:
    """Return the sha256 of a plain file, hexadecimal. Raises `Hostile`."""
    with os.fdopen(open_plain(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(text: str) -> dict[str, str]:
    """Return the sha256 by name of a SHA256SUMS. Raises `Hostile` for an invalid line, or a name that leads
    out of the folder.
    """
    hashes: dict[str, str] = {}
    for line in filter(None, text.split("\n")):
        match = LINE.fullmatch(line)
        if not match:
            raise Hostile(f"SHA256SUMS has a line that is not a checksum: {line[:80]!a}.")
        name = match[2]
        if {"", ".", ".."} & set(name.split("/")) or name in hashes:  # "" is before the first slash of /etc.
            raise Hostile(f"SHA256SUMS names {name[:80]!a}, which leads out of the bundle or is there twice.")
        hashes[name] = match[1]
    return hashes
