"""Candidates for the comparison: any GGUF with a chat template, described by its header. Also the check that
a candidate's template and context accept the held-out chats.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.chat.template import try_templates
from pipeline.chat.tokens import Row, chat_request
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.core.text import one_line
from pipeline.gguf.file import bits_per_weight, kv_cache_bytes, tensor_types
from pipeline.gguf.header import Header, NotGguf, UnknownType, read_header
from pipeline.llamacpp.server import Server

TEMPLATE = "tokenizer.chat_template"
# header keys of architectures whose cache is smaller than layers × heads × lengths (sliding windows, latent
# attention, recurrent states)
SMALLER_CACHE = (
    "attention.sliding_window",
    "attention.kv_lora_rank",
    "attention.shared_kv_layers",
    "ssm.",
    "wkv.",
)


@dataclass(frozen=True)
class Candidate:
    """File to be judged.

    `copy` counts the files before it with the same bytes; it is measured like any other. `positions` is the
    longest context that it was made for, and `per_token` the bytes of a token in its float16 KV cache. Both
    are None if the header does not contain them. `vocabulary` is the hash of its list of tokens.
    """

    name: str
    path: Path
    sha256: str
    copy: int
    bytes: int
    architecture: str
    parameters: int
    bits_per_weight: float
    types: Mapping[str, int]
    positions: int | None
    per_token: int | None
    vocabulary: str


def candidates(paths: Sequence[Path]) -> list[Candidate]:
    """Describe each file. Raises `ConfigError` for fewer than two files. Raises `DataError` for a GGUF that
    is incomplete, is one part of several, has no chat template, or has one that exceeds the limits of
    `pipeline.chat.template`.
    """
    if len(paths) < 2:
        for path in paths:  # A missing or damaged file is reported first.
            whole_header(path)
        raise ConfigError(
            "Q-JUDGE-001",
            f"{paths[0] if paths else 'nothing'} alone can't be compared: name two GGUF files at least",
        )
    described: list[Candidate] = []
    for path, name in zip(paths, names(paths), strict=True):
        described.append(describe(path, name, described))
    return described


def describe(path: Path, name: str, before: Sequence[Candidate] = ()) -> Candidate:
    """Describe one file by its header. Raises the same errors as `candidates`."""
    header = whole_header(path)
    if not header.fields.get(TEMPLATE):
        raise DataError(
            "Q-JUDGE-004",
            f"{path} has no chat template ({TEMPLATE}), so it can't be asked chats: take the instruct "
            "version's file, or one that a newer converter made",
        )
    # A template that can't be compiled is left to llama-server, which renders it.
    templates = {key: str(text) for key, text in header.fields.items() if key.startswith(TEMPLATE)}
    try_templates(templates, str(path))
    sha256 = file_hash(path)
    kind = str(header.fields.get("general.architecture"))
    positions = header.fields.get(f"{kind}.context_length")
    return Candidate(
        name=name,
        path=path,
        sha256=sha256,
        copy=sum(earlier.sha256 == sha256 for earlier in before),
        bytes=path.stat().st_size,
        architecture=kind,
        parameters=header.parameters,
        bits_per_weight=bits_per_weight(header),
        types=dict(tensor_types(header).most_common()),
        positions=positions if isinstance(positions, int) else None,
        per_token=None if has_smaller_cache(header.fields, kind) else kv_cache_bytes(path, 1),
        vocabulary=vocabulary(header.fields),
    )


def whole_header(path: Path) -> Header:
    """Return the header of a complete GGUF in one file. Raises `DataError` otherwise."""
    try:
        header = read_header(path)
    except UnknownType as error:
        raise DataError(
            "Q-JUDGE-014",
            f"{path} can't be read: {error} to Quench's package gguf {version('gguf')}: take another level "
            "of the model, or a newer Quench if a newer llama.cpp has that type",
        ) from error
    except (NotGguf, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            "Q-JUDGE-002", f"{path} is not a complete GGUF ({why}): correct the name, or fetch it again"
        ) from error
    parts = header.fields.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise DataError(
            "Q-JUDGE-003",
            f"{path} is one of {parts} parts of a model: join them with `llama-gguf-split --merge FIRST "
            "WHOLE`, and name the whole",
        )
    if not header.parameters:
        raise DataError("Q-JUDGE-002", f"{path} is not a complete GGUF (it holds no tensor): fetch it again")
    return header


def names(paths: Sequence[Path]) -> list[str]:
    """Return the files' names: their stems, or their paths if stems are equal.

    Equal paths get a number.
    """
    stems = Counter(path.stem for path in paths)
    seen = Counter[str]()
    unique = []
    for path in paths:
        name = os.fsencode(path.stem if stems[path.stem] == 1 else path).decode("utf-8", "replace")
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique


def has_smaller_cache(fields: Mapping[str, Any], kind: str) -> bool:
    """Return True if the architecture keeps less than every layer's keys and values of every token. Then only
    a measurement gives the size.
    """
    smaller = tuple(f"{kind}.{name}" for name in SMALLER_CACHE)
    return any(fields[name] for name in fields if name.startswith(smaller))


def vocabulary(fields: Mapping[str, Any]) -> str:
    """Return a hash of the list of tokens. Models with the same hash can be compared token by token."""
    digest = hashlib.sha256()
    tokens = fields.get("tokenizer.ggml.tokens")
    for token in tokens if isinstance(tokens, list) else ():
        digest.update(f"{len(str(token))}:{token}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def check_rows(
    file: Candidate, server: Server, rows: Sequence[Row], *, ctx_size: int, max_new_tokens: int
) -> None:
    """Check, before hours of answering, that the file's own template accepts each row and that the context
    has room for the row and its answer.

    Raises `DataError` otherwise.
    """
    room = min(ctx_size, file.positions or ctx_size)
    longest, row_id = max((prompt_tokens(file, server, row), str(row["id"])) for row in rows)
    needed = longest + max_new_tokens
    if needed <= room:
        return
    remedy = f"give --ctx-size {needed} or more"
    if room != ctx_size:
        remedy = "leave that file or that row out, since the file was made for no longer one"
    raise DataError(
        "Q-JUDGE-009",
        f"row {row_id} takes {longest:,} tokens in {file.name} and its answer up to {max_new_tokens:,} more, "
        f"but the context is of {room:,}: {remedy}",
    )


def prompt_tokens(file: Candidate, server: Server, row: Row) -> int:
    """Count the tokens of a row's question in the file's own template and tokenizer. Raises `DataError` if
    the template refuses the row.
    """
    request = chat_request(row["messages"][:-1], row.get("tools"))
    try:
        text = server.post("/apply-template", request)["prompt"]
    except ToolError as error:
        answer = one_line(error.sentence.partition(": ")[2], 200)  # llama-server's message
        raise DataError(
            "Q-JUDGE-011",
            f"the chat template of {file.name} does not take row {row['id']} ({answer}): leave the file "
            "or the row out, or put a system turn's text into the first question",
        ) from error
    return len(server.tokens(text))
