"""Notice when llama-server stands still, however slow the machine is.

The clock is the server's own: the time that its busiest thread had a processor. So on a machine that does
other work too, patience grows as the server's share shrinks. A server that waits for something that never
comes uses no processor; for it a fraction of the time on the wall counts.
"""

import subprocess
import time

import httpx

from pipeline.core.usage import own_memory, processor_seconds

LOOK_SECONDS = 1.0
PROBE_SECONDS = 10.0
WALL_SHARE = 0.2  # share of the time on the wall that counts at least: a fifth of a processor


class Standstill:
    """Clock of a process since its last sign of life."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.reset()

    def reset(self) -> None:
        """Begin anew, because the process has shown life."""
        self.began = time.monotonic()
        self.used = processor_seconds(self.pid)

    def seconds(self) -> float:
        """Return the seconds for which the process has shown no life, as far as it could have."""
        busiest = max(
            (used - self.used.get(thread, 0.0) for thread, used in processor_seconds(self.pid).items()),
            default=0.0,
        )
        return max(busiest, WALL_SHARE * (time.monotonic() - self.began))


def watch(
    process: subprocess.Popen[bytes],
    client: httpx.Client,
    stall_seconds: float,
    growth_bytes: int | None = None,
) -> str:
    """Wait until the server `process` exits. Kill it if it answers `client` nothing for `stall_seconds` of
    its own clock, or uses `growth_bytes` more memory. Return why it was killed; "" if it exited by itself.

    A request can keep llama-server's one loop busy without end (a grammar that grows exponentially does).
    `/health` doesn't go through that loop, `/lora-adapters` does.
    """
    probe_seconds = min(PROBE_SECONDS, stall_seconds / 3)
    probed = time.monotonic()
    standstill = Standstill(process.pid)
    before = own_memory(process.pid) or 0
    while _runs(process, min(LOOK_SECONDS, probe_seconds)):
        memory = own_memory(process.pid) or 0
        if growth_bytes is not None and memory > before + growth_bytes:
            return _killed(process, f"took more than {(before + growth_bytes) / 1e9:.1f} GB of memory")
        if time.monotonic() - probed < probe_seconds:
            continue
        try:
            client.get("/lora-adapters", timeout=probe_seconds)
            standstill.reset()
        except httpx.TransportError:
            if standstill.seconds() > stall_seconds:
                return _killed(process, f"answered nothing for {stall_seconds:.0f} s")
        probed = time.monotonic()
    return ""


def _runs(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait up to `seconds` for the process to exit. Return False if it did."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _killed(process: subprocess.Popen[bytes], why: str) -> str:
    process.kill()
    process.wait()
    return f"llama-server {why} and was ended"
