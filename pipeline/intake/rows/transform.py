"""Transformation of a row by a function of the user (`curate.transform`), before anything else looks at it.

    def renamed(row: dict) -> dict | list[dict] | str | None:
        if not row["bash"]:
            return "no command"  # the reason in data/rejects.jsonl
        return {"prompt": row["nl"], "completion": row["bash"]}

The function is the user's code. It runs with the user's rights, as custom scorers do, and not in a sandbox.
It is loaded once in each process. Its result is parsed as strictly as a line of data/raw.
"""

import json
import signal
import threading
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from types import FrameType
from typing import Any

from pipeline.config.scorers import NAME
from pipeline.core.errors import DataError
from pipeline.core.jsonl import BadLine, parse_line
from pipeline.core.text import one_line
from pipeline.core.user_code import load_function

Value = dict[str, Any]
SECONDS = 10.0  # seconds that the function may take for a row
TRIED_TWICE = 1000  # Every so many rows the function is called again, and must return the same.
MOST_ROWS = 10_000  # rows made of one row
ALWAYS_THE_SAME = "have it depend on the row alone"
SHOWN = 300  # characters of the user's text in a sentence
KEYS_SHOWN = 8  # keys of a row that a sentence names
KEY_SHOWN = 40  # characters of such a key


class TooSlowError(BaseException):
    """Error for a function that took longer than `SECONDS`. It is not an `Exception`, which the function
    itself could catch.
    """


class Transform:
    """The function `name` (python:FILE.py:FUNCTION), with FILE below `folder`."""

    def __init__(self, name: str, folder: Path) -> None:
        match = NAME.fullmatch(name.removeprefix("python:"))
        assert match  # The settings are refused otherwise.
        self.name = name
        self.file = folder / match["file"]
        self.function = load_function(self.file, match["function"], "make rows of rows (curate.transform)")
        self.calls = 0
        self.is_timed = threading.current_thread() is threading.main_thread()
        if self.is_timed:  # Only the main thread receives signals.
            signal.signal(signal.SIGALRM, _too_slow)

    def rows(self, value: Value, source: str) -> list[Value]:
        """Return the rows that the function makes of one. `source` is FILE:LINE.

        Raises `BadLine` if it rejects the row or returns a value that can't be a row, `DataError` if it
        fails.
        """
        again = deepcopy(value) if self.calls % TRIED_TWICE == 0 else None
        self.calls += 1
        returned = self._call(value, source)
        texts = self._texts(returned, source)
        if again is not None and self._texts(self._call(again, source), source) != texts:
            raise self._wrong(source, "it returned something else when it was called again", ALWAYS_THE_SAME)
        if isinstance(texts, str):
            raise BadLine("transform_rejected", texts)
        return [parse_line(text) for text in texts]

    def _call(self, value: Value, source: str) -> Any:
        """Call the function. Return what it returns."""
        keys = list(value)  # The function may change the row before it fails.
        if self.is_timed:
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            return self.function(value)
        except TooSlowError:
            raise self._wrong(source, f"it took longer than {SECONDS:g} s", "make it faster") from None
        # Any exception comes from the user's code, and the row helps to find it.
        except (Exception, SystemExit) as error:
            what = f"it raised {type(error).__name__}: {one_line(str(error), SHOWN)}"
            if isinstance(error, KeyError) and keys:
                what += f"; the row has the keys {named_keys(keys)}"
            raise self._wrong(source, what, "correct it") from error
        finally:
            if self.is_timed:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _texts(self, returned: Any, source: str) -> list[bytes] | str:
        """Return the rows as JSON, or the reason why there is none."""
        if isinstance(returned, dict) and returned.keys() == {"reject"}:
            returned = returned["reject"]
        if returned is None or returned == []:
            return f"{self.name} returned no row"
        if isinstance(returned, str):
            return one_line(returned, SHOWN) or f"{self.name} returned no row"
        rows = [returned] if isinstance(returned, dict) else returned
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            what = (
                f"it returned {one_line(repr(returned), SHOWN)}, which is no row (dict), list of rows or text"
            )
            raise self._wrong(source, what, "correct it")
        if len(rows) > MOST_ROWS:
            raise self._wrong(source, f"it returned {len(rows):,} rows", f"return {MOST_ROWS:,} at most")
        try:
            # The standard library's writer keeps NaN and halves of surrogate pairs, so that the reader finds
            # them.
            return [json.dumps(row).encode() for row in rows]
        except (TypeError, ValueError, RecursionError) as error:
            what = f"it returned what JSON doesn't have ({one_line(str(error), SHOWN)})"
            raise self._wrong(source, what, "correct it") from None

    def _wrong(self, source: str, what: str, remedy: str) -> DataError:
        return DataError("Q-CURATE-025", f"{self.name}, {source}: {what}: {remedy} ({self.file})")


def named_keys(keys: Sequence[str]) -> str:
    """Return the first keys of a row as text, and the number of the others."""
    more = f" and {len(keys) - KEYS_SHOWN} more" if len(keys) > KEYS_SHOWN else ""
    return ", ".join(one_line(key, KEY_SHOWN) for key in keys[:KEYS_SHOWN]) + more


def _too_slow(signal_number: int, frame: FrameType | None) -> None:
    raise TooSlowError
