"""How fast PyTorch and llama-server are beside busy processes, as OpenMP's threads wait by themselves and as
Quench has them wait (`let_threads_give_way`). Each pair of figures is measured in turn, in one run.

    python benchmarks/waiting.py                       # PyTorch alone
    python benchmarks/waiting.py models/gguf/demo-Q4_K_M.gguf
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

ROUNDS = 3
SECONDS = 4.0
BUSY = 3  # processes
THREADS = os.cpu_count() or 1
WAYS: Mapping[str, Mapping[str, str]] = {"by itself": {"GOMP_SPINCOUNT": ""}, "Quench": {}}


def steps() -> float:
    """Return the steps a second of a small transformer layer in this process."""
    import torch

    torch.set_num_threads(THREADS)
    x = torch.randn(512, 896)
    wide = torch.randn(896, 4864, dtype=torch.bfloat16)
    narrow = torch.randn(4864, 896, dtype=torch.bfloat16)

    def step() -> None:
        hidden = torch.nn.functional.silu(x.to(torch.bfloat16) @ wide)
        out = x + (hidden @ narrow).float() * 1e-3
        out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-6)
        torch.softmax(out @ out.T, -1) @ out

    step()
    count = 0
    started = time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        step()
        count += 1
    return count / (time.perf_counter() - started)


def decoded(model: Path) -> float:
    """Return the tokens a second that llama-server decodes from `model`."""
    from pipeline.config.products import ModelFiles
    from pipeline.config.sections.shipping import Machine
    from pipeline.llamacpp.server import serving
    from pipeline.llamacpp.tools import find_llama

    with serving(find_llama(Machine()), ModelFiles(model), ctx_size=512) as server:
        body = {"prompt": "word " * 100, "n_predict": 64, "ignore_eos": True, "temperature": 0}
        return float(server.post("/completion", body)["timings"]["predicted_per_second"])


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep this many processes busy while the body runs."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measured(what: str, way: Mapping[str, str]) -> float:
    """Return what this script prints in a process of its own."""
    environment = {name: value for name, value in (os.environ | way).items() if value}
    if "GOMP_SPINCOUNT" in way:
        environment["OMP_WAIT_POLICY"] = ""  # Quench sets nothing then, and OpenMP takes it for none.
    else:
        environment.pop("OMP_WAIT_POLICY", None)
    command = [sys.executable, __file__, "--one", what]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main(models: list[str]) -> None:
    """Print a line for each thing measured: the ratio of Quench's way to OpenMP's own, alone and beside."""
    for what in ["pytorch", *models]:
        for count in (0, BUSY):
            with busy(count):
                rounds = [{name: measured(what, way) for name, way in WAYS.items()} for _ in range(ROUNDS)]
            own = median(found["by itself"] for found in rounds)
            ours = median(found["Quench"] for found in rounds)
            print(
                f"{Path(what).name}, {count} busy processes: {own:.1f} -> {ours:.1f} a second "
                f"({ours / own:.2f} x)",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        from pipeline.models.runtime import let_threads_give_way

        let_threads_give_way()
        print(steps() if sys.argv[2] == "pytorch" else decoded(Path(sys.argv[2])))
    else:
        main(sys.argv[1:])
