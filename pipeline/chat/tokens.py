"""Rows as the model sees them: the base's tokenizer, token ids, and the tokens that are trained.

The text and its trained ranges come from `pipeline.chat.rendering`. Two things are checked for every row: the
template drops no content, and no control token comes from the content (`pipeline.chat.template_probe`).
"""

import errno
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.chat.rendering import Rendered, Unrenderable, control_ids, implied_ids, renderings
from pipeline.chat.rows import ABOUT_TRAINING, ToolCall
from pipeline.chat.template_probe import Message, Tools
from pipeline.chat.tokenizer_file import PROBES, panics_as_errors, plain_tokenizer
from pipeline.core.errors import DataError
from pipeline.core.text import common_start, listed

NOT_LEARNED = "not_learned"  # reason of a row whose kind the training method doesn't learn from
IGNORED = -100  # label that PyTorch's cross entropy ignores
TOGETHER = 256  # rows that are tokenized in one call
# A row of data/final, as `pipeline.chat.rows` describes it. Rows of older runs have no kind and are chats.
Row = dict[str, Any]


@dataclass(frozen=True)
class Encoded:
    """A sequence of token ids and its labels, both of length T. A label is the id itself or `IGNORED`.

    `part` is the number (from 1) of the trained turn if the row is unfolded, or the name of the answer if the
    row is a pair. Otherwise it is None, and the sequence is the entire row. `role` is 1 for an answer that is
    preferred, -1 for one that is not.
    """

    ids: list[int]
    labels: list[int]
    part: int | str | None = None
    role: int = 0

    def name_in(self, row: str) -> str:
        """Return the sequence's name in a row of this name."""
        return row if self.part is None else f"{row}#{self.part}"


def load_tokenizer(folder: Path) -> Any:
    """Return `read_tokenizer` of a folder. Raises `DataError` if the end-of-turn token is missing, too."""
    tokenizer = read_tokenizer(folder)
    need_end_of_turn(tokenizer, folder)
    return tokenizer


def need_end_of_turn(tokenizer: Any, folder: Path) -> None:
    """Raise `DataError` if the tokenizer of `folder` has no end-of-turn token."""
    if tokenizer.eos_token is None:
        raise DataError(
            "Q-CHAT-002",
            f"{folder} names no end-of-turn token (eos_token): fix its tokenizer_config.json",
        )


