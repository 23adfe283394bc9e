"""What every tool of this benchmark shares: rows, base, environments, how a command is measured, the way from
16 bit to Q4_K_M, and the judge.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from pipeline.core.usage import peak_memory
from pipeline.metrics.answer_speed import cpu_time, other_load

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": "",
}
SOUP_ROWS = 80  # 20 steps of 4: Soup counts epochs, not steps
TENSOR = re.compile(
    r"INFO:hf-to-gguf:(blk|output|token_embd)|\[ *\d+/ *\d+\]|llama_model_loader: - kv|warning: blk"
)
# PyPI's builds don't load beside PyTorch's CPU build, and text needs neither. Without torchvision
# transformers goes on (with an empty module in its place it doesn't); LLaMA-Factory always imports
# torchaudio.
FOR_IMAGES_AND_SOUND = {"torchvision": False, "torchaudio": True}  # whether an empty module stands for it
WARM_UP = 2  # first steps, which are not timed


@dataclass(frozen=True)
class Ran:
    """A command that ran: wall time, VmHWM of its largest process, and whether other work disturbed
    it, so that its time is no figure.
    """

    command: str
    seconds: float
    peak_bytes: int
    load: dict[str, float | bool]
    status: int
    said: str


def run(
    words: Sequence[object], folder: Path, log: Path, environment: Mapping[str, str] | None = None
) -> Ran:
    """Run a command in `folder` to its end, whatever that is; what it says goes to `log` too."""
    begin, peak, before = time.perf_counter(), 0, cpu_time()
    with log.open("ab") as out:
        out.write(f"$ {' '.join(map(str, words))}\n".encode())
        out.flush()
        at = out.tell()
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | QUIET | (environment or {}),
        )
        while (status := ended(process, 0.25)) is None:
            peak = max([peak, *tree_peaks(process.pid)])
    seconds = time.perf_counter() - begin
    load = other_load(before, cpu_time())
    said = log.read_bytes()[at:].decode(errors="replace")
    command = " ".join(str(word) for word in words)
    return Ran(command, round(seconds, 1), peak, load.as_values(), status, said)


def ended(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit status of a process that ends within so many seconds."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def without_places(text: str, shared: Path) -> str:
    """A tool's output without earlier progress, llama.cpp's line for each tensor, this machine's folders."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    text = "\n".join(line for line in lines if not TENSOR.match(line))
    known = {
        str(shared): "DIR",
        str(PROJECT): ".",
        str((PROJECT / ".venv").resolve().parent): ".",
        sys.base_prefix: "PYTHON",
    }
    for place, name in known.items():
        text = text.replace(place, name)
    return text


def tree_peaks(pid: int) -> list[int]:
    """VmHWM of a process and of its children, in bytes."""
    try:
        family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []
    return [peak for one in family if (peak := peak_memory(one))]


def environment(name: str, folder: Path) -> Path:
    """The Python of a tool's environment below `folder`, made if it isn't there: its time, size and packages
    are written beside the results.
    """
    place, record = folder / "environments" / name, HERE / "results" / f"environment-{name}.json"
    python = place / "bin" / "python"
    if (place / "done").exists():
        return python
    shutil.rmtree(place, ignore_errors=True)
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    wanted = HERE / "requirements" / f"{name}.txt"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--requirement", wanted], check=True)
    seconds = time.perf_counter() - begin
    listed = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True)
    for package, imported in FOR_IMAGES_AND_SOUND.items():
        loads = subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False)
        if f"{package}==" in listed.stdout and loads.returncode:
            subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", package], check=True)
            if imported:
                empty = next(place.glob("lib/python*/site-packages")) / package
                empty.mkdir(exist_ok=True)
                (empty / "__init__.py").touch()
    du = subprocess.run(["du", "-sb", place], capture_output=True, text=True, check=True)
    write(
        record,
        {"seconds": round(seconds), "bytes": int(du.stdout.split()[0]), "packages": listed.stdout.split()},
    )
    (place / "done").touch()
    return python


def write(file: Path, values: Any) -> None:
    """JSON for people to read, too."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def stage(name: str, root: Path, log: Path) -> Ran:
    """One of Quench's stages on the project in `root`; ends the benchmark if it fails."""
    done = run(
        [sys.executable, "-m", "pipeline", name, "--root", root], root, log, {"PYTHONPATH": str(PROJECT)}
    )
    if done.status:
        raise SystemExit(f"{done.command}: exit status {done.status}\n{done.said[-2000:]}")
    return done


