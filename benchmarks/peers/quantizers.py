"""AutoRound beside llama.cpp's quantizer, with and without an importance matrix: one fine-tuned model at
Q4_K_M and at Q2_K.

    python benchmarks/peers/quantizers.py [--dir DIR] [--seed 42]

Needs `run.py quench` in the same DIR with the same seed, whose merged model it takes. The matrix and
AutoRound read the same 60 windows of 512 tokens of the training rows. Divergence from F16 is
llama-perplexity's, on 6 windows of held-out chats; the judge's 48 rows are those of run.py. Figures go to
benchmarks/peers/results/quantizers-SEED.json as they come.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.peers.shared import HERE, Ran, environment, judged, run, without_places, write
from pipeline.core.hardware import machine
from pipeline.llamacpp.tools import find_toolchain

WINDOWS, WINDOW, MEASURED = 60, 512, 6
TUNED = 40  # AutoRound's iterations a block; its default of 200 takes five times as long


def write_texts(folder: Path, project: Path, base: Path) -> None:
    """Rendered training rows as one text and as windows, and the held-out rows as one text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    texts = {}
    for split in ("train", "test"):
        chats = [json.loads(line)["messages"] for line in (project / f"data/final/{split}.jsonl").open()]
        texts[split] = "".join(tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats)
        (folder / f"{split}.txt").write_text(texts[split], encoding="utf-8")
    ids = tokenizer(texts["train"])["input_ids"]
    with (folder / "windows.jsonl").open("w", encoding="utf-8") as file:
        for start in range(0, WINDOWS * WINDOW, WINDOW):
            # a few tokens more: a window cut out of a text may be read as fewer
            window = tokenizer.decode(ids[start : start + WINDOW + 16])
            file.write(json.dumps({"text": window}) + "\n")


def divergence(level: Path, whole: Path, folder: Path, log: Path) -> dict[str, float]:
    """llama-perplexity's figures of a level against F16."""
    saved, tool = folder / "probabilities", find_toolchain().tool("llama-perplexity")
    shape = ["-f", folder / "test.txt", "-c", WINDOW, "--chunks", MEASURED, "-ngl", "0"]
    if not saved.exists():
        run([tool, "-m", whole, *shape, "--kl-divergence-base", saved], folder, log)
    said = run(
        [tool, "-m", level, *shape, "--kl-divergence-base", saved, "--kl-divergence"], folder, log
    ).said
    patterns = {
        "kld": r"Mean +KLD: +([\d.]+)",
        "kld_error": r"Mean +KLD: .*± +([\d.]+)",
        "same_top": r"Same top p: +([\d.]+)",
    }
    return {
        name: float(found[1]) for name, pattern in patterns.items() if (found := re.search(pattern, said))
    }


def commands(
    folder: Path, whole: Path, merged: Path, python: Path
) -> dict[str, tuple[Path, list[list[Any]]]]:
    """Each file's path and the commands that make it."""
    tools = find_toolchain()
    matrix, quantize = folder / "imatrix.gguf", tools.tool("llama-quantize")
    measure = [tools.tool("llama-imatrix"), "-m", whole, "-f", folder / "train.txt", "-o", matrix]
    made: dict[str, tuple[Path, list[list[Any]]]] = {}
    for level in ("Q4_K_M", "Q2_K"):
        plain, weighed = folder / f"{level}.gguf", folder / f"{level}-imatrix.gguf"
        made[level] = plain, [[quantize, whole, plain, level]]
        matrix_first = [[*measure, "-c", WINDOW, "--chunks", WINDOWS]] if level == "Q4_K_M" else []
        by_matrix = [quantize, "--imatrix", matrix, whole, weighed, level]
        made[f"{level} imatrix"] = weighed, [*matrix_first, by_matrix]
    for level, scheme in (("Q4_K_M", "gguf:q4_k_m"), ("Q2_K", "gguf:q2_k_s")):
        for name, iterations in (("untuned", 0), (f"{TUNED} iterations", TUNED)):
            out = folder / f"autoround-{level}-{iterations}"
            shape = ["--seqlen", WINDOW, "--nsamples", WINDOWS, "--batch_size", 4, "--iters", iterations]
            words = ["-m", "auto_round", "--model", merged, "--format", scheme, "--output_dir", out]
            given = ["--dataset", folder / "windows.jsonl", "--device", "cpu", *shape]
            made[f"{level} AutoRound, {name}"] = out, [[python, *words, *given]]
    return made


def main() -> None:
    """Make every file, measure it, and write the figures as they come."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--dir", type=Path, default=Path.home() / ".cache/quench-peers")
    parser.add_argument("--only", default="", help="only files whose name contains this")
    given = parser.parse_args()
    shared = given.dir.resolve()
    source, folder = shared / "runs" / f"quench-{given.seed}", shared / "quantizers"
    merged, whole = source / "models/merged", source / "models/gguf/demo-F16.gguf"
    folder.mkdir(exist_ok=True)
    write_texts(folder, shared / "project", shared / "base")
    result, log = (HERE / "results" / f"quantizers-{given.seed}{end}" for end in (".json", ".log"))
    values = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {"machine": machine()}
    newer = {
        "PYTHONPATH": os.fspath(find_toolchain().source / "gguf-py")
    }  # AutoRound wants a gguf after 0.19.0
    python = environment("autoround", shared)
    for name, (place, words) in commands(folder, whole, merged, python).items():
        if given.only not in name:
            continue
        ran: list[Ran] = [run(command, folder, log, newer) for command in words]
        level = place if place.suffix == ".gguf" else next(iter(sorted(place.rglob("*.gguf"))), None)
        values[name] = {
            "seconds": sum(one.seconds for one in ran),
            "commands": [without_places(one.command, shared) for one in ran],
        }
        values[name]["peak_bytes"] = max(one.peak_bytes for one in ran)
        if level is None or not level.exists():
            values[name]["said"] = without_places(ran[-1].said, shared)[-2000:]
        else:
            values[name] |= {"bytes": level.stat().st_size} | divergence(level, whole, folder, log)
            values[name]["judged"] = judged(level, shared / "project")
        write(result, values)
        log.write_text(without_places(log.read_bytes().decode(errors="replace"), shared), encoding="utf-8")
        print(name, {key: value for key, value in values[name].items() if key != "commands"}, flush=True)


if __name__ == "__main__":
    main()
