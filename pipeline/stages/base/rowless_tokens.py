"""Tokens of a folder's tokenizer whose ids are beyond the rows of its model's embeddings.

Gemma 3 270M and 1B are published with the tokenizer of their larger siblings, which has an image token
without a row in these models. Fine-tuned Llama 2s name a padding token that never got a row. llama.cpp's
converter leaves such tokens out. Stage `base` does the same, because a text that contains one could not be
trained on. Without a padding token, rows are padded with the end of turn.
"""

import json
from pathlib import Path
from typing import Any

from pipeline.chat.tokenizer_file import try_tokenizer
from pipeline.chat.tokens import read_tokenizer
from pipeline.core.errors import QuenchError
from pipeline.core.publish import write_json, write_text
from pipeline.models.text_config import read_text_config
from pipeline.stages.base.chats import unreadable

TOKENIZER = "tokenizer.json"
ADDED = "added_tokens"  # key in `TOKENIZER`
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
NEEDED = ("bos_token", "eos_token", "unk_token")


def rowless_tokens(tokenizer: Any, rows: int) -> list[str]:
    """Return the tokens of `tokenizer` with an id of `rows` or more, if nothing needs them: they are added
    tokens, none is named as beginning, end or unknown, and no template writes one.

    Otherwise the tokenizer belongs to another model, and the list is empty.
    """
    behind = {token for token, number in tokenizer.get_vocab().items() if number >= rows}
    needed = {getattr(tokenizer, name) for name in NEEDED}
    template = tokenizer.chat_template or ""
    templates = template.values() if isinstance(template, dict) else [template]
    is_written = any(token in text for token in behind for text in templates)
    if is_written or not behind.isdisjoint(needed) or not behind <= tokenizer.get_added_vocab().keys():
        return []
    return sorted(behind)


def drop_rowless(folder: Path) -> list[str]:
    """Remove the tokens that `rowless_tokens` finds in `folder` from its tokenizer and return them.

    Raises `DataError` if its files can't be read or the tokenizer exceeds its limits.
    """
    try:
        try_tokenizer(folder)
        tokens = rowless_tokens(read_tokenizer(folder), read_text_config(folder).vocab_size)
    except QuenchError:
        raise
    # untrusted files: the libraries raise errors of any kind
    except Exception as error:
        raise unreadable(folder, error) from error
    if tokens:
        drop_tokens(folder, tokens)
    return tokens


def drop_tokens(folder: Path, tokens: list[str]) -> None:
    """Remove `tokens`, which were added to the vocabulary, from all tokenizer files in `folder`."""
    file = folder / TOKENIZER
    state = json.loads(file.read_text(encoding="utf-8"))
    state[ADDED] = [token for token in state[ADDED] if token["content"] not in tokens]
    vocabulary = state["model"].get("vocab")
    if isinstance(vocabulary, dict):
        state["model"]["vocab"] = {word: number for word, number in vocabulary.items() if word not in tokens}
    write_text(file, json.dumps(state, indent=2, ensure_ascii=False) + "\n")
    for name in SETTINGS:
        file = folder / name
        if file.is_file():
            write_json(file, _without(json.loads(file.read_text(encoding="utf-8")), tokens), allow_nan=True)


def _without(value: Any, tokens: list[str]) -> Any:
    """Return settings without entries for `tokens`: as a key, as a value, or as a token's content."""
    if isinstance(value, list):
        return [_without(part, tokens) for part in value if not _names(part, tokens)]
    if isinstance(value, dict):
        return {
            key: _without(part, tokens)
            for key, part in value.items()
            if key not in tokens and not _names(part, tokens)
        }
    return value


def _names(value: Any, tokens: list[str]) -> bool:
    """Return True for one of `tokens`, written as text or as an object with flags."""
    return (value.get("content") if isinstance(value, dict) else value) in tokens
