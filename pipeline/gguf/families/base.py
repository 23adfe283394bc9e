"""A family of models: fields with its names, and methods for what is special about its GGUF.

Most families are an instance of `Family` (`llama`, `qwen`). A family with code of its own is an instance of a
subclass that overrides a method or two (`cohere`, `olmo`). What more than one family does is a function that
these methods call. `registry` lists all of them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.gguf import yarn
from pipeline.gguf.header import LONG_FACTORS, SHORT_FACTORS
from pipeline.gguf.windows import WINDOW, WINDOWED

if TYPE_CHECKING:  # It imports NumPy, which planning from a header never needs.
    from pipeline.gguf.delta_heads import DeltaHeads

# a config.json, or its text part; and keys for one
Config = Mapping[str, Any]
Settings = dict[str, Any]
# Fields of a header. As `values`, their names lack the family's prefix.
Fields = Mapping[str, Any]
# The rotary factors in a file, by the tensor's name (`pipeline.gguf.rope`).
Factors = Mapping[str, Any]


class Untrainable(Exception):
    """Reason why training would not compute what llama.cpp does with a header."""


class Difference(NamedTuple):
    """Header field with which llama.cpp computes something else than config.json says, and a sentence."""

    field: str
    seen: str


@dataclass(frozen=True)
class Family:
    """Family of models whose conversion to GGUF is known, so that a merge is compared with its file."""

    # general.architecture of its GGUF
    name: str
    # `architectures` of its config.json. The first one is that of a file without further signs.
    classes: tuple[str, ...]
    # An adapter or scales can be trained on its GGUF.
    trained_on: bool = False
    # model_type of a family whose config.json is written here, because transformers can't read the header
    model_type: str | None = None
    # {key of config.json: field of the header} for the numbers that its model is computed with, besides the
    # sizes that every model has
    settings: Mapping[str, str] = field(default_factory=dict)
    # Further fields that its header may have: they are read by the methods below, or by nobody.
    other_fields: tuple[str, ...] = ()
    # Its feed-forward layers are experts.
    experts: bool = False
    # The converter reads its tokenizer by rules of its own.
    own_vocabulary: bool = False
    # Its rotary embedding rotates neighbors, so the rows of q and k are in another order than in
    # transformers' model (`pipeline.models.gguf_names`).
    turns_neighbors: bool = False
    # Its rotary embedding may rotate only the first part of a head.
    partial_rotary: bool = False
    # Its rotary positions may be stretched by YaRN (`pipeline.gguf.yarn`).
    yarn: bool = False
    # {module and linear in transformers' model: name in the GGUF}, for linears with other names than Llama's
    linears: Mapping[str, str] = field(default_factory=dict)

    # --- which files are of this family

    def is_in(self, fields: Fields) -> bool:
        """Return True if a header with these `fields` is of this family."""
        return bool(fields.get("general.architecture") == self.name)

    def of_config(self, config: Config) -> "Family | None":
        """Return the family of the GGUF that a model of one of `classes` becomes; None if it is not known."""
        return self

    def values_in(self, fields: Fields) -> dict[str, Any]:
        """Return the family's fields of a header by their names without its prefix."""
        prefix = f"{self.name}."
        return {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}

    # --- config.json from a header (`pipeline.models.header_config`)

    def size(self, header_field: str, values: Fields) -> Any:
        """Return the value of a field that config.json states once for all layers; None if there is none.

        Raises `Untrainable` if the layers differ.
        """
        return values.get(header_field)

    def own_settings(self, values: Fields, settings: Config) -> Settings:
        """Return config.json's settings besides the numbers in `settings`, or in place of one, such as
        `layer_types`. Raises `Untrainable` if the header doesn't give them.
        """
        return {}

    def rope_parameters(self, rope: Settings, values: Fields, factors: Factors) -> Settings:
        """Return `rope_parameters`, which are `rope` for positions that nothing stretches.

        Raises `Untrainable` for positions that training would not have.
        """
        if LONG_FACTORS in factors or SHORT_FACTORS in factors:
            raise Untrainable("has only some of the settings of rotary positions with listed factors")
        return rope

    # --- what no header contains

    def assumed_settings(self, config: Config) -> Settings:
        """Return the keys of config.json that no field contains and that llama.cpp knows by the family, with
        the values that it computes with for a model of the sizes in `config`.
        """
        return {}

    def dropped_window(self, config: Config) -> int | None:
        """Return the number of tokens that a model attends to, if llama.cpp lets this family attend to more;
        None if it computes the same for every context of the model.

        Phi-3-mini-4k and Mistral 7B v0.1 were trained with a window. No GGUF of theirs has one that is read.
        """
        window = config.get("sliding_window")
        types = config.get("layer_types")
        is_read = WINDOW in self.settings.values()
        if not isinstance(window, int) or is_read or (types and WINDOWED not in types):
            return None
        return window if window < (config.get("max_position_embeddings") or 0) else None

    # --- config.json and a header, compared (`pipeline.gguf.attention_settings`)

    def yarn_values(self, values: Fields) -> dict[str, float]:
        """Return the values that llama.cpp computes YaRN with (`yarn.by_file`). For most families it reads
        nothing but the factor and the first context.
        """
        return yarn.by_file(values, read={})

    def own_differences(self, config: Config, rope: Config, values: Fields) -> Iterator[Difference]:
        """Yield the differences of settings that only this family has. `rope` are config.json's settings of
        rotary positions in layers without a window.
        """
        yield from ()

    def lost_differences(self, config: Config, rope: Config) -> Iterator[Difference]:
        """Yield the differences that remain once the converter has written all that config.json contains."""
        yield from ()

    def difference(self, header_field: str, computed: str, wanted: str) -> Difference:
        """Return the difference in a field, given as llama.cpp computes and as config.json says."""
        return Difference(
            f"{self.name}.{header_field}", f"is {computed} in llama.cpp, by config.json {wanted}"
        )

    def rope_base(self, config: Config) -> float | None:
        """Return the rotary base that the converter writes for config.json with its rotary settings."""
        return config.get("rope_theta")

    # --- rows and values that the file has in another form (`pipeline.gguf.sources`)

    def adds_one(self, tensor: str) -> bool:
        """Return True if this tensor of its GGUF contains one more than the model's."""
        return False

    def stored_shape(self, name: str, shape: tuple[int, ...], config: Config) -> tuple[int, ...]:
        """Return the shape in the GGUF of a tensor of the model."""
        return shape

    def products(self, name: str, rows: int, config: Config) -> list[tuple[int, int, Callable[[Any], Any]]]:
        """Return the multiplications of a tensor of the model with `rows` rows: for rows [first, last) the
        function that gives the products. The list is empty if the file has the tensor's own values.
        """
        return []

    def delta_heads(self, config: Config) -> "DeltaHeads | None":
        """Return the heads of its delta nets, whose values are in another order in the file; None if it has
        no delta nets.
        """
        return None
