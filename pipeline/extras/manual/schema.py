"""Put JSON schemas of settings and records into words: the kinds of values and their bounds."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
KINDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}
# a bound's key in a schema, and its words
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}


def words_of(schema: Schema, definitions: Schema) -> str:
    """Return the values that a schema allows, in words; "" if it allows any."""
    if "$ref" in schema:
        return words_of(_followed(schema, definitions), definitions)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return _choice([words_of(one, definitions) for one in schema[several]])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return _of("list", schema.get("items", {}), definitions)
    if kind == "object":
        return _of("mapping", schema.get("additionalProperties") or {}, definitions)
    return " ".join([KINDS.get(kind or "", ""), *_bounds(schema)]).strip()


def figures(schema: Schema, definitions: Schema, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key with the keys above it, kind of its value) of a record, the inner records' keys too."""
    for name, value in schema.get("properties", {}).items():
        key = f"{above}{name}"
        inner = _record_in(value, definitions)
        if inner:
            yield from figures(inner, definitions, f"{key}.")
        else:
            yield key, words_of(value, definitions)


def _followed(schema: Schema, definitions: Schema) -> Schema:
    found: Schema = definitions[schema["$ref"].rpartition("/")[2]]
    return found


def _record_in(schema: Schema, definitions: Schema) -> Schema | None:
    """Return the record that a key holds, directly or unless it is null; None for a plain value."""
    for one in (schema, *schema.get("anyOf", ())):
        if "$ref" in one and "properties" in _followed(one, definitions):
            return _followed(one, definitions)
    return None


def _choice(kinds: list[str]) -> str:
    if "" in kinds:
        return ""
    return " or ".join(dict.fromkeys(kinds))


def _of(container: str, items: Any, definitions: Schema) -> str:
    inner = words_of(items, definitions) if isinstance(items, Mapping) else ""
    return f"{container} of {inner}" if inner else container


def _bounds(schema: Schema) -> Iterator[str]:
    for key, word in BOUNDS.items():
        if key in schema:
            yield f"{word} {schema[key]:,}"
