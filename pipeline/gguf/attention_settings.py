"""Compare the settings of attention that config.json and a GGUF express differently, by what is computed with
them: stretched rotary positions, windows, and the scale of queries by their position.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.gguf import yarn
from pipeline.gguf.families.base import Difference, Family
from pipeline.gguf.windows import FULL

SCALED = ("linear", "yarn")  # rope types that a GGUF names with a factor


def differences(config: Mapping[str, Any], family: Family, fields: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the differences between the config.json of a model of `family`, or its text part, and the
    `fields` of a header.
    """
    stated = family.values_in(fields)
    rope = _rope(config)
    yield from _scaling(rope, stated, family)
    yield from family.own_differences(config, rope, stated)


def lost_differences(config: Mapping[str, Any], family: Family) -> Iterator[Difference]:
    """Yield the differences that remain once the converter has written all that config.json contains:
    settings of YaRN that llama.cpp doesn't read, and others of the family.
    """
    rope = _rope(config)
    asked = yarn.by_config(rope)
    if asked:
        share = rope.get("mscale_all_dim") or 0.0
        yield from _scaling(rope, {yarn.TYPE: "yarn", **asked, yarn.LOG_MULTIPLIER: share}, family)
    yield from family.lost_differences(config, rope)


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary settings of all layers, or of those without a window: no others are stretched."""
    by_type = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    rope = dict(by_type.get(FULL, by_type))
    outside = config.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    rope.setdefault("original_max_position_embeddings", outside or 0)
    return rope


def _scaling(rope: Mapping[str, Any], stated: Mapping[str, Any], family: Family) -> Iterator[Difference]:
    """Yield the differences of stretched rotary positions."""
    asked = _kind(rope.get("rope_type") or rope.get("type"), rope.get("factor"))
    factor = yarn.factor_in(stated)
    there = _kind(stated.get(yarn.TYPE, "linear"), factor)
    if asked != there:
        yield family.difference(yarn.TYPE, there, asked)
    if asked != there or asked == "none":
        return
    wanted = yarn.by_config(rope) or {yarn.FACTOR: rope["factor"]}
    computed = family.yarn_values(stated) or {yarn.FACTOR: factor}
    for field, value in wanted.items():
        if not yarn.is_close(computed[field], value):
            yield family.difference(field, f"{computed[field]:g}", f"{value:g}")


def _kind(name: Any, factor: Any) -> str:
    """Return how positions are stretched; with a factor of 1 they are not."""
    return str(name) if name in SCALED and factor not in (None, 0, 1) else "none"
