"""Check that chats can be trained on a folder's tokenizer and template.

Both are foreign programs, so they are first tried in processes with limits. Nothing but small files is read,
so it is known before the weights are fetched or copied.
"""

from pathlib import Path
from typing import Any

from pipeline.chat.template import try_templates
from pipeline.chat.tokenizer_file import try_tokenizer
from pipeline.chat.tokens import load_tokenizer
from pipeline.chat.trial import need_trainable
from pipeline.core.errors import DataError, QuenchError

EARLY_BYTES = 1 << 30  # of weights


def tried_tokenizer(folder: Path) -> tuple[Any, str | None]:
    """Return the tokenizer of `folder`, and a sentence if a usual kind of chats can't be trained on it.

    Raises `DataError` if tokenizer or template is broken, takes too much, or can train no chat.
    """
    try:
        try_tokenizer(folder)
        tokenizer = load_tokenizer(folder)
        named = tokenizer.chat_template
        templates = named if isinstance(named, dict) else {"default": str(tokenizer.get_chat_template())}
        need_compiled(templates, str(folder))
        note = need_trainable(tokenizer, str(folder))
    except QuenchError:
        raise
    # untrusted files: the libraries raise what they stumble over
    except Exception as error:
        raise unreadable(folder, error) from error
    return tokenizer, note


def try_early(folder: Path, weights: int) -> None:
    """Raise what `tried_tokenizer` does, before weights of so many bytes are fetched or copied.

    The finished folder is tried in any case; that costs two seconds, in which a small model is here.
    """
    if weights >= EARLY_BYTES:
        tried_tokenizer(folder)


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
