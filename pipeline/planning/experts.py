"""What a mixture of experts keeps for its backward, beside what its linears do."""

from pipeline.planning.shape import Shape

FLOAT, INDEX = 4, 8  # bytes


def experts_kept(shape: Shape, tokens: int, element: int) -> int:
    """Bytes that a mixture's layer keeps of `tokens` in numbers of `element` bytes, beside its linears'
    inputs: what the router gives, which tokens go where, the experts' answers before and after they are
    weighted, the shared one's before.
    """
    shared = any(linear.name == "shared_expert_gate" for linear in shape.linears)
    answers = shape.chosen * (2 * shape.hidden + 1) + shared * (shape.hidden + 1)
    weights = shape.experts + shape.normalized * (shape.chosen + 1)
    return tokens * (answers * element + shape.chosen * 3 * INDEX + weights * FLOAT)
