"""Ministral 3, all of whose files have positions stretched by YaRN and queries scaled by their position."""

from collections.abc import Iterator

from pipeline.gguf import yarn
from pipeline.gguf.families.base import Config, Difference, Factors, Family, Fields, Settings, Untrainable
from pipeline.gguf.families.stretched import yarn_parameters

# {key of `rope_parameters`: field}; 0 if the header has no such field
SCALES = {
    "llama_4_scaling_beta": "attention.temperature_scale",
    "mscale_all_dim": yarn.LOG_MULTIPLIER,
}
MSCALE = 1.0  # llama.cpp assumes it.


class Mistral3(Family):
    """Ministral 3."""

    def yarn_values(self, values: Fields) -> dict[str, float]:
        """Return the values of YaRN, all of whose settings llama.cpp reads for this family."""
        return yarn.by_file(values, read=values)

    def rope_parameters(self, rope: Settings, values: Fields, factors: Factors) -> Settings:
        """Return `rope_parameters` with YaRN's and the scale of queries."""
        rope = super().rope_parameters(rope, values, factors)
        stretched = yarn_parameters(self, values)
        if not stretched:
            raise Untrainable(f"has no {self.name}.{yarn.TYPE} yarn, which its family has")
        scales = {key: values.get(header_field, 0.0) for key, header_field in SCALES.items()}
        return {**rope, **stretched, "mscale": MSCALE, **scales}

    def own_differences(self, config: Config, rope: Config, values: Fields) -> Iterator[Difference]:
        """Yield the differences of `SCALES`."""
        for key, header_field in SCALES.items():
            computed = yarn.number(values, header_field, 0.0)
            wanted = rope.get(key) or 0.0
            if not yarn.is_close(computed, wanted):
                yield self.difference(header_field, f"{computed:g}", f"{wanted:g}")


MISTRAL3 = Mistral3(
    "mistral3",
    ("Ministral3ForCausalLM",),
    trained_on=True,
    model_type="ministral3",
    other_fields=(*yarn.FIELDS, *SCALES.values()),
    turns_neighbors=True,
    yarn=True,
)
