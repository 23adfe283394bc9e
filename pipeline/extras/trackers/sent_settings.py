"""The settings that a tracker gets: those that decide the model, without paths of this machine.

Commands, addresses and the settings of serving are not sent: they may contain a secret or a name.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.params import Params

SECTIONS = ("base", "curate", "augment", "preprocess", "train", "merge", "convert", "quantize")
NOT_SENT = {"external", "places", "report_to"}
# The folders of an absolute path, or of one below somebody's home, up to its last part.
FOLDERS = re.compile(r"(^|(?<=[=\s]))(?:~[^/\s]*)?/(?:\S*/)?(?=[^/\s]*)")
# The user and the password in an address, and what follows its question mark.
USER = re.compile(r"(?<=://)[^/@\s]*@")
QUERY = re.compile(r"(?<=\S)[?#]\S*$")


def sent_settings(params: Params) -> dict[str, Any]:
    """Return the settings that are sent, by their dotted keys."""
    values = params.model_dump(mode="json", include=set(SECTIONS))
    return dict(_flat(values, ""))


def _flat(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in NOT_SENT:
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        elif isinstance(value, list):
            yield f"{above}{name}", ", ".join(without_places(str(item)) for item in value)
        elif isinstance(value, str):
            yield f"{above}{name}", without_places(value)
        else:
            yield f"{above}{name}", value


def without_places(text: str) -> str:
    """Return a text with only the last part of a path, and an address without user, password and query."""
    if "://" in text:
        return QUERY.sub("", USER.sub("", text))
    return FOLDERS.sub("…/", text)
