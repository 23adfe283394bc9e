"""Keep a server running: restart it after a crash or standstill, with growing pauses and an hourly limit."""

import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx

from pipeline.core.errors import MachineError, ToolError
from pipeline.core.usage import own_memory
from pipeline.llamacpp.server import GROWTH_BYTES, Server, log_end

HOUR = 3600.0
RESTARTS = 5  # most restarts within an hour
LOOK_SECONDS = 1.0
PROBE_SECONDS = 10.0
# seconds without any answer; a batch of 512 tokens of a 7B takes some 50 s on two slow cores
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
                why = watch(server)
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


def watch(server: Server, stall_seconds: float = STALL_SECONDS, growth_bytes: int = GROWTH_BYTES) -> str:
    """Wait until the server exits. Stop it if it answers nothing for `stall_seconds` or uses `growth_bytes`
    more memory. Return what happened.

    A request can keep llama-server's one loop busy without end (a grammar that grows exponentially does).
    `/health` doesn't go through that loop, `/lora-adapters` does.
    """
    answered = probed = time.monotonic()
    probe_seconds = min(PROBE_SECONDS, stall_seconds / 3)
    most = (own_memory(server.process.pid) or 0) + growth_bytes
    while not server.ended(min(LOOK_SECONDS, probe_seconds)):
        if (own_memory(server.process.pid) or 0) > most:
            return _end(server, f"llama-server took more than {most / 1e9:.1f} GB of memory and was ended")
        if time.monotonic() - probed < probe_seconds:
            continue
        try:
            server.client.get("/lora-adapters", timeout=probe_seconds)
            answered = time.monotonic()
        except httpx.TransportError:
            if time.monotonic() - answered > stall_seconds:
                return _end(server, f"llama-server answered nothing for {stall_seconds:.0f} s and was ended")
        probed = time.monotonic()
    return f"llama-server {how_it_ended(server.process.wait())}"


def _end(server: Server, why: str) -> str:
    server.process.kill()
    server.process.wait()
    return why


def how_it_ended(status: int) -> str:
    """Return an exit status of `subprocess` in words."""
    if status >= 0:
        return f"ended by itself with exit status {status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-status, f'signal {-status}')}"
