"""Append each written text to `models/.augment/KIND/journal.jsonl`, one line a text.

Every line is on the disk before the next text is requested, so a kill loses only the texts in progress. The
journal stays after the stage is done: a run after a change of scorer requests nothing again.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from pipeline.core.errors import DataError
from pipeline.core.hashing import json_hash
from pipeline.core.jsonl import BadLine, parse_object, to_line
from pipeline.core.progress import progress
from pipeline.stages.augment.instructions import Call

Text = dict[str, Any]  # keys: turn, stopped, calls, tokens, time
Ask = Callable[[dict[str, Any]], Text]


class Journal:
    """The texts of one kind, by the key of their call. The key covers the request and the writer."""

    def __init__(self, file: Path, writer: Mapping[str, Any]) -> None:
        self.file = file
        self.writer = writer
        self.texts = _read(file)
        self.lock = Lock()

    def key(self, call: Call) -> str:
        """Return the key of a call."""
        return json_hash([self.writer, call.request])

    def missing(self, calls: Sequence[Call]) -> list[Call]:
        """Return the calls that were not answered yet."""
        return [call for call in calls if self.key(call) not in self.texts]

    def tokens(self, calls: Sequence[Call]) -> int:
        """Return the tokens read and written for those of `calls` that were answered."""
        texts = (self.texts.get(self.key(call)) for call in calls)
        return sum(sum(text["tokens"]) for text in texts if text)

    def fill(self, calls: Sequence[Call], asking: AbstractContextManager[Ask], slots: int, most: int) -> None:
        """Answer the missing `calls`, `slots` at a time. `asking` is entered only if a call is missing.

        Raises the error of a failed call, after the texts that came before are kept, and `DataError` if the
        calls used more than `most` tokens.
        """
        missing = self.missing(calls)
        if not missing:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with asking as ask, self.file.open("ab") as file, progress("augment: texts", len(missing)) as advance:
            pool = ThreadPoolExecutor(slots)
            try:
                waiting = [pool.submit(self._answer, ask, call, file) for call in missing]
                used = self.tokens(calls)
                for done in as_completed(waiting):
                    used += done.result()
                    advance(1)
                    if used > most:
                        raise DataError(
                            "Q-AUGMENT-005",
                            f"the model has read and written {used:,} tokens, above augment.max_tokens "
                            f"({most:,}): raise it, or ask less; what was written is kept",
                        )
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _answer(self, ask: Ask, call: Call, file: BinaryIO) -> int:
        """Answer one call and keep the text before the slot starts the next one. Return the tokens used."""
        key = self.key(call)
        text = ask(call.request)
        with self.lock:
            self.texts[key] = text | {"time": datetime.now(UTC).isoformat(timespec="seconds")}
            file.write(to_line({"call": key, **self.texts[key]}).encode())
            file.flush()
            os.fsync(file.fileno())
        return sum(self.texts[key]["tokens"])

    def __getitem__(self, call: Call) -> Text:
        return self.texts[self.key(call)]


def _read(file: Path) -> dict[str, Text]:
    """Return the texts of a journal. A last line that a kill tore is cut off."""
    if not file.is_file():
        return {}
    lines = file.read_bytes().split(b"\n")
    torn = lines.pop()
    if torn:
        os.truncate(file, file.stat().st_size - len(torn))
    texts = {}
    for number, line in enumerate(lines, start=1):
        try:
            text = parse_object(line)
            texts[str(text.pop("call"))] = text | {"tokens": [int(part) for part in text["tokens"]]}
        except (BadLine, KeyError, TypeError, ValueError) as error:
            raise DataError(
                "Q-AUGMENT-006",
                f"{file}, line {number} is not what this stage wrote ({error}): delete the line, and its "
                "text is asked for again",
            ) from error
    return texts
