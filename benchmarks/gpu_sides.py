"""One side of gpu_train.py in a process of its own: `python benchmarks/gpu_sides.py SIDE '{JSON}'` prints one line of JSON last.

Sides: ours (`pipeline.train.train`), plain (HF + PEFT + TRL as their documentation shows QLoRA), longest (the longest row that trains under
the cap), sweep (peaks of our step for several lengths, with and without checkpointing).
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from pipeline.sections import Training

CUDA = torch.cuda.is_available()
WARM_UP = 2  # steps that don't count
LONGEST_STEP = 64  # tokens


def cap(gib: float | None) -> None:
    """Let this process allocate no more than `gib` GiB of the GPU."""
    if CUDA and gib:
        torch.cuda.set_per_process_memory_fraction(gib * 2**30 / torch.cuda.get_device_properties(0).total_memory)


def result(seconds: list[float], tokens: int) -> dict[str, Any]:
    """Tokens per second of the steps after the warm-up, and the peak of allocated GPU memory (None without a GPU)."""
    return {"tokens_per_second": tokens / median(seconds[WARM_UP:]), "peak_bytes": torch.cuda.max_memory_allocated() if CUDA else None}


def ours(base: Path, rows: Path, out: Path, settings: Training, tokens: int) -> dict[str, Any]:
    """Quench's own stage, whole: with its proofs, watching and checkpoints."""
    from pipeline.train import train

    report = train(
        tokens=rows, base=base, adapter=out / "adapter", checkpoints=out / "checkpoints", tensorboard=out / "tensorboard", settings=settings,
        resume=False,
    )  # fmt: skip
    return result([row["seconds"] for row in report["journal"] if row["kind"] == "step"], tokens * settings.gradient_accumulation_steps)


def plain(base: Path, rows: Path, out: Path, settings: Training, tokens: int) -> dict[str, Any]:
    """The stack as it comes: `prepare_model_for_kbit_training` and SFTTrainer, with the same recipe's numbers on the same rows."""
    from datasets import Dataset
    from peft import LoraConfig, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    nf4 = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=settings.bnb_4bit_use_double_quant,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, quantization_config=nf4, device_map={"": 0 if CUDA else "cpu"})
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=settings.gradient_checkpointing)
    seconds: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Times each step, from begin to end."""

        def on_step_begin(self, *arguments: Any, **more: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *arguments: Any, **more: Any) -> None:
            if CUDA:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - self.begin)

    lora = LoraConfig(
        task_type="CAUSAL_LM", r=settings.r, lora_alpha=settings.lora_alpha, lora_dropout=settings.lora_dropout,
        target_modules=list(settings.target_modules),
    )  # fmt: skip
    arguments = SFTConfig(
        output_dir=str(out), max_length=None, packing=False, dataset_kwargs={"skip_prepare_dataset": True}, max_steps=settings.max_steps,
        per_device_train_batch_size=settings.per_device_train_batch_size, gradient_accumulation_steps=settings.gradient_accumulation_steps,
        gradient_checkpointing=settings.gradient_checkpointing, gradient_checkpointing_kwargs={"use_reentrant": False}, optim=settings.optim,
        learning_rate=settings.learning_rate, bf16=CUDA, use_cpu=not CUDA, report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True,
    )  # fmt: skip
    dataset = Dataset.from_parquet(str(rows / "train.parquet")).select_columns(["input_ids", "labels"])
    SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        peft_config=lora,
        callbacks=[Clock()],
        processing_class=AutoTokenizer.from_pretrained(base),
    ).train()
    return result(seconds, tokens * settings.gradient_accumulation_steps)


def stepper(base: Path, settings: Training) -> Callable[[int, bool], int | None]:
    """A function that does one training step of our model on a row of so many tokens, with or without checkpointing, and gives its peak in bytes."""
    from peft import get_peft_model

    from pipeline.training.chunked import chunked_loss
    from pipeline.training.liger import apply_liger, choose_loss, fused_loss
    from pipeline.training.qlora import load_quantised, lora_config

    loss = choose_loss(settings.loss)
    if loss == "liger":
        apply_liger(base)
    model = get_peft_model(load_quantised(base, settings), lora_config(settings)).train()
    matrices = [weight for weight in model.parameters() if weight.requires_grad]
    if CUDA:
        import bitsandbytes

        optimizer: Any = bitsandbytes.optim.PagedAdamW8bit(matrices, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(matrices, lr=1e-4)

    def step(tokens: int, checkpointing: bool) -> int | None:
        model.gradient_checkpointing_enable({"use_reentrant": False}) if checkpointing else model.gradient_checkpointing_disable()
        ids = torch.arange(tokens, device=matrices[0].device)[None] % 256
        if CUDA:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16, enabled=CUDA):
            inputs = {"input_ids": ids, "labels": ids, "position_ids": torch.arange(tokens, device=ids.device)[None]}
            (fused_loss if loss == "liger" else chunked_loss)(model.get_base_model(), inputs).backward()
        optimizer.step()
        peak = torch.cuda.max_memory_allocated() if CUDA else None
        optimizer.zero_grad()
        return peak

    return step


def longest(base: Path, settings: Training) -> dict[str, Any]:
    """The longest row, in steps of LONGEST_STEP tokens, of which a step fits under the cap (binary search); None without a GPU."""
    step = stepper(base, settings)

    def fits(tokens: int) -> bool:
        try:
            step(tokens, settings.gradient_checkpointing)
        except torch.cuda.OutOfMemoryError:
            return False
        return True

    step(LONGEST_STEP, settings.gradient_checkpointing)  # the optimizer's states are there from now on
    return {"longest": search(fits, 512 // LONGEST_STEP) * LONGEST_STEP if CUDA else None}


def search(fits: Callable[[int], bool], start: int) -> int:
    """The largest number of LONGEST_STEPs that fits, 0 for none; doubles from `start` until one doesn't, then halves the rest."""
    low, high = 0, start
    while fits(high * LONGEST_STEP):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * LONGEST_STEP) else (low, middle)
    return low


def sweep(base: Path, settings: Training, lengths: list[int]) -> dict[str, Any]:
    """Our step's peaks as [tokens, checkpointing, measured bytes (None without a GPU), the planner's]."""
    from pipeline.planning.memory import plan_memory
    from pipeline.planning.shape import load_shape
    from pipeline.training.liger import choose_loss

    step, shape, found = stepper(base, settings), load_shape(base / "config.json"), []
    step(LONGEST_STEP, True)
    for tokens in lengths:
        for checkpointing in (True, False):
            train = settings.model_copy(update={"gradient_checkpointing": checkpointing})
            planned = plan_memory(shape, train, tokens, "cuda" if CUDA else "cpu", choose_loss(settings.loss))  # type: ignore[arg-type]
            found.append([tokens, checkpointing, step(tokens, checkpointing), planned.allocated])
    return {"sweep": found}


def main() -> None:
    """Do one side and print its figures."""
    side, asked = sys.argv[1], json.loads(sys.argv[2])
    settings = Training.model_validate(asked["settings"])
    base, rows, out = Path(asked["base"]), Path(asked["rows"]), Path(asked["out"])
    cap(asked["cap"])
    if side in ("ours", "plain"):
        found = {"ours": ours, "plain": plain}[side](base, rows, out, settings, asked["tokens"])
    else:
        found = longest(base, settings) if side == "longest" else sweep(base, settings, asked["lengths"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