@panics_as_errors()
def read_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a model folder, after checking that it is the one of its `tokenizer.json`.

    transformers 5 picks the tokenizer class by `config.model_type` and can replace the pre-tokenizer
    silently. So its ids are compared with those of the file, which llama.cpp reads (`go_by_file`). Raises
    `DataError` on a difference that stays. A chat template may be missing: texts need none, and `render`
    refuses chats.
    """
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").is_file():  # transformers would search for a repository of this name.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / "tokenizer.json"))
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    go_by_file(tokenizer, folder)
    return tokenizer


def go_by_file(tokenizer: Any, folder: Path) -> None:
    """Make `tokenizer` split text as the tokenizer.json of `folder` does, if transformers' class for it does
    otherwise: by another pattern, or with no space after a control token (Llama 2's).

    Raises `DataError` if its tokens are not the file's.
    """
    plain = plain_tokenizer(folder)
    if first_difference(tokenizer, plain) is None:
        return
    known = {token.content for token in plain.get_added_tokens_decoder().values()}
    unknown = tokenizer.get_added_vocab().keys() - known
    if not unknown:
        tokenizer._tokenizer = plain
    different = first_difference(tokenizer, plain)
    if different and unknown:
        raise DataError(
            "Q-CHAT-003",
            f"{folder} names {listed(sorted(unknown))} as special, and its tokenizer.json has no such token: "
            "take the tokenizer.json that the model was trained with, or name tokens that it has",
        )
    if different:
        text, loaded, expected = different
        same = common_start(loaded, expected)
        raise DataError(
            "Q-CHAT-003",
            f"{folder}: behind {plain.decode(loaded[:same])[-20:]!r} transformers' tokenizer gives "
            f"{loaded[same : same + 8]} in {text!r}, its tokenizer.json gives {expected[same : same + 8]}: "
            "fetch the base again",
        )


def first_difference(tokenizer: Any, plain: Any) -> tuple[str, list[int], list[int]] | None:
    """Return the first probe that two tokenizers give different ids, and both; None if there is none."""
    for text in probes(tokenizer):
        loaded = tokenizer(text, add_special_tokens=False)["input_ids"]
        expected = plain.encode(text, add_special_tokens=False).ids
        if loaded != expected:
            return text, loaded, expected
    return None


def probes(tokenizer: Any) -> Iterator[str]:
    """Yield texts on which tokenizers differ: `PROBES`, and text around control tokens."""
    yield from PROBES
    for token in dict.fromkeys(filter(None, (tokenizer.bos_token, tokenizer.eos_token))):
        yield f"{token}[INST] Which {token} river?{token}\nThe Nile"


def template_of(tokenizer: Any) -> str:
    """Return the chat template that renders conversations without tools; "" if there is none."""
    return str(tokenizer.get_chat_template()) if tokenizer.chat_template else ""


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer into a model's folder.

    Several named templates are all written to tokenizer_config.json, because code that passes a tokenizer on
    copies files, and not a folder of templates.
    """
    tokenizer.save_pretrained(folder, save_jinja_files=isinstance(tokenizer.chat_template, str))


def chats(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows of kind chat."""
    return (row for row in rows if row.get("kind", "chat") == "chat")


def chat_request(messages: list[Message], tools: Tools = None) -> dict[str, Any]:
    """Return the conversation in the form of OpenAI's API, in which the arguments of calls are text."""
    turns = [
        {
            key: [_as_text(call) for call in value] if key == "tool_calls" else value
            for key, value in message.items()
            if key not in ABOUT_TRAINING
        }
        for message in messages
    ]
    return {"messages": turns, "tools": tools} if tools else {"messages": turns}


def encode(tokenizer: Any, rows: Iterable[Row]) -> Iterator[tuple[Row, list[Encoded] | Unrenderable]]:
    """Yield each row with its token ids and labels, or with the reason why it has none.

    A chat is rendered. Labels are on the assistant's text (not on turns with `train: false`) and its ends of
    turn (not on that of a truncated answer). It becomes several sequences if the template unfolds it
    (`pipeline.chat.rendering`). The segments of a text are tokenized one by one. The tokenizer's beginning of
    text is put before them (if it sets one). Its end of text is put after them, if the last one is trained
    and has none.
    """
    rows = iter(rows)
    while batch := list(islice(rows, TOGETHER)):
        rendered = [_rendered(tokenizer, row) for row in batch]
        encodings = iter(
            _tokenized(tokenizer, [chat.text for each in rendered if isinstance(each, list) for chat in each])
        )
        for row, each in zip(batch, rendered, strict=True):
            if isinstance(each, Unrenderable):
                yield row, each
                continue
            encodings_of_row = list(islice(encodings, len(each)))
            try:
                if row.get("kind", "chat") == "text":
                    yield row, [encode_segments(tokenizer, row["segments"])]
                else:
                    yield (
                        row,
                        [
                            _labeled(tokenizer, rendering, row.get("tools"), ids)
                            for rendering, ids in zip(each, encodings_of_row, strict=True)
                        ],
                    )
            except Unrenderable as why:
                yield row, why


def _rendered(tokenizer: Any, row: Row) -> list[Rendered] | Unrenderable:
    """Return the row's texts; none for a row of kind text, which has no template."""
    kind = row.get("kind", "chat")
    if kind == "text":
        return []
    if kind != "chat":
        return not_learned(row, "sft")
    try:
        return renderings(tokenizer, row["messages"], row.get("tools"))
    except Unrenderable as why:
        return why


def not_learned(row: Row, method: str) -> Unrenderable:
    """Return the reason why `method` does not learn from a row."""
    return Unrenderable(
        NOT_LEARNED, f"train.method {method} has no use for a row of kind {row.get('kind', 'chat')}"
    )


def _tokenized(tokenizer: Any, texts: list[str]) -> list[Any]:
    """Return the texts as `tokenizers.Encoding`s: ids, and the characters that each comes from.

    All are encoded in one call, which takes half as long.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # Some tokenizer.json files set it.
    backend.no_padding()
    return list(backend.encode_batch(texts, add_special_tokens=False))


def _labeled(tokenizer: Any, rendered: Rendered, tools: Tools, encoding: Any) -> Encoded:
    """Return the ids of a rendered conversation, with labels only on its trained ranges.

    Raises `Unrenderable` if the template drops tools, calls or reasoning, if a token crosses the border of a
    trained range, and if a control token comes from the content.
    """
    implied = implied_ids(tokenizer, rendered.messages, tools, rendered.since)
    ids: list[int] = encoding.ids
    if control_ids(tokenizer, ids) != implied:
        raise Unrenderable("control_token", "a text holds one of the tokenizer's control tokens")
    labels = [IGNORED] * len(ids)
    for start, end in rendered.spans:
        # Some tokenizers assign the space before a word to none of the tokens.
        first = next(
            (token for place in range(start, end) if (token := encoding.char_to_token(place)) is not None),
            None,
        )
        last = encoding.char_to_token(end - 1)
        if (
            first is None
            or last is None
            or encoding.token_to_chars(first)[0] < start
            or encoding.token_to_chars(last)[1] > end
        ):
            raise Unrenderable("token_across_turns", "a token lies across the border of an assistant turn")
        # The range of a truncated answer ends before its end of turn.
        is_ended = rendered.text.endswith(tokenizer.eos_token, start, end)
        if is_ended and ids[last] != tokenizer.eos_token_id:
            raise Unrenderable(
                "no_end_of_turn", f"an assistant turn's last trained token is not {tokenizer.eos_token}"
            )
        if tokenizer.eos_token_id in ids[first:last]:
            raise Unrenderable(
                "no_end_of_turn",
                f"the template writes {tokenizer.eos_token} inside an assistant turn, where the model would "
                "stop",
            )
        labels[first : last + 1] = ids[first : last + 1]
    return Encoded(ids, labels, rendered.part)


def encode_segments(tokenizer: Any, segments: list[dict[str, Any]]) -> Encoded:
    """Return the token ids of untemplated text, with labels on segments to train. Raises `Unrenderable` if
    there are none.
    """
    begin = [token for token in tokenizer("")["input_ids"][:1] if token == tokenizer.bos_token_id]
    ids = list(begin)
    labels = [IGNORED] * len(begin)
    for segment in segments:
        piece: list[int] = tokenizer(segment["text"], add_special_tokens=False)["input_ids"]
        if begin and piece[:1] == begin and len(ids) == 1:
            piece = piece[1:]  # The text begins with its own.
        ids += piece
        labels += piece if segment["train"] else [IGNORED] * len(piece)
    if all(label == IGNORED for label in labels):
        raise Unrenderable("nothing_to_train", "no segment that is to be trained")
    if segments[-1]["train"] and ids[-1] != tokenizer.eos_token_id:
        ids.append(tokenizer.eos_token_id)
        labels.append(tokenizer.eos_token_id)
    return Encoded(ids, labels)


def encodable(tokenizer: Any, rows: Iterable[Row], longest: int) -> Iterator[Encoded]:
    """Yield the sequences of those `rows` that encode with exact labels in at most `longest` tokens."""
    for _, encoded in encode(tokenizer, rows):
        if not isinstance(encoded, Unrenderable):  # preprocess counts such rows by reason.
            yield from (encoding for encoding in encoded if len(encoding.ids) <= longest)


def trained_positions(encoded: Encoded) -> list[int]:
    """Return the positions whose next token is trained: those at which a model is tested on its training."""
    return [i - 1 for i, label in enumerate(encoded.labels) if label != IGNORED]


def _as_text(call: ToolCall) -> dict[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
