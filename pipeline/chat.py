"""Rows as the model sees them: the base's own template, token ids, and which tokens are trained.

The label mask comes from rendering, not from looking for markers: the text up to an assistant turn (with the
generation prompt) must be a prefix of the text with that turn; what the turn adds, up to and including its
end-of-turn token, is what is trained. Two things are proven of every row: the template drops nothing that is said,
and no control token comes from what is said (`pipeline.skeleton`).
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import DataError
from pipeline.skeleton import shown, skeleton

IGNORED = -100  # the label that PyTorch's cross entropy leaves out
Message = dict[str, Any]
Tools = list[dict[str, Any]] | None
Row = dict[str, Any]  # of data/final, as `pipeline.rows` describes them; those of older runs have no kind and are chats


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


def render(tokenizer: Any, messages: list[Message], tools: Tools = None, *, add_generation_prompt: bool = False) -> str:
    """The conversation as text by the model's own template. Raises `Unrenderable` where the template refuses it."""
    from jinja2 import TemplateError

    try:
        return str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt))
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # a template is a program
        raise Unrenderable("template_refuses", f"the chat template says: {error}") from error


def chats(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows of kind chat."""
    return (row for row in rows if row.get("kind", "chat") == "chat")


def chat_request(messages: list[Message], tools: Tools = None) -> dict[str, Any]:
    """The conversation as OpenAI's API takes it: the arguments of calls are text there."""
    turns = [{key: value for key, value in message.items() if key != "train"} for message in messages]
    for turn in turns:
        if "tool_calls" in turn:
            turn["tool_calls"] = [_as_text(call) for call in turn["tool_calls"]]
    return {"messages": turns, "tools": tools} if tools else {"messages": turns}


def trained_spans(tokenizer: Any, messages: list[Message], tools: Tools = None) -> tuple[str, list[tuple[int, int]]]:
    """The whole text and the character ranges [start, end) that are trained: each assistant turn and its end-of-turn token.

    A turn with `train: false` is none of them. Raises `Unrenderable` where the template drops a text, rewrites earlier
    turns or a turn doesn't end in the end-of-turn token.
    """
    text = render(tokenizer, messages, tools)
    refuse_drops(text, messages)
    spans = []
    for turn, message in enumerate(messages):
        if message["role"] != "assistant" or message.get("train") is False:
            continue
        before = render(tokenizer, messages[:turn], tools, add_generation_prompt=True)
        after = text if turn + 1 == len(messages) else render(tokenizer, messages[: turn + 1], tools)
        if not after.startswith(before) or not text.startswith(after):
            raise Unrenderable("template_rewrites", f"the template renders turn {turn + 1} differently once more turns follow")
        end = after.rfind(tokenizer.eos_token)
        if end < len(before):
            raise Unrenderable("no_end_of_turn", f"turn {turn + 1} does not end in {tokenizer.eos_token}")
        spans.append((len(before), end + len(tokenizer.eos_token)))
    if not spans:
        raise Unrenderable("nothing_to_train", "no assistant turn that is to be trained")
    return text, spans


def refuse_drops(text: str, messages: list[Message]) -> None:
    """Raise `Unrenderable` unless `text` shows all that is said, turn after turn (trimmed or as a JSON string, if the template likes)."""
    position = 0
    for number, message in enumerate(messages, start=1):
        in_order = message["role"] != "system"  # templates move system turns
        for key, start in (("reasoning_content", 0), ("content", position if in_order else 0)):
            words = message.get(key, "").strip()
            found = text.find(words, start)
            if found < 0:
                words = json.dumps(words, ensure_ascii=False)[1:-1]
                found = text.find(words, start)
            if found < 0:
                raise Unrenderable("template_drops", f"the chat template does not show the {key} of turn {number}")
        position = found + len(words) if in_order else position


def encode(tokenizer: Any, row: Row) -> Encoded:
    """Token ids and labels of a chat or a text. Raises `Unrenderable`, for other kinds with `not_a_chat`.

    A chat is rendered; labels are on what the assistant says (not on turns with `train: false`) and its ends of turn.
    The segments of a text are tokenised one by one; the tokenizer's beginning of text goes before them (if it sets one)
    and its end of text after them, if the last one is trained and has none.
    """
    kind = row.get("kind", "chat")
    if kind == "text":
        return encode_segments(tokenizer, row["segments"])
    if kind != "chat":
        raise Unrenderable("not_a_chat", f"supervised training has no use for a row of kind {kind}")
    return encode_chat(tokenizer, row["messages"], row.get("tools"))


def encode_chat(tokenizer: Any, messages: list[Message], tools: Tools = None) -> Encoded:
    """Token ids of the rendered conversation, with labels on the assistant's text and its end of turn only.

    Raises `Unrenderable` as `trained_spans` does, where the template drops tools, calls or reasoning, where a token lies
    across the border of a trained range, and where a control token comes from what is said.
    """
    text, spans = trained_spans(tokenizer, messages, tools)
    implied = _implied_ids(tokenizer, str(tokenizer.chat_template), json.dumps(skeleton(messages, tools)))
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids: list[int] = encoded["input_ids"]
    if _added_only(tokenizer, ids) != implied:
        raise Unrenderable("control_token", "a text holds one of the tokenizer's control tokens")
    labels = [IGNORED] * len(ids)
    starts, ends = [first for first, _ in encoded["offset_mapping"]], [last for _, last in encoded["offset_mapping"]]
    for start, end in spans:
        first, last = bisect_right(ends, start), bisect_left(starts, end)  # the tokens first ... last - 1 touch the range
        if first >= last or starts[first] < start or ends[last - 1] > end:
            raise Unrenderable("token_across_turns", "a token lies across the border of an assistant turn")
        if ids[last - 1] != tokenizer.eos_token_id:
            raise Unrenderable("no_end_of_turn", f"an assistant turn's last trained token is not {tokenizer.eos_token}")
        labels[first:last] = ids[first:last]
    return Encoded(ids, labels)


def encode_segments(tokenizer: Any, segments: list[dict[str, Any]]) -> Encoded:
    """Token ids of text without a template, with labels on the segments to train. Raises `Unrenderable` where there is none."""
    begin = [token for token in tokenizer("")["input_ids"][:1] if token == tokenizer.bos_token_id]
    ids, labels = list(begin), [IGNORED] * len(begin)
    for segment in segments:
        piece: list[int] = tokenizer(segment["text"], add_special_tokens=False)["input_ids"]
        if begin and piece[:1] == begin and len(ids) == 1:
            piece = piece[1:]  # the text brings its own
        ids += piece
        labels += piece if segment["train"] else [IGNORED] * len(piece)
    if all(label == IGNORED for label in labels):
        raise Unrenderable("nothing_to_train", "no segment that is to be trained")
    if segments[-1]["train"] and ids[-1] != tokenizer.eos_token_id:
        ids.append(tokenizer.eos_token_id)
        labels.append(tokenizer.eos_token_id)
    return Encoded(ids, labels)


def encodable(tokenizer: Any, rows: Iterable[Row], longest: int) -> Iterator[Encoded]:
    """Those of `rows` that can be encoded with exact labels and that have at most `longest` tokens, encoded."""
    for row in rows:
        try:
            encoded = encode(tokenizer, row)
        except Unrenderable:
            continue  # preprocess counts such rows by reason
        if len(encoded.ids) <= longest:
            yield encoded


@lru_cache(maxsize=4096)
def _implied_ids(tokenizer: Any, template: str, bare: str) -> list[int]:
    """The ids of control tokens that the turns of the skeleton `bare` (JSON of messages and tools) imply under `template`, in order.

    Raises `Unrenderable` where the template doesn't show something of them.
    """
    messages, tools = json.loads(bare)
    text = render(tokenizer, messages, tools)
    for what, stand_in in shown(messages, tools):
        if stand_in not in text:
            raise Unrenderable("template_drops", f"the chat template does not show {what}")
    keys = [key for message in messages for call in message.get("tool_calls", ()) for key in call["function"]["arguments"]]
    if any(f"'{key}':" in text for key in keys):
        raise Unrenderable("template_not_json", "the chat template writes the arguments of a call as Python, not as JSON")
    return _added_only(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])


def _added_only(tokenizer: Any, ids: list[int]) -> list[int]:
    added = _added_ids(tokenizer)
    return [token for token in ids if token in added]


@lru_cache(maxsize=8)
def _added_ids(tokenizer: Any) -> frozenset[int]:
    """The ids of the tokenizer's added tokens, without the harmless: white space (runs of it, as "  " or "▁▁") and single letters."""
    return frozenset(number for token, number in tokenizer.get_added_vocab().items() if len(token) > 1 and token.replace("▁", " ").strip())


def _as_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return call | {"function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
