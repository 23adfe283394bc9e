"""The parts of a row's text and its quality, by which rows are compared."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from pipeline.chat.rows import ANSWERED, OTHERS, TURN_LISTS, Row
from pipeline.stages.curate.comparing.shingles import Hashes, Offsets, Tokens, filtered, tokenize
from pipeline.stages.curate.comparing.spill import offsets_of

_PLACEHOLDER = re.compile(r"\[[A-Z][A-Z0-9_]*_\d+\]")
_MOST = (1 << 20) - 1
SHORT_ANSWER = 40  # characters
_LARGEST = float(np.finfo(np.float32).max)


class Part(NamedTuple):
    """A text in a row, at a place of `pipeline.chat.rows.texts`. `asked` is True if it is in the request."""

    role: str
    text: str
    asked: bool
    field: str
    number: int = 0
    key: str = ""

    @property
    def place(self) -> str:
        """Return the place, as `messages 2`, `messages 2 tool_calls` or `answer`."""
        return " ".join(filter(None, (self.field, str(self.number or ""), self.key)))


def parts(row: Row) -> Iterator[Part]:
    """Yield all texts of a row in order: contents, reasoning, tool calls (as JSON), segments, the expected
    answer, other accepted ones.

    The request is the text of the user; in a chat only the text before the last answer.
    """
    roles = [turn["role"] for turn in row["messages"]]
    answered = row["kind"] in ANSWERED and "assistant" in roles
    last = len(roles) - roles[::-1].index("assistant") if answered else len(roles) + 1
    for field in TURN_LISTS:
        for number, turn in enumerate(row.get(field, ()), start=1):
            role = turn["role"]
            in_request = role == "user" and number < last and field == "messages"
            yield Part(role, turn["content"], in_request, field, number)
            if "reasoning_content" in turn:
                yield Part(role, turn["reasoning_content"], False, field, number, "reasoning_content")
            if "tool_calls" in turn:
                calls = orjson.dumps(turn["tool_calls"]).decode()
                yield Part(role, calls, False, field, number, "tool_calls")
    for number, segment in enumerate(row.get("segments", ()), start=1):
        yield Part("assistant" if segment["train"] else "user", segment["text"], False, "segments", number)
    if "answer" in row:
        yield Part("assistant", row["answer"], False, "answer")
    for reference in row.get(OTHERS, ()):
        yield Part("assistant", reference, False, OTHERS)


def key_of(texts: Iterable[str]) -> int:
    """Return a 64-bit hash of texts, ignoring case and white space."""
    return xxhash.xxh3_64_intdigest(
        " ".join(" \0 ".join(texts).casefold().split()).encode("utf-8", "surrogatepass")
    )


def content_key(row: Row) -> int:
    """Return a 64-bit hash of a row's content.

    Exact duplicates have the same one; case and white space are ignored.
    """
    extra = [orjson.dumps(row[field]).decode() for field in ("tools", "label") if field in row]
    return key_of(chain((row["kind"],), chain.from_iterable(part[:2] for part in parts(row)), extra))


def quality(row: Row) -> int:
    """Return a row's quality: more trained characters (20 bits), then fewer redaction placeholders (12)."""
    turns = [*row["messages"], *row.get("chosen", ())]
    trained = [turn["content"] for turn in turns if turn["role"] == "assistant" and turn.get("train", True)]
    trained += [segment["text"] for segment in row.get("segments", ()) if segment["train"]]
    placeholders = sum(len(_PLACEHOLDER.findall(text)) for text in trained if "[" in text)
    return min(sum(map(len, trained)), _MOST) << 12 | 4095 - min(placeholders, 4095)


def worth(row: Row) -> int:
    """Return a 64-bit number, of which the highest decides the near duplicate that is kept.

    The upper 32 bits are the reward, in the order of float32 and above any row without one. The lower 32 bits
    are `quality`.
    """
    if "reward" not in row:
        return quality(row)
    # The sum turns -0.0 into 0.0.
    nearest = np.clip(row["reward"], -_LARGEST, _LARGEST).astype(np.float32) + np.float32(0)
    bits = int(nearest.view(np.uint32))
    return (bits ^ 0xFFFFFFFF if bits >> 31 else bits | 1 << 31) << 32 | quality(row)


@dataclass(frozen=True)
class BlockTexts:
    """Texts of a block as tokens, without system turns.

    Each row's texts follow those of the row before it.
    """

    tokens: Tokens
    begins: Offsets  # shape (rows + 1): index of each row's first text
    asked: NDArray[np.bool_]  # one entry per text; True if it is part of the request
    requests: NDArray[np.uint64]  # shape (rows): key of the request, 0 if there is none

    def documents(self) -> tuple[Hashes, Offsets]:
        """Return the tokens of every row."""
        return self.tokens.hashes, self.tokens.offsets[self.begins]

    def request_documents(self) -> tuple[Hashes, Offsets]:
        """Return the tokens of every row's request."""
        is_request = np.repeat(self.asked, np.diff(self.tokens.offsets))
        return filtered(self.tokens.hashes, self.tokens.offsets[self.begins], is_request)


def block_texts(rows: Sequence[Row]) -> BlockTexts:
    """Return the texts of a block of rows."""
    parts_of = [list(parts(row)) for row in rows]
    without_system = [[part for part in row if part.role != "system"] for row in parts_of]
    requests = [[part.text for part in row if part.asked] for row in parts_of]
    return BlockTexts(
        tokenize([part.text for row in without_system for part in row]),
        offsets_of(np.array([len(row) for row in without_system], np.int64)),
        np.array([part.asked for row in without_system for part in row], np.bool_),
        np.array([key_of(request) if request else 0 for request in requests], np.uint64),
    )


def short_answer(row: Row) -> str:
    """Return the only answer of a row if it is as short as a label, otherwise "".

    Of two longer answers that hardly differ one is enough, and a reward says which of two is better.
    """
    answers = [turn["content"] for turn in row["messages"] if turn["role"] == "assistant"]
    answers += [row["answer"]] if "answer" in row else []
    is_short = len(answers) == 1 and len(answers[0]) <= SHORT_ANSWER
    return answers[0] if is_short and "reward" not in row else ""


def request_and_answer(row: Row) -> tuple[str, str]:
    """Return all text of the user, and the last answer (the chosen one of a preference), single-spaced."""
    turns = [*row["messages"], *row.get("chosen", [])]
    request = " ".join(turn["content"] for turn in turns if turn["role"] == "user")
    answer = next((turn["content"] for turn in reversed(turns) if turn["role"] == "assistant"), "")
    return request, " ".join(answer.split())
