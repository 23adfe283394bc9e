"""Protection against programs that another user could have changed, by sshd's rule (StrictModes): the file,
its folder's content and every folder on the way belong to this user or to root, and no other user can write
there.
"""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OTHERS = stat.S_IWGRP | stat.S_IWOTH


def changed_by_others(folder: Path) -> Path | None:
    """Return the first path that another user may have changed or replaced; None if there is none.

    It is a folder on the way to `folder`, links on the way included, or anything in it. A path that doesn't
    exist was not changed.
    """
    for path in _on_the_way(folder.absolute()):
        if not _is_safe(path, parent=path != folder.absolute()):
            return path
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(top, name)
            if not _is_safe(path, parent=False):
                return path
    return None


@contextmanager
def closed_to_others() -> Iterator[None]:
    """Keep others from writing what this process and its children create in the body, whatever the umask."""
    before = os.umask(OTHERS)
    os.umask(before | OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def close_to_others(tree: Path) -> None:
    """Remove the write permission of others from the folder and everything in it."""
    for top, _, files in os.walk(tree):
        for path in (Path(top), *(Path(top, name) for name in files)):
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS & ~stat.S_ISGID)


def _on_the_way(path: Path) -> list[Path]:
    """Return a path and its parents from the root on, both as named and with links resolved."""
    as_given = [*reversed(path.parents), path]
    real = path.resolve()
    return [*as_given, *(part for part in (*reversed(real.parents), real) if part not in as_given)]


def _is_safe(path: Path, *, parent: bool) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return True
    if status.st_uid not in (0, os.getuid()):
        return False
    if stat.S_ISLNK(status.st_mode):
        return True  # A link's own permissions mean nothing.
    if parent and status.st_mode & stat.S_ISVTX:
        return True  # a sticky folder like /tmp: no user can move another's files
    shared = status.st_mode & OTHERS
    return not shared or (shared == stat.S_IWGRP and _is_mine_alone(status.st_gid))


def _is_mine_alone(group: int) -> bool:
    """Return True if it is this user's private group, which many systems create for each user."""
    with suppress(KeyError):
        user = pwd.getpwuid(os.getuid())
        entry = grp.getgrgid(group)
        return user.pw_gid == group and entry.gr_name == user.pw_name and not {*entry.gr_mem} - {user.pw_name}
    return False
