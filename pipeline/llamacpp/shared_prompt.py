"""Let llama-server compute the beginning that the prompts of many requests share only once.

Every slot is restored from one saved copy of that beginning before each request. A slot that keeps its last
prompt (`cache_prompt` alone) would start a request from what the request before it left there, in another
rounding, so that an answer would depend on the order of the requests. Here all of them start from the same
bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from pipeline.core.errors import ToolError
from pipeline.core.text import common_start
from pipeline.llamacpp.server import Server

FILE = "shared-prompt"
# llama-server empties a restored slot if its tokens are at most a tenth of the new prompt
# (`--slot-prompt-similarity`).
SMALLEST_SHARE = 0.11
Post = Callable[[str, dict[str, Any]], Any]


@dataclass(frozen=True)
class Restored:
    """Server whose slots contain the shared beginning at the start of each chat completion."""

    server: Server
    slots: "SimpleQueue[int]" = field(default_factory=SimpleQueue)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST the request of a completion to a free slot, after restoring it. Waits if none is free."""
        slot = self.slots.get()
        try:
            restore(self.server, slot)
            return self.server.post(path, body | {"id_slot": slot, "cache_prompt": True})
        finally:
            self.slots.put(slot)


@contextmanager
def sharing(server: Server, requests: Sequence[dict[str, Any]]) -> Iterator[Post]:
    """Yield the function that posts one of these chat completions.

    It is the server's own if the requests share too little, if there is one slot, which keeps the beginning
    by itself, and if the server can't save a slot.
    """
    shared = shared_tokens(server, requests) if server.parallel > 1 else []
    if not shared or not is_saved(server, shared):
        yield server.post
        return
    restored = Restored(server)
    for slot in range(server.parallel):
        restored.slots.put(slot)
    yield restored.post


def shared_tokens(server: Server, requests: Sequence[dict[str, Any]]) -> list[int]:
    """Return the tokens that all prompts begin with; none if they are a small part of the longest prompt."""
    if len(requests) < 2:
        return []
    first, *others = (
        server.tokens(server.post("/apply-template", request)["prompt"]) for request in requests
    )
    count = min(common_start(first, other) for other in others)
    longest = max(map(len, (first, *others)))
    return first[:count] if count > SMALLEST_SHARE * longest else []


def is_saved(server: Server, tokens: Sequence[int]) -> bool:
    """Compute and save the state after `tokens`. Return False if the server can't save or restore it."""
    body = {"prompt": list(tokens), "n_predict": 0, "temperature": 0, "id_slot": 0, "cache_prompt": False}
    try:
        server.post("/completion", body)
        server.post("/slots/0?action=save", {"filename": FILE})
        restore(server, 0)
    except ToolError:
        return False
    return True


def restore(server: Server, slot: int) -> None:
    """Put the saved state into a slot, in place of what it contains."""
    server.post(f"/slots/{slot}?action=restore", {"filename": FILE})
