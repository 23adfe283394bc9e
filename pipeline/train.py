"""Train a QLoRA adapter on the base, with checkpoints that a killed run goes on from.

Reads `data/tokens/{train,val}.parquet` and `models/base/`.
Writes `models/adapter/` (PEFT folder, tokenizer, run.json), `reports/train.json`, `reports/train.csv`; TensorBoard
events in `reports/tensorboard/` and checkpoints in `models/checkpoints/` on the way.
Command: `python -m pipeline train`
"""

import csv
import hashlib
import itertools
import json
import math
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.chat import load_tokenizer
from pipeline.errors import ConfigError, DataError, GateError, ToolError
from pipeline.hashing import tree_hash
from pipeline.params import Params, Train
from pipeline.publish import publishing, remove, write_json
from pipeline.training.checkpoints import newest_verified, seal
from pipeline.training.qlora import apply_liger, check_adapter, choose_loss, fused_loss, load_quantised, lora_config
from pipeline.training.runtime import silence_libraries, use_all_cores

LIBRARIES = ("torch", "transformers", "peft", "trl", "bitsandbytes", "accelerate", "datasets")


def train(*, tokens: Path, base: Path, adapter: Path, checkpoints: Path, tensorboard: Path, settings: Train, resume: bool) -> dict[str, Any]:
    """Train, publish the adapter folder, return the report (loss history included).

    With `resume`, goes on from the newest verified checkpoint of the same run (same tokens, base, settings and
    library versions); otherwise starts anew. Raises `GateError` where the loss is not a number or the adapter
    learnt nothing.
    """
    silence_libraries()
    use_all_cores()
    loss = choose_loss(settings.loss)
    if loss == "liger":
        apply_liger(base)
    record = run_record(tokens, base, settings)
    key = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    start = newest_verified(checkpoints, key) if resume else None
    if start is None:
        remove(checkpoints)
        remove(tensorboard)
    else:
        print(f"train: going on from {start}", file=sys.stderr)
    trainer, tokenizer = make_trainer(tokens, base, checkpoints, tensorboard, settings, loss, key)
    trainable = check_adapter(trainer.model, settings)
    begin = time.monotonic()
    trainer.train(resume_from_checkpoint=str(start) if start else None)
    seconds = time.monotonic() - begin
    history = [line for line in trainer.state.log_history if "loss" in line]
    check_health(trainer.model, history)
    eval_loss = trainer.evaluate()["eval_loss"] if trainer.eval_dataset is not None else None
    if eval_loss is not None and not math.isfinite(eval_loss):
        raise GateError(f"the loss on the held-out rows is {eval_loss}: lower train.learning_rate")
    report = {
        "device": str(trainer.model.device), "loss": loss, "steps": trainer.state.global_step, "seconds": round(seconds, 1),
        "trainable_parameters": trainable, "total_parameters": logical_parameters(trainer.model),
        "tokens": tokens_seen(history), "tokens_per_second": round(history[-1]["num_tokens"] / seconds, 1) if start is None else None,
        "loss_first": history[0]["loss"], "loss_last": history[-1]["loss"], "resumed_from": start.name if start else None,
        "eval_loss": eval_loss, "peak_memory_bytes": peak_memory(),
        "history": [{key: line.get(key) for key in ("step", "loss", "learning_rate", "grad_norm")} for line in history],
    }  # fmt: skip
    publish_adapter(trainer.model, tokenizer, record, adapter)
    return report


def run_record(tokens: Path, base: Path, settings: Train) -> dict[str, Any]:
    """What the adapter depends on: the same record, on the same kind of machine, gives the same bytes."""
    import torch

    return {
        "tokens_sha256": tree_hash(tokens),
        "base_sha256": tree_hash(base),
        "settings": settings.model_dump(mode="json"),
        "versions": {name: version(name) for name in LIBRARIES},
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),  # the order of a CPU's sums depends on it
    }


