"""Write config.json from a GGUF's header, for the families whose header transformers can't read.

A header may contain settings that this code does not know. llama.cpp would compute with them and training
would not, so such a file is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.text import quoted, shortened
from pipeline.gguf import yarn
from pipeline.gguf.attention import FULL, WINDOWED, WINDOWS, assumed_settings, listed_layer_types
from pipeline.gguf.families import WINDOW, Family
from pipeline.gguf.header import CONFIG_FIELDS, DRAFT_LAYERS, LOCAL_ROPE_BASE, USUAL_ROPE_BASE, Header
from pipeline.gguf.rope import FIRST_CONTEXT, LONG, SHORT, stored_factors
from pipeline.gguf.tensors import Floats

EPSILON = "attention.layer_norm_rms_epsilon"
KEY_HEADS = "attention.head_count_kv"
# The layers without attention, or the interval of those with it; and the width of all value heads of a delta
# net.
RECURRENT = "attention.recurrent_layers"
INTERVAL = "full_attention_interval"
INNER = "ssm.inner_size"
VALUE_WIDTH = "attention.value_length"
ROPE_BASE = "rope.freq_base"
ROPE_WIDTH = "rope.dimension_count"
ROPE_ATTENTION = "rope.scaling.attn_factor"  # attention factor of rope_type longrope: scales cos and sin
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


@dataclass(frozen=True)
class Stated:
    """Fields of a family in the header of `file`, by their names without the family's prefix."""

    family: Family
    values: Mapping[str, Any]
    file: Path

    def untrainable(self, why: str) -> DataError:
        """Return the error for a header that can't be trained on, with the reason `why`."""
        return DataError(
            "Q-MODELS-028",
            f"{self.file} {why}, so training would not compute what llama.cpp does: take the model's Hugging "
            "Face folder, with base.quantization nf4",
        )


def header_config(header: Header, family: Family, file: Path) -> Any:
    """Return transformers' configuration of the model in `file`. Raises `DataError` if its header lacks a
    setting of the family, has one that training may not compute, or sizes that no model has.
    """
    from transformers import AutoConfig

    prefix = f"{family.name}."
    values = {
        name.removeprefix(prefix): value for name, value in header.fields.items() if name.startswith(prefix)
    }
    stated = Stated(family, values, file)
    settings = {**sizes(stated), **family.fixed}
    settings["num_hidden_layers"] -= stated.values.get(DRAFT_LAYERS, 0)
    settings |= {**layer_types(stated, settings["num_hidden_layers"]), **value_heads(stated, settings)}
    settings["rope_parameters"] = rotary(stated, settings, stored_factors(header, file))
    if family.listed_factors:
        settings["original_max_position_embeddings"] = values.get(
            FIRST_CONTEXT, settings["max_position_embeddings"]
        )
    try:
        return AutoConfig.for_model(family.model_type, **settings, **assumed_settings(family, settings))
    except Exception as error:  # An untrusted file: transformers raises exceptions of any type.
        raise DataError(
            "Q-MODELS-038",
            f"{file} has metadata that no model can have ({shortened(error)}): fetch it again, or take "
            "another file of this model",
        ) from error


def sizes(stated: Stated) -> dict[str, Any]:
    """Return the settings that are numbers of the header.

    Raises `DataError` if one is missing or has no key in config.json.
    """
    family = stated.family
    fields = {**CONFIG_FIELDS, **family.factors}
    if EPSILON not in family.factors.values():
        fields["rms_norm_eps"] = EPSILON
    known = {*fields.values(), *CHECKED, *family.ignored}
    if family.recurrent:
        known |= {RECURRENT, INTERVAL, INNER}
    if family.drafts:
        known.add(DRAFT_LAYERS)
    if family.listed_factors:
        known |= {FIRST_CONTEXT, ROPE_ATTENTION}
    if family.local_rotary or family.listed_windows:
        known.add(LOCAL_ROPE_BASE)
    if family.listed_windows:
        known.add(WINDOWS)
    if family.yarn:
        known |= {FIRST_CONTEXT, yarn.BETA_FAST, yarn.BETA_SLOW, yarn.ATTENTION}
    known |= {*family.rope_factors.values()}
    unknown = sorted(stated.values.keys() - known)
    if unknown:
        raise stated.untrainable(
            f"has {family.name}.{unknown[0]}, which is not known to be the same in training"
        )
    settings: dict[str, Any] = {}
    for key, field in fields.items():
        value = stated.values.get(field)
        if field == KEY_HEADS and family.recurrent and isinstance(value, list):
            settings[key] = heads_by_layer(stated)
        elif isinstance(value, int | float):
            settings[key] = value
        elif value is not None:
            raise stated.untrainable(f"has {family.name}.{field} by layer, and training has one for all")
        elif key not in OPTIONAL:
            raise stated.untrainable(f"has no {family.name}.{field}, which its family is computed with")
    return settings


def heads_by_layer(stated: Stated) -> int:
    """Return the number of key heads in a layer of attention.

    Raises `DataError` unless all layers have as many.
    """
    by_layer = stated.values[KEY_HEADS]
    counts = set(by_layer) - {0}
    if len(counts) != 1:
        raise stated.untrainable(f"has layers with unlike heads of keys ({by_layer})")
    return int(counts.pop())


