"""The random number generators that training draws from: taken and put back."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def random_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and PyTorch's generators (CPU and GPU)."""
    import numpy as np
    import torch

    state = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}
    return state | ({"cuda": torch.cuda.random.get_rng_state_all()} if torch.cuda.is_available() else {})


def set_random_state(state: dict[str, Any]) -> None:
    """Put the generators where they were when `state` was taken."""
    import numpy as np
    import torch

    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.random.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.random.set_rng_state_all(state["cuda"])


@contextmanager
def random_state_of(state: dict[str, Any]) -> Iterator[None]:
    """The generators as they were in `state` for a while, then as they are now."""
    now = random_state()
    set_random_state(state)
    try:
        yield
    finally:
        set_random_state(now)


@contextmanager
def drawn_for(*numbers: int) -> Iterator[None]:
    """PyTorch's generators as `numbers` alone say (seed, step, micro-batch); afterwards as they were.

    So the dropout of a micro-batch depends neither on those before it nor on the process that computes it.
    """
    import torch

    digest = hashlib.sha256(",".join(map(str, numbers)).encode()).digest()
    cards = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=cards):
        torch.manual_seed(int.from_bytes(digest[:4]))
        yield
