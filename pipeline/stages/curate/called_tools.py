"""Find calls in rows of tools that they do not offer, or with arguments that a tool's schema does not allow.

Schemas come with the data. So nothing is fetched that a schema refers to, and its patterns, which may take
endless time, are not looked at. Most schemas leave out whether other properties are allowed: then an argument
that none declares, a misspelled one for example, is not.
"""

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

import orjson

from pipeline.chat.rows import TURN_LISTS, Row
from pipeline.core.text import plural
from pipeline.stages.curate.mapped import counted
from pipeline.stages.curate.places import places

CALLING = "rows"  # keys of the counted calls
WITHOUT_TOOLS = "without_tools"
NOT_SHOWN = "tools_not_shown"  # rows with tools, calls or results that the base's template does not show
NOT_OFFERED = "not_offered"
MISFITS = "arguments_not_allowed"
FAULTS = (WITHOUT_TOOLS, NOT_OFFERED, MISFITS)  # faults of a row, by the key that counts them
PLACES = "places"  # key of the rows with each fault: their number, and the sources of the first
KNOWN_SCHEMAS = 1000
# Keys of a schema by which an object may have properties beside its `properties`.
ELSEWHERE = frozenset(
    (
        "$dynamicRef",
        "$ref",
        "allOf",
        "anyOf",
        "dependentSchemas",
        "if",
        "oneOf",
        "patternProperties",
        "unevaluatedProperties",
    )
)


def calls_in(row: Row) -> list[Mapping[str, Any]]:
    """Return the calls of a row, each with its `name` and `arguments`."""
    turns = [turn for field in TURN_LISTS for turn in row.get(field, ()) if "tool_calls" in turn]
    return [call["function"] for turn in turns for call in turn["tool_calls"]]


def unoffered_calls(row: Row) -> set[str]:
    """Return the names of the called tools that the row does not offer."""
    return {call["name"] for call in calls_in(row)} - {
        tool["function"]["name"] for tool in row.get("tools", ())
    }


def misfitting_calls(row: Row) -> set[str]:
    """Return the names of the called tools whose arguments their schema does not allow."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in row.get("tools", ())}
    return {
        call["name"]
        for call in calls_in(row)
        if isinstance(schemas.get(call["name"]), dict)
        and not _fits(orjson.dumps(schemas[call["name"]]), call["arguments"])
    }


def _fits(schema: bytes, arguments: Any) -> bool:
    """Return True if a schema allows the arguments, or if it is none itself."""
    from jsonschema.exceptions import SchemaError, UnknownType
    from referencing.exceptions import Unresolvable

    try:
        return bool(_validator(schema).is_valid(arguments))
    except (SchemaError, UnknownType, Unresolvable, AttributeError, RecursionError, TypeError, ValueError):
        return True


@lru_cache(KNOWN_SCHEMAS)
def _validator(schema: bytes) -> Any:
    from referencing import Registry

    closed = _closed(orjson.loads(schema))
    return _validator_class()(closed, registry=Registry())  # which fetches nothing


def _closed(schema: Any) -> Any:
    """Return a schema whose objects allow only the properties that they declare, unless it says otherwise."""
    # Properties that are declared elsewhere can't be told from those that nothing declares.
    if not isinstance(schema, dict) or not ELSEWHERE.isdisjoint(schema):
        return schema
    closed = dict(schema)
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    properties = schema.get("properties")
    if properties and isinstance(properties, dict):
        closed["properties"] = {name: _closed(value) for name, value in properties.items()}
        closed.setdefault("additionalProperties", False)
    return closed


@cache
def _validator_class() -> Any:
    from jsonschema.validators import Draft202012Validator, extend

    def passes(*_: object) -> Iterator[Any]:
        return iter(())

    return extend(Draft202012Validator, {"pattern": passes, "patternProperties": passes})


def calls_sentences(calls: Mapping[str, Any], *, with_files: bool = True) -> list[str]:
    """Return sentences on rows whose calls are not what they offer, by the counts of calls."""
    sentences = []
    where = {
        fault: places(found["first"], found["rows"], with_files=with_files)
        for fault, found in calls.get(PLACES, {}).items()
    }
    without = calls.get(WITHOUT_TOOLS, 0)
    if without:
        sentences.append(
            f"{plural(without, 'row calls', 'rows call')} tools and {'has' if without == 1 else 'have'} no "
            f"tools ({where[WITHOUT_TOOLS]}): the model learns to call what it is not offered. Write tools "
            "into them."
        )
    if calls.get(NOT_OFFERED):
        sentences.append(
            f"tools are called that their row does not offer ({where[NOT_OFFERED]}): "
            f"{counted(calls[NOT_OFFERED])}. "
            "Correct the name, or offer the tool."
        )
    if calls.get(MISFITS):
        sentences.append(
            f"calls have arguments that the tool's parameters do not allow or declare ({where[MISFITS]}): "
            f"{counted(calls[MISFITS])}. Correct the arguments, or the parameters."
        )
    return sentences
