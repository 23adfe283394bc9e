"""Files that can't be read to their end: reading a named pipe, a socket or a device may block or never end.

Whatever reads a user's folder (curate, DVC when it hashes) opens every file in it, so the folder is checked
before. Nothing is opened here.
"""

import errno
import os
import re
import stat
from pathlib import Path
from typing import NoReturn

from pipeline.core.errors import DataError
from pipeline.core.text import plural, safe

KINDS = {
    stat.S_ISFIFO: "a named pipe, which would be waited for without end",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device, which may have no end",
    stat.S_ISBLK: "a block device",
}
DVC_OBJECT = re.compile(r"/files/md5/[0-9a-f]{2}/[0-9a-f]{30}$")  # end of its path in any DVC cache
DVC_NOTE = ".dvc"  # suffix of the file that DVC writes next to a user's file
OFFICE_OWNER = "~$"  # prefix of the file that names who has a document open
NOT_UTF8 = "its name is not UTF-8, and DVC can't record it"
NOT_IN_LOCALE = "its name is UTF-8, but this locale is not, so DVC can't record it"
KERNEL = ("/proc/", "/sys/")  # Files below are generated while they are read, and may have no end.


def is_users_data(name: str) -> bool:
    """Return True if a file of this name in a user's folder is data.

    Hidden files, DVC's records of other files and those that Office keeps beside an open one are not.
    """
    return not name.startswith((".", OFFICE_OWNER)) and not name.endswith(DVC_NOTE)


def trouble(path: Path) -> str | None:
    """Return the reason why a file or a link's target can't be read to its end.

    It is None for regular files and folders.
    """
    linked = path.is_symlink()
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if linked and error.errno in (errno.ENOENT, errno.ENOTDIR):
            return "a link to nothing"
        return "a link that leads to itself" if error.errno == errno.ELOOP else str(error.strerror)
    link = "a link to " if linked else ""
    for is_kind, words in KINDS.items():
        if is_kind(mode):
            return link + words
    if linked and os.path.realpath(path).startswith(KERNEL):
        return "a link to a file of /proc or /sys, which may have no end"
    return None if os.access(path, os.R_OK) else os.strerror(errno.EACCES)


def is_dead_dvc_link(path: Path) -> bool:
    """Return True for a link to an object of a DVC cache that is not there: removed, or elsewhere now."""
    return path.is_symlink() and not path.exists() and bool(DVC_OBJECT.search(str(path.readlink())))


def need_file(path: Path) -> None:
    """Raise `DataError` if `path` can't be read to its end; the reader reports missing files, dead links."""
    if path.exists() and (why := trouble(path)):
        raise DataError("Q-CORE-008", f"{safe(str(path))} can't be read ({why}): give a regular file")


def need_plain_files(*folders: Path, recorded: bool) -> None:
    """Raise `DataError` if one of the folders has a file, even a hidden one, that can't be read to its end.

    Links to folders aren't followed. With `recorded` it is also raised if a name is not UTF-8, because DVC
    can't record such names.
    """
    faults: list[tuple[Path, str]] = []
    for top in folders:
        if (top.exists() or top.is_symlink()) and (why := trouble(top)):
            faults.append((top, why))
        for folder, inner, names in os.walk(top, onerror=not_listed):
            paths = [Path(folder, name) for name in sorted(names)]
            faults += [(path, why) for path in paths if (why := trouble(path))]
            if recorded:
                named = (*paths, *(Path(folder, name) for name in inner))
                troubles = ((path, _trouble_of_name(path.name)) for path in named)
                faults += [(path, why) for path, why in troubles if why]
    if faults:
        path, why = faults[0]
        more = f", nor can {plural(len(faults) - 1, 'other')}" if len(faults) > 1 else ""
        remedy = "remove it, or replace it with a regular file"
        if why == NOT_UTF8:
            remedy = "rename it"
        elif why == NOT_IN_LOCALE:
            remedy = "set LC_ALL=C.UTF-8, or take PYTHONUTF8=0 away"
        elif is_dead_dvc_link(path):
            remedy = "run `dvc checkout`, which links it to DVC's cache again"
        raise DataError("Q-CORE-008", f"{safe(str(path))} can't be read ({why}){more}: {remedy}")


def unreadable(path: Path | str, error: OSError) -> NoReturn:
    """Raise `DataError` about a file or folder that the machine can't read."""
    raise DataError(
        "Q-CORE-009",
        f"{safe(str(path))} can't be read ({error.strerror}): correct its rights or move it away",
    ) from error


def not_listed(error: OSError) -> None:
    """Handle an error of `os.walk`.

    A folder that is gone has no data. Raises `DataError` for one that can't be listed.
    """
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        unreadable(error.filename, error)


def _trouble_of_name(name: str) -> str | None:
    """Return the reason why DVC can't record a file of this name."""
    if not any("\udc80" <= character <= "\udcff" for character in name):
        return None
    try:
        os.fsencode(name).decode("utf-8")
    except UnicodeDecodeError:
        return NOT_UTF8
    return NOT_IN_LOCALE
