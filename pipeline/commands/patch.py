"""Give a GGUF away as what differs from the file that it was made from, and put it together again.

quench diff BASE.gguf OTHER.gguf PATCH
quench apply BASE.gguf PATCH OTHER.gguf
"""

import os
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.core.units import size_text
from pipeline.gguf.patch import apply_patch, write_patch


def diff(base: Path, other: Path, patch: Path) -> None:
    """Write `patch`, say what is in it. Raises `ConfigError` if there is a file of that name."""
    _check_free(patch)
    found = write_patch(base, other, patch)
    print(
        f"diff: {patch}, {size_text(patch.stat().st_size)} instead of {size_text(other.stat().st_size)}: the "
        f"scales of {found['scales']} tensors and {found['tensors']} entire tensors; applied to {base.name} "
        f"it gives {other.name}, proven by sha256"
    )


def apply(base: Path, patch: Path, target: Path) -> None:
    """Write the file that `patch` makes of `base`. Raises `ConfigError` if there is a file of that name."""
    _check_free(target)
    apply_patch(base, patch, target)
    print(f"apply: {target}, {size_text(target.stat().st_size)}, with the sha256 that the patch announces")


def _check_free(target: Path) -> None:
    if os.path.lexists(target):  # pathlib's raises for a name that is too long
        raise ConfigError(
            "Q-COMMANDS-034",
            f"{target} is there already and is not replaced: give another name, or delete it",
        )
