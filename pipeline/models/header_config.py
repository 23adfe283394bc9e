"""Write config.json from a GGUF's header, for the families whose header transformers can't read.

A header may contain settings that this code does not know. llama.cpp would compute with them and training
would not, so such a file is refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.text import shortened
from pipeline.gguf.families.base import Family, Untrainable
from pipeline.gguf.header import CONFIG_FIELDS, USUAL_ROPE_BASE, Header
from pipeline.gguf.rope import stored_factors

EPSILON = "attention.layer_norm_rms_epsilon"
VALUE_WIDTH = "attention.value_length"
ROPE_BASE = "rope.freq_base"
ROPE_WIDTH = "rope.dimension_count"
OPTIONAL = ("num_key_value_heads", "head_dim")  # keys of `CONFIG_FIELDS` that a header may leave out
# Fields that are checked here or for every file (`pipeline.models.base_header`), or repeat a tensor's shape.
CHECKED = (
    ROPE_BASE,
    ROPE_WIDTH,
    VALUE_WIDTH,
    "vocab_size",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
)


def header_config(header: Header, family: Family, file: Path) -> Any:
    """Return transformers' configuration of the model in `file`. Raises `DataError` if its header lacks a
    setting of the family, has one that training may not compute, or sizes that no model has.
    """
    from transformers import AutoConfig

    values = family.values_in(header.fields)
    try:
        settings = sizes(family, values)
        settings |= family.own_settings(values, settings)
        factors = stored_factors(header, file)
        rope = rotary(family, values, settings)
        settings["rope_parameters"] = family.rope_parameters(rope, values, factors)
    except Untrainable as why:
        raise DataError(
            "Q-MODELS-028",
            f"{file} {why}, so training would not compute what llama.cpp does: take the model's Hugging "
            "Face folder, with base.quantization nf4",
        ) from None
    try:
        return AutoConfig.for_model(family.model_type, **settings, **family.assumed_settings(settings))
    except Exception as error:  # An untrusted file: transformers raises exceptions of any type.
        raise DataError(
            "Q-MODELS-038",
            f"{file} has metadata that no model can have ({shortened(error)}): fetch it again, or take "
            "another file of this model",
        ) from error


def sizes(family: Family, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are numbers of the header.

    Raises `Untrainable` if one is missing or has no key in config.json.
    """
    fields = {**CONFIG_FIELDS, **family.settings}
    if EPSILON not in family.settings.values():
        fields["rms_norm_eps"] = EPSILON
    unknown = sorted(values.keys() - {*fields.values(), *CHECKED, *family.other_fields})
    if unknown:
        raise Untrainable(f"has {family.name}.{unknown[0]}, which is not known to be the same in training")
    settings: dict[str, Any] = {}
    for key, field in fields.items():
        value = family.size(field, values)
        if isinstance(value, int | float):
            settings[key] = value
        elif value is not None:
            raise Untrainable(f"has {family.name}.{field} by layer, and training has one for all")
        elif key not in OPTIONAL:
            raise Untrainable(f"has no {family.name}.{field}, which its family is computed with")
    return settings


def rotary(family: Family, values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_parameters` of positions that nothing stretches. Raises `Untrainable` if heads are rotated
    in another way than the family's.
    """
    width = settings.get("head_dim", settings["hidden_size"] // settings["num_attention_heads"])
    turned = values.get(ROPE_WIDTH, width)
    is_all = turned == width > 0
    # transformers stores the share and computes the dimensions from it.
    is_part = family.partial_rotary and 0 < turned < width and int(turned / width * width) == turned
    if not (is_all or is_part) or values.get(VALUE_WIDTH, width) != width:
        raise Untrainable(
            f"turns {turned} of {width} dimensions of a head, with values of {values.get(VALUE_WIDTH, width)}"
        )
    rope = {"rope_type": "default", "rope_theta": values.get(ROPE_BASE, USUAL_ROPE_BASE)}
    if family.partial_rotary:
        rope["partial_rotary_factor"] = turned / width
    return rope
