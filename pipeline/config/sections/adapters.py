"""Values for the keys of an adapter: linears by a list of names, by a regular expression, or with a number
each; the variants of LoRA (`train.lora_variants`); modules that train fully in addition
(`train.modules_to_save`); and the reasons why PEFT's other options are refused.
"""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, PlainValidator

from pipeline.config.sections.values import ONCE
from pipeline.core.text import quoted

NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")
LONGEST = 500  # characters of a pattern
MOST = 1000  # names or patterns of one key
MOST_RANK = 4096
MOST_LAYERS = 10_000
FROM = re.compile(r"[0-9]{1,5}-")  # this layer and all after it
CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def pattern_problem(pattern: str) -> str | None:
    """Return a sentence on why a text is not a valid regular expression here; None if it is."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{quoted(pattern)} is not a regular expression ({error}): correct it"
    return None if 0 < len(pattern) <= LONGEST else f"a pattern has 1 to {LONGEST} characters: shorten it"


def _targets(value: Any) -> Any:
    if isinstance(value, str):
        problem = pattern_problem(value)
        if problem:
            raise ValueError(problem)
        return value
    if not isinstance(value, list) or not 1 <= len(value) <= MOST:
        raise ValueError(f"is {quoted(value)}: name at least 1 linear in a list, or give a pattern")
    for name in value:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"{quoted(name)} is not the name of a linear: q_proj for example")
    return value


def _ranks(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) > MOST:
        raise ValueError(f"is {quoted(value)}: give a number for each pattern, e.g. {{down_proj: 32}}")
    for pattern, number in value.items():
        if not isinstance(pattern, str):
            raise ValueError(f"{quoted(pattern)} is not a pattern of names: down_proj for example")
        problem = pattern_problem(pattern)
        if problem:
            raise ValueError(problem)
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST_RANK:
            raise ValueError(f"{pattern} has {quoted(number)}: give a number from 1 to {MOST_RANK}")
    return value


def _layers(value: Any) -> Any:
    numbers = [int(value[:-1])] if isinstance(value, str) and FROM.fullmatch(value) else value
    is_list = isinstance(numbers, list) and 1 <= len(numbers) <= MOST_LAYERS
    if value is None or (is_list and all(type(item) is int and 0 <= item <= MOST_LAYERS for item in numbers)):
        return value
    raise ValueError(f"is {quoted(value)}: name at least 1 layer in a list, or the first to train: 20-")


def _variants(value: Any) -> Any:
    for name in value if isinstance(value, list) else ():
        if str(name).lower().startswith(CHANGED_BASE):
            raise ValueError(
                f"names {name}, which takes something off the base's weights, so that the adapter fits only "
                "a base that was changed: take it out, or name gaussian, which leaves them as they are"
            )
        if str(name).lower() in ("orthogonal", "mica"):
            raise ValueError(
                f"names {name}, with which B is not 0 at the start, by which it is told that B has learned: "
                "take it out, or name gaussian"
            )
    return value


Targets = Annotated[list[str] | str, PlainValidator(_targets)]
# Llama's linears, which most later architectures have
DEFAULT_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Ranks = Annotated[dict[str, int], PlainValidator(_ranks)]
TrainedLayers = Annotated[list[int] | str | None, PlainValidator(_layers)]
Variant = Literal["rslora", "dora", "gaussian", "lora_plus"]
Variants = Annotated[list[Variant], BeforeValidator(_variants), ONCE]
Norm = Literal["input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "norm"]
Table = Literal["embed_tokens", "lm_head"]
TABLES: tuple[Table, ...] = get_args(Table)
Saved = Annotated[list[Norm | Table], ONCE]
