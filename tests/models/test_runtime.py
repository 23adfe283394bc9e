"""`give_back_holes` returns the process's free memory to the system."""

import sys

import psutil
import pytest
from needed import need

from pipeline.models.runtime import give_back_holes


@pytest.mark.skipif(sys.platform != "linux", reason=need("Linux"))
def test_holes_in_the_heap_are_the_systems_again() -> None:
    """Blocks that were freed between others which stay."""
    blocks = [bytearray(b"x" * 60_000) for _ in range(3_000)]  # each below glibc's threshold for a mapping
    kept = blocks[::10]
    full = psutil.Process().memory_info().rss
    del blocks
    give_back_holes()
    assert psutil.Process().memory_info().rss < full - 100_000_000
    assert all(block[-1] == ord("x") for block in kept)
