"""Keep a server running: restart it after a crash or standstill, with growing pauses and an hourly limit."""

import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from pipeline.core.errors import MachineError, ToolError
from pipeline.llamacpp.server import GROWTH_BYTES, Server, log_end
from pipeline.llamacpp.standstill import watch

HOUR = 3600.0
RESTARTS = 5  # most restarts within an hour
# Seconds of the server's own clock without any answer; a batch of 512 tokens of a 7B takes some 50 s on two
# slow cores.
STALL_SECONDS = 120.0


def pause_after(crashes: deque[float], now: float) -> float | None:
    """Add a crash at `now` (seconds of a monotonic clock) to the `crashes` of the last hour. Return the
    seconds to wait before the next start: 1, 2, 4, 8, 16, or None after more than `RESTARTS`.
    """
    crashes.append(now)
    while now - crashes[0] >= HOUR:
        crashes.popleft()
    return None if len(crashes) > RESTARTS else 2.0 ** (len(crashes) - 1)


def keep_serving(
    start: Callable[[], AbstractContextManager[Server]], greeting: str, show: Callable[[str], None]
) -> None:
    """Start a server, again after each crash, until an exception stops it (KeyboardInterrupt does). `show`
    prints events, the `greeting` at the first start.

    Raises `ToolError` with the log's last lines if it crashed more than `RESTARTS` times within an hour. A
    very first start that fails raises its own `ToolError` or `MachineError`.
    """
    crashes = deque[float]()
    running = False
    end = ""
    while True:
        try:
            with start() as server:
                show("llama-server answers again" if running else greeting)
                running = True
                why = watch(server.process, server.client, STALL_SECONDS, GROWTH_BYTES)
                why = why or f"llama-server {how_it_ended(server.process.wait())}"
            end = log_end(server.log)
        except (ToolError, MachineError) as error:  # The start failed, or the port is in use.
            if not running:
                raise
            why, _, log = error.sentence.partition("\n")
            end = log or end
        pause = pause_after(crashes, time.monotonic())
        if pause is None:
            raise ToolError(
                "Q-SERVE-004",
                f"{why}, more than {RESTARTS} times within an hour: it is not started again; the "
                f"log ends with\n{end}",
            )
        show(
            f"{why}: starting it again in {pause:.0f} s (restart {len(crashes)} of at most {RESTARTS} "
            "within an hour)"
        )
        time.sleep(pause)


def how_it_ended(status: int) -> str:
    """Return an exit status of `subprocess` in words."""
    if status >= 0:
        return f"ended by itself with exit status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-status, f'signal {-status}')}"
