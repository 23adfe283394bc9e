"""SHA-256 of files and folders: an artifact's identity, whatever its path and date."""

import hashlib
import json
from pathlib import Path
from typing import Any

NO_PART = {".snakemake_timestamp"}  # Snakemake writes this into folders that are outputs; DVC writes none


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_hash(value: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def tree_hash(folder: Path) -> str:
    """Return one SHA-256 over the names and contents of all files below `folder`."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in NO_PART]
    lines = [f"{file_hash(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
