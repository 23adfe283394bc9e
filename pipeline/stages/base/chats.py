"""Check that a folder's tokenizer and template are sound, and whether chats can be trained on them.

Both are foreign programs, so they are first tried in processes with limits. Nothing but small files is read,
so it is known before the weights are fetched or copied.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.chat.template import try_templates
from pipeline.chat.tokenizer_file import try_tokenizer
from pipeline.chat.tokens import load_tokenizer
from pipeline.chat.trial import need_trainable, why_no_chats
from pipeline.core.errors import DataError, QuenchError

EARLY_BYTES = 1 << 30  # of weights


@dataclass(frozen=True)
class Tried:
    """A tokenizer, with `no_chats`, a sentence if no chat can be trained on it and its template, only texts;
    or with `note`, a sentence if that is so of a usual kind of chats.
    """

    tokenizer: Any
    no_chats: str | None = None
    note: str | None = None


def tried_tokenizer(folder: Path) -> Tried:
    """Return the tokenizer of `folder`, and what can't be trained on it.

    Raises `DataError` if tokenizer or template is broken, or takes too much.
    """
    try:
        try_tokenizer(folder)
        tokenizer = load_tokenizer(folder)
        named = tokenizer.chat_template
        if named:
            need_compiled(named if isinstance(named, dict) else {"default": str(named)}, str(folder))
        no_chats = why_no_chats(tokenizer, str(folder))
        note = None if no_chats else need_trainable(tokenizer, str(folder))
    except QuenchError:
        raise
    # untrusted files: the libraries raise what they stumble over
    except Exception as error:
        raise unreadable(folder, error) from error
    return Tried(tokenizer, no_chats, note)


def try_early(folder: Path, weights: int, owner: str) -> None:
    """Raise what `tried_tokenizer` does, before weights of so many bytes are fetched or copied, and print why
    only texts can be trained on `owner`, if that is so: whoever has chats can stop.

    The finished folder is tried in any case; that costs two seconds, in which a small model is here.
    """
    if weights < EARLY_BYTES:
        return
    no_chats = tried_tokenizer(folder).no_chats
    if no_chats:
        print(
            f"base: only plain text can be trained on it, no chats: {no_chats.replace(str(folder), owner)}. "
            f"If data/raw holds chats, stop here (Ctrl-C): {weights / 1e9:.1f} GB of weights come next",
            flush=True,
        )


def need_compiled(templates: dict[str, str], owner: str) -> None:
    """Try the templates (by name) of `owner` in a process with limits. Raises `DataError` for a bad one."""
    if broken := try_templates(templates, owner):
        raise DataError(
            "Q-BASE-037",
            f"the chat template of {owner} can't be compiled ({broken}): fetch it again, or correct it",
        )


def unreadable(folder: Path, error: Exception) -> DataError:
    """Return the error for what a library raised over the files of `folder`."""
    reason = " ".join(str(error).split())[:300]
    return DataError("Q-BASE-012", f"{folder} can't be read ({reason}): fetch it again")
