"""What training keeps in memory, measured from its tensors: unquantized LoRA against NF4 QLoRA, and the same
at 7B by the planner's formulas.
"""

from typing import Any

from pipeline.config.sections import Training
from pipeline.core.checks import Check
from pipeline.models.tensors import frozen_tensors, tensor_bytes
from pipeline.planning.published import published_shape
from pipeline.planning.shape import Shape
from pipeline.planning.weights import (
    ELEMENT,
    linear_bytes,
    lora_parameters,
    optimizer_bytes,
    small_bytes,
    table_bytes,
)

PARTS = ("weights", "adapter", "gradients", "adam")
STEPS = 2  # Adam's states are there from the first step on, and are as they stay from the second
TOKENS = 64  # of a row that is stepped on: the tensors that stay don't depend on it
PLAIN, NF4 = "unquantized LoRA", "NF4 QLoRA"  # as rows are called
MODEL = "Qwen2.5-7B"


def measure_training(model: Any, rows: list[list[int]], learning_rate: float) -> dict[str, int]:
    """Bytes of `PARTS` after STEPS steps of Adam on the adapter of `model` (PEFT), from the tensors
    themselves; the adapter is changed.
    """
    import torch

    from pipeline.models.chunked_loss import chunked_loss

    matrices = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(matrices, lr=learning_rate)
    model.train()
    for step in range(STEPS):
        ids = torch.tensor([rows[step % len(rows)][:TOKENS]], device=matrices[0].device)
        optimizer.zero_grad()
        chunked_loss(model.get_base_model(), {"input_ids": ids, "labels": ids}).backward()
        optimizer.step()
    states = (state for states in optimizer.state.values() for state in states.values())
    return {
        "weights": tensor_bytes(frozen_tensors(model)),
        "adapter": tensor_bytes(matrices),
        "gradients": tensor_bytes(weight.grad for weight in matrices if weight.grad is not None),
        "adam": tensor_bytes(filter(torch.is_tensor, states)),
    }


def planned_training(shape: Shape, train: Training) -> dict[str, int]:
    """The same bytes by the planner's formulas, with Adam in 32 bit as measured here."""
    adapter = ELEMENT["float32"] * lora_parameters(shape, train)
    return {
        "weights": linear_bytes(shape, train) + table_bytes(shape, train) + small_bytes(shape, train),
        "adapter": adapter,
        "gradients": adapter,
        "adam": optimizer_bytes(shape, train.model_copy(update={"optim": "adamw_torch"})),
    }


def memory_table(measured: dict[str, dict[str, int]], train: Training) -> dict[str, dict[str, int]]:
    """`measured` (`PLAIN`, `NF4`) with totals, and both at 7B by formula."""
    shape = published_shape(MODEL)
    assert shape, f"the planner doesn't know {MODEL}"
    plain = train.model_copy(update={"quantization": "none"})
    table = {
        **measured,
        f"{MODEL}, {PLAIN}": planned_training(shape, plain),
        f"{MODEL}, {NF4}": planned_training(shape, train),
    }
    return {name: {**parts, "total": sum(parts[part] for part in PARTS)} for name, parts in table.items()}


def memory_check(measured: dict[str, dict[str, int]], shape: Shape | None, train: Training) -> dict[str, Any]:
    """What was measured of `PLAIN` and `NF4` against the formulas, and what that says of 7B: figures, and one
    sentence with them.
    """
    table = memory_table(measured, train)
    here, plain, seven, seven_plain = (
        table[name]["total"] for name in (NF4, PLAIN, f"{MODEL}, {NF4}", f"{MODEL}, {PLAIN}")
    )
    computed = sum(planned_training(shape, train).values()) if shape else None
    ratio = here / computed if computed else None
    proof = (
        f"{ratio:.3f} times what the planner's formulas give"
        if ratio
        else "the formulas are not checked on this architecture"
    )
    sentence = (
        f"Here NF4 keeps {here / 1e6:,.1f} MB, {here / plain:.2f} of what unquantized LoRA keeps, {proof}; "
        f"so at {MODEL} it keeps {seven / 1e9:.2f} of {seven_plain / 1e9:.2f} GB (computed), "
        f"{seven / seven_plain:.2f} of it."
    )
    return {
        "measured": here,
        "computed": computed,
        "ratio": ratio,
        "share": here / plain,
        "share_at_7b": seven / seven_plain,
        "sentence": sentence,
    }


def memory_line(measured: dict[str, int], shape: Shape | None, train: Training) -> Check:
    """NF4's measured bytes against the planner's: what is said about 7B rests on these formulas."""
    title, what = (
        "Memory that stays while training, NF4 QLoRA",
        "difference between the tensors and the planner's formulas",
    )
    if shape is None:
        return Check(
            title, "not measured", "the planner doesn't know this architecture", what=what, limit=0.05
        )
    total, expected = sum(measured.values()), sum(planned_training(shape, train).values())
    error = abs(total - expected) / expected
    sentence = f"{total:,} bytes measured after {STEPS} steps, {expected:,} planned"
    return Check(title, "pass" if error <= 0.05 else "fail", sentence, what=what, figure=error, limit=0.05)
