"""The manifest of data/tokens: hashes, limits, counts and versions of its inputs, and the check that it is
still up to date.
"""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import template_of
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash

NAME = "manifest.json"
LIBRARIES = (
    "tokenizers",
    "transformers",
    "jinja2",
    "pyarrow",
)  # packages that ids, texts and the files' bytes depend on
AGAIN = "run `snakemake preprocess`"


def manifest(
    tokens: Path, rows: list[Path], base: Path, tokenizer: Any, stats: dict[str, Any]
) -> dict[str, Any]:
    """Return the manifest of `tokens`' Parquet files, made of `rows` with `base`'s tokenizer and template."""
    return {
        "rows": {path.name: file_hash(path) for path in rows},
        "files": {
            path.name: file_hash(path)
            for path in sorted([*tokens.glob("*.parquet"), *tokens.glob("*.jsonl")])
        },
        **_of_base(base, tokenizer),
        **{key: stats[key] for key in ("method", "max_length", "packing") if key in stats},
        "splits": {
            split: {
                key: counts[key]
                for key in ("rows_read", "rows", "sequences", "packed_rows", "tokens", "trained_tokens")
            }
            for split, counts in stats["splits"].items()
        },
        "versions": {name: version(name) for name in LIBRARIES},
    }


def check_manifest(tokens: Path, base: Path, tokenizer: Any) -> dict[str, Any]:
    """Return the manifest in `tokens`, after checking it against the files next to it and the base in `base`,
    whose tokenizer is given.

    Raises `DataError`, which names the difference, if the tokens are stale or not those that preprocess
    wrote.
    """
    path = tokens / NAME
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        recorded = {key: stored[key] for key in ("files", "tokenizer_sha256", "template_sha256")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "Q-CHAT-005",
            f"{path} can't be read ({' '.join(str(error).split())}), so what {tokens} was made of is not "
            f"known: {AGAIN}",
        ) from error
    for name, digest in recorded["files"].items():
        if not (tokens / name).is_file():
            raise DataError("Q-CHAT-006", f"{tokens / name} is missing: {AGAIN}")
        if file_hash(tokens / name) != digest:
            raise DataError("Q-CHAT-006", f"{tokens / name} is not the file that preprocess wrote: {AGAIN}")
    now = _of_base(base, tokenizer)
    for key, what in (("tokenizer_sha256", "tokenizer"), ("template_sha256", "chat template")):
        if recorded[key] != now[key]:
            raise DataError("Q-CHAT-007", f"the {what} of {base} changed since {tokens} was made: {AGAIN}")
    return stored


def _of_base(base: Path, tokenizer: Any) -> dict[str, str]:
    template = template_of(tokenizer)
    return {
        "tokenizer_sha256": file_hash(base / "tokenizer.json"),
        "template_sha256": hashlib.sha256(template.encode()).hexdigest(),
    }
