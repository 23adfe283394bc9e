"""Tokens for runs of spaces, which Gemma's tokenizers have: taken out of any text, the longest first.

SentencePiece does so, by which the models were trained, and llama.cpp. The published tokenizer.json, and what
transformers makes of a GGUF, put them together of single spaces: a run that is longer than the longest token
would be cut elsewhere (33 spaces into 16 and 17, not 31 and 2).
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

SPACE = "\u2581"  # which SentencePiece writes for a space
TOKENIZER = "tokenizer.json"
# what the user is told
LONGEST_FIRST = (
    "of a run of spaces the longest token is taken first, as SentencePiece and llama.cpp do; tokenizer.json "
    "was changed so"
)
RULES = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token, all off


def keep_runs_of_spaces(tokenizer: Any, header: Header) -> None:
    """Let `tokenizer`, which was read out of a GGUF, take the file's runs of spaces out of a text."""
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
    """Let the tokenizer.json of `folder` take its runs of spaces out of a text; return True if it did not.

    Raises `DataError` if its files can't be read, or the tokenizer takes too much.
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
    # untrusted files: any part may be of another kind
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise unreadable(folder, error) from error
    write_text(file, json.dumps(state, indent=2, ensure_ascii=False) + "\n")
    write_json(settings_file, settings, allow_nan=True)
    return True


def take_out(state: dict[str, Any], runs: Mapping[int, int]) -> None:
    """Make added tokens of the `runs` {id: number of spaces} in a tokenizer.json, and no pieces of them."""
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
    """Return the two pieces of a merge, which older files write as one text, and what they make."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right
