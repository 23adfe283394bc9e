"""Chats as the model sees them: the base's own template, token ids, and which tokens are trained.

The label mask comes from rendering, not from looking for markers: the text up to an assistant turn (with the
generation prompt) must be a prefix of the text with that turn; what the turn adds, up to and including its
end-of-turn token, is what is trained.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import DataError

IGNORED = -100  # the label that PyTorch's cross entropy leaves out
Message = dict[str, Any]


class Unrenderable(ValueError):
    """A conversation that can't become a training row; `code` is the stable reason, the text says more."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Encoded:
    """One conversation as token ids and labels, both of length T; a label is the id itself or `IGNORED`."""

    ids: list[int]
    labels: list[int]


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder, proven to be the one of its `tokenizer.json`.

    transformers 5 picks the tokenizer class by `config.model_type` and can swap the pre-tokenizer in silence; so
    its ids are compared with those of `tokenizers.Tokenizer.from_file`. Raises `DataError` on a difference, on a
    missing chat template and on a missing end-of-turn token.
    """
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not tokenizer.chat_template:
        raise DataError(f"{folder} has no chat template: choose an instruct model as base")
    if tokenizer.eos_token is None:
        raise DataError(f"{folder} names no end-of-turn token (eos_token): mend its tokenizer_config.json")
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in PROBES:
        ours, theirs = tokenizer(text, add_special_tokens=False)["input_ids"], plain.encode(text, add_special_tokens=False).ids
        if ours != theirs:
            raise DataError(
                f"{folder}: transformers' tokenizer gives {ours[:8]} for {text[:30]!r}, its tokenizer.json gives {theirs[:8]}: mend the folder"
            )
    return tokenizer


# strings on which pre-tokenizers differ: digits, contractions, spaces, newlines, scripts, code
PROBES = (
    "Hello, world! I'm 12345 years and 67.89 days old; you'll see.",
    "def f(x):\n    return {'a': x ** 2}\n\n\n\t# tabs  and   spaces ",
    "naïve café – “quotes” 東京 Привет مرحبا 🙂👩‍💻 ½ ①",
)


def render(tokenizer: Any, messages: list[Message], *, add_generation_prompt: bool = False) -> str:
    """The conversation as text by the model's own template. Raises `Unrenderable` where the template refuses it."""
    from jinja2 import TemplateError

    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt))
    except TemplateError as error:
        raise Unrenderable("template_refuses", f"the chat template says: {error}") from error


def trained_spans(tokenizer: Any, messages: list[Message]) -> tuple[str, list[tuple[int, int]]]:
    """The whole text and the character ranges [start, end) that are trained: each assistant turn and its end-of-turn token.

    Raises `Unrenderable` where the template rewrites earlier turns or a turn doesn't end in the end-of-turn token.
    """
    text = render(tokenizer, messages)
    spans = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = render(tokenizer, messages[:turn], add_generation_prompt=True)
        after = render(tokenizer, messages[: turn + 1])
        if not after.startswith(before) or not text.startswith(after):
            raise Unrenderable("template_rewrites", f"the template renders turn {turn + 1} differently once more turns follow")
        end = after.rfind(tokenizer.eos_token)
        if end < len(before):
            raise Unrenderable("no_end_of_turn", f"turn {turn + 1} does not end in {tokenizer.eos_token}")
        spans.append((len(before), end + len(tokenizer.eos_token)))
    if not spans:
        raise Unrenderable("nothing_to_train", "no assistant turn")
    return text, spans


def encode(tokenizer: Any, messages: list[Message]) -> Encoded:
    """Token ids of the rendered conversation, with labels on the assistant's text and its end of turn only.

    Raises `Unrenderable` as `trained_spans` does, and where a token lies across the border of a trained range.
    """
    text, spans = trained_spans(tokenizer, messages)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids: list[int] = encoded["input_ids"]
    labels = [IGNORED] * len(ids)
    for start, end in spans:
        inside = [i for i, (first, last) in enumerate(encoded["offset_mapping"]) if first < end and last > start]
        offsets = encoded["offset_mapping"]
        if not inside or offsets[inside[0]][0] < start or offsets[inside[-1]][1] > end:
            raise Unrenderable("token_across_turns", "a token lies across the border of an assistant turn")
        if ids[inside[-1]] != tokenizer.eos_token_id:
            raise Unrenderable("no_end_of_turn", f"an assistant turn's last trained token is not {tokenizer.eos_token}")
        for i in inside:
            labels[i] = ids[i]
    return Encoded(ids, labels)


def encodable(tokenizer: Any, chats: Iterable[list[Message]], longest: int) -> Iterator[Encoded]:
    """Those of `chats` that the template renders with exact labels and that have at most `longest` tokens, encoded."""
    for messages in chats:
        try:
            encoded = encode(tokenizer, messages)
        except Unrenderable:
            continue  # preprocess counts such rows by reason
        if len(encoded.ids) <= longest:
            yield encoded
