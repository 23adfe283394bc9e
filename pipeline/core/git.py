"""Questions to Git. A Git that fails (another user's repository, a damaged index) is not one that says no."""

import os
import re
import subprocess
from pathlib import Path

from pipeline.core.errors import ToolError
from pipeline.core.text import one_line

# What Git says if there is no repository, no commit, or nothing of the name that was asked for.
NOTHING = re.compile(
    r"not a git repository \(or any|does not have any commits yet|unknown revision|invalid object name|"
    r"does not exist in|exists on disk, but not in"
)
LONGEST = 300  # characters of Git's words in an error


def ask_git(
    root: Path, *words: str, given: bytes | None = None, patience: float | None = None
) -> bytes | None:
    """Return what Git prints in the folder `root`; None if it has nothing of what was asked for.

    `given` is its standard input. Raises `ToolError` with Git's own words if it fails for another reason,
    can't be run, or takes more than `patience` seconds.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words],
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            timeout=patience,
            env=os.environ | {"LC_ALL": "C"},  # Its words are compared with those above.
            check=False,
        )
    except FileNotFoundError:
        why = "it is not on PATH"
    except OSError as error:
        why = str(error.strerror)
    except subprocess.TimeoutExpired:
        why = f"it gave no answer in {patience:.0f} s"
    else:
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.decode(errors="replace")
        if NOTHING.search(said) or (done.returncode == 1 and not said):  # `--quiet` says no without a word.
            return None
        why = one_line(said, LONGEST) or f"exit status {done.returncode}"
    raise ToolError(
        "Q-CORE-016", f"Git failed in {root.resolve()} ({why}): correct that, then run the same command again"
    )