def make_trainer(tokens: Path, base: Path, checkpoints: Path, tensorboard: Path, settings: Train, loss: str, key: str) -> tuple[Any, Any]:
    """TRL's SFTTrainer over the quantised base, with the settings under their own names; and the tokenizer."""
    import torch
    from datasets import Dataset, disable_progress_bars
    from torch.utils.tensorboard import SummaryWriter
    from transformers import PrinterCallback
    from transformers.integrations import TensorBoardCallback
    from trl import SFTTrainer

    disable_progress_bars()
    rows = {split: Dataset.from_parquet(str(tokens / f"{split}.parquet"), keep_in_memory=True) for split in ("train", "val")}
    tokenizer = load_tokenizer(base)
    model = load_quantised(base, settings)

    class Trainer(SFTTrainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
            if loss != "liger" or return_outputs:
                return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            if self.model.training:
                self._total_train_tokens += inputs["input_ids"].numel()
            self._metrics["train" if self.model.training else "eval"]["num_tokens"] = [self._total_train_tokens]
            with self.accelerator.autocast():  # it is wrapped round the outer forward, which the fused loss goes past
                return fused_loss(self.accelerator.unwrap_model(model).get_base_model(), inputs, num_items_in_batch)

    arguments = training_arguments(settings, checkpoints, len(rows["train"]))
    trainer = Trainer(
        model=model, args=arguments, processing_class=tokenizer, peft_config=lora_config(settings),
        train_dataset=rows["train"], eval_dataset=rows["val"] if len(rows["val"]) else None,
    )  # fmt: skip
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            # TRL casts the adapter to bfloat16, but a resumed one comes back in float32 and the run would differ from
            # its first step; in float32 resume is exact and small updates are not lost
            parameter.data = parameter.data.to(torch.float32)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(TensorBoardCallback(SummaryWriter(str(tensorboard), max_queue=1)))
    trainer.add_callback(watcher(key))
    return trainer, tokenizer


def training_arguments(settings: Train, checkpoints: Path, rows: int) -> Any:
    """TRL's `SFTConfig` for these settings. transformers 5 has no `warmup_ratio` any more: it becomes steps here."""
    import torch
    from trl import SFTConfig

    cuda = torch.cuda.is_available()
    if ("8bit" in settings.optim or "paged" in settings.optim) and not cuda:
        raise ToolError(f"train.optim is {settings.optim}, which needs a GPU, and this machine has none: set it to adamw_torch")
    try:
        return SFTConfig(
            output_dir=str(checkpoints), max_length=None, packing=False, padding_free=True, dataset_kwargs={"skip_prepare_dataset": True},
            num_train_epochs=settings.num_train_epochs, max_steps=settings.max_steps, seed=settings.seed, data_seed=settings.seed,
            per_device_train_batch_size=settings.per_device_train_batch_size, per_device_eval_batch_size=1,
            gradient_accumulation_steps=settings.gradient_accumulation_steps, gradient_checkpointing=settings.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False}, learning_rate=settings.learning_rate,
            lr_scheduler_type=settings.lr_scheduler_type, warmup_steps=warmup_steps(settings, rows), weight_decay=settings.weight_decay,
            max_grad_norm=settings.max_grad_norm, optim=settings.optim, logging_steps=settings.logging_steps, logging_first_step=True,
            save_steps=settings.save_steps, save_total_limit=settings.save_total_limit, logging_nan_inf_filter=False,
            eval_strategy="no", report_to="none",
            bf16=cuda and settings.bnb_4bit_compute_dtype == "bfloat16", fp16=cuda and settings.bnb_4bit_compute_dtype == "float16",
            disable_tqdm=not sys.stderr.isatty(), dataloader_pin_memory=cuda,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"train: the trainer refuses these settings: {' '.join(str(error).split())[:300]}") from error


def warmup_steps(settings: Train, rows: int) -> int:
    """`warmup_ratio` of the optimizer steps that `rows` training rows give, rounded up as transformers 4 did."""
    batches = math.ceil(rows / settings.per_device_train_batch_size)
    per_epoch = math.ceil(batches / settings.gradient_accumulation_steps)
    steps = settings.max_steps if settings.max_steps > 0 else math.ceil(per_epoch * settings.num_train_epochs)
    return math.ceil(steps * settings.warmup_ratio)


