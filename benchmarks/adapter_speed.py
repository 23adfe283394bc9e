"""What an adapter costs in llama-server, and why: the base alone, without repacked weights, and with adapters
of fewer linears, of other ranks, of another type.

    python benchmarks/adapter_speed.py models/base [--rounds 3] [--threads 2]

`models/base` is a base that is a GGUF. The adapters are random: speed does not depend on what they hold.
Every case has a server of its own; the cases are asked in turn, so that a machine that slows down slows all.
Prints tokens per second by llama-server's own timings, as the median and as the ratio to the base.
"""

import argparse
import secrets
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.config.params import Params
from pipeline.config.sections import LoraType, Serve, Training
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.llamacpp.converters import lora_to_gguf
from pipeline.llamacpp.server import Server, connect, free_port, start, wait_for_health, write_key
from pipeline.llamacpp.server_command import server_command
from pipeline.llamacpp.tools import Toolchain, find_toolchain

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
FEED_FORWARD = ["gate_proj", "up_proj", "down_proj"]
# {name: (linears with an adapter, rank, type)}
ADAPTERS: dict[str, tuple[list[str], int, LoraType]] = {
    "all linears, r 16, F16": (ATTENTION + FEED_FORWARD, 16, "F16"),
    "all linears, r 16, F32": (ATTENTION + FEED_FORWARD, 16, "F32"),
    "all linears, r 1, F16": (ATTENTION + FEED_FORWARD, 1, "F16"),
    "all linears, r 64, F16": (ATTENTION + FEED_FORWARD, 64, "F16"),
    "q k v o, r 16, F16": (ATTENTION, 16, "F16"),
    "q v, r 16, F16": (["q_proj", "v_proj"], 16, "F16"),
    "gate up down, r 16, F16": (FEED_FORWARD, 16, "F16"),
    "down, r 16, F16": (["down_proj"], 16, "F16"),
}
PROMPT, TOKENS = 128, 96


def make_adapters(base: Path, folder: Path, training: Training, tools: Toolchain) -> dict[str, Path]:
    """A random adapter for each of `ADAPTERS` as a GGUF in `folder`."""
    import torch
    from peft import get_peft_model

    from pipeline.models.lora import lora_config
    from pipeline.models.quantized_model import load_gguf

    made = {}
    for number, (name, (targets, rank, kind)) in enumerate(ADAPTERS.items()):
        torch.manual_seed(0)
        changed = training.model_copy(update={"target_modules": targets, "r": rank})
        model = get_peft_model(
            load_gguf(base, compute_dtype=torch.float32, device="cpu"), lora_config(changed)
        )
        for key, value in model.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(value.data, std=1e-3)
        model.save_pretrained(folder / str(number), save_embedding_layers=False)
        made[name] = folder / f"{number}.gguf"
        lora_to_gguf(tools, folder / str(number), base, made[name], kind, {})
    return made


@contextmanager
def served(
    tools: Toolchain, model: Path, lora: Path | None, repacked: bool, threads: int
) -> Iterator[Server]:
    """llama-server with `model` and the adapter `lora`; not `repacked`: the weights in the file's order."""
    settings = Serve().model_copy(
        update={
            "port": free_port(),
            "ctx_size": PROMPT + TOKENS + 64,
            "parallel": 1,
            "threads": threads,
            "n_gpu_layers": 0,
            "n_predict": -1,
        }
    )
    with tempfile.TemporaryDirectory() as name:
        folder, url, key = Path(name), f"http://127.0.0.1:{settings.port}", secrets.token_urlsafe(24)
        adapters = [(lora, 1.0)] if lora else []
        command = server_command(
            tools, model, settings, write_key(folder / "key", key), adapters, idle_seconds=600
        )
        with start([*command, *([] if repacked else ["--no-repack"])], folder / "log") as process:
            wait_for_health(process, url, folder / "log")
            with connect(url, key) as client:
                yield Server(process, url, folder / "log", client)


def ask(server: Server) -> tuple[float, float]:
    """Tokens per second of one answer and of its prompt."""
    ids = server.post("/tokenize", {"content": "The quick brown fox " * PROMPT})["tokens"][:PROMPT]
    found = server.post(
        "/completion",
        {"prompt": ids, "n_predict": TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False},
    )["timings"]
    return float(found["predicted_per_second"]), float(found["prompt_per_second"])


def main(words: Sequence[str]) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(words)
    tools = find_toolchain(None)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as up:
        loras = make_adapters(given.base, Path(folder), Params().training_on("cpu"), tools)
        cases: dict[str, tuple[Path | None, bool]] = {
            "base": (None, True),
            "base, not repacked": (None, False),
        }
        cases |= {name: (lora, True) for name, lora in loras.items()}
        first = next(iter(loras))
        cases[f"{first}, not repacked"] = (loras[first], False)
        servers = {
            name: up.enter_context(served(tools, given.base / MODEL_FILE, lora, repacked, given.threads))
            for name, (lora, repacked) in cases.items()
        }
        turns = [{name: ask(server) for name, server in servers.items()} for _ in range(given.rounds + 1)][1:]
    medians = {
        name: tuple(statistics.median(turn[name][part] for turn in turns) for part in (0, 1))
        for name in servers
    }
    print(f"{'':40}{'writes':>9}{'':8}{'reads':>9}")
    for name, (writes, reads) in medians.items():
        ratios = [value / base for value, base in zip((writes, reads), medians["base"], strict=True)]
        print(f"{name:40}{writes:9.1f}{ratios[0]:7.2f}x{reads:9.1f}{ratios[1]:7.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
