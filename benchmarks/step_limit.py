"""A training step against what its matrix products alone take on this machine.

    python benchmarks/step_limit.py PROJECT          # one that was run at least up to preprocess
    python benchmarks/step_limit.py PROJECT --trl    # TRL's packed step too, in the same minutes
    python benchmarks/step_limit.py PROJECT --lengths 30 124 1024    # steps of packs of rows that long, too

The limit is the time of the frozen linears (forward, and the gradient of their input) and of the head (three
products for each trained position) at the best rate that PyTorch reaches here on the very shapes. It prints
the limit, the steps as multiples of it, the peak memory, and where a step's time goes. Other work on the
machine makes all of it slower, but not equally: run it alone.

A newer CPU computes as one with AVX2 if ONEDNN_MAX_CPU_ISA=AVX2, MKL_ENABLE_INSTRUCTIONS=AVX2 and
ATEN_CPU_CAPABILITY=avx2 are in the environment.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

REPEATS = 6  # of a product, of which the fastest counts
WARM_UP = 1  # steps that don't count
STEPS = 5
SHOWN = 12  # operations of the profile
HEAD = 3  # products of the head: forward, and the gradient of its input by chunks that compute it again
TRL = "trl"


def best_rate(rows: int, inputs: int, outputs: int) -> float:
    """Return the best rate of a product (rows, inputs) · (inputs, outputs), in FLOP/s: of bfloat16, or of
    float32 if this CPU has no other.
    """
    from pipeline.core.cpu import multiplied_in

    dtype = getattr(torch, multiplied_in())
    left = torch.randn(rows, inputs, dtype=dtype)
    right = torch.randn(outputs, inputs, dtype=dtype)
    torch.nn.functional.linear(left, right)
    fastest = min(seconds(lambda: torch.nn.functional.linear(left, right)) for _ in range(REPEATS))
    return 2 * rows * inputs * outputs / fastest


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def limit(model: Any, tokens: int, trained: int) -> float:
    """Return the seconds of a step's products: `tokens` through the linears, `trained` through the head."""
    shapes: Counter[tuple[int, int]] = Counter()
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        is_linear = hasattr(module, "in_features") and not hasattr(module, "base_layer")
        if is_linear and ".layers." in name and ".lora_" not in name:
            shapes[module.in_features, module.out_features] += 1
    total = 0.0
    for (inputs, outputs), count in shapes.items():
        for one, other in ((inputs, outputs), (outputs, inputs)):
            total += count * 2 * tokens * one * other / best_rate(tokens, one, other)
    vocabulary, width = head.weight.shape
    return total + HEAD * 2 * trained * width * vocabulary / best_rate(trained, width, vocabulary)


def quench_steps(project: Path, out: Path, lengths: Sequence[int]) -> dict[str, Any]:
    """Train a few steps as stage train does, and return the limit, the steps' seconds, peak and profile, and
    the seconds of steps with packs of rows of each of `lengths` tokens.
    """
    from pipeline.chat.tokens import load_tokenizer
    from pipeline.config.params import load_params
    from pipeline.core.interruption import Interruption
    from pipeline.core.metrics_log import MetricsLog
    from pipeline.models.runtime import peak_memory, use_all_cores
    from pipeline.models.tuners import causal_model
    from pipeline.stages.train.assembly import make_trainer
    from pipeline.stages.train.method import learner_of
    from pipeline.stages.train.run import Job, Run, describe

    use_all_cores()
    settings = load_params(project / "params.yaml").training
    job = Job(
        tokens=project / "data/tokens",
        base=project / "models/base",
        adapter=out / "adapter",
        checkpoints=out / "checkpoints",
        tensorboard=out / "tensorboard",
        settings=settings,
    )
    run = Run(
        **vars(job),
        record=describe(job.tokens, job.base, settings),
        start=None,
        tokenizer=load_tokenizer(job.base),
        interruption=Interruption(),
        metrics_log=MetricsLog(job.checkpoints / "steps.jsonl"),
    )
    began = time.perf_counter()
    trainer, _ = make_trainer(learner_of(settings.method)(run))
    loading = time.perf_counter() - began
    trainer.begin()
    batches = trainer.batches(0, 0)
    taken = []
    sizes = []
    for _ in range(WARM_UP + STEPS):
        micro = trainer.next_batches(batches)
        sizes.append((sum(batch["input_ids"].numel() for batch in micro), trainer.items_of(micro)))
        taken.append(seconds(lambda micro=micro: trainer.optimizer_step(micro)))
    peak = peak_memory()
    micro = trainer.next_batches(batches)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        trainer.optimizer_step(micro)
    by_length = {}
    for length in lengths:
        packs = [pack_of(batch, length) for batch in micro]
        steps = [seconds(lambda packs=packs: trainer.optimizer_step(packs)) for _ in range(STEPS)]
        by_length[length] = median(steps)
    tokens = round(median(tokens for tokens, _ in sizes))
    trained = round(median(items for _, items in sizes))
    return {
        "limit": limit(causal_model(trainer.model), tokens, trained),
        "seconds": taken[WARM_UP:],
        "tokens": tokens,
        "trained": trained,
        "peak": peak,
        "loading": loading,
        "profile": top_of(profile),
        "by_length": by_length,
    }


