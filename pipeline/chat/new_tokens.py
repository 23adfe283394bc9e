"""Tokens that `base.new_tokens` adds to a base's tokenizer: text tokens and control tokens.

A token is a control token if llama.cpp's converter treats its spelling so (`<|…|>`), or if it ends a turn. No
text may contain it, and no answer shows it. All others are text: chats may contain them, and an answer shows
them. The tokenizer_config.json in the tokenizer's folder lists them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

TEXT_TOKENS = "text_tokens"  # key of tokenizer_config.json
# Spellings in `does_token_look_special` of llama.cpp's converter.
CONTROL_SPELLINGS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
CONTROL_BORDERS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


def is_control(token: str) -> bool:
    """Return True if llama.cpp's converter makes a control token of every token with this spelling."""
    return token in CONTROL_SPELLINGS or any(
        token.startswith(first) and token.endswith(last) for first, last in CONTROL_BORDERS
    )


def added(tokens: Iterable[str], end_of_turn: str | None) -> list[Any]:
    """Return the tokens as the library tokenizers adds them: each is split off before anything else, and
    control tokens are special.
    """
    from tokenizers import AddedToken

    return [
        AddedToken(token, special=is_control(token) or token == end_of_turn, normalized=False)
        for token in tokens
    ]


def text_tokens(tokenizer: Any) -> Sequence[str]:
    """Return the tokens of a transformers tokenizer that were added as text."""
    named = tokenizer.init_kwargs.get(TEXT_TOKENS, ())
    return [token for token in named if isinstance(token, str)]
