"""Tokens for runs of spaces in Gemma's tokenizers. They are split off any text first, the longest one first.

SentencePiece (with which the models were trained) and llama.cpp do so. The published tokenizer.json, and the
one that transformers makes from a GGUF, merge them from single spaces. A run longer than the longest token
would be split differently: 33 spaces into 16 and 17, not 31 and 2.
"""

import json
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from pipeline.chat.tokenizer_file import try_tokenizer
from pipeline.core.publish import write_json, write_text
from pipeline.gguf.header import Header
from pipeline.stages.base.chats import unreadable
from pipeline.stages.base.sentencepiece_file import SETTINGS_FILE, USER_DEFINED

SPACE = "\u2581"  # SentencePiece's character for a space
TOKENIZER = "tokenizer.json"
# message for the user
LONGEST_FIRST = (
    "of a run of spaces the longest token is taken first, as SentencePiece and llama.cpp do; tokenizer.json "
    "was changed so"
)
RULES = ("single_word", "lstrip", "rstrip", "normalized", "special")  # flags of an added token, all off


def keep_runs_of_spaces(tokenizer: Any, header: Header) -> None:
    """Let `tokenizer`, which was read from a GGUF, split the file's runs of spaces off a text first."""
    from tokenizers import Tokenizer

    words = header.fields["tokenizer.ggml.tokens"]
    types = header.fields.get("tokenizer.ggml.token_type") or []
    runs = {
        number: len(word)
        for number, (word, kind) in enumerate(zip(words, types, strict=False))
        if kind == USER_DEFINED and word and not word.strip(" ")
    }
    if runs:
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        take_out(state, runs)
        tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))


def settle_runs_of_spaces(folder: Path) -> bool:
    """Let the tokenizer.json of `folder` split its runs of spaces off a text first.

    Return True if it was changed. Raises `DataError` if its files can't be read or the tokenizer exceeds its
    limits.
    """
    file = folder / TOKENIZER
    settings_file = folder / SETTINGS_FILE
    try:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if SPACE * 2 not in text:
            return False
        try_tokenizer(folder)
        state = json.loads(text)
        runs = {
            token["id"]: len(token["content"])
            for token in state["added_tokens"]
            if token["content"] and not token["content"].strip(SPACE) and not token["normalized"]
        }
        if not runs:
            return False
        take_out(state, runs)
        settings = json.loads(settings_file.read_text(encoding="utf-8"))
        for number, token in settings.get("added_tokens_decoder", {}).items():
            if int(number) in runs:
                token["content"] = " " * runs[int(number)]
    # untrusted files: any part may have another type
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise unreadable(folder, error) from error
    write_text(file, json.dumps(state, indent=2, ensure_ascii=False) + "\n")
    write_json(settings_file, settings, allow_nan=True)
    return True


def take_out(state: dict[str, Any], runs: Mapping[int, int]) -> None:
    """Turn the `runs` {id: number of spaces} of a tokenizer.json into added tokens that no merge makes."""
    vocabulary = state["model"]["vocab"]
    pieces = {SPACE * length: number for number, length in runs.items()}
    for piece, number in pieces.items():
        if vocabulary.get(piece) == number:
            del vocabulary[piece]
            vocabulary[" " * len(piece)] = number
    state["model"]["merges"] = [
        merge for merge in state["model"]["merges"] if pieces.keys().isdisjoint(made_of(merge))
    ]
    others = [token for token in state["added_tokens"] if token["id"] not in runs]
    added = [
        {"id": number, "content": " " * length, **dict.fromkeys(RULES, False)}
        for number, length in runs.items()
    ]
    state["added_tokens"] = sorted([*others, *added], key=itemgetter("id"))


def made_of(merge: str | list[str]) -> tuple[str, str, str]:
    """Return the two pieces of a merge and the piece they make. Older files write a merge as one text."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right
