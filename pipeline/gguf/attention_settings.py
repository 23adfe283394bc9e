"""Compare the settings of attention that config.json and a GGUF express differently, by what is computed with
them: stretched rotary positions, windows, and the scale of queries by their position.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.gguf import yarn
from pipeline.gguf.attention import FULL, WINDOWED, WINDOWS, listed_layer_types
from pipeline.gguf.families import Family
from pipeline.gguf.header import LOCAL_ROPE_BASE

SCALED = ("linear", "yarn")  # rope types that a GGUF names with a factor


class Difference(NamedTuple):
    """Header field with which llama.cpp computes something else than config.json says, and a sentence."""

    field: str
    seen: str


def differences(config: Mapping[str, Any], family: Family, fields: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences between the config.json of a model of `family`, or its text part, and the
    `fields` of a header.
    """
    prefix = f"{family.name}."
    stated = {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
    rope = _rope(config)
    yield from _scaling(rope, stated, family)
    yield from _others(config, rope, stated, family)


def lost_differences(config: Mapping[str, Any], family: Family) -> Iterator[Difference]:
    """Yield the differences that remain once the converter has written all that config.json contains:
    settings of YaRN that llama.cpp doesn't read, and the rotary base of layers with a window.
    """
    rope = _rope(config)
    asked = yarn.by_config(rope)
    if asked:
        factors = {field: rope.get(key) or 0.0 for key, field in family.rope_factors.items()}
        yield from _scaling(rope, {yarn.TYPE: "yarn", **asked, **factors}, family)
    base = rope.get("rope_theta")
    local = (config.get("rope_parameters") or {}).get(WINDOWED, {}).get("rope_theta", base)
    if family.listed_windows and local != base:
        yield _difference(family, LOCAL_ROPE_BASE, f"{base:g}", f"{local:g}")


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary settings of all layers, or of those without a window: no others are stretched."""
    by_type = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    rope = dict(by_type.get(FULL, by_type))
    outside = config.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    rope.setdefault("original_max_position_embeddings", outside or 0)
    return rope


def _difference(family: Family, field: str, computed: str, wanted: str) -> Difference:
    """Return the difference in a field, given as llama.cpp computes and as config.json says."""
    return Difference(f"{family.name}.{field}", f"is {computed} in llama.cpp, by config.json {wanted}")


def _scaling(rope: Mapping[str, Any], stated: Mapping[str, Any], family: Family) -> Iterator[Difference]:
    """Yield the differences of stretched rotary positions."""
    asked = _kind(rope.get("rope_type") or rope.get("type"), rope.get("factor"))
    factor = yarn.factor_in(stated)
    there = _kind(stated.get(yarn.TYPE, "linear"), factor)
    if asked != there:
        yield _difference(family, yarn.TYPE, there, asked)
    if asked != there or asked == "none":
        return
    wanted = yarn.by_config(rope) or {yarn.FACTOR: rope["factor"]}
    computed = yarn.by_file(stated, family) or {yarn.FACTOR: factor}
    for field, value in wanted.items():
        if not _is_close(computed[field], value):
            yield _difference(family, field, f"{computed[field]:g}", f"{value:g}")


def _kind(name: Any, factor: Any) -> str:
    """Return how positions are stretched; with a factor of 1 they are not."""
    return str(name) if name in SCALED and factor not in (None, 0, 1) else "none"


def _others(
    config: Mapping[str, Any], rope: Mapping[str, Any], stated: Mapping[str, Any], family: Family
) -> Iterator[Difference]:
    """Yield the differences of the family's other settings of positions, and of windows."""
    for key, field in family.rope_factors.items():
        computed = yarn.number(stated, field, 0.0)
        wanted = rope.get(key) or 0.0
        if not _is_close(computed, wanted):
            yield _difference(family, field, f"{computed:g}", f"{wanted:g}")
    types = config.get("layer_types")
    if family.listed_windows and types and types != listed_layer_types(family, stated, len(types)):
        yield _difference(family, WINDOWS, str(stated.get(WINDOWS)), f"layer_types {types}")


def _is_close(one: Any, other: Any) -> bool:
    """Return True for numbers that are the same in float32."""
    return math.isclose(one, other, rel_tol=1e-6)
