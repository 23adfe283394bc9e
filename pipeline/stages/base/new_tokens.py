"""Add the tokens of `base.new_tokens` to a base: to its tokenizer, and as rows of its embeddings and head.

A new row is the mean of the rows that have a token. So the model gives the new tokens an average likelihood,
and training moves them from there. transformers' `resize_token_embeddings` does the same, but not exactly,
and it needs the model in memory. Rows that only pad the vocabulary are used first; the others are added after
them.
"""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tokenizers import Tokenizer

from pipeline.chat.new_tokens import TEXT_TOKENS, added
from pipeline.config.targets import layer_of
from pipeline.core.errors import DataError
from pipeline.core.publish import need_disk, read_json, write_json, write_text
from pipeline.core.text import listed, quoted
from pipeline.gguf.safetensors_rows import (
    INDEX,
    Entry,
    append_rows,
    read_folder,
    read_header,
    read_rows,
    spans,
    writing_shard,
)
from pipeline.gguf.sources import in_model
from pipeline.models.merging.compute import round_once
from pipeline.models.merging.inputs import structure

BLOCK = 1 << 20  # numbers of a tensor that are copied at a time
TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
DECODER = "added_tokens_decoder"  # key in `SETTINGS` that converters read for some tokenizers
OLD_LIST = "added_tokens.json"
SENTENCEPIECE = "tokenizer.model"


class NewRows(NamedTuple):
    """Rows [first, last) of a table that are new, and its number of rows with them (`all`)."""

    first: int
    last: int
    all: int


def add_new_tokens(folder: Path, tokens: Sequence[str], end_of_turn: str | None) -> dict[str, int]:
    """Add `tokens` to the model in `folder` and return the id of each. If `end_of_turn` is one of them, it
    ends an answer.

    Raises `DataError` if the tokenizer contains one already, or if tensors other than embeddings and head
    have a row for each token.
    """
    ids = _grow_tokenizer(folder, tokens, end_of_turn)
    first = min(ids.values())
    config_file = folder / "config.json"
    config = read_json(config_file, "run `snakemake --force base`")
    sizes = config if "vocab_size" in config else config["text_config"]
    rows = max(sizes["vocab_size"], first + len(ids))
    tables = _tables(folder, sizes["vocab_size"], grows=rows > sizes["vocab_size"])
    for file in sorted({entry.file for entry in tables.values()}):
        need_disk(folder, file.stat().st_size)
        names = {name for name, entry in tables.items() if entry.file == file}
        _rewrite(file, names, NewRows(first, first + len(ids), rows))
    if rows > sizes["vocab_size"]:
        grown = sum((rows - entry.rows) * entry.columns * entry.width for entry in tables.values())
        _note_size(folder / INDEX, grown)
        sizes["vocab_size"] = rows
        write_json(config_file, config, allow_nan=True)
    return ids


def _grow_tokenizer(folder: Path, tokens: Sequence[str], end_of_turn: str | None) -> dict[str, int]:
    """Add tokens to the tokenizer's files; return the id of each."""
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    known = [token for token in tokens if tokenizer.token_to_id(token) is not None]
    if known:
        raise DataError(
            "Q-BASE-050",
            f"base.new_tokens names {listed([quoted(token) for token in known])}, which the tokenizer of "
            f"{folder} has already: take it out",
        )
    new = added(tokens, end_of_turn)
    for token in new:  # one by one, in the order of the settings
        if token.special:
            tokenizer.add_special_tokens([token])
        else:
            tokenizer.add_tokens([token])
    ids = {token: int(tokenizer.token_to_id(token) or 0) for token in tokens}
    if sorted(ids.values()) != list(range(min(ids.values()), min(ids.values()) + len(ids))):
        raise AssertionError(f"the new tokens of {folder} have the ids {sorted(ids.values())}")
    write_text(folder / TOKENIZER, tokenizer.to_str(pretty=True))
    settings = _read_if_there(folder / SETTINGS)
    text = [token.content for token in new if not token.special]
    settings[TEXT_TOKENS] = [*settings.get(TEXT_TOKENS, ()), *text]
    if DECODER in settings or (folder / SENTENCEPIECE).is_file():
        settings[DECODER] = settings.get(DECODER, {}) | {
            str(ids[token.content]): {
                "content": token.content,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token.special,
            }
            for token in new
        }
    write_json(folder / SETTINGS, settings)
    if (folder / OLD_LIST).is_file():
        write_json(folder / OLD_LIST, _read_if_there(folder / OLD_LIST) | ids)
    return ids


def _read_if_there(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no file."""
    return read_json(file, "run `snakemake --force base`") if file.is_file() else {}


def _tables(folder: Path, vocabulary: int, *, grows: bool) -> dict[str, Entry]:
    """Return the embeddings and the head of the weights in `folder`, by their names in the files.

    Raises `DataError` if the number of rows changes (`grows`) and other tensors have as many rows.
    """
    model = structure(folder)
    names = (model.embedding, model.head)
    entries = read_folder(folder)
    others = sorted(
        name
        for name, shape in model.shapes.items()
        if grows and shape and shape[0] == vocabulary and layer_of(name) is None and name not in names
    )
    tables = {name: entry for name, entry in entries.items() if in_model(name) in names}
    if others or not tables:
        what = others[0] if others else model.embedding
        raise DataError(
            "Q-BASE-051",
            f"base.new_tokens is set, and {what} of {folder} is no embedding or head that rows can be added "
            "to: set it to [], or take another base",
        )
    return tables


def _rewrite(file: Path, tables: Collection[str], new: NewRows) -> None:
    """Write a file of weights again with the new rows in its `tables`."""
    entries = read_header(file)
    kinds = [
        (entry.name, entry.dtype, (new.all, *entry.shape[1:]) if entry.name in tables else entry.shape)
        for entry in entries
    ]
    aside = file.with_name(f".{file.name}.grown")
    with writing_shard(aside, kinds) as shard:
        for entry in entries:
            if entry.name in tables:
                _copy(shard, entry, 0, new.first)
                append_rows(shard, _mean(entry, new.first).expand(new.last - new.first, -1))
                _copy(shard, entry, new.last, entry.rows)  # rows that still pad the vocabulary
            else:
                _copy(shard, entry, 0, entry.rows)
    aside.replace(file)


def _copy(shard: BinaryIO, entry: Entry, first: int, last: int) -> None:
    """Write rows [first, last) of a tensor unchanged."""
    for start, stop in spans(entry, BLOCK):
        if start < last and stop > first:
            append_rows(shard, read_rows(entry, max(start, first), min(stop, last)))


def _mean(entry: Entry, last: int) -> Any:
    """Return the mean of a table's rows before `last`, in its own type."""
    import torch

    total = torch.zeros(entry.columns, dtype=torch.float64)
    for start, stop in spans(entry, BLOCK):
        if start < last:
            total += read_rows(entry, start, min(stop, last)).double().sum(dim=0)
    return round_once(total / last, read_rows(entry, 0, 1).dtype)


def _note_size(index: Path, grown: int) -> None:
    """Add `grown` to the total size (bytes) in an index of shards, if there is one."""
    if not index.is_file():
        return
    content = json.loads(index.read_text(encoding="utf-8"))
    metadata = content.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("total_size"), int):
        metadata["total_size"] += grown
        write_json(index, content)
