"""What freezing the first half of the layers gains: tokens a second against none frozen, as a ratio of paired
runs.

    python benchmarks/frozen_layers.py BASE [--steps 3] [--length 512] [--quantization none] [--checkpointing]
        [--threads 1]

BASE is models/base of a project (SmolLM2 in the demo). Both models live in one process, each with its adapter
of the demo's settings; steps of forward, backward and optimizer on the same tokens alternate (A B A B), after
one each to warm up. What counts is the ratio within a pair: another program on the machine slows both. On a
machine that is busy the ratio of the CPU's seconds, with one thread, says more.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.yaml"


def trained(base: Path, settings: Any) -> tuple[Any, Any]:
    """The base with its adapter, and the optimizer of it."""
    import torch

    from pipeline.models.qlora import load_quantized
    from pipeline.models.tuners import put_tuner

    model = put_tuner(load_quantized(base, settings), settings).train()
    if settings.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    parameters = [one for one in model.parameters() if one.requires_grad]
    return model, torch.optim.AdamW(parameters, lr=1e-4)


def step(model: Any, optimizer: Any, ids: Any) -> tuple[float, float]:
    """(seconds, seconds of the CPU in all threads) of one optimizer step on the tokens `ids`."""
    from pipeline.models.chunked_loss import chunked_loss

    start, used = time.perf_counter(), time.process_time()
    chunked_loss(model.get_base_model(), {"input_ids": ids, "labels": ids}).backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start, time.process_time() - used


def main() -> None:
    """Print each pair and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--quantization", choices=("nf4", "none"), default="nf4")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--threads", type=int, help="default: all cores")
    options = parser.parse_args()
    import torch

    from pipeline.config.params import load_params
    from pipeline.models.runtime import silence_libraries, use_all_cores
    from pipeline.planning.duration import flops_per_token
    from pipeline.planning.shape import load_shape

    silence_libraries()
    use_all_cores()
    if options.threads:
        torch.set_num_threads(options.threads)
    shape = load_shape(options.base / "config.json")
    plain = load_params(RECIPE).training.model_copy(
        update={"quantization": options.quantization, "gradient_checkpointing": options.checkpointing}
    )
    half = plain.model_copy(update={"freeze_layers": shape.layers // 2})
    ids = torch.randint(shape.vocabulary, (1, options.length), generator=torch.Generator().manual_seed(0))
    sides = [trained(options.base, settings) for settings in (plain, half)]
    ratios: list[tuple[float, float]] = []
    for number in range(options.steps + 1):
        (seconds, cpu), (fewer, fewer_cpu) = (step(*side, ids) for side in sides)
        if number:
            ratios.append((seconds / fewer, cpu / fewer_cpu))
            print(
                f"none frozen {options.length / seconds:.1f} tokens/s, half {options.length / fewer:.1f}, "
                f"{ratios[-1][0]:.3f} ×; CPU seconds {cpu:.2f} and {fewer_cpu:.2f}, {ratios[-1][1]:.3f} ×",
                flush=True,
            )
    planned = flops_per_token(shape, plain, options.length) / flops_per_token(shape, half, options.length)
    wall, busy = (median(found) for found in zip(*ratios, strict=True))
    print(
        f"median {wall:.3f} × ({busy:.3f} × of the CPU's seconds) of {options.steps} pairs; by operations "
        f"{planned:.3f} ×"
    )


if __name__ == "__main__":
    main()
