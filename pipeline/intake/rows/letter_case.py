"""Keys in another spelling: `Question`, ` answer` and `systemPrompt` are recognized as keys of formats."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pipeline.chat.rows import OTHERS
from pipeline.intake.rows.chats import TOOLS
from pipeline.intake.rows.formats import ANSWERS_OF_PAIRS, FORMAT_KEYS
from pipeline.intake.rows.pairs import PREFERRED
from pipeline.intake.rows.reasoning import READ, UNREAD
from pipeline.intake.rows.texts import LABELS, SPEAKERS, TIMES, USERS
from pipeline.intake.rows.turns import MEDIA
from pipeline.intake.rows.unread import PROMPT_KEYS

KNOWN = frozenset(
    (
        *ANSWERS_OF_PAIRS,
        *FORMAT_KEYS,
        *LABELS,
        *MEDIA,
        *PREFERRED,
        *PROMPT_KEYS,
        *READ,
        *SPEAKERS,
        *TIMES,
        *UNREAD,
        *USERS,
        *TOOLS,
        OTHERS,
        "category",
        "domain",
        "kto_tag",
        "reward",
        "score",
    )
)
KEPT_ROWS = 1024  # rows whose keys are cached
KEPT_LENGTH = 1000  # characters of the keys of such a row
HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
LONGEST = max(map(len, KNOWN)) + 8  # characters of a key that is checked, with spaces around it


def with_known_keys(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with the keys of formats, if it has them only in another spelling."""
    if KNOWN.issuperset(row):  # The usual case.
        return row
    names = tuple(row)
    # Most files have the same keys in every row. Long ones are not cached.
    known = _kept_names(names) if sum(map(len, names)) <= KEPT_LENGTH else tuple(known_names(names))
    return row if known == names else dict(zip(known, row.values(), strict=True))


def known_names(names: Sequence[str]) -> list[str]:
    """Return the names, each as the key that it spells. If two spell one key, both stay as they are."""
    spelled: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        if name not in KNOWN and len(name) <= LONGEST:
            spelled.setdefault(spelling(name), []).append(place)
    known = list(names)
    for key, places in spelled.items():
        if key in KNOWN and key not in names and len(places) == 1:
            known[places[0]] = key
    return known


def spelling(name: str) -> str:
    """Return a key in the spelling of formats: `systemPrompt` and `System Prompt` become `system_prompt`."""
    return HUMP.sub("_", name.strip().replace("CoT", "Cot")).lower().replace(" ", "_").replace("-", "_")


@lru_cache(KEPT_ROWS)
def _kept_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return `known_names` of the keys of a row."""
    return tuple(known_names(names))
