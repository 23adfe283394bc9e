"""Check by its header that a GGUF can become a base model, and read the metadata as typed values, each within
what a model can have.

Anybody may have written the file. Whatever reads it later (transformers, the conversion of its tokenizer,
llama.cpp) believes the values. It stops with an exception of its own for an invalid one, or not at all.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from pipeline.core.errors import DataError
from pipeline.core.text import faults, quoted
from pipeline.gguf.families.registry import DENSE, family_in
from pipeline.gguf.header import Header, NotGguf, read_header
from pipeline.models.experts.recognize import check_experts_of, expert_settings


def _stored_as_float(value: Any) -> Any:
    """Refuse integers, because llama.cpp does not convert them to floats."""
    if isinstance(value, int):
        raise ValueError(f"{quoted(value)} is an integer, and llama.cpp reads a float there")
    return value


Whole = Annotated[int, Field(ge=0, lt=1 << 31)]
Size = Annotated[int, Field(ge=1, lt=1 << 31)]
# one value for all layers, or one for each layer
Sizes = Size | Annotated[list[Whole], Field(fail_fast=True)]
Text = Annotated[str, Field(min_length=1)]
Float = Annotated[float, BeforeValidator(_stored_as_float)]
Real = Annotated[Float, Field(allow_inf_nan=False)]
Positive = Annotated[Float, Field(gt=0, allow_inf_nan=False)]
# The field of the default template. The others append a dot and their name.
CHAT_TEMPLATE = "tokenizer.chat_template"
# What a GGUF is whose general.type is not `model`.
NO_MODELS = {
    "adapter": "a LoRA adapter, and no model: name the GGUF of the model that it was trained on",
    "mmproj": "the part of a model that reads images or sound: name the GGUF of the language model beside it",
    "imatrix": "an importance matrix, and no model: name the GGUF of the model that it was measured on",
}
LAST_TYPE = 6  # LLAMA_TOKEN_TYPE_BYTE, the largest of llama.cpp's token types
Tokens = Annotated[list[str], Field(fail_fast=True)]
TokenTypes = Annotated[list[Annotated[int, Field(ge=0, le=LAST_TYPE)]], Field(fail_fast=True)]
Scores = Annotated[list[Real], Field(fail_fast=True)]
Merges = Annotated[list[Annotated[str, Field(pattern="(?s)^.+ .+$")]], Field(fail_fast=True)]


class Part(BaseModel):
    """Fields with a common prefix. Fields that nothing here reads may have any value."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class General(Part):
    """Fields `general.…`."""

    name: str | None = None
    file_type: Whole | None = None


class Split(Part):
    """Fields `split.…`: the parts that the model's file was cut into."""

    count: Whole = 1


