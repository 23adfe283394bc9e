"""Measures the merge against PEFT's: peak memory, time and largest error, on a base that is as wide as
Qwen2.5-7B and two layers deep.

    python benchmarks/merge.py [--rounds 2] [--folder DIR]

A random bfloat16 base (hidden 3584, intermediate 18944, vocabulary 152,064, head apart: 3.1 GB) gets LoRA of
rank 16 on its seven linears. Sides run alternately (A B C A B C), each in a process of its own: the streamed
merge into the 16-bit weights, the same into NF4, and PEFT's `merge_and_unload` with `save_pretrained`. Nobody
waits for the disk at the end (fsync); the time includes what each side imports; CPU time and peak (VmHWM) are
the entire process's, torch included; the error is against float64, over every number of the adapted tensors.
It takes 13 GB of disk.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
SIDES = ("stream, 16-bit", "stream, nf4", "peft")
RANK = 16
TRAINED = ("bfloat16", True)  # how training quantized: compute type, double quantization


def write_adapter(base: Path, folder: Path) -> Path:
    """A random float32 LoRA adapter for every linear of the layers, with the record of a training in NF4; the
    folder.
    """
    import torch
    from peft import LoraConfig
    from safetensors.torch import save_file

    from pipeline.models.merging.inputs import structure

    model = structure(base)
    targets = sorted({name.split(".")[-2] for name in model.quantized})
    tensors = {}
    for name in sorted(model.quantized):
        high, wide = model.shapes[name]
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        tensors |= {
            f"{stem}.lora_A.weight": torch.randn(RANK, wide) * 0.01,
            f"{stem}.lora_B.weight": torch.randn(high, RANK) * 0.01,
        }
    LoraConfig(
        task_type="CAUSAL_LM",
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=targets,
        base_model_name_or_path=str(base),
    ).save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "quantization": "nf4",
        "bnb_4bit_compute_dtype": TRAINED[0],
        "bnb_4bit_use_double_quant": TRAINED[1],
    }
    (folder / "run.json").write_text(json.dumps({"settings": settings}))
    return folder


def merge_with_peft(base: Path, adapter: Path, folder: Path) -> None:
    """Write PEFT's `merge_and_unload` of `adapter` into the bfloat16 `base` to `folder`: the entire model in
    memory.
    """
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from pipeline.models.merging.inputs import copy_settings
    from pipeline.models.runtime import silence_libraries

    silence_libraries()
    model = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.bfloat16, local_files_only=True, trust_remote_code=False
    )
    PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(folder)
    # transformers writes its own version and defaults into them
    for name in ("config.json", "generation_config.json"):
        (folder / name).unlink(missing_ok=True)
    copy_settings(base, adapter, folder, "bfloat16", {})


def one(folder: Path, side: str) -> None:
    """The child: merge without waiting for the disk at the end, then say seconds, CPU seconds and this
    process's peak in bytes.
    """
    from pipeline.models.merging.nf4 import Nf4
    from pipeline.models.runtime import use_all_cores
    from pipeline.stages.merge.stream import stream

    use_all_cores()
    (folder / side).mkdir()
    start = time.perf_counter()
    if side == "peft":
        merge_with_peft(folder / "base", folder / "adapter", folder / side)
    else:
        stream(
            folder / "base",
            folder / "adapter",
            folder / side,
            "bfloat16",
            Nf4(*TRAINED),
            into_nf4=side == "stream, nf4",
        )
    seconds, processor = time.perf_counter() - start, time.process_time()
    peak = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    print(seconds, processor, int(peak.split()[1]) * 1024)


def largest_error(folder: Path, side: str) -> float:
    """Largest distance from float64 over all adapted tensors, in units in the last place."""
    from pipeline.gguf.safetensors_rows import read_folder
    from pipeline.models.merging.adapter import read_adapter
    from pipeline.models.merging.inputs import structure
    from pipeline.models.merging.judge import tensor_error
    from pipeline.models.merging.nf4 import Nf4
    from pipeline.models.merging.plan import plan
    from pipeline.models.runtime import one_thread

    base, there = folder / "base", read_folder(folder / side)
    jobs = plan(
        read_folder(base), read_adapter(folder / "adapter"), structure(base), nf4=side == "stream, nf4"
    ).jobs
    # not the parity check itself: it goes on to look for the cause of every error above its limit, PEFT's
    # too, for minutes
    with one_thread():
        return max(
            tensor_error(job, there[job.name], Nf4(*TRAINED) if job.quantized else None)
            for job in jobs
            if job.update
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--side", choices=SIDES)
    options = parser.parse_args()
    if options.side:
        one(options.folder, options.side)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        import random_base

        from pipeline.gguf.safetensors_rows import read_folder

        folder = Path(name)
        random_base.SHAPES["wide"] = random_base.SHAPES["7b"] | {"num_hidden_layers": 2}
        base = random_base.write_base(folder / "base", "wide")
        write_adapter(base, folder / "adapter")
        largest = max(entry.nbytes for entry in read_folder(base).values())
        seconds: dict[str, list[float]] = {side: [] for side in SIDES}
        processor: dict[str, list[float]] = {side: [] for side in SIDES}
        peaks: dict[str, list[int]] = {side: [] for side in SIDES}
        for _ in range(options.rounds):
            for side in SIDES:
                shutil.rmtree(folder / side, ignore_errors=True)
                os.sync()  # so that nobody waits for another's pages
                command = [sys.executable, __file__, "--folder", name, "--side", side]
                stated = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                seconds[side].append(float(stated[-3]))
                processor[side].append(float(stated[-2]))
                peaks[side].append(int(stated[-1]))
                print(
                    f"{side}: {seconds[side][-1]:.1f} s, CPU {processor[side][-1]:.1f} s, "
                    f"{peaks[side][-1] / 1e9:.2f} GB",
                    file=sys.stderr,
                )
        bound = 2 * largest + 600_000_000
        print(
            f"largest tensor {largest / 1e9:.2f} GB; bound 2 × that + 0.6 GB = {bound / 1e9:.2f} GB; "
            f"{options.rounds} rounds, best of each"
        )
        print(
            f"{'side':12} {'seconds':>8} {'÷ peft':>7} {'CPU s':>7} {'÷ peft':>7} {'peak GB':>8} "
            f"{'÷ peft':>7} {'largest error, ulp':>19}"
        )
        for side in SIDES:
            quick, peak = min(seconds[side]), max(peaks[side])
            ratio, share = quick / min(seconds["peft"]), peak / max(peaks["peft"])
            work = min(processor[side])
            times = f"{quick:8.1f} {ratio:7.2f} {work:7.1f} {work / min(processor['peft']):7.2f}"
            print(f"{side:12} {times} {peak / 1e9:8.2f} {share:7.2f} {largest_error(folder, side):19.4f}")


if __name__ == "__main__":
    main()
