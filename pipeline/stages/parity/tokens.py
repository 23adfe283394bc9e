"""Token ids of conversations (by `/tokenize`) and strings (by the GGUF's vocabulary) against training's."""

import ctypes
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pipeline.core.checks import Check
from pipeline.core.text import common_start
from pipeline.gguf.file import check_gguf
from pipeline.llamacpp.logits import loaded_gguf
from pipeline.llamacpp.server import Server
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.parity.check import exact
from pipeline.stages.parity.rendering import Texts

IDS = "Token ids"  # title of the first check
CORPUS = "Token ids of a corpus"  # title of the second check
TOGETHER = 1024  # strings tokenized per call
SHOWN = 12  # ids shown in a message
NORMAL = 1  # GGUF's type of ordinary tokens


class GgufVocabulary:
    """Vocabulary of a GGUF, loaded without its weights."""

    def __init__(self, llama: Any, model: Any) -> None:
        self._llama = llama
        self._vocab = llama.llama_model_get_vocab(model)
        self._room = 1024
        self._ids = (ctypes.c_int32 * self._room)()

    def ids(self, text: str, *, add_special: bool = False) -> list[int]:
        """Return the ids of `text`, with control tokens recognized.

        `add_special` adds the GGUF's BOS and EOS.
        """
        data = text.encode()
        while (
            count := self._llama.llama_tokenize(
                self._vocab, data, len(data), self._ids, self._room, add_special, True
            )
        ) < 0:
            self._room = -count  # the size that it needs
            self._ids = (ctypes.c_int32 * self._room)()
        return self._ids[:count]

    def ends(self, number: int) -> bool:
        """Return True if this token ends an answer."""
        return bool(self._llama.llama_vocab_is_eog(self._vocab, number))

    def recognized(self, number: int) -> bool:
        """Return True for control and user-defined tokens: llama.cpp finds them before it splits a text."""
        special = self._llama.LLAMA_TOKEN_ATTR_CONTROL | self._llama.LLAMA_TOKEN_ATTR_USER_DEFINED
        return bool(self._llama.llama_vocab_get_attr(self._vocab, number) & special)


@dataclass(frozen=True)
class TokenCause:
    """Likely cause of different token ids: what differs, and a sentence with the remedy."""

    kind: Literal["added_token", "other_vocabulary", "pre_tokenizer"]
    sentence: str


@contextmanager
def open_vocabulary(tools: Toolchain, path: Path) -> Iterator[GgufVocabulary]:
    """Load only a GGUF's vocabulary, during the body. Raises `ToolError` if llama.cpp refuses it."""
    with loaded_gguf(tools, path, vocab_only=True) as (llama, model):
        yield GgufVocabulary(llama, model)


@dataclass
class Comparison:
    """Comparison of texts as token ids by training's tokenizer and by llama.cpp: how many were compared, how
    many differ, and the first that does, with both lists of ids.
    """

    compared: int = 0
    different: int = 0
    first: tuple[str, list[int], list[int]] = ("", [], [])

    def add(self, text: str, ours: list[int], theirs: list[int]) -> None:
        """Count a text by its ids on both sides."""
        self.compared += 1
        if ours != theirs:
            self.first = self.first if self.different else (text, ours, theirs)
            self.different += 1


def token_ids(texts: Texts, tokenizer: Any, server: Server, f16: Path) -> Check:
    """Compare the conversations' ids by training's tokenizer with llama-server's, tokenized as it does for a
    chat (BOS included).

    Texts are in NFC, as stage curate writes all text: llama.cpp does not normalize, some tokenizers do.
    """
    begin = server.tokens("")  # the server's beginning of text, which it puts before every prompt
    ids = Comparison()
    for text in texts.compared:
        text_nfc = unicodedata.normalize("NFC", text.complete)
        trained = tokenizer(text_nfc, add_special_tokens=False)["input_ids"]
        bare = text_nfc.removeprefix(tokenizer.bos_token or "") if begin else text_nfc
        ids.add(text_nfc, trained, server.tokens(bare))
    return _check(
        IDS,
        "conversations whose token ids differ between training and llama-server",
        tokenizer,
        f16,
        ids,
    )


