"""Which settings do nothing here: by the other settings (`pipeline.config.conditions`), and for want of a GPU
that llama.cpp could use.
"""

from collections.abc import Iterator

from pipeline.config.conditions import idle
from pipeline.config.params import Params
from pipeline.config.sections import AUTO
from pipeline.config.sections.values import keys_of
from pipeline.config.text import value_at
from pipeline.llamacpp.devices import sees_gpu

LAYERS = "n_gpu_layers"


def idle_settings(params: Params) -> dict[str, str]:
    """{key: a sentence on why it does nothing} of the settings that are not their defaults."""
    return {one.key: str(one) for one in idle(params)} | dict(_layers(params))


def _layers(params: Params) -> Iterator[tuple[str, str]]:
    """The layers that llama.cpp is to put on a GPU and can't; a stage that is to do so ends with
    Q-LLAMACPP-024.
    """
    values = params.model_dump(mode="json")
    wanted = {".".join(place): value_at(values, place) for place, _ in keys_of(Params) if place[-1] == LAYERS}
    named = {key: layers for key, layers in wanted.items() if layers not in (0, AUTO)}
    if named and not sees_gpu(params.llamacpp.home):
        for key, layers in named.items():
            yield key, f"{key} is {layers}, and the llama.cpp here sees no GPU"
