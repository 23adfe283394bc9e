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

    tokens = header.fields["tokenizer.ggml.tokens"]
    types = header.fields.get("tokenizer.ggml.token_type") or []
    runs = {
        token_id: len(token)
        for token_id, (token, token_type) in enumerate(zip(tokens, types, strict=False))
        if token_type == USER_DEFINED and token and not token.strip(" ")
    }
    if runs:
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        make_added_tokens(state, runs)
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
        # The shortest run has two spaces. A file without one is neither tried nor parsed.
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
        make_added_tokens(state, runs)
        settings = json.loads(settings_file.read_text(encoding="utf-8"))
        # transformers adds those tokens of these settings that tokenizer.json does not have.
        for token_id, token in settings.get("added_tokens_decoder", {}).items():
            if int(token_id) in runs:
                token["content"] = " " * runs[int(token_id)]
    # The files are untrusted: any part may have another type.
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise unreadable(folder, error) from error
    write_text(file, json.dumps(state, indent=2, ensure_ascii=False) + "\n")
    write_json(settings_file, settings, allow_nan=True)
    return True


def make_added_tokens(state: dict[str, Any], runs: Mapping[int, int]) -> None:
    """Turn the `runs` {id: number of spaces} of a tokenizer.json into added tokens that no merge makes.

    Changes `state` in place: its vocabulary, its merges and its added tokens.
    """
    vocabulary = state["model"]["vocab"]
    ids = {SPACE * length: token_id for token_id, length in runs.items()}
    # Added tokens are found in a text that is not normalized yet, where a space is a space.
    for piece, token_id in ids.items():
        if vocabulary.get(piece) == token_id:
            del vocabulary[piece]
            vocabulary[" " * len(piece)] = token_id
    # The tokenizers library refuses merges of pieces that the vocabulary no longer has.
    state["model"]["merges"] = [
        merge for merge in state["model"]["merges"] if ids.keys().isdisjoint(made_of(merge))
    ]
    # Added tokens are split off before the model sees a text, the longest first.
    others = [token for token in state["added_tokens"] if token["id"] not in runs]
    added = [
        {"id": token_id, "content": " " * length, **dict.fromkeys(RULES, False)}
        for token_id, length in runs.items()
    ]
    state["added_tokens"] = sorted([*others, *added], key=itemgetter("id"))


def made_of(merge: str | list[str]) -> tuple[str, str, str]:
    """Return the two pieces of a merge and the piece they make. Older files write a merge as one text."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right