def corpus_ids(strings: Iterable[str], tokenizer: Any, f16: Path, tools: Toolchain) -> Check:
    """Compare the ids of `strings` by training's tokenizer (its Rust side) with the GGUF's vocabulary.
    Control tokens are recognized on both sides.

    Some strings contain a token that llama.cpp treats as a control token although the GGUF does not: `</s>`,
    an ordinary token of Qwen's, is one. They are left out and counted. The `key` of a failed check is the
    kind of its `TokenCause`.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    overridden = 0
    ids = Comparison()
    with open_vocabulary(tools, f16) as vocabulary:
        forced = overridden_tokens(vocabulary, f16)
        strings = iter(strings)
        while batch := list(islice(strings, TOGETHER)):
            for text, encoding in zip(
                batch, backend.encode_batch_fast(batch, add_special_tokens=False), strict=True
            ):
                if any(token in text for token in forced):
                    overridden += 1
                    continue
                ids.add(text, encoding.ids, vocabulary.ids(text))
    note = ""
    if overridden:
        note = (
            f"{overridden} strings with {', '.join(forced)} left out, which llama.cpp takes for a control "
            "token"
        )
    return _check(
        CORPUS,
        "strings whose token ids differ between training's tokenizer and the GGUF's vocabulary",
        tokenizer,
        f16,
        ids,
        note,
    )


def overridden_tokens(vocabulary: GgufVocabulary, f16: Path) -> list[str]:
    """Return text tokens of the GGUF that llama.cpp treats as control tokens by their spelling."""
    fields = check_gguf(f16).fields
    tokens = zip(fields["tokenizer.ggml.tokens"], fields.get("tokenizer.ggml.token_type", []), strict=False)
    return [
        token
        for number, (token, kind) in enumerate(tokens)
        if kind == NORMAL and vocabulary.recognized(number)
    ]


def token_cause(tokenizer: Any, f16: Path, trained: list[int], served: list[int]) -> TokenCause:
    """Return the cause: an added beginning or end of text, another vocabulary, or another pre-tokenizer."""
    fields = check_gguf(f16).fields
    if len(served) > len(trained) and trained in (served[1:], served[:-1]):
        name, number = ("bos", served[0]) if served[1:] == trained else ("eos", served[-1])
        field = f"tokenizer.ggml.add_{name}_token"
        return TokenCause(
            "added_token",
            f"llama.cpp adds token {number}, which training does not have ({field} of {f16.name}): set "
            f"add_{name}_token to false in models/base/tokenizer_config.json and run the stages merge and "
            "convert again.",
        )
    tokens = fields.get("tokenizer.ggml.tokens", [])
    wrong = next(
        (
            number
            for number in range(len(tokenizer))
            if number >= len(tokens) or tokens[number] != _spelled(tokenizer, number)
        ),
        None,
    )
    if wrong is not None:
        spelling = repr(tokens[wrong]) if wrong < len(tokens) else "missing"
        return TokenCause(
            "other_vocabulary",
            f"The vocabulary of {f16.name} is another tokenizer's (token {wrong} is {spelling} there, "
            f"{_spelled(tokenizer, wrong)!r} in training): run the stages merge and convert again.",
        )
    rule = f"tokenizer.ggml.pre is {fields.get('tokenizer.ggml.pre')!r}"
    return TokenCause(
        "pre_tokenizer",
        f"The vocabularies are equal, but {f16.name} splits or merges text by another rule than training "
        f"({rule}): run stage convert again.",
    )


def _spelled(tokenizer: Any, number: int) -> str:
    return str(tokenizer.convert_ids_to_tokens(number))


def _check(title: str, what: str, tokenizer: Any, f16: Path, ids: Comparison, note: str = "") -> Check:
    detail = f"{ids.compared} compared"
    if note:
        detail += f"; {note}"
    if not ids.compared:
        return Check(title, "not measured", detail, what=what)
    cause = None
    if ids.different:
        text, trained, served = ids.first
        start = max(0, common_start(trained, served) - 2)
        shown = ascii(text if len(text) <= 80 else f"{text[:80]}…")
        detail += (
            f"; first difference: {shown}, from token {start} training has {trained[start : start + SHOWN]}, "
            f"llama.cpp {served[start : start + SHOWN]}"
        )
        cause = token_cause(tokenizer, f16, trained, served)
    remedy = cause.sentence if cause else ""
    check = exact(title, ids.different, "differences", detail, remedy, what)
    return replace(check, figures={"compared": float(ids.compared)}, key=cause.kind if cause else "")
