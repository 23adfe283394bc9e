"""How LoRA's A may start (`train.init_lora_weights`), what may train whole beside it
(`train.modules_to_save`), and why the rest of what PEFT offers is refused.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def _start(value: Any) -> Any:
    name = str(value).lower()
    if name.startswith(CHANGED_BASE):
        raise ValueError(
            f"is {value}, which takes something off the base's weights, so that the adapter fits only a base "
            "that was changed: take default or gaussian, which leave them as they are"
        )
    if name in ("orthogonal", "mica"):
        raise ValueError(
            f"is {value}, with which B is not 0 at the start, by which it is told that B has learned: take "
            "default or gaussian"
        )
    return value


def _saved(value: Any) -> Any:
    for name in value if isinstance(value, list) else ():
        if name in ("lm_head", "embed_tokens"):
            raise ValueError(
                f"names {name}, and only norms can: the losses here make no gradient of the head, and "
                "embeddings are often the head too. Take it out"
            )
    if isinstance(value, list) and len(set(map(str, value))) < len(value):
        raise ValueError("names a module twice: name it once")
    return value


Start = Annotated[Literal["default", "gaussian"], BeforeValidator(_start)]
Norm = Literal["input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "norm"]
Saved = Annotated[list[Norm], BeforeValidator(_saved)]
