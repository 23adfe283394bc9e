"""Measures the planner: wall time of `quench config plan` against Python's own start, and its figures against
real tensors and memory.

    python benchmarks/planner.py [--base FOLDER] [--tokens 1024] [--starts 10]

Times are of processes run alternately (A B A B). Errors are (plan − measured) ÷ measured, on the CPU: of the
tensors that stay after a step, of what autograd keeps for the backward, and, for FOLDER (a Hugging Face
folder, the demo's base say), of the memory of a whole process at its peak, over three steps of the trainer's
own loss. What a GPU takes is measured by gpu_all.py.
"""

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from tensor_bytes import adapted, hidden_states, kept_bytes, measured, planned

from pipeline.config.params import load_params
from pipeline.core.hardware import main_memory
from pipeline.models.runtime import silence_libraries
from pipeline.planning import activations
from pipeline.planning.memory import plan_memory
from pipeline.planning.setup import Setup
from pipeline.planning.shape import load_shape

PROJECT = Path(__file__).resolve().parents[1]
KEYS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2, tied": ("qwen2", dict(zip(KEYS, (200, 520, 4, 2), strict=True)) | {"tie_word_embeddings": True}),
    "qwen3, head_dim 48": ("qwen3", dict(zip(KEYS, (160, 416, 4, 2), strict=True)) | {"head_dim": 48}),
    "llama, no GQA": ("llama", dict(zip(KEYS, (192, 528, 3, 3), strict=True))),
    "mistral": ("mistral", dict(zip(KEYS, (256, 704, 8, 2), strict=True))),
}


def starts(count: int) -> None:
    """Print the median wall time of both commands over `count` starts each, and their ratio."""
    words = ["config", "plan", "--recipe", "qwen2.5-7b-8gb", "--vram", "8"]
    plan = [sys.executable, "-m", "pipeline.cli", *words]
    commands = {"quench config plan": plan, "python -c pass": [sys.executable, "-c", "pass"]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(count):
        for name, command in commands.items():
            begin = time.perf_counter()
            subprocess.run(command, cwd=PROJECT, capture_output=True, check=True)
            seconds[name].append(time.perf_counter() - begin)
    for name, found in seconds.items():
        print(
            f"{name:16} {statistics.median(found):.3f} s (fastest {min(found):.3f}, slowest "
            f"{max(found):.3f}, {count} starts)"
        )
    plan_time, python_time = (statistics.median(found) for found in seconds.values())
    print(f"ratio {plan_time / python_time:.1f}; {plan_time - python_time:.3f} s above Python's own start\n")


def error(plan: int, found: int) -> str:
    """Plan, measured and error as three columns."""
    return f"{plan:14,} {found:14,} {(plan - found) / found:+8.2%}"


def tensors(name: str, base: Path, tokens: int) -> None:
    """Print the error of what stays and of what autograd keeps, without and with gradient checkpointing."""
    import torch

    shape = load_shape(base / "config.json")
    for checkpointing in (False, True):
        train = load_params(PROJECT / "recipes" / "demo.yaml").training.model_copy(
            update={"gradient_checkpointing": checkpointing}
        )
        model = adapted(base, train).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        setup = Setup(shape, train, tokens, main_memory())
        kept = kept_bytes(model, lambda model=model: hidden_states(model, tokens))
        plan = (
            activations.inputs_kept(setup) - activations.rope_bytes(setup)
            if checkpointing
            else activations.all_kept(setup)
        )
        print(f"{name:22} {'layer inputs' if checkpointing else 'activations':14} {error(plan, kept)}")
        if not checkpointing:
            optimizer = torch.optim.AdamW(
                [parameter for parameter in model.parameters() if parameter.requires_grad]
            )
            hidden_states(model, 32).float().sum().backward()
            optimizer.step()
            print(
                f"{name:22} {'what stays':14} "
                f"{error(sum(planned(shape, train).values()), sum(measured(model, optimizer).values()))}"
            )
        del model
        gc.collect()


def chunked_loss_of(model: Any, tokens: int) -> Any:
    """The trainer's loss of a packed sequence of two rows, every token of which is trained."""
    import torch

    from pipeline.models.chunked_loss import chunked_loss

    ids = torch.arange(tokens)[None] % model.config.vocab_size
    positions = torch.cat([torch.arange(tokens // 3), torch.arange(tokens - tokens // 3)])[None]
    return chunked_loss(model.get_base_model(), {"input_ids": ids, "position_ids": positions, "labels": ids})


def process_peak(base: Path, tokens: int, checkpointing: bool) -> None:
    """Three real steps in this process; prints the peak of its memory, in bytes."""
    import torch

    silence_libraries()
    train = load_params(PROJECT / "recipes" / "demo.yaml").training.model_copy(
        update={"gradient_checkpointing": checkpointing}
    )
    model = adapted(base, train).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading
    for _ in range(3):
        chunked_loss_of(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(_status("VmHWM"))


def _status(key: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) * 1024


def whole_process(base: Path, tokens: int) -> None:
    """Print plan and measured peak of a whole process, without and with gradient checkpointing."""
    shape = load_shape(base / "config.json")
    for checkpointing in (False, True):
        words = [
            "--base",
            str(base),
            "--tokens",
            str(tokens),
            "--child",
            "checkpointing" if checkpointing else "plain",
        ]
        done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
        train = load_params(PROJECT / "recipes" / "demo.yaml").training.model_copy(
            update={"gradient_checkpointing": checkpointing}
        )
        plan = plan_memory(Setup(shape, train, tokens, main_memory())).total
        name = f"{base.name}, process"
        print(
            f"{name:22} {'checkpointing' if checkpointing else 'no checkpoint':14} "
            f"{error(plan, int(done.stdout.split()[-1]))}"
        )


def main() -> None:
    """Print all three tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        process_peak(arguments.base, arguments.tokens, arguments.child == "checkpointing")
        return
    starts(arguments.starts)
    silence_libraries()
    print(f"{'':37} {'plan, bytes':>14} {'measured':>14} {'error':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (kind, values) in TINY.items():
            tensors(name, random_base(Path(folder) / kind, kind, values), 256)
    if arguments.base:
        whole_process(arguments.base, arguments.tokens)  # first: afterwards this process is large itself
        tensors(arguments.base.name, arguments.base, arguments.tokens)


def random_base(folder: Path, kind: str, values: dict[str, Any]) -> Path:
    """A random model of three layers as a Hugging Face folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind, vocab_size=1000, num_hidden_layers=3, max_position_embeddings=512, **values
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