class Network(Part):
    """Fields of the architecture: `llama.…`, `qwen2.…`."""

    block_count: Size
    embedding_length: Size
    context_length: Size
    feed_forward_length: Sizes
    head_count: Sizes = Field(alias="attention.head_count")
    head_count_kv: Sizes | None = Field(None, alias="attention.head_count_kv")
    key_length: Size | None = Field(None, alias="attention.key_length")
    value_length: Size | None = Field(None, alias="attention.value_length")
    sliding_window: Whole | None = Field(None, alias="attention.sliding_window")
    rms_epsilon: Positive | None = Field(None, alias="attention.layer_norm_rms_epsilon")
    epsilon: Positive | None = Field(None, alias="attention.layer_norm_epsilon")
    rope_base: Positive | None = Field(None, alias="rope.freq_base")
    rope_dimensions: Size | None = Field(None, alias="rope.dimension_count")
    rope_scaling: str = Field("none", alias="rope.scaling.type")
    # llama.cpp reads either field for linear scaling. 0 and 1 mean no scaling.
    rope_factor: Real = Field(1.0, alias="rope.scaling.factor")
    rope_linear: Real = Field(1.0, alias="rope.scale_linear")
    first_context: Size | None = Field(None, alias="rope.scaling.original_context_length")
    beta_fast: Positive | None = Field(None, alias="rope.scaling.yarn_beta_fast")
    beta_slow: Positive | None = Field(None, alias="rope.scaling.yarn_beta_slow")
    log_multiplier: Real | None = Field(None, alias="rope.scaling.yarn_log_multiplier")
    temperature: Real | None = Field(None, alias="attention.temperature_scale")
    vocab_size: Size | None = None
    expert_count: Whole | None = None
    expert_used_count: Whole | None = None
    expert_feed_forward_length: Whole | None = None
    expert_shared_feed_forward_length: Whole | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Check that per-layer values cover every layer and that norms have their epsilon."""
        for name in ("feed_forward_length", "head_count", "head_count_kv"):
            values = getattr(self, name)
            if isinstance(values, list) and len(values) != self.block_count:
                raise ValueError(f"it has {self.block_count} layers and {len(values)} entries of {name}")
        if self.rms_epsilon is None and self.epsilon is None:
            raise ValueError("it has no attention.layer_norm_rms_epsilon")
        return self


class Vocabulary(Part):
    """Fields `tokenizer.…`."""

    model: Text = Field(alias="ggml.model")
    pre: Text | None = Field(None, alias="ggml.pre")
    tokens: Tokens = Field(alias="ggml.tokens", min_length=1)
    token_type: TokenTypes | None = Field(None, alias="ggml.token_type")
    scores: Scores | None = Field(None, alias="ggml.scores")
    merges: Merges | None = Field(None, alias="ggml.merges")
    bos: Whole | None = Field(None, alias="ggml.bos_token_id")
    eos: Whole | None = Field(None, alias="ggml.eos_token_id")
    eot: Whole | None = Field(None, alias="ggml.eot_token_id")
    unknown: Whole | None = Field(None, alias="ggml.unknown_token_id")
    padding: Whole | None = Field(None, alias="ggml.padding_token_id")
    add_bos: bool = Field(False, alias="ggml.add_bos_token")
    add_eos: bool = Field(False, alias="ggml.add_eos_token")
    add_space: bool = Field(False, alias="ggml.add_space_prefix")
    chat_template: str = ""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Check that every id is a token's and that per-token values cover every token."""
        count = len(self.tokens)
        for name in ("bos", "eos", "eot", "unknown", "padding"):
            number = getattr(self, name)
            if number is not None and number >= count:
                raise ValueError(f"its {name} token has the id {number}, and there are {count:,} tokens")
        for name in ("token_type", "scores"):
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise ValueError(f"it has {count:,} tokens and {len(values):,} entries of {name}")
        return self


class Metadata(Part):
    """Metadata of the language model in a GGUF."""

    general: General
    split: Split
    network: Network
    tokenizer: Vocabulary


def checked_header(file: Path) -> Header:
    """Return the header of a GGUF that can become a base model.

    Raises `DataError` with the reason if it can't.
    """
    header = whole_header(file)
    need_known_positions(header, file)
    return header


def whole_header(file: Path) -> Header:
    """Return the header of a GGUF that is one whole language model. Raises `DataError` if it is not."""
    try:
        header = read_header(file)
    except NotGguf as error:
        raise DataError(
            "Q-MODELS-001", f"{file} is not a complete GGUF file ({error}): fetch it again"
        ) from None
    except OSError as error:
        raise DataError(
            "Q-MODELS-002", f"{file} can't be read ({error.strerror}): correct base.model in params.yaml"
        ) from None
    # This comes before the metadata, which only the first part contains. Joining the parts leaves 0.
    parts = header.fields.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise DataError(
            "Q-MODELS-004",
            f"{file} is one of {parts} parts: name the first (…-00001-of-{parts:05}.gguf), beside which the "
            "others lie, or join them with `llama-gguf-split --merge` and name the result",
        )
    metadata = read_metadata(header, file)
    network = metadata.network
    if network.block_count > len(header.tensors):
        raise DataError(
            "Q-MODELS-001",
            f"{file} announces {network.block_count} layers but has {len(header.tensors)} tensors: fetch it "
            "again",
        )
    return header


