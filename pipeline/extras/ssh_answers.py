"""A host's side of `pipeline.extras.ssh`: answers, which are lines of JSON after MARK, because a login shell
may print other lines. It is sent with every program, so it uses the standard library alone.
"""

# An older Python on another machine can read the annotations then.
from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

MARK = "quench-answer: "
# seconds without news before a sign of life is sent; it tells the other end that the connection is not lost
QUIET_SECONDS = 5.0


def say(**answer: Any) -> None:
    """Print an answer, with bytes as base64. The process ends if nobody reads it."""
    try:
        line = json.dumps(answer, default=lambda data: base64.b64encode(data).decode())
        print(MARK + line, flush=True)
    except BrokenPipeError:
        os._exit(1)


def say_news(look: Callable[[], Iterable[dict[str, Any]]], pause: float, **sign_of_life: Any) -> None:
    """Send what `look` yields, again after `pause` seconds, until it yields {"ended": True}."""
    last = time.monotonic()
    while True:
        for answer in look():
            say(**answer)
            last = time.monotonic()
            if answer.get("ended"):
                return
        if time.monotonic() - last > QUIET_SECONDS:
            say(**sign_of_life)
            last = time.monotonic()
        time.sleep(pause)
