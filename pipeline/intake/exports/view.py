"""The lenient view of an object that another program wrote: its values by key, each as the type that is asked
for.

A value of another type counts as missing, because programs change their files without notice. A reader that
must not continue without a key asks for it (`has`) and raises `BadLine`.
"""

from types import UnionType
from typing import Any


class View(dict[str, Any]):
    """An object of a program's file. It is empty if the value is not an object. No method raises."""

    def __init__(self, value: Any = None) -> None:
        super().__init__(value if isinstance(value, dict) else ())

    def has(self, key: str, kind: type | UnionType) -> bool:
        """Return True if the value has this type."""
        return isinstance(self.get(key), kind)

    def text(self, key: str) -> str:
        """Return a text; an empty one for any other value."""
        return self.text_or_none(key) or ""

    def texts(self, *keys: str) -> str:
        """Return the texts of these keys that are not blank, with an empty line between them."""
        return texts(*map(self.get, keys))

    def text_or_none(self, key: str) -> str | None:
        """Return a text, such as the id of another object; None for any other value."""
        value = self.get(key)
        return value if isinstance(value, str) else None

    def label(self, *keys: str, default: Any = "") -> str:
        """Return the first value that is not empty as text, such as a name or a number; else the default."""
        return str(next(filter(None, map(self.get, keys)), default))

    def integer(self, key: str) -> int:
        """Return a whole number; 0 for any other value."""
        value = self.get(key)
        return value if isinstance(value, int) else 0

    def number(self, key: str) -> float:
        """Return a number; 0 for any other value."""
        value = self.get(key)
        return value if isinstance(value, int | float) else 0

    def object(self, key: str) -> "View":
        """Return an object; an empty one for any other value."""
        return View(self.get(key))

    def array(self, key: str) -> list[Any]:
        """Return a list; an empty one for any other value."""
        value = self.get(key)
        return value if isinstance(value, list) else []

    def elements(self, key: str) -> list["View"]:
        """Return the elements of a list, each of which is empty if it is not an object."""
        return [View(element) for element in self.array(key)]

    def objects(self, key: str) -> list["View"]:
        """Return the objects in a list; none for any other value."""
        return objects(self.get(key))

    def objects_by_key(self) -> dict[str, "View"]:
        """Return the values that are objects."""
        return {key: View(value) for key, value in self.items() if isinstance(value, dict)}


def objects(value: Any) -> list[View]:
    """Return the objects in a list; none for any other value."""
    if not isinstance(value, list):
        return []
    return [View(item) for item in value if isinstance(item, dict)]


def text_in(value: Any, key: str = "text") -> str | None:
    """Return a text, or that of an object with the text below `key`; None for any other value."""
    stated = value.get(key) if isinstance(value, dict) else value
    return stated if isinstance(stated, str) else None


def texts(*values: Any) -> str:
    """Return the texts among the values that are not blank, with an empty line between them."""
    return "\n\n".join(value for value in values if isinstance(value, str) and value.strip())
