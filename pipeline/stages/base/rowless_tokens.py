"""Tokens that a folder's tokenizer has behind the rows of its model's embeddings.

Gemma 3 270M and 1B are published with the tokenizer of their larger kin, which has a token for images that
these have no row for; fine-tuned Llama 2s name a padding token that they never got a row for.
llama.cpp's converter leaves such tokens out; so does stage `base`, or a text that holds one could not be
trained on. Rows without a padding token are padded with the end of turn.
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
ADDED = "added_tokens"  # key of it
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
NEEDED = ("bos_token", "eos_token", "unk_token")


def rowless_tokens(tokenizer: Any, rows: int) -> list[str]:
    """Return the tokens of `tokenizer` whose ids are `rows` and more, if nothing needs them: they are added
    to the vocabulary, none is named as beginning, end or unknown, and no template writes one.

    Otherwise the tokenizer is another model's, and the list is empty.
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
    """Take the tokens that `rowless_tokens` finds in `folder` out of its tokenizer; return them.

    Raises `DataError` if its files can't be read, or the tokenizer takes too much.
    """
    try:
        try_tokenizer(folder)
        tokens = rowless_tokens(read_tokenizer(folder), read_text_config(folder).vocab_size)
    except QuenchError:
        raise
    # untrusted files: the libraries raise what they stumble over
    except Exception as error:
        raise unreadable(folder, error) from error
    if tokens:
        drop_tokens(folder, tokens)
    return tokens


def drop_tokens(folder: Path, tokens: list[str]) -> None:
    """Take `tokens`, which were added to the vocabulary, out of all files of the tokenizer in `folder`."""
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
    """Return settings without what names one of `tokens`: as a key, as a value, or as its content."""
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
    """Return True for a token, written as text or with its flags."""
    return (value.get("content") if isinstance(value, dict) else value) in tokens
