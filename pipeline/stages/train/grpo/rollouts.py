"""Who completes prompts: llama-server with the current adapter, or the model in training itself.

Both draw from the model's own distribution: temperature 1 and no sampler that cuts it, or the probabilities
that come back would not be those that were drawn by.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol


class Request(NamedTuple):
    """A prompt's token ids, and the seed of one completion."""

    prompt: list[int]
    seed: int


class Drawn(NamedTuple):
    """A completion: ids with the end of turn, their log-probabilities or None, whether it ended."""

    ids: list[int]
    logps: list[float | None]
    stopped: bool


class Source(Protocol):
    """Who draws. `same_again` is whether the same requests give the same completions."""

    name: str
    same_again: bool

    def draw(self, model: Any, requests: Sequence[Request], heed: Callable[[], None]) -> list[Drawn]:
        """A completion by `model` for each request; `heed` is called between them, and may raise."""
        ...
