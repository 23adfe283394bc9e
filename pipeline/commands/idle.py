"""Which settings do nothing here: by the other settings (`pipeline.config.conditions`), and for want of a GPU
that llama.cpp could use.
"""

from collections.abc import Iterator

from pipeline.config.conditions import idle
from pipeline.config.params import Params
from pipeline.config.sections import AUTO
from pipeline.llamacpp.devices import sees_gpu

LAYERS = "machine.n_gpu_layers"


def idle_settings(params: Params) -> dict[str, str]:
    """{key: a sentence on why it does nothing} of the settings that are not their defaults."""
    return {one.key: str(one) for one in idle(params)} | dict(_layers(params))


def _layers(params: Params) -> Iterator[tuple[str, str]]:
    """The layers that llama.cpp is to put on a GPU and can't; a stage that is to do so ends with
    Q-LLAMACPP-024.
    """
    layers = params.machine.n_gpu_layers
    if layers not in (0, AUTO) and not sees_gpu(params.machine.llama_cpp):
        yield LAYERS, f"{LAYERS} is {layers}, and the llama.cpp here sees no GPU"