def layer_types(stated: Stated, layers: int) -> dict[str, Any]:
    """Return the setting `layer_types` of a family whose header gives it; empty for others.

    Raises `DataError` if it doesn't give the type of each of `layers` layers, or in a way that is not known.
    """
    family = stated.family
    if family.recurrent:
        in_file = layers + stated.values.get(DRAFT_LAYERS, 0)
        attends = attending(stated.values, in_file)
        if len(attends) != in_file:
            raise stated.untrainable("doesn't say of each layer whether it attends")
        kinds = [FULL if is_attending else family.recurrent for is_attending in attends]
        return {"layer_types": kinds[:layers]}
    if not family.listed_windows:
        return {}
    types = listed_layer_types(family, stated.values, layers)
    if types is None or not stated.values[WINDOW]:
        raise stated.untrainable(f"doesn't say which layers attend to how many tokens ({WINDOWS}, {WINDOW})")
    return {"layer_types": types}


def attending(values: Mapping[str, Any], layers: int) -> list[bool]:
    """Return for each of `layers` layers if it attends, by the first field that tells; empty if none does."""
    heads = values.get(KEY_HEADS)
    if isinstance(heads, list):
        return [bool(count) for count in heads]
    recurrent = values.get(RECURRENT)
    if isinstance(recurrent, list):
        return [not is_recurrent for is_recurrent in recurrent]
    interval = values.get(INTERVAL)
    if isinstance(interval, int) and interval > 0:
        return [number % interval == 0 for number in range(1, layers + 1)]
    return []


def value_heads(stated: Stated, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the width of the value heads of delta nets, if the model has any. Raises `DataError` if they
    can't be distributed over the key heads.
    """
    if "linear_num_value_heads" not in settings:
        return {}
    keys = settings["linear_num_key_heads"]
    count = settings["linear_num_value_heads"]
    inner = stated.values.get(INNER)
    if min(keys, count) < 1 or count % keys:
        raise stated.untrainable(f"has {count} value heads and {keys} key heads in a layer")
    if not isinstance(inner, int) or inner % count:
        raise stated.untrainable(f"has no width of its {count} value heads ({INNER}: {inner})")
    return {"linear_value_head_dim": inner // count}


def rotary(stated: Stated, settings: Mapping[str, Any], factors: Mapping[str, Floats]) -> dict[str, Any]:
    """Return `rope_parameters`. Raises `DataError` if heads are rotated in another way than the family's."""
    values = stated.values
    width = settings.get("head_dim", settings["hidden_size"] // settings["num_attention_heads"])
    turned = values.get(ROPE_WIDTH, width)
    is_all = turned == width > 0
    # transformers stores the share and computes the dimensions from it.
    is_part = stated.family.partial_rotary and 0 < turned < width and int(turned / width * width) == turned
    if not (is_all or is_part) or values.get(VALUE_WIDTH, width) != width:
        raise stated.untrainable(
            f"turns {turned} of {width} dimensions of a head, with values of {values.get(VALUE_WIDTH, width)}"
        )
    rope = {"rope_type": "default", "rope_theta": values.get(ROPE_BASE, USUAL_ROPE_BASE)}
    if stated.family.partial_rotary:
        rope["partial_rotary_factor"] = turned / width
    listed = {name: factors[name].tolist() for name in (LONG, SHORT) if name in factors}
    attention = values.get(ROPE_ATTENTION, 1.0)
    if not listed and attention == 1.0:
        return by_layer_type(stated, rope)
    if not stated.family.listed_factors or len(listed) < 2 or FIRST_CONTEXT not in values:
        raise stated.untrainable("has only some of the settings of rotary positions with listed factors")
    return rope | {
        "rope_type": "longrope",
        "long_factor": listed[LONG],
        "short_factor": listed[SHORT],
        "attention_factor": attention,
        "original_max_position_embeddings": values[FIRST_CONTEXT],
    }


def by_layer_type(stated: Stated, rope: dict[str, Any]) -> dict[str, Any]:
    """Return `rope_parameters` of a family without listed factors, in parts if layers with a window have
    their own. Raises `DataError` if YaRN's settings are not those that llama.cpp computes with.
    """
    family = stated.family
    local = stated.values.get(LOCAL_ROPE_BASE, USUAL_ROPE_BASE)
    if family.local_rotary:
        return {FULL: rope, WINDOWED: rope | {"rope_theta": local}}
    whole = rope | stretched(stated)
    if not family.listed_windows:
        return whole
    if stated.values.get(LOCAL_ROPE_BASE, rope["rope_theta"]) != rope["rope_theta"]:
        raise stated.untrainable(f"has {family.name}.{LOCAL_ROPE_BASE}, with which llama.cpp doesn't compute")
    return {FULL: whole, WINDOWED: rope}


def stretched(stated: Stated) -> dict[str, Any]:
    """Return the keys of `rope_parameters` for YaRN; empty for positions that are not stretched. Raises
    `DataError` if the header has a YaRN setting that llama.cpp doesn't compute with.
    """
    family = stated.family
    if not family.yarn:
        return {}
    computed = yarn.by_file(stated.values, family)
    for field, value in computed.items():
        in_file = stated.values.get(field, value)
        if not isinstance(in_file, int | float) or not math.isclose(in_file, value, rel_tol=1e-6):
            raise stated.untrainable(
                f"has {family.name}.{field} {quoted(in_file)}, and llama.cpp computes with {value:g}"
            )
    factors = {key: stated.values.get(field, 0.0) for key, field in family.rope_factors.items()}
    if not computed:
        if factors:
            raise stated.untrainable(f"has no {family.name}.{yarn.TYPE} yarn, which its family has")
        return {}
    return {
        "rope_type": "yarn",
        "factor": computed[yarn.FACTOR],
        "original_max_position_embeddings": computed[FIRST_CONTEXT],
        "beta_fast": computed[yarn.BETA_FAST],
        "beta_slow": computed[yarn.BETA_SLOW],
        **family.fixed_rope,
        **factors,
    }