def need_known_positions(header: Header, file: Path) -> None:
    """Raise `DataError` if the file scales its rotary positions in a way that training would not see."""
    network = read_metadata(header, file).network
    scaled = network.rope_scaling != "none" or not {network.rope_factor, network.rope_linear} <= {0, 1}
    family = family_in(header.fields)
    # Their settings are read in `pipeline.gguf.families.stretched`.
    is_known = network.rope_scaling == "yarn" and family is not None and family.yarn
    if (scaled and not is_known) or _has_unknown_factors(header, file):
        raise DataError(
            "Q-MODELS-005",
            f"{file} has scaled rotary positions other than those of Llama 3.1 to 3.3, OLMo 3 and Ministral "
            "3, which transformers would drop in silence: take the Hugging Face folder of this model",
        )


def _has_unknown_factors(header: Header, file: Path) -> bool:
    """Return True if the file has rotary factors of llama3 that no published settings give."""
    # It imports NumPy, which planning from a header never needs.
    from pipeline.gguf.rope import LLAMA3, published_settings

    return LLAMA3 in header.tensors and not published_settings(header, file)


def read_metadata(header: Header, file: Path) -> Metadata:
    """Return the metadata of a language model that can be trained. Raises `DataError` if the file is not one,
    with the values that no model can have.
    """
    kind = header.fields.get("general.type")
    if isinstance(kind, str) and kind in NO_MODELS:
        raise DataError("Q-MODELS-003", f"{file} is {NO_MODELS[kind]}")
    architecture = header.fields.get("general.architecture")
    if not isinstance(architecture, str) or not architecture or not header.tensors:
        raise DataError(
            "Q-MODELS-003",
            f"{file} holds no language model (architecture {quoted(architecture)}, {len(header.tensors)} "
            "tensors): choose another GGUF",
        )
    check_experts_of(header.fields, str(file))
    beginnings = {"general": "general", "split": "split", "network": architecture, "tokenizer": "tokenizer"}
    parts = {
        part: {
            name.removeprefix(f"{beginning}."): value
            for name, value in header.fields.items()
            if name.startswith(f"{beginning}.")
        }
        for part, beginning in beginnings.items()
    }
    try:
        return Metadata.model_validate(parts)
    except ValidationError as error:
        what = faults(error, lambda place: ".".join([beginnings[place[0]], *place[1:2]]))
        raise DataError(
            "Q-MODELS-038",
            f"{file} has metadata that no model can have ({what}): fetch it again, or take another file of "
            "this model",
        ) from None


def named_templates(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates of a header by name. llama-server uses `tool_use`, if there is one, for
    requests with tools, as transformers does.
    """
    beginning = f"{CHAT_TEMPLATE}."
    named = {
        name.removeprefix(beginning): text
        for name, text in fields.items()
        if name.startswith(beginning) and isinstance(text, str)
    }
    default = fields.get(CHAT_TEMPLATE)
    return named | ({"default": default} if isinstance(default, str) else {})


def stated_config(header: Header) -> dict[str, Any]:
    """Return a header's settings under the keys of config.json: rows of the embeddings, whether these are the
    head too, and the settings of a mixture with its model_type.
    """
    table = header.tensors.get("token_embd.weight", ((0, 0), 0))[0]
    return {
        "vocab_size": prod(table[1:]),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **expert_settings(header.fields),
    }


def is_mixture(header: Header) -> bool:
    """Return True if the model is a mixture of experts of a kind that can be trained."""
    return bool(expert_settings(header.fields))


def not_dense(header: Header) -> str | None:
    """Return the kind of a model that is not one of the `DENSE` ones; None if it is one."""
    architecture = str(header.fields["general.architecture"])
    if is_mixture(header):
        return f"a mixture of experts ({architecture})"
    return None if architecture in DENSE else architecture
