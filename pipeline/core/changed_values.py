"""Values by dotted key, such as settings and figures, and those that differ between two of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ChangedValue:
    """A value that differs; None where there is no such key."""

    key: str
    before: Any
    after: Any

    @property
    def difference(self) -> float | None:
        """The value after minus that before, if both are numbers."""
        values = (self.before, self.after)
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
            return None
        return float(self.after) - float(self.before)


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with keys like train.r. Lists and empty mappings are values."""
    by_key: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            by_key |= flat(value, f"{name}.")
        else:
            by_key[name] = value
    return by_key


def changed_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[ChangedValue]:
    """Return the values that differ, in the order of the keys before, then of those that are new."""
    keys = dict.fromkeys((*before, *after))
    both = [ChangedValue(key, before.get(key), after.get(key)) for key in keys]
    return [value for value in both if value.before != value.after]
