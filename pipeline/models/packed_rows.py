"""Measure on a small random model of a base's own architecture whether it keeps packed rows apart.

Packed rows have no attention mask, only positions that start again (TRL's `padding_free`). Attention that
reads the positions sees each row separately. A recurrent layer, or attention that ignores them, would let
rows leak into each other without an error.
"""

from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.text import shortened
from pipeline.models.small_model import small_model
from pipeline.models.text_config import read_text_config

# Largest difference of a logit between packed and single rows, in float32. Leaks are some 0.01 to 25.
LIMIT = 1e-4
# Tokens of the rows that are packed. They are longer than `WINDOW`, so that sliding attention slides.
LENGTHS = (7, 19, 12)


class RowsApart(NamedTuple):
    """Largest difference of a logit caused by packing, None if it could not be measured; and the reason why
    rows can't be packed, "" if they can.
    """

    difference: float | None
    reason: str = ""


def rows_apart(base: Path) -> RowsApart:
    """Measure whether the model in `base` keeps packed rows apart."""
    try:
        model = small_model(read_text_config(base))
    except Exception as error:  # Any architecture may require sizes of its own.
        return RowsApart(
            None, f"whether it keeps packed rows apart could not be measured ({shortened(error)})"
        )
    return measure(model)


def measure(model: Any) -> RowsApart:
    """Measure whether a model keeps packed rows apart. The model must be able to compute single rows."""
    kind = model.config.model_type
    try:
        difference = packed_difference(model)
    # transformers raises it to refuse packed rows, in recurrent layers and convolutions.
    except Exception as error:
        return RowsApart(None, f"{kind} can't compute packed rows ({shortened(error)})")
    if difference <= LIMIT:
        return RowsApart(difference)
    return RowsApart(
        difference,
        f"{kind} can't keep rows apart (a packed row's logits differ by {difference:.2g} from the same row's "
        f"alone, {LIMIT:g} is the limit)",
    )


def packed_difference(model: Any) -> float:
    """Return the largest difference of a logit between rows packed by TRL's collator and single rows."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(1)
        rows = [torch.randint(1, model.config.vocab_size, (1, length)) for length in LENGTHS]
        alone = torch.cat([model(input_ids=row, use_cache=False).logits for row in rows], dim=1)
        packed = model(input_ids=torch.cat(rows, dim=1), use_cache=False, **packed_positions(LENGTHS)).logits
    return float((packed - alone).abs().max())


def packed_positions(lengths: tuple[int, ...]) -> dict[str, Any]:
    """Return what TRL's collator adds to a packed row's ids: positions, and the rows' starts and numbers."""
    import torch

    sizes = torch.tensor(lengths)
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), sizes.cumsum(0).to(torch.int32)])
    return {
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        "cu_seq_lens_q": starts,
        "cu_seq_lens_k": starts,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "seq_idx": torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), sizes)[None],
    }
