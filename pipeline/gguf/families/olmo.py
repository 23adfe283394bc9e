"""OLMo 2, and OLMo 3, whose file has the name of OLMo 2's, and windows."""

from collections.abc import Iterator

from pipeline.gguf import yarn
from pipeline.gguf.families.base import Config, Difference, Factors, Family, Fields, Settings, Untrainable
from pipeline.gguf.families.stretched import yarn_parameters
from pipeline.gguf.header import LOCAL_ROPE_BASE
from pipeline.gguf.windows import FULL, WINDOW, WINDOWED, every

# Field that tells for each layer whether it attends to a window, or the interval of those that don't.
WINDOWS = "attention.sliding_window_pattern"
INTERVAL = 4  # llama.cpp's value if a header has no such field


class Olmo2(Family):
    """OLMo 2."""

    def is_in(self, fields: Fields) -> bool:
        """Return True for a header of this name without a window."""
        return super().is_in(fields) and f"{self.name}.{WINDOW}" not in fields


class Olmo3(Family):
    """OLMo 3. Only its layers without a window have stretched positions."""

    def is_in(self, fields: Fields) -> bool:
        """Return True for a header of this name with a window."""
        return super().is_in(fields) and f"{self.name}.{WINDOW}" in fields

    def own_settings(self, values: Fields, settings: Config) -> Settings:
        """Return the layers with a window."""
        types = listed_layer_types(values, settings["num_hidden_layers"])
        if types is None or not values[WINDOW]:
            raise Untrainable(f"doesn't say which layers attend to how many tokens ({WINDOWS}, {WINDOW})")
        return {"layer_types": types}

    def rope_parameters(self, rope: Settings, values: Fields, factors: Factors) -> Settings:
        """Return `rope_parameters` by type of layer."""
        rope = super().rope_parameters(rope, values, factors)
        stretched = rope | yarn_parameters(self, values)
        if values.get(LOCAL_ROPE_BASE, rope["rope_theta"]) != rope["rope_theta"]:
            raise Untrainable(f"has {self.name}.{LOCAL_ROPE_BASE}, with which llama.cpp doesn't compute")
        return {FULL: stretched, WINDOWED: rope}

    def own_differences(self, config: Config, rope: Config, values: Fields) -> Iterator[Difference]:
        """Yield the difference of the layers with a window."""
        types = config.get("layer_types")
        if types and types != listed_layer_types(values, len(types)):
            yield self.difference(WINDOWS, str(values.get(WINDOWS)), f"layer_types {types}")

    def lost_differences(self, config: Config, rope: Config) -> Iterator[Difference]:
        """Yield the difference of the rotary base of layers with a window, which llama.cpp doesn't read."""
        base = rope.get("rope_theta")
        local = (config.get("rope_parameters") or {}).get(WINDOWED, {}).get("rope_theta", base)
        if local != base:
            yield self.difference(LOCAL_ROPE_BASE, f"{base:g}", f"{local:g}")


def listed_layer_types(values: Fields, layers: int) -> list[str] | None:
    """Return layer_types as llama.cpp reads them from a header; None if the header's value has no meaning."""
    windows = values.get(WINDOWS, INTERVAL)
    if isinstance(windows, int) and windows > 0:
        return every(windows, layers)
    if not isinstance(windows, list) or len(windows) != layers or not set(windows) <= {0, 1}:
        return None
    return [WINDOWED if has_window else FULL for has_window in windows]


OLMO2 = Olmo2("olmo2", ("Olmo2ForCausalLM",), trained_on=True, model_type="olmo2")
OLMO3 = Olmo3(
    "olmo2",
    ("Olmo3ForCausalLM",),
    trained_on=True,
    model_type="olmo3",
    settings={"sliding_window": WINDOW},
    other_fields=(LOCAL_ROPE_BASE, WINDOWS, *yarn.FIELDS),
    yarn=True,
)
