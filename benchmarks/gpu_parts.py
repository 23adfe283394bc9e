"""The parts that `gpu_all.py` measures. Each runs in its own process (`child`), saying figures at once."""

import hashlib
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

from pipeline.config.sections import Training

CUDA = torch.cuda.is_available()
WARM_UP = 2  # steps that don't count
LONGEST_STEP = 64  # tokens
PACKED_ROWS = 8  # rows of one length in a packed row
ROW_TOKENS = 128 if CUDA else 32  # of the small bases' rows
GIB = 2**30


Say = Callable[[dict[str, Any]], None]


def child(part: str, figures: Connection, log: Path, asked: dict[str, Any]) -> None:
    """Run a part of this file in the process that was started for it; what libraries print goes to `log`."""
    with log.open("w", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    if "settings" in asked:
        asked["settings"] = Training.model_validate(asked["settings"])
    globals()[part](figures.send, **asked)


def write(say: Say, folder: Path, shape: str, tokens: int, resume_shape: str, **_: Any) -> None:
    """Write the bases and the training rows that the other parts read, the smallest first."""
    from benchmarks.random_base import write_base, write_rows
    from benchmarks.random_gguf import write_random_gguf

    for name, size, length in (("resume", resume_shape, ROW_TOKENS), ("nf4", shape, tokens)):
        write_base(folder / name / "base", size)
        write_rows(folder / name / "rows", folder / name / "base", length)
    small = write_random_gguf(folder / "quantized_small" / "base", "blocks")
    write_rows(folder / "quantized_small" / "rows", small, ROW_TOKENS)
    write_random_gguf(folder / "quantized" / "base", "7b" if shape == "7b" else "blocks")


def cap(gib: float) -> None:
    """Let this process allocate no more than `gib` GiB of the GPU."""
    if CUDA:
        torch.cuda.set_per_process_memory_fraction(
            gib * GIB / torch.cuda.get_device_properties(0).total_memory
        )


def trained(out: Path, settings: Training, resume: bool = False, **places: Any) -> dict[str, Any]:
    """What Quench's own stage reports of a training below `out`, {} in a process that follows another."""
    from pipeline.stages.train.run import Job
    from pipeline.stages.train.stage import train
    from pipeline.stages.train.worker import follow

    folders = {name: out / name for name in ("adapter", "checkpoints", "tensorboard")}
    job = Job(**places, **folders, settings=settings)
    return train(job, resume=resume) if job.leads else follow(job) or {}


def steps_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The optimizer steps of a training's log."""
    return [row for row in report["metrics_log"] if row["kind"] == "step"]


def adapter_hash(out: Path) -> str:
    """SHA-256 of the adapter that was trained below `out`."""
    return hashlib.sha256((out / "adapter/adapter_model.safetensors").read_bytes()).hexdigest()


def report_speed(say: Say, seconds: list[float], tokens: int) -> None:
    """Say tokens per second after the warm-up and the peak of allocated GPU memory in GiB (None: no GPU)."""
    say({"tokens_per_second": tokens / median(seconds[WARM_UP:]), "peak_gib": peak_gib()})


def peak_gib() -> float | None:
    """The peak of allocated GPU memory."""
    return torch.cuda.max_memory_allocated() / GIB if CUDA else None


def ours(say: Say, folder: Path, settings: Training, tokens: int, cap_gib: float, **_: Any) -> None:
    """Quench's stage with proofs, monitoring and checkpoints, under a memory cap; first the card's speed."""
    if CUDA:
        say({"bf16_tflops": matrix_tflops(), "device": torch.cuda.get_device_name(0)})
    cap(cap_gib)
    out = folder / "ours"
    shutil.rmtree(out, ignore_errors=True)
    found = trained(out, settings, tokens=folder / "nf4/rows", base=folder / "nf4/base")
    seconds = [row["seconds"] for row in steps_of(found)]
    report_speed(say, seconds, tokens * settings.gradient_accumulation_steps)
    if settings.optim == "paged_adamw_8bit":
        parameters = found["proven"]["trainable_parameters"]
        say({"optimizer_bytes_per_parameter": found["memory"]["optimizer"] / parameters})


def method(say: Say, folder: Path, settings: Training, **_: Any) -> None:
    """A few steps of an answer-comparing method, small base: first loss, then tokens/s after the warm-up."""
    from benchmarks.random_base import write_rows

    out, base = folder / settings.method, folder / "resume/base"
    shutil.rmtree(out, ignore_errors=True)
    rows = write_rows(out / "rows", base, ROW_TOKENS, settings.method)
    steps = steps_of(trained(out, settings, tokens=rows, base=base))
    later = steps[WARM_UP:]
    seconds = sum(row["seconds"] for row in later)
    tokens = sum(row["tokens"] for row in later)
    say({"first_loss": steps[0]["loss"], "tokens_per_second": tokens / seconds})


def rank(say: Say, folder: Path, settings: Training, side: str, **_: Any) -> None:
    """One process of a training by several, or one alone: the adapter's hash, tokens per second, the peak."""
    from pipeline.core.ranks import take_rank
    from pipeline.stages.train.distributed.group import open_group

    out = folder / f"several-{side}"
    places = {"tokens": folder / "resume/rows", "base": folder / "resume/base"}
    of = take_rank()
    with open_group(of) if of else nullcontext() as group:
        if not (found := trained(out, settings, **places, group=group)):
            return
    steps = steps_of(found)[WARM_UP:]
    speed = sum(row["tokens"] for row in steps) / sum(row["seconds"] for row in steps)
    say({"tokens_per_second": speed, "peak_gib": peak_gib(), "adapter": adapter_hash(out)})


def matrix_tflops(size: int = 8_192, rounds: int = 10) -> float:
    """TFLOP/s of a bfloat16 matrix product on random data: the ceiling that utilization is of."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for number in range(rounds + 3):
        if number == 3:
            begin.record()
        a @ b
    end.record()
    torch.cuda.synchronize()
    return float(2 * size**3 * rounds / begin.elapsed_time(end) / 1e9)


def plain(say: Say, folder: Path, settings: Training, tokens: int, **_: Any) -> None:
    """QLoRA as the documentation of Hugging Face, PEFT and TRL shows it: the same recipe's numbers on the
    same rows, without a cap.
    """
    from peft import LoraConfig, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    nf4 = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    base = folder / "nf4/base"
    model = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.bfloat16, quantization_config=nf4, device_map={"": 0 if CUDA else "cpu"}
    )
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=settings.gradient_checkpointing)
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.target_modules),
    )
    seconds = trl_steps(model, AutoTokenizer.from_pretrained(base), folder, settings, lora)
    report_speed(say, seconds, tokens * settings.gradient_accumulation_steps)


def unsloth(say: Say, folder: Path, settings: Training, tokens: int, **_: Any) -> None:
    """The same steps as Unsloth documents them. Exits with a message if Unsloth can't be imported."""
    from importlib.util import find_spec

    if find_spec("unsloth") is None:
        sys.exit("Unsloth is not installed")
    from unsloth import FastLanguageModel

    model, tokenizer = FastLanguageModel.from_pretrained(
        str(folder / "nf4/base"), max_seq_length=tokens, dtype=torch.bfloat16, load_in_4bit=True
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=settings.r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.target_modules),
        use_gradient_checkpointing="unsloth",
        random_state=settings.seed,
    )
    seconds = trl_steps(model, tokenizer, folder, settings, None)
    report_speed(say, seconds, tokens * settings.gradient_accumulation_steps)


