"""Check that a model's folder contains what its config.json states: rows, layers, head, shapes, and numbers
that fit the GGUF's type.

Converters accept what they find: a missing layer, a head that is stored and not used, or a left-out bias make
a GGUF that loads and answers worse.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from pipeline.chat.tokenizer_file import plain_tokenizer
from pipeline.core.errors import DataError
from pipeline.gguf.safetensors_rows import Entry, read_folder, read_rows, same_values, spans
from pipeline.gguf.sources import in_model, text_config
from pipeline.models.experts.recognize import weighted_otherwise
from pipeline.planning.model.shape import KNOWN, known_shape

LAYER = re.compile(r"^(?:model\.|transformer\.|language_model\.)*(?:layers|h)\.(\d+)\.")
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
BLOCK = 1 << 26  # bytes of a tensor that are read at a time
F16_END = 65_520.0  # the smallest number that rounds to infinity in float16; the largest float16 is 65,504


def contradictions(folder: Path, kind: str) -> list[str]:
    """Return every reason why the model in `folder` can't be what its config.json states, or can't be written
    as `kind` (F16 or BF16).

    Raises `DataError` if config.json or a weight file can't be read at all.
    """
    model = Model(folder, read_config(folder), read_folder(folder))
    reasons = [*head(model), *rows(model), *layers(model), *shapes(model), *weighted_otherwise(model.config)]
    if kind == "F16":
        reasons += overflows(model)
    return reasons


@dataclass(frozen=True)
class Model:
    """Contents of a model's folder: config.json, and the entries of its weight files."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Entry]

    @property
    def embedding(self) -> Entry | None:
        """Embedding matrix; None if there is none."""
        return next((entry for name, entry in self.tensors.items() if name.endswith(EMBEDDINGS)), None)

    @property
    def layers(self) -> set[int]:
        """Numbers of the layers that have a tensor."""
        return {int(match[1]) for name in self.tensors if (match := LAYER.match(name))}


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of the language model, which in some models is a part of the entire one. Raises
    `DataError` if it can't be read.
    """
    try:
        return text_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            "Q-CONVERT-001",
            f"{folder / 'config.json'} is not readable JSON ({error}): run the stage that makes it again",
        ) from error


def head(model: Model) -> Iterator[str]:
    """Yield a sentence if a stored tied head differs from the embedding, or an untied one is not stored."""
    from transformers import AutoConfig

    stored = model.tensors.get("lm_head.weight")
    embedding = model.embedding
    tied = model.config.get("tie_word_embeddings")
    if tied is None:  # transformers does not write a value that is the architecture's default
        complete = AutoConfig.from_pretrained(model.folder, local_files_only=True, trust_remote_code=False)
        tied = complete.get_text_config().tie_word_embeddings
    if tied and stored and embedding and not same_values(stored, embedding):
        yield (
            "tie_word_embeddings is true, but lm_head.weight is stored and differs from the embedding: set "
            "it to false in the base's config.json, or leave the head out"
        )
    if not tied and not stored and embedding:
        yield (
            "tie_word_embeddings is false, but there is no lm_head.weight: merge again, or take a base "
            "that is complete"
        )


def rows(model: Model) -> Iterator[str]:
    """Yield a sentence if vocab_size is not the number of rows, and one if a token has no row."""
    embedding = model.embedding
    stated = model.config.get("vocab_size")
    if embedding and embedding.shape[0] != stated:
        yield (
            f"vocab_size is {stated}, but {embedding.name} has {embedding.shape[0]} "
            "rows: make config.json say the same"
        )
    if embedding and (model.folder / "tokenizer.json").exists():
        tokens = max(plain_tokenizer(model.folder).get_vocab().values()) + 1
        if tokens > embedding.shape[0]:
            yield (
                f"the tokenizer has {tokens} tokens, but {embedding.name} has {embedding.shape[0]} rows: "
                "take the tokenizer of this model"
            )


def layers(model: Model) -> Iterator[str]:
    """Yield a sentence for missing and one for surplus layers: there must be exactly num_hidden_layers, and
    those for multi-token prediction that config.json names.
    """
    config = model.config
    numbers = model.layers
    count = config.get("num_hidden_layers")
    extra = config.get("num_nextn_predict_layers") or 0
    if not numbers or count is None:
        return
    missing = sorted(set(range(count)) - numbers)
    if missing:
        yield (
            f"num_hidden_layers is {count}, but layer {missing[0]} has no tensor ({len(missing)} "
            "layers): merge again from a base that is complete"
        )
    more = sorted(numbers - set(range(count + extra)))
    if more:
        yield (
            f"num_hidden_layers is {count}, but there are tensors of layer {more[0]} ({len(more)} "
            "layers): take layers for multi-token prediction "
            "out of the base, or name them in num_nextn_predict_layers"
        )


def shapes(model: Model) -> Iterator[str]:
    """Yield a sentence if a linear's weight or bias has another shape than config.json implies. Architectures
    with unknown shapes are not checked.
    """
    config = model.config
    if config.get("model_type") not in KNOWN:
        return
    expected: dict[str, tuple[int, ...] | None] = {}
    linears = known_shape(config).linears
    for number in sorted(model.layers):
        for linear in linears:
            for copy in range(linear.copies):
                stem = linear.path(number, copy)
                expected[f"{stem}.weight"] = (linear.outputs, linear.inputs)
                expected[f"{stem}.bias"] = (linear.outputs,) if linear.bias else None
    stored = {in_model(name): entry.shape for name, entry in model.tensors.items()}
    sizes = {name: stored.get(name) for name in expected}
    wrong = [
        f"{name} is {_size(sizes[name])} and should be {_size(size)}"
        for name, size in expected.items()
        if sizes[name] != size
    ]
    if wrong:
        yield f"{wrong[0]} ({len(wrong)} tensors): merge again from a base whose config.json is its own"


def overflows(model: Model) -> Iterator[str]:
    """Yield a sentence if matrices have numbers too large for float16. Vectors stay in float32."""
    wrong: list[tuple[str, float]] = []
    for entry in model.tensors.values():
        if len(entry.shape) > 1 and entry.dtype in ("BF16", "F32", "F64"):
            largest = _largest(entry)
            if not largest < F16_END:  # NaN too
                wrong.append((entry.name, largest))
    if wrong:
        name, largest = wrong[0]
        yield (
            f"{name} has numbers up to {largest:.4g}, more than float16 holds ({len(wrong)} tensors): "
            "set convert.type to BF16"
        )


def _largest(entry: Entry) -> float:
    """Return the largest absolute value; NaN if the tensor contains one."""
    import torch

    if not prod(entry.shape):
        return 0.0
    ends = [
        torch.stack(read_rows(entry, *span).aminmax()).float() for span in spans(entry, BLOCK // entry.width)
    ]
    return float(torch.stack(ends).abs().amax())


def _size(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else " × ".join(map(str, shape))
