"""Run a trainer and write a line for each optimizer step: when it ended, and how many tokens it read.

    PYTHON watch.py STEPS.jsonl SCRIPT.py ARGUMENTS
    PYTHON watch.py STEPS.jsonl -m MODULE ARGUMENTS

The hooks are PyTorch's own, so every tool is measured alike, whatever it logs; PYTHON is the tool's. Needs
nothing but PyTorch.
"""

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

PADDING = (151643, 151654)  # Qwen's <|endoftext|>; Unsloth pads with <|vision_pad|>. No row has either


def main() -> None:
    """Hook in, then become the trainer."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = Path(sys.argv[1]).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 (open until the end)
    read = {"tokens": 0, "padding": 0}

    def count(module: Any, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, torch.nn.Embedding) and torch.is_grad_enabled():
            padding = int(torch.isin(inputs[0], torch.tensor(PADDING)).sum())
            read["padding"] += padding
            read["tokens"] += inputs[0].numel() - padding

    def note(*_: Any) -> None:
        steps.write(json.dumps({"ended": time.perf_counter()} | read) + "\n")
        read.update(tokens=0, padding=0)

    register_module_forward_pre_hook(count)
    register_optimizer_step_post_hook(note)
    sys.argv = sys.argv[2:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        sys.path.insert(0, "")
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).parent.resolve()))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