def trl_steps(model: Any, tokenizer: Any, folder: Path, settings: Training, lora: Any) -> list[float]:
    """Seconds of every optimizer step of TRL's SFTTrainer on the shared rows."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    seconds: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Times each step, from begin to end."""

        def on_step_begin(self, *arguments: Any, **more: Any) -> None:
            self.begin = time.perf_counter()

        def on_step_end(self, *arguments: Any, **more: Any) -> None:
            if CUDA:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - self.begin)

    arguments = SFTConfig(
        output_dir=str(folder / "trl"),
        max_length=None,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.per_device_train_batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        gradient_checkpointing=settings.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        optim=settings.optim,
        learning_rate=settings.learning_rate,
        bf16=CUDA,
        use_cpu=not CUDA,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    rows = Dataset.from_parquet(str(folder / "nf4/rows/train.parquet")).select_columns(
        ["input_ids", "labels"]
    )
    SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        peft_config=lora,
        callbacks=[Clock()],
        processing_class=tokenizer,
    ).train()
    return seconds


def stepper(base: Path, settings: Training) -> Callable[[int, bool], int | None]:
    """A function that does one training step of our model on a row of so many tokens, with or without
    checkpointing.

    It gives the step's peak in bytes; None on a CPU, and where the card has no room.
    """
    from peft import get_peft_model

    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.liger_loss import apply_liger, choose_loss, fused_loss
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners.lora import lora_config

    loss = choose_loss(settings.loss)
    if loss == "liger":
        apply_liger(base)
    model = get_peft_model(load_quantized(base, settings), lora_config(settings)).train()
    matrices = [weight for weight in model.parameters() if weight.requires_grad]
    if CUDA:
        import bitsandbytes

        optimizer: Any = bitsandbytes.optim.PagedAdamW8bit(matrices, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(matrices, lr=1e-4)

    def step(tokens: int, checkpointing: bool) -> int | None:
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            model.gradient_checkpointing_disable()
        ids = torch.arange(tokens, device=matrices[0].device)[None] % 256
        if CUDA:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        # two conversations in the row, as in packed training: their mask counts in the peak
        halves = torch.cat([torch.arange(tokens // 2), torch.arange(tokens - tokens // 2)]).to(ids.device)
        inputs = {"input_ids": ids, "labels": ids, "position_ids": halves[None]}
        try:
            with torch.autocast("cuda", torch.bfloat16, enabled=CUDA):
                (fused_loss if loss == "liger" else chunked_loss)(model.get_base_model(), inputs).backward()
            optimizer.step()
            return torch.cuda.max_memory_allocated() if CUDA else None
        except torch.cuda.OutOfMemoryError:
            return None
        finally:  # gradients that stayed where the card was full would count in the next peak
            optimizer.zero_grad()

    return step


def planner(
    say: Say,
    folder: Path,
    settings: Training,
    lengths: list[int],
    cap_gib: float,
    find_longest: bool,
    **_: Any,
) -> None:
    """Our step's peaks, for every length with and without checkpointing, beside the planner's; then the
    longest row that fits under the cap.
    """
    from pipeline.core.hardware import first_gpu, main_memory
    from pipeline.models.liger_loss import choose_loss
    from pipeline.planning.memory.parts import plan_memory
    from pipeline.planning.model.config_file import load_shape
    from pipeline.planning.setup import Setup

    base = folder / "nf4/base"
    step, shape, loss = stepper(base, settings), load_shape(base / "config.json"), choose_loss(settings.loss)
    card = first_gpu() if CUDA else main_memory()
    step(LONGEST_STEP, True)  # the optimizer's states are there from now on
    for tokens in lengths:
        for checkpointing in (True, False):
            train = settings.model_copy(update={"gradient_checkpointing": checkpointing, "loss": loss})
            planned = plan_memory(Setup(shape, train, tokens, card)).allocated
            say({"planned": [loss, tokens, checkpointing, step(tokens, checkpointing), planned]})
    if find_longest and CUDA:
        torch.cuda.empty_cache()
        cap(cap_gib)
        steps = search(lambda count: step(count * LONGEST_STEP, True) is not None, 512 // LONGEST_STEP)
        say({"longest_row": steps * LONGEST_STEP})


def search(fit: Callable[[int], bool], start: int) -> int:
    """The largest number that fits, 0 for none: doubles from `start` until a misfit, then halves the rest."""
    low, high = 0, start
    while fit(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


def load(base: Path, settings: Training) -> Callable[[int], float]:
    """A function: one optimizer step of `base`'s tuner on a row of so many tokens; it returns the loss."""
    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.liger_loss import apply_liger, choose_loss, fused_loss
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners import causal_model, put_tuner

    loss = choose_loss(settings.loss)
    if loss == "liger":
        apply_liger(base)
    torch.manual_seed(0)
    model = put_tuner(load_quantized(base, settings), settings).train()
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    matrices = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(matrices, lr=1e-4)

    def step(tokens: int) -> float:
        places = torch.arange(tokens, device=matrices[0].device)[None]  # the embeddings may be in main memory
        ids = places * 7919 % min(model.config.vocab_size, 32_000)
        with torch.autocast("cuda", torch.bfloat16, enabled=CUDA):
            inputs = {"input_ids": ids, "labels": ids, "position_ids": places}
            value = (fused_loss if loss == "liger" else chunked_loss)(causal_model(model), inputs)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not bool(value.isfinite()):
            raise AssertionError(f"the loss is {float(value)}")
        return float(value)

    return step


def step_speed(
    say: Say, folder: Path, settings: Training, side: str, tokens: int, rounds: int, **_: Any
) -> None:
    """Tokens per second and peak of single optimizer steps on NF4 or on a GGUF's own blocks: of an adapter
    (`side` quantized) or of their scales (scales).
    """
    base = folder / ("nf4" if side == "nf4" else "quantized") / "base"
    step = load(base, settings)
    if CUDA:  # what loading took is no step's
        torch.cuda.reset_peak_memory_stats()
    seconds, losses = [], []
    for _number in range(rounds + WARM_UP):
        begin = time.perf_counter()
        losses.append(step(tokens))
        if CUDA:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    report_speed(say, seconds, tokens)
    say({"losses": losses})
    if settings.offloaded_layers:
        from pipeline.planning.memory.weights import off_card_bytes, offloaded_bytes
        from pipeline.planning.model.config_file import load_shape
        from pipeline.planning.setup import Setup

        layers = offloaded_bytes(setup := Setup(load_shape(base / "config.json"), settings, tokens))
        say({"saving_planned_gib": (sum(layers) - max(layers) + off_card_bytes(setup)) / GIB})


def packed_row(tokens: int) -> dict[str, Any]:
    """Return a row of so many tokens, packed from rows of one length, as the trainer gives it to a model."""
    from pipeline.stages.train.dataset import flattened

    ids = [number * 7919 % 256 for number in range(tokens)]
    lengths = [tokens // PACKED_ROWS] * PACKED_ROWS
    device = "cuda" if CUDA else "cpu"
    row = flattened([{"input_ids": ids, "labels": ids, "seq_lengths": lengths}])
    return {name: value.to(device) if torch.is_tensor(value) else value for name, value in row.items()}


def time_steps(model: Any, loss_of: Callable[[], Any], tokens: int, rounds: int) -> dict[str, float]:
    """Return the tokens per second of optimizer steps after the warm-up, and the first step's loss."""
    matrices = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(matrices, lr=0.0)  # The next way begins with the same weights.
    seconds = []
    losses = []
    for _ in range(rounds + WARM_UP):
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16, enabled=CUDA):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        if CUDA:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return {"tokens_per_second": tokens / median(seconds[WARM_UP:]), "loss": losses[0]}


def packed_plain(say: Say, folder: Path, settings: Training, tokens: int, rounds: int, **_: Any) -> None:
    """Steps of Hugging Face + PEFT on a packed row, with transformers' own loss."""
    from peft import get_peft_model, prepare_model_for_kbit_training

    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners.lora import lora_config

    torch.manual_seed(0)
    model = prepare_model_for_kbit_training(
        load_quantized(folder / "nf4/base", settings),
        use_gradient_checkpointing=settings.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )
    model = get_peft_model(model, lora_config(settings)).train()
    row = packed_row(tokens)
    say(time_steps(model, lambda: model(**row, use_cache=False).loss, tokens, rounds))


def packed_ours(say: Say, folder: Path, settings: Training, tokens: int, rounds: int, **_: Any) -> None:
    """Steps of our model on a packed row: attention with the mask, by row and of variable length, with plain
    and with compiled layers. A way that fails is left out, and named at the end.
    """
    from benchmarks.packed_attention import BY_ROW, MASKED, VARLEN, register
    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.compiled_layers import compile_layers
    from pipeline.models.liger_loss import apply_liger, choose_loss, fused_loss
    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners import causal_model, put_tuner

    loss = choose_loss(settings.loss)
    if loss == "liger":
        apply_liger(folder / "nf4/base")
    torch.manual_seed(0)
    # On a CPU adapters that are to be compiled have PEFT's forward.
    tuned = settings.model_copy(update={"compile": True})
    model = put_tuner(load_quantized(folder / "nf4/base", settings), tuned).train()
    if settings.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False}, every_n_layers=1)
    causal = causal_model(model)
    register()
    row = packed_row(tokens)
    token_loss = fused_loss if loss == "liger" else chunked_loss
    failed = {}
    ways = [("masked", MASKED), ("by_row", BY_ROW), ("varlen", VARLEN)]
    ways += [("compiled", MASKED), ("compiled_varlen", VARLEN)]
    for name, attention in ways:
        if attention == VARLEN and not CUDA:
            continue  # The kernel is a GPU's.
        try:
            causal.set_attn_implementation(attention)
            if name == "compiled":
                compile_layers(causal)
            found = time_steps(model, lambda: token_loss(causal, row), tokens, rounds)
            say({f"{name}_{key}": value for key, value in found.items()})
        except Exception as error:  # A way that fails must not cost the others.
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
    if failed:
        sys.exit("; ".join(f"{name}: {' '.join(why.split())[:80]}" for name, why in failed.items()))


def resume(say: Say, folder: Path, settings: Training, side: str, killed: bool, **_: Any) -> None:
    """Train and kill this process with SIGKILL after the second checkpoint (`killed`), else go on from there
    and compare with unbroken runs.
    """
    out, place = folder / f"resume-{side}", folder / ("resume" if side == "nf4" else side)

    def run(name: str, resume: bool) -> tuple[str, Any, list[float]]:
        found = trained(out / name, settings, resume, tokens=place / "rows", base=place / "base")
        losses = [row["loss"] for row in steps_of(found)]
        return adapter_hash(out / name), found["resumed_from"], losses

    if killed:
        second_checkpoint = out / f"broken/checkpoints/checkpoint-{2 * settings.save_steps}"
        threading.Thread(target=kill_after, args=(second_checkpoint / "complete.json",), daemon=True).start()
        run("broken", resume=False)
        sys.exit("the run ended before it was killed: give it more steps")
    broken, resumed_from, broken_losses = run("broken", resume=True)
    first, _, losses = run("first", resume=False)
    second, *_ = run("second", resume=False)
    equal = {"resumed_equal": broken == first, "unbroken_equal": first == second}
    say({"resumed_from": resumed_from, **equal, "losses_equal": broken_losses == losses})


def kill_after(file: Path) -> None:
    """Wait for `file`, then end this process as a power cut would."""
    while not file.exists():
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)