def prepare(folder: Path, gguf: Path) -> None:
    """Base and rows below `folder`, once: the demo's rows after Quench's curation, and the GGUF unpacked to a
    Hugging Face folder with one matrix for embeddings and head, as this family has it.
    """
    if (folder / "ready").exists():
        return
    project, rows = folder / "project", folder / "rows"
    for place in (project / "data" / "raw", rows):
        place.mkdir(parents=True, exist_ok=True)
    source = f"{{model: {gguf.absolute()}}}"
    text = (HERE / "tools" / "quench.yaml").read_text(encoding="utf-8").replace("SEED", "42")
    params, log = project / "params.yaml", folder / "prepare.log"
    params.write_text(text.replace("{model: base}", source), encoding="utf-8")
    made = [sys.executable, PROJECT / "examples/pydoc.py", "--out", project / "data/raw/pydoc.jsonl"]
    run(made, project, log, {"PYTHONPATH": str(PROJECT)})
    for name in ("base", "curate"):
        stage(name, project, log)
    shutil.copytree(project / "models" / "base", folder / "base")
    params.write_text(text.replace("model: base", f"model: {folder / 'base'}"), encoding="utf-8")
    stage("base", project, log)
    chats = [json.loads(line) for line in (project / "data/final/train.jsonl").open(encoding="utf-8")]
    with (rows / "messages.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"messages": chat["messages"]}) + "\n" for chat in chats)
    with (rows / "prompt_completion.jsonl").open("w", encoding="utf-8") as file:
        for chat in chats:
            *asked, last = chat["messages"]
            file.write(json.dumps({"prompt": asked, "completion": [last]}) + "\n")
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    described = {"file_name": "messages.jsonl", "formatting": "sharegpt", "tags": tags}
    write(rows / "dataset_info.json", {"pydoc": described | {"columns": {"messages": "messages"}}})
    some = random.Random(0).sample(chats, SOUP_ROWS)  # noqa: S311 (a draw, no secret)
    with (rows / "for_soup.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"messages": chat["messages"]}) + "\n" for chat in some)
    (folder / "ready").touch()


def speeds(steps: Path) -> dict[str, Any]:
    """Tokens a second of each timed step, by their median: real ones, and with the padding among them."""
    lines = [json.loads(line) for line in steps.open(encoding="utf-8")]
    timed = list(pairwise(lines))[WARM_UP - 1 :]
    seconds = [after["ended"] - before["ended"] for before, after in timed]
    if not seconds:
        return {"steps": len(lines)}
    real = [line["tokens"] / time_of for (_, line), time_of in zip(timed, seconds, strict=True)]
    padded = [
        (line["tokens"] + line["padding"]) / time_of
        for (_, line), time_of in zip(timed, seconds, strict=True)
    ]
    return {
        "steps": len(lines),
        "real_tokens": sum(line["tokens"] for line in lines),
        "padding": sum(line["padding"] for line in lines),
        "tokens_per_second": round(median(real), 1),
        "tokens_per_second_with_padding": round(median(padded), 1),
        "seconds_per_step": [round(value, 3) for value in seconds],
    }


def to_level(merged: Path, level: Path, log: Path) -> list[Ran]:
    """Make the Q4_K_M of a merged Hugging Face folder by llama.cpp's own two tools; what they took."""
    from pipeline.llamacpp.tools import find_toolchain

    tools, whole = find_toolchain(), level.with_name("F16.gguf")
    level.parent.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(tools.source / "gguf-py"), str(tools.source)])
    convert = [tools.source / "convert_hf_to_gguf.py", merged, "--outtype", "f16", "--outfile", whole]
    quantize = [tools.tool("llama-quantize"), whole, level, "Q4_K_M", "2"]
    return [
        run([sys.executable, *convert], merged.parent, log, {"PYTHONPATH": paths}),
        run(quantize, merged.parent, log),
    ]


def judged(gguf: Path, project: Path) -> dict[str, Any]:
    """What Quench's evaluation says of a GGUF on the held-out rows: points, their interval, all right."""
    from pipeline.chat.selection import answerable_rows
    from pipeline.config.params import load_params
    from pipeline.llamacpp.tools import find_toolchain
    from pipeline.metrics.asking import answers_of, evaluated_server, score_answers

    settings = load_params(project / "params.yaml").evaluating
    rows = answerable_rows(project / "data/final/test.jsonl", settings.task_rows)
    with evaluated_server(gguf, settings, find_toolchain()) as server:
        answers = answers_of(server, list(rows), settings, gguf.name)
    figures = score_answers(answers, settings.scorers)
    return {key: value for key, value in figures.items() if key not in ("domains", "scores")}
