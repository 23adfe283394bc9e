"""Checks of a quantization check: how much NF4 changes the model's outputs (logits of the 16-bit base against
those of the NF4 base, both with the adapter), and the memory that training keeps.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np

from pipeline.config.sections import Train, Training
from pipeline.core.checks import Check, Verdict
from pipeline.llamacpp.logits import Floats
from pipeline.metrics.divergence import prompt_figures
from pipeline.metrics.level_limits import NF4_COUNTS_AS, PUBLISHED_KLD
from pipeline.models.tensors import frozen_tensors, tensor_bytes
from pipeline.planning.memory.weights import frozen_bytes, optimizer_bytes, trained_tensors
from pipeline.planning.model.base import published_shape
from pipeline.planning.model.shape import Shape
from pipeline.planning.setup import FLOAT, Setup

POSITIONS = 32  # last positions of a prompt whose logits are compared; a 152k vocabulary needs 19 MB a prompt
# The cost of rounding in the outputs depends on the model and the text. So this limit only tells whether it
# is the same model at all. A single linear that is off is found by its weights
# (`pipeline.models.nf4_weights`). The limit follows figures published for a level as fine as NF4
# (`level_limits.NF4_COUNTS_AS`), over windows of Wikitext:
# - Llama-3-8B: 0.0719 nats (llama.cpp, tools/perplexity/README.md), more than for any other model of 7 to 9
#   billion parameters. Larger models are published to lose less (Qwen3.5-27B at Q4_K_M 0.0056 to 0.0065,
#   r/LocalLLaMA 1rk5qmr; Llama-3-8B 0.0313). Their limit is not lower.
# - Qwen2.5-1.5B-Instruct: 0.159 at Q3_K_M. Chats account for a factor of 2.2 (`level_limits.SLACK`). The rest
#   is 0.7 times Llama-3-8B's figure at that level (Hugging Face, datasets/quantgap/results, discussions/7).
#   Its limit is not lower.
# - Qwen2.5-0.5B-Instruct: 0.0498 at Q5_K_M on chats, 2.1 times Llama-3-8B's 0.01076 (same data set, result
#   f499c4436fa8e370). Between the two the line gives 1.85 at 0.6 billion; Qwen3-0.6B has 1.76
#   (discussions/3).
# Nothing is published for smaller models.
SMALLEST = 494_032_768  # parameters of Qwen2.5-0.5B
MOST_OVER = 2.1  # times Llama-3-8B's figure, allowed at SMALLEST parameters
LIKE_EIGHT_BILLION = 1_543_714_304  # parameters (Qwen2.5-1.5B) from which on Llama-3-8B's figure applies
# Short prompts cost more than windows. Measured on sound models with the 8 built-in prompts and a random
# adapter:
#   SmolLM2-135M           0.66 nats, 72 % the same first choice    (at Q4_0 over windows 0.230)
#   Qwen2.5-Coder-0.5B     0.074 nats, 81 %                         (on 8 held-out rows 0.047, 93 %)
# SmolLM2 with its adapter on one side only has 1.2 to 1.4 nats.
PROMPTS_OVER_WINDOWS = 3.0
STEPS = 2  # Adam's states exist from the first step on, and keep their final size from the second.
TOKENS = 64  # tokens of a row in a step; the size of the tensors that stay does not depend on it
# Names of the rows in the table.
PLAIN = "unquantized LoRA"
NF4 = "NF4 QLoRA"
MODEL = "Qwen2.5-7B"
# Training settings at 7B, with the rank of these settings. Layers, norms and name patterns belong to this
# base and may not exist there.
ALL_LINEARS: dict[str, Any] = {
    "target_modules": Train().target_modules,
    "layers": None,
    "rank_pattern": {},
    "modules_to_save": [],
    "experts": None,
}
MEMORY_LIMIT = 0.05  # share of the planned bytes


def last_logits(model: Any, rows: list[list[int]]) -> list[Floats]:
    """Return float32 logits (≤ POSITIONS, V) of each row's last positions, in evaluation mode."""
    import torch

    model.eval()
    with torch.no_grad():
        outputs = (
            model(
                input_ids=torch.tensor([ids], device=model.device),
                use_cache=False,
                logits_to_keep=POSITIONS,
            )
            for ids in rows
        )
        return [output.logits[0].float().cpu().numpy() for output in outputs]


def compare_logits(reference: list[Floats], candidate: list[Floats]) -> dict[str, float]:
    """Compare logits over all positions. Return the mean and largest absolute difference, the mean and
    largest relative error of a position, the NMSE, the mean KL divergence in nats and the share of the same
    first choice.

    A position's relative error is ‖difference‖ ÷ ‖logits‖, both without their mean over the vocabulary,
    because softmax does not depend on it.
    """
    before = np.concatenate(reference)
    after = np.concatenate(candidate)
    difference = np.abs(after - before)
    relative = norms(after - before) / norms(before)
    figures = prompt_figures(before, after)
    return {
        "mean_abs": float(difference.mean()),
        "max_abs": float(difference.max()),
        "mean_relative": float(relative.mean()),
        "max_relative": float(relative.max()),
        "nmse": figures.nmse,
        "kld": figures.kld,
        "same_top": figures.same_top,
        "positions": len(before),
    }


