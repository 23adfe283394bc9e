"""Whether a GGUF can become a base model, by its header."""

from pathlib import Path

from pipeline.core.errors import DataError
from pipeline.gguf.header import Header, NotGguf, read_header
from pipeline.models.experts.recognize import check_experts_of


def checked_header(file: Path) -> Header:
    """The header of a GGUF that can become a base model. Raises `DataError` with the reason if it can't."""
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
    fields, architecture = header.fields, header.fields.get("general.architecture")
    if not isinstance(architecture, str) or not header.tensors:
        raise DataError(
            "Q-MODELS-003",
            f"{file} holds no language model (architecture {architecture!r}, {len(header.tensors)} "
            "tensors): choose another GGUF",
        )
    check_experts_of(fields, str(file))
    if fields.get("split.count", 1) > 1:  # 0 is what joining leaves
        raise DataError(
            "Q-MODELS-004",
            f"{file} is one of {fields['split.count']} parts: join them with `llama-gguf-split --merge`, "
            "then name the result",
        )
    blocks = fields.get(f"{architecture}.block_count")
    if not isinstance(blocks, int) or not 0 < blocks <= len(header.tensors):
        raise DataError(
            "Q-MODELS-001",
            f"{file} announces {blocks!r} layers but has {len(header.tensors)} tensors: fetch it again",
        )
    scaling = fields.get(f"{architecture}.rope.scaling.type", "none")
    # llama.cpp takes either for linear scaling
    factors = [fields.get(f"{architecture}.rope.{key}", 1) for key in ("scaling.factor", "scale_linear")]
    if (
        scaling != "none"
        or "rope_freqs.weight" in header.tensors
        or any(factor not in (0, 1) for factor in factors)
    ):
        raise DataError(
            "Q-MODELS-005",
            f"{file} has scaled rotary positions, which transformers would drop in silence: take the "
            "Hugging Face folder of this model",
        )
    if not fields.get("tokenizer.chat_template"):
        raise DataError("Q-MODELS-006", f"{file} has no chat template: choose an instruct model as base")
    return header
