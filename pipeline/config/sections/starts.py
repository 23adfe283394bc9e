"""How LoRA's A may start (`train.init_lora_weights`), and why PEFT's other starts are refused."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def _start(value: Any) -> Any:
    name = str(value).lower()
    if name.startswith(CHANGED_BASE):
        raise ValueError(
            f"is {value}, which takes something off the base's weights, so that the adapter fits only a base "
            "that was changed: take eva, which leaves them as they are"
        )
    if name in ("orthogonal", "mica"):
        raise ValueError(
            f"is {value}, with which B is not 0 at the start, by which it is told that B has learned: take "
            "default, gaussian or eva"
        )
    return value


Start = Annotated[Literal["default", "gaussian", "eva"], BeforeValidator(_start)]