def pack_of(batch: dict[str, Any], length: int) -> dict[str, Any]:
    """Return a batch with the same tokens in rows of `length`; the last may be shorter."""
    from pipeline.stages.train.dataset import IGNORED, flattened

    ids = batch["input_ids"].flatten().tolist()
    row = {
        "input_ids": ids,
        "labels": batch["labels"].flatten().tolist(),
        "seq_lengths": [min(length, len(ids) - start) for start in range(0, len(ids), length)],
    }
    pack = flattened([row])
    trained = int((pack["labels"][:, 1:] != IGNORED).sum())
    kept = {name: batch[name] for name in ("rows", "row_ids")}
    return kept | pack | {"trained_tokens": trained, "items": trained}


def top_of(profile: Any) -> list[tuple[str, float, int]]:
    """Return the operations that took most of a step: name, seconds of their own, calls."""
    events = sorted(profile.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return [(event.key, event.self_cpu_time_total / 1e6, event.count) for event in events[:SHOWN]]


def trl_steps(project: Path, out: Path) -> dict[str, Any]:
    """Train a few steps with TRL and PEFT on the same chats, packed. Return the steps' seconds and peak."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        BitsAndBytesConfig,
        TrainerCallback,
    )
    from trl import SFTConfig, SFTTrainer

    from pipeline.config.params import load_params
    from pipeline.models.runtime import peak_memory, use_all_cores

    use_all_cores()
    settings = load_params(project / "params.yaml").training
    lines = (project / "data/final/train.jsonl").read_text(encoding="utf-8").splitlines()
    chats = [json.loads(line)["messages"] for line in lines]
    rows = [{"prompt": chat[:-1], "completion": chat[-1:]} for chat in chats]
    taken: list[float] = []

    class Clock(TrainerCallback):
        """The seconds of each step."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            taken.append(time.perf_counter() - self.began)

    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    base = project / "models/base"
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(base, quantization_config=nf4, dtype=torch.bfloat16),
        SFTConfig(
            output_dir=str(out),
            use_cpu=True,
            max_steps=WARM_UP + STEPS,
            per_device_train_batch_size=1,
            max_length=1024,
            packing=True,
            gradient_checkpointing=False,
            learning_rate=settings.learning_rate,
            report_to="none",
            save_strategy="no",
            seed=settings.seed,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(base),
        peft_config=LoraConfig(r=settings.r, lora_alpha=settings.lora_alpha, target_modules="all-linear"),
        callbacks=[Clock()],
    )
    trainer.train()
    return {"seconds": taken[WARM_UP:], "peak": peak_memory()}


def apart(project: Path, which: str, lengths: Sequence[int] = ()) -> dict[str, Any]:
    """Return the figures of Quench or TRL, measured in a process of their own."""
    with tempfile.TemporaryDirectory() as out:
        result = Path(out) / "figures.json"
        command = [sys.executable, __file__, str(project), "--only", which, "--out", out]
        command += ["--lengths", *map(str, lengths)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(result.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def main() -> None:
    """Measure, and print a table and the profile."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("project", type=Path)
    parser.add_argument("--trl", action="store_true", help="measure TRL's packed step too")
    parser.add_argument("--lengths", type=int, nargs="*", default=(), help="tokens of rows to pack")
    parser.add_argument("--only", choices=("quench", TRL), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        if given.only == TRL:
            figures = trl_steps(given.project, given.out)
        else:
            figures = quench_steps(given.project, given.out, given.lengths)
        (given.out / "figures.json").write_text(json.dumps(figures))
        return
    quench = apart(given.project, "quench", given.lengths)
    print(
        f"limit of a step ({quench['tokens']} tokens, {quench['trained']} trained): {quench['limit']:.2f} s"
    )
    print("|  | step, s | × limit | tokens/s | peak, GB |\n| --- | --- | --- | --- | --- |")
    found = {"Quench": quench} | ({"TRL": apart(given.project, TRL)} if given.trl else {})
    for name, figures in found.items():
        step = median(figures["seconds"])
        cells = f"{step:.2f} | {step / quench['limit']:.2f} | {quench['tokens'] / step:.0f}"
        print(f"| {name} | {cells} | {figures['peak'] / 1e9:.2f} |")
    for length, step in quench["by_length"].items():
        print(f"rows of {length} tokens: {step:.2f} s, {step / quench['limit']:.2f} × limit")
    print(f"\nQuench loads in {quench['loading']:.1f} s. One step of it, by the operations' own time:")
    for name, took, count in quench["profile"]:
        print(f"  {took:6.2f} s  {count:6d} ×  {name}")


if __name__ == "__main__":
    main()
