"""The rule for nulls that come from tables, which give every row the keys of all rows.

A key that a row lacks is null there. Exports of tables as JSON do the same. In a tool's schema a null is
removed wherever JSON Schema does not allow it. In a call's arguments a null stays if the called tool's schema
allows it there. It is removed if the schema doesn't, or if the row declares no such argument.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from pipeline.chat.rows import TURN_LISTS, Row
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts

Schema = Mapping[str, Any]
BY_NAME = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
VALUES = frozenset(
    ("default", "const", "example", "examples", "enum")
)  # Keywords whose values are data, not schemas.
NULLABLE = frozenset(("default", "const", "example"))  # those of them that may be null
BRANCHES = ("anyOf", "oneOf", "allOf")


def drop_nulls(row: Row, changes: Changes) -> Row:
    """Return the row without nulls that its tools' schemas don't allow or don't declare."""
    cleaned = row
    if "tools" in row and _has_null(row["tools"]):
        tools = [_in_schema(tool) for tool in row["tools"]]
        cleaned = _changed(row, "tools", tools, "tools", changes)
    declared: dict[str, Declared] | None = None
    for field in TURN_LISTS:
        for number, turn in enumerate(row.get(field, ())):
            if "tool_calls" not in turn or not _has_null([call["function"] for call in turn["tool_calls"]]):
                continue
            if declared is None:
                declared = _declared(cleaned.get("tools", ()))
            calls = [_without_nulls(call, declared) for call in turn["tool_calls"]]
            place = f"{field} {number + 1} tool_calls"
            new = _changed(turn, "tool_calls", calls, place, changes)
            if new is not turn:
                turns = cleaned[field]
                cleaned = {**cleaned, field: [*turns[:number], new, *turns[number + 1 :]]}
    return cleaned


class Declared:
    """Declaration of a value in a tool: the schemas that may describe it, none if it is not declared."""

    def __init__(self, schemas: Sequence[Any], root: Schema) -> None:
        self.root = root
        self.schemas = _alternatives(schemas, root)

    @cached_property
    def takes_null(self) -> bool:
        """Return True if null is a value by one of the schemas."""
        return any(map(_takes_null, self.schemas))

    @cached_property
    def properties(self) -> dict[str, "Declared"]:
        """Return the properties of an object by name."""
        parts_by_name: dict[str, list[Any]] = {}
        for schema in self.schemas:
            properties = schema.get("properties")
            for name, part in properties.items() if isinstance(properties, dict) else ():
                parts_by_name.setdefault(name, []).append(part)
        return {name: Declared(parts, self.root) for name, parts in parts_by_name.items()}

    @cached_property
    def others(self) -> "Declared":
        """Return the declaration of the properties that have no name in the schema."""
        return self._below("additionalProperties")

    @cached_property
    def items(self) -> "Declared":
        """Return the declaration of the elements of a list."""
        return self._below("items")

    def _below(self, keyword: str) -> "Declared":
        parts = [schema[keyword] for schema in self.schemas if isinstance(schema.get(keyword), dict)]
        return Declared(parts, self.root)

    def without_nulls(self, value: Any) -> Any:
        """Return a value without the nulls of its objects that are not declared. Nulls in lists stay."""
        if isinstance(value, list):
            return [self.items.without_nulls(item) for item in value]
        if not isinstance(value, dict):
            return value
        kept = {}
        for key, item in value.items():
            part = self.properties.get(key, self.others)
            if item is not None or part.takes_null:
                kept[key] = part.without_nulls(item)
        return kept


def _changed(
    owner: dict[str, Any], key: str, values: list[dict[str, Any]], place: str, changes: Changes
) -> dict[str, Any]:
    """Return the owner with other values below its key, and note a change for each. Return the owner itself
    if none differs.
    """
    if values == owner[key]:
        return owner
    for before, after in zip(owner[key], values, strict=True):
        if before != after:
            changes.append(Change("nulls", place, *excerpts(_json(before), _json(after))))
    return {**owner, key: values}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _has_null(value: Any) -> bool:
    """Return True if an object in the value has a key that is null."""
    if isinstance(value, dict):
        return any(item is None or _has_null(item) for item in value.values())
    return isinstance(value, list) and any(map(_has_null, value))


def _without_nulls(call: dict[str, Any], declared: Mapping[str, Declared]) -> dict[str, Any]:
    function = call["function"]
    tool = declared.get(function["name"]) or Declared((), {})
    return {**call, "function": {**function, "arguments": tool.without_nulls(function["arguments"])}}


def _declared(tools: Sequence[dict[str, Any]]) -> dict[str, Declared]:
    """Return the declared arguments of each tool of a row, by the tool's name."""
    declared = {}
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters", function.get("input_schema"))
        if not isinstance(schema, dict):
            continue
        if not schema.keys() & {"type", "properties", "$ref", *BRANCHES}:
            schema = {"properties": schema}  # xlam's tools have the arguments' schemas by name.
        declared[function["name"]] = Declared([schema], schema)
    return declared


def _in_schema(value: Any) -> Any:
    """Return a tool, or a part of it, without the nulls that its schema does not allow."""
    if isinstance(value, list):
        return [_in_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for key, item in value.items():
        if item is None:
            # A default that the type excludes comes from a table, not from the user.
            if key in NULLABLE and Declared([value], {}).takes_null:
                kept[key] = None
        elif key in BY_NAME and isinstance(item, dict):
            kept[key] = {name: _in_schema(part) for name, part in item.items() if part is not None}
        elif key in VALUES and not isinstance(item, dict):
            kept[key] = item
        else:
            kept[key] = _in_schema(item)
    return kept


def _alternatives(schemas: Sequence[Any], root: Schema) -> list[Schema]:
    """Return the schemas together with those that they refer to and branch into, each once."""
    alternatives: list[Schema] = []
    waiting = [schema for schema in schemas if isinstance(schema, dict)]
    references = set[str]()
    while waiting:
        schema = waiting.pop()
        alternatives.append(schema)
        for keyword in BRANCHES:
            branches = schema.get(keyword)
            waiting += [part for part in branches or () if isinstance(part, dict)]
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in references:
            references.add(reference)
            part = _referred(reference, root)
            waiting += [part] if isinstance(part, dict) else []
    return alternatives


def _referred(reference: str, root: Schema) -> Any:
    """Return the part of a schema that a reference such as `#/$defs/place` names; None if there is none."""
    part: Any = root
    for name in reference.removeprefix("#/").split("/"):
        part = part.get(name) if isinstance(part, dict) else None
    return part


def _takes_null(schema: Schema) -> bool:
    """Return True if null is a value by this schema, without its branches and references."""
    if schema.get("nullable") is True:
        return True
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if kind is not None:
        return any(_is_nullable(name) for name in kinds)
    if any(schema.get(key) is not None for key in (*BRANCHES, "$ref", "const")):
        return False  # The branches are checked separately.
    values = schema.get("enum")
    return values is None or (isinstance(values, list) and None in values)


def _is_nullable(name: Any) -> bool:
    """Return True for a type that includes null: JSON Schema's, or Python's (xlam)."""
    words = name.lower() if isinstance(name, str) else ""
    return words in ("null", "any", "none") or "optional[" in words or "none" in words.split()