def watcher(key: str) -> Any:
    """A callback that seals each checkpoint, stops on a loss that is no number, and prints plain lines without a terminal."""
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", key)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **rest: Any) -> None:
            loss = logs.get("loss")
            if loss is not None and not math.isfinite(loss):
                raise GateError(f"the loss at step {state.global_step} is {loss}: lower train.learning_rate, or use bfloat16 as compute type")
            tenth = max(1, state.max_steps // 10)
            if loss is not None and args.disable_tqdm and (state.global_step % tenth == 0 or state.global_step == 1):
                print(f"train: step {state.global_step} of {state.max_steps}, loss {loss:.3f}, learning rate {logs['learning_rate']:.1e}", flush=True)

    return Watcher()


def check_health(model: Any, history: list[dict[str, float]]) -> None:
    """Refuse an adapter that can't have learnt: no step logged, loss exactly 0, or a matrix not finite, or a lora_B that is still 0."""
    if not history:
        raise GateError("training ended without one logged step: give it more rows or steps")
    if all(line["loss"] == 0.0 for line in history):
        raise GateError("the loss is exactly 0 in every step: no token is trained, look at reports/labels.json")
    norms = {name: float(weight.detach().norm()) for name, weight in model.named_parameters() if "lora_" in name}
    broken = [name for name, norm in norms.items() if not math.isfinite(norm)]
    if broken:
        raise GateError(f"{len(broken)} of {len(norms)} adapter matrices are not finite ({broken[0]}): lower train.learning_rate")
    dead = [name for name, norm in norms.items() if "lora_B" in name and norm == 0.0]
    if dead:
        raise GateError(f"{len(dead)} of {len(norms)} adapter matrices learnt nothing ({dead[0]}): raise train.learning_rate or train longer")


def tokens_seen(history: list[dict[str, float]]) -> int:
    """Tokens of all parts of a run; TRL counts from 0 again after each resume."""
    counts = [line["num_tokens"] for line in history]
    parts = [count for count, after in itertools.pairwise(counts) if after < count]
    return int(sum(parts) + counts[-1])


def logical_parameters(model: Any) -> int:
    """Parameters of base and adapter as the formulas count them; a packed NF4 byte holds two."""
    return sum(p.numel() * (2 if p.__class__.__name__ == "Params4bit" else 1) for p in model.parameters())


def peak_memory() -> int:
    """Peak bytes of this process: of the GPU where there is one, else resident memory."""
    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def publish_adapter(model: Any, tokenizer: Any, record: dict[str, Any], adapter: Path) -> None:
    """Publish the PEFT folder with tokenizer, template and run record; bytes depend on the run alone, not on its place."""

    def check(folder: Path) -> None:
        if not (folder / "adapter_model.safetensors").stat().st_size:
            raise DataError(f"{folder} holds no adapter")

    for config in model.peft_config.values():
        config.base_model_name_or_path = "models/base"
    with publishing(adapter, check) as aside:
        model.save_pretrained(aside, save_embedding_layers=False)  # they are frozen; asking would look for the base on the hub
        tokenizer.save_pretrained(aside)
        config_file = aside / "adapter_config.json"
        settings = json.loads(config_file.read_text(encoding="utf-8"))
        settings["target_modules"] = sorted(settings["target_modules"])  # PEFT holds a set: its order changes from run to run
        write_json(config_file, settings)
        (aside / "README.md").unlink(missing_ok=True)  # PEFT's empty model card; the report stage writes a real one
        write_json(aside / "run.json", record)


def write_history(target: Path, history: list[dict[str, Any]]) -> None:
    """Publish the loss history as CSV, for `dvc plots`."""
    with publishing(target) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(history[0]))
        writer.writeheader()
        writer.writerows(history)


def main(params: Params, root: Path, resume: bool = True) -> None:
    """Run the stage on the files below `root`."""
    report = train(
        tokens=root / "data/tokens", base=root / "models/base", adapter=root / "models/adapter", checkpoints=root / "models/checkpoints",
        tensorboard=root / "reports/tensorboard", settings=params.train, resume=resume,
    )  # fmt: skip
    write_history(root / "reports/train.csv", report.pop("history"))
    write_json(root / "reports/train.json", report)
    print(f"train: {report['steps']} steps, loss {report['loss_first']:.2f} → {report['loss_last']:.2f}, {report['seconds']:.0f} s")