def norms(logits: Floats) -> Floats:
    """Return the norm of each position's logits (T, V) without their mean."""
    return np.asarray(np.linalg.norm(logits - logits.mean(axis=-1, keepdims=True), axis=-1))


def largest_kld(parameters: float | None) -> float | None:
    """Return the largest mean KL divergence, in nats, allowed for NF4 on short prompts in a model of
    `parameters`. Returns None if no figure is published for such a size.
    """
    if parameters is None or parameters < SMALLEST:
        return None
    smaller = max(0.0, log(LIKE_EIGHT_BILLION / parameters) / log(LIKE_EIGHT_BILLION / SMALLEST))
    return PROMPTS_OVER_WINDOWS * float(MOST_OVER**smaller) * PUBLISHED_KLD[NF4_COUNTS_AS]


def output_check(figures: dict[str, float], where: str, parameters: int | None = None) -> Check:
    """Check the divergence against the limit for a model of `parameters`.

    Without a limit it is "not measured". No errors of logits are published for any model, and no share of the
    same first choice on short prompts (Qwen2.5-Coder-0.5B changes 1.5 times as many as its divergence
    suggests). So they are only shown next to the divergence.
    """
    most = largest_kld(parameters)
    detail = (
        f"same first choice at {figures['same_top']:.1%}, logits differ by {figures['mean_abs']:.3f} on "
        f"average, {figures['max_abs']:.2f} at most, relative error {figures['mean_relative']:.2f}, NMSE "
        f"{figures['nmse']:.4f}; {where}"
    )
    if most is None:
        size = "its size is not known" if parameters is None else f"{parameters / 1e9:.2g} billion parameters"
        detail = f"not calibrated: nothing is published at 4 bits for so small a model ({size}); {detail}"
    verdict: Verdict
    if most is None:
        verdict = "not measured"
    elif figures["kld"] <= most:
        verdict = "pass"
    else:
        verdict = "fail"
    return Check(
        "16-bit base with adapter → NF4 base with adapter",
        verdict,
        detail,
        what="mean KL divergence",
        figure=figures["kld"],
        limit=most,
        unit="nats",
    )


@dataclass(frozen=True)
class Memory:
    """Memory that training keeps: bytes by model and part, the conclusions for 7B as figures and a sentence,
    and the check that the planner's formulas agree.
    """

    table: dict[str, dict[str, int]]
    figures: dict[str, Any]
    check: Check


def measure_training(model: Any, rows: list[list[int]], learning_rate: float) -> dict[str, int]:
    """Return the bytes of each part after STEPS steps of Adam on the adapter of `model` (PEFT), counted on
    the tensors themselves. The adapter is changed.
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
    """Return the same bytes as the planner's formulas give them, with Adam in 32 bit as measured here."""
    setup = Setup(shape, train.model_copy(update={"optim": "adamw_torch"}), TOKENS)
    adapter = FLOAT * sum(trained_tensors(setup))
    return {
        "weights": frozen_bytes(setup),
        "adapter": adapter,
        "gradients": adapter,
        "adam": optimizer_bytes(setup),
    }


def memory_of(measured: dict[str, dict[str, int]], shape: Shape | None, train: Training) -> Memory:
    """Compare the bytes `measured` for `PLAIN` and `NF4` with the planner's formulas at 7B. The formulas are
    checked against the measured NF4 bytes if the planner knows the architecture (`shape`).
    """
    published = published_shape(MODEL)
    assert published, f"the planner doesn't know {MODEL}"
    there = train.model_copy(update=ALL_LINEARS)
    table = {
        **measured,
        f"{MODEL}, {PLAIN}": planned_training(published, there.model_copy(update={"quantization": "none"})),
        f"{MODEL}, {NF4}": planned_training(published, there),
    }
    table = {name: {**parts, "total": sum(parts.values())} for name, parts in table.items()}
    nf4 = table[NF4]["total"]
    plain = table[PLAIN]["total"]
    nf4_7b = table[f"{MODEL}, {NF4}"]["total"]
    plain_7b = table[f"{MODEL}, {PLAIN}"]["total"]
    check = Check(
        "Memory that stays while training, NF4 QLoRA",
        "not measured",
        "the planner doesn't know this architecture",
        what="difference between the tensors and the planner's formulas",
        limit=MEMORY_LIMIT,
    )
    computed: int | None = None
    proof = "the formulas are not checked on this architecture"
    if shape:
        computed = sum(planned_training(shape, train).values())
        proof = f"{nf4 / computed:.3f} times what the planner's formulas give"
        error = abs(nf4 - computed) / computed
        sentence = f"{nf4:,} bytes measured after {STEPS} steps, {computed:,} planned"
        verdict: Verdict = "pass" if error <= MEMORY_LIMIT else "fail"
        check = replace(check, verdict=verdict, sentence=sentence, figure=error)
    figures = {
        "measured": nf4,
        "computed": computed,
        "ratio": nf4 / computed if computed else None,
        "share": nf4 / plain,
        "share_at_7b": nf4_7b / plain_7b,
        "sentence": f"Here NF4 keeps {nf4 / 1e6:,.1f} MB, {nf4 / plain:.2f} of what unquantized LoRA "
        f"keeps, {proof}; so at {MODEL} it keeps {nf4_7b / 1e9:.2f} of {plain_7b / 1e9:.2f} GB (computed), "
        f"{nf4_7b / plain_7b:.2f} of it.",
    }
    return Memory(table, figures, check)
