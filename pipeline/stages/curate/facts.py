"""What is kept of a clean row for the rules that compare rows: a few numbers in the file of its shard."""

from functools import lru_cache

import numpy as np
import xxhash
from numpy.typing import NDArray

from pipeline.stages.curate.comparing.decide import ROW, Table

MOST_DOMAINS, OTHER = 1000, "(other)"  # a domain that is named once a row is no domain

# a clean row in the file of its shard, before domains have their numbers: what `ROW` has, the domain's name
# and the normalized content as 64-bit hashes
FACT = np.dtype(
    [
        ("file", "i4"),
        ("domain", "u8"),
        ("key", "u8"),
        ("exact", "u8"),
        ("turns", "u2"),
        ("kind", "u1"),
        ("scored", "?"),
    ]
)


def table_of(facts: NDArray, domains: dict[str, None]) -> Table:
    """What the rules that compare rows need to know of each clean row, given their `FACT`s; a domain that is
    not among `domains` counts as `OTHER`, which is then added to them.
    """
    known = np.array([hash_of(name) for name in domains], np.uint64)
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], facts["domain"]), max(len(known) - 1, 0))
    found = known[order][at] == facts["domain"] if len(known) else np.zeros(len(facts), np.bool_)
    table = np.empty(len(facts), ROW)
    for name in ("file", "key", "turns", "kind", "scored"):
        table[name] = facts[name]
    table["domain"] = order[at] if len(known) else 0
    if not found.all():
        domains.setdefault(OTHER)
        table["domain"][~found] = list(domains).index(OTHER)
    return table.view(np.recarray)


@lru_cache(MOST_DOMAINS)
def hash_of(domain: str) -> int:
    """A domain's name as a 64-bit number."""
    return xxhash.xxh3_64_intdigest(domain.encode("utf-8", "surrogatepass"))
