"""Headers of families that have layers without attention, in addition to those of full attention."""

from typing import Any

from pipeline.gguf.families.base import Fields, Untrainable
from pipeline.gguf.header import CONFIG_FIELDS
from pipeline.gguf.windows import FULL

KEY_HEADS = CONFIG_FIELDS["num_key_value_heads"]
# The layers without attention, or the interval of those with it; and the width of all value heads of a delta
# net.
RECURRENT = "attention.recurrent_layers"
INTERVAL = "full_attention_interval"
INNER = "ssm.inner_size"
FIELDS = (RECURRENT, INTERVAL, INNER)


def size(header_field: str, values: Fields) -> Any:
    """Return the value of a field. The number of key heads may be listed by layer, 0 for those without
    attention: return that of the others. Raises `Untrainable` unless all of these have as many.
    """
    value = values.get(header_field)
    if header_field != KEY_HEADS or not isinstance(value, list):
        return value
    counts = set(value) - {0}
    if len(counts) != 1:
        raise Untrainable(f"has layers with unlike heads of keys ({value})")
    return int(counts.pop())


def layer_types(values: Fields, layers: int, other: str) -> list[str]:
    """Return layer_types, in which layers without attention are called `other`. Raises `Untrainable` if the
    header doesn't give the type of each of `layers` layers.
    """
    attends = attending(values, layers)
    if len(attends) != layers:
        raise Untrainable("doesn't say of each layer whether it attends")
    return [FULL if is_attending else other for is_attending in attends]


def attending(values: Fields, layers: int) -> list[bool]:
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
