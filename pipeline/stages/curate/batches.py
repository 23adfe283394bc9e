"""Neighbors put together, so that work is done on many at a time and memory stays bounded."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def batches(
    items: Iterable[Item], size: Callable[[Item], int], limit: int, most: int
) -> Iterator[list[Item]]:
    """Neighboring items in lists of at most `most`, whose sizes add up to at most `limit` (or a single larger
    one).
    """
    batch: list[Item] = []
    held = 0
    for item in items:
        if batch and (len(batch) == most or held + size(item) > limit):
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += size(item)
    if batch:
        yield batch
