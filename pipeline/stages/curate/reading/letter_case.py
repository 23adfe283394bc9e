"""Keys in another spelling: `Question`, ` answer` and `System Prompt` are the keys that formats know."""

from collections.abc import Sequence
from typing import Any

from pipeline.chat.rows import OTHERS
from pipeline.stages.curate.reading.formats import (
    GROUPS,
    PREFERRED,
    PROMPT_KEYS,
    SPEAKERS,
    TIMES,
    USERS,
    WITHOUT_TURNS,
)
from pipeline.stages.curate.reading.turns import MEDIA

KNOWN = frozenset(
    (
        *(key for keys, _ in GROUPS for key in keys),
        *MEDIA,
        *PREFERRED,
        *PROMPT_KEYS,
        *SPEAKERS,
        *TIMES,
        *USERS,
        *WITHOUT_TURNS,
        OTHERS,
        "category",
        "domain",
        "kto_tag",
        "label",
        "reward",
        "score",
    )
)
LONGEST = max(map(len, KNOWN)) + 8  # characters of a key that is looked at, with spaces around it


def with_known_keys(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with the keys that its formats know, wherever it has them in another spelling only."""
    if KNOWN.issuperset(row):  # the usual case
        return row
    names = list(row)
    known = known_names(names)
    return row if known == names else dict(zip(known, row.values(), strict=True))


def known_names(names: Sequence[str]) -> list[str]:
    """Return the names, each as the key that it spells. Of two that spell one key both stay as they are."""
    spelled: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        if name not in KNOWN and len(name) <= LONGEST:
            spelled.setdefault(name.strip().lower().replace(" ", "_").replace("-", "_"), []).append(place)
    known = list(names)
    for key, places in spelled.items():
        if key in KNOWN and key not in names and len(places) == 1:
            known[places[0]] = key
    return known
