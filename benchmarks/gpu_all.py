"""Measures on one GPU all that waits for one, the most important first, in at most nine minutes; prints one
table.

    python benchmarks/gpu_all.py [--out FOLDER] [--minutes 9] [--only PART ...]
    python benchmarks/gpu_all.py --smoke     # the same code on tiny shapes, on a CPU too

Runs from a plain checkout: it needs torch (2.11 to 2.13), transformers (5.17 to 5.23), peft, trl, datasets,
bitsandbytes, liger-kernel, gguf, tensorboard, pydantic, pyyaml, ruamel.yaml, pytest and hypothesis, but
neither llama.cpp nor a network, and 21 GB of disk for random models of Qwen2.5-7B's shape. Every part runs in
a process of its own, so that one failure costs no other part its figures; they are in FOLDER/figures.jsonl as
soon as they are seen, the logs beside them, the table in FOLDER/table.md at the end.
"""

import argparse
import json
import math
import multiprocessing
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.commands.install import torch_for
from pipeline.config.params import load_params
from pipeline.config.sections import Training
from pipeline.core.hardware import accelerator
from pipeline.llamacpp.compiler import choose_backend

PROJECT = Path(__file__).resolve().parents[1]
FLOPS_PER_TOKEN = 42.5e9  # Qwen2.5-7B with checkpointing
PARTS = ("tests", "machine", "speed", "planner", "quantized", "offload", "several", "methods", "resume")
ROUNDS = 2  # of the speed comparison: A B A B
# of the time, at most, for the tests: what comes after them is why the card was asked for
TESTS_SHARE = 1 / 3
SEVERAL_SECONDS = 60.0  # of a training by several, at most: one that waits for another would wait on
# a part's process is a fork of a small one that has never seen the GPU
PROCESSES = multiprocessing.get_context("forkserver")
LIBRARIES = ("torch", "transformers", "peft", "trl", "bitsandbytes", "liger-kernel", "triton")


@dataclass
class Run:
    """What is asked for, where it goes, when it must be over, and the figures so far."""

    out: Path
    work: Path
    deadline: float
    smoke: bool
    figures: dict[str, Any] = field(default_factory=dict)  # by name
    reasons: dict[str, str] = field(default_factory=dict)  # by part: why figures of it are missing
    needless: set[str] = field(default_factory=set)  # of these: no failure, this machine can't measure them

    def note(self, **figures: Any) -> None:
        """Keep figures, on the disk at once."""
        # what a CPU can't tell
        figures = {name: value for name, value in figures.items() if value is not None}
        self.figures |= figures
        with (self.out / "figures.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(figures) + "\n")

    def left(self) -> float:
        """Seconds. Raises `PartError` if there are none."""
        if (seconds := self.deadline - time.monotonic()) < 1:
            raise PartError("the time was over")
        return seconds

    def start(self, name: str, part: str, settings: Training | None = None, **asked: Any) -> tuple[Any, Any]:
        """Start a part of `gpu_parts.py`; the process, and the end of the pipe that its figures come from."""
        asked |= {"folder": self.work} | ({"settings": settings.model_dump()} if settings else {})
        figures, theirs = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(
            target=start_child, args=(part, theirs, self.out / f"{name}.log", asked), daemon=True
        )
        process.start()
        theirs.close()
        return process, figures

    def part(self, name: str, part: str, seconds: float = math.inf, **asked: Any) -> Iterator[dict[str, Any]]:
        """The figures of a part, one after the other. Raises `PartError` with its last words where it fails
        or the time, or its own `seconds`, are over.
        """
        end = time.monotonic() + min(seconds, self.left())
        began, (process, figures) = time.monotonic(), self.start(name, part, **asked)
        try:
            while figures.poll(max(0.0, end - time.monotonic())):
                yield figures.recv()
            raise PartError("the time was over")
        except EOFError:  # the part has ended
            process.join()
        finally:
            process.kill()
            process.join()
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if process.exitcode:
            raise PartError(last_words(self.out / f"{name}.log"), process.exitcode)


class TooFew(Exception):
    """This machine has too few cards for a part, which is no failure."""


class PartError(Exception):
    """A part failed; with the exit code where it ended by itself."""

    def __init__(self, words: str, exit_code: int | None = None) -> None:
        super().__init__(words)
        self.exit_code = exit_code


def start_child(part: str, *rest: Any) -> None:
    """What a part's process does first: torch is imported there, so that no process has seen the GPU
    before.
    """
    # CUDA is asked what there is as soon as torch is there
    os.environ.update(rest[-1].pop("environment", {}))
    from benchmarks.gpu_parts import child

    child(part, *rest)


def last_words(log: Path) -> str:
    """The last line of a log."""
    lines = [
        line.strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    return lines[-1][-200:] if lines else "it said nothing"


def tests(run: Run) -> None:
    """tests/gpu: every dequantizer and kernel against its reference, NF4 and GGUF steps against the CPU's."""
    if not gpu():
        raise PartError("there is no GPU here")
    pytest(run, "tests/gpu", "-m", "gpu", seconds=TESTS_SHARE * run.left())


def pytest(run: Run, *words: str, seconds: float) -> None:
    """Run tests for at most `seconds` and count them. Raises `PartError` where they took longer or could not
    be run.
    """
    report, log = run.out / "tests.xml", run.out / "tests.log"
    # without the project's own options, which ask for plugins
    command = [
        sys.executable,
        "-m",
        "pytest",
        *words,
        "-o",
        "addopts=",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
    ]
    with (
        log.open("w", encoding="utf-8") as output,
        subprocess.Popen(command, stdout=output, stderr=output, cwd=PROJECT) as process,
    ):
        try:
            process.wait(seconds)
            late = False
        except subprocess.TimeoutExpired:
            late = True
            process.send_signal(signal.SIGINT)  # then it reports what it has run
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
        finally:
            process.kill()
    if not report.is_file():
        raise PartError(f"pytest ended with {process.returncode} ({last_words(log)}): see {log.name}")
    found = re.findall(r'(tests|failures|errors|skipped)="(\d+)"', report.read_text(encoding="utf-8")[:2_000])
    counts = {key: int(number) for key, number in found}
    bad = counts["failures"] + counts["errors"]
    run.note(
        tests_passed=counts["tests"] - bad - counts["skipped"],
        tests_failed=bad,
        tests_skipped=counts["skipped"],
    )
    if late:
        raise PartError(f"only those were run that {seconds:.0f} s were enough for")


def machine(run: Run) -> None:
    """What set-up would choose here: the build of PyTorch, against the one that runs, and llama.cpp's
    backend.
    """
    import torch

    card = accelerator()
    build, why = torch_for(card)
    backend = choose_backend(None)
    run.note(
        machine_torch=f"{build} ({why})",
        machine_torch_fits=build in torch.__version__ if gpu() else None,
        machine_llama=f"{backend.name} ({backend.why})",
        machine_llama_fits=backend.name != "cpu" if gpu() else None,
    )


def speed(run: Run) -> None:
    """Our stage under an 8 GiB cap against plain Hugging Face + PEFT + TRL, in turns, and Unsloth where it is
    installed.
    """
    tokens, settings = row_tokens(run), nf4_settings(run, max_steps=4 if run.smoke else 6)
    found: dict[str, list[float]] = {"ours": [], "plain": []}
    for number in range(1 if run.smoke else ROUNDS):
        for side in [side for side in found if side not in run.reasons]:
            try:
                for figures in run.part(
                    f"{side}-{number + 1}", side, settings=settings, tokens=tokens, cap_gib=8.0
                ):
                    if "tokens_per_second" in figures:
                        found[side].append(figures["tokens_per_second"])
                        figures = {
                            f"{side}_tokens_per_second": median(found[side]),
                            f"{side}_peak_gib": figures["peak_gib"],
                        }
                    run.note(**figures)
            except PartError as error:  # the other side's figures count without it
                run.reasons[side] = run.reasons["speed"] = f"{side}: {error}"
            if found["ours"] and found["plain"]:
                run.note(ratio=median(found["ours"]) / median(found["plain"]))
    if {"bf16_tflops", "ours_tokens_per_second"} <= run.figures.keys():
        run.note(
            utilization=run.figures["ours_tokens_per_second"]
            * FLOPS_PER_TOKEN
            / run.figures["bf16_tflops"]
            / 1e12
        )
    try:
        for figures in run.part("unsloth", "unsloth", settings=settings, tokens=tokens):
            run.note(
                unsloth_tokens_per_second=figures["tokens_per_second"], unsloth_peak_gib=figures["peak_gib"]
            )
    except PartError as error:
        run.reasons["unsloth"] = str(error)


def planner(run: Run) -> None:
    """The planner's error over 12 configurations (6 on a CPU, without a measurement), and the longest row
    under the cap.
    """
    lengths = [32, 64] if run.smoke else [512, 1_024, 2_048]
    rows = []
    for loss in ("auto", "chunked") if gpu() else ("chunked",):
        settings = nf4_settings(run, loss=loss)
        for figures in run.part(
            f"planner-{loss}",
            "planner",
            settings=settings,
            lengths=lengths,
            cap_gib=8.0,
            find_longest=loss == "auto",
        ):
            run.note(**{key: value for key, value in figures.items() if key != "planned"})
            if "planned" in figures:
                rows.append(figures["planned"])
                errors = [(planned - measured) / measured for *_, measured, planned in rows if measured]
                run.note(
                    planned=rows,
                    planner_error=max(map(abs, errors), default=None),
                    planner_configurations=len(errors) or None,
                )


def quantized(run: Run) -> None:
    """One optimizer step on a GGUF's own blocks (Q4_K_M's types), of an adapter and of the scales, against an
    adapter's on NF4.
    """
    changes: dict[str, dict[str, Any]] = {
        "quantized": {"quantization": "gguf"},
        "nf4": {},
        "scales": {"quantization": "gguf", "tuner": "scales"},
    }
    for side, changed in changes.items():
        settings = nf4_settings(run, optim="adamw_torch", **changed)
        tokens, rounds = row_tokens(run), 1 if run.smoke else 8
        for figures in run.part(
            f"step-{side}", "step_speed", settings=settings, side=side, tokens=tokens, rounds=rounds
        ):
            run.note(**{f"{side}_step_{key}": value for key, value in figures.items()})
    run.note(
        quantized_speed_ratio=run.figures["quantized_step_tokens_per_second"]
        / run.figures["nf4_step_tokens_per_second"],
        scales_speed_ratio=run.figures["scales_step_tokens_per_second"]
        / run.figures["quantized_step_tokens_per_second"],
    )
    if "nf4_step_peak_gib" in run.figures:
        run.note(
            quantized_peak_ratio=run.figures["quantized_step_peak_gib"] / run.figures["nf4_step_peak_gib"]
        )


def offload(run: Run) -> None:
    """Optimizer steps on NF4 with half of the layers in main memory, against none: losses, speed and peak."""
    for name, count in (("resident", 0), ("offloaded", 1 if run.smoke else 14)):
        settings = nf4_settings(run, optim="adamw_torch", offload_layers=count)
        tokens, rounds = row_tokens(run), 1 if run.smoke else 8
        for figures in run.part(
            name, "step_speed", settings=settings, side="nf4", tokens=tokens, rounds=rounds
        ):
            run.note(**{f"{name}_{key}": value for key, value in figures.items()})
    run.note(
        offload_loss_difference=max(
            abs(mine / theirs - 1)
            for mine, theirs in zip(
                run.figures["offloaded_losses"], run.figures["resident_losses"], strict=True
            )
        ),
        offload_speed_ratio=run.figures["offloaded_tokens_per_second"]
        / run.figures["resident_tokens_per_second"],
    )
    if "resident_peak_gib" in run.figures:
        saved = run.figures["resident_peak_gib"] - run.figures["offloaded_peak_gib"]
        run.note(offload_saved_gib=saved)
        if planned := run.figures["offloaded_saving_planned_gib"]:  # of one layer nothing is saved
            run.note(offload_saved_of_planned=saved / planned)


def several(run: Run) -> None:
    """The stage on the small base by one process and by two, a card each; then by two between whom the base
    is shared out: the adapter, speed and peak.
    """
    if gpu() and cards() < 2:
        raise TooFew("there is one GPU, and this takes two")
    settings = nf4_settings(
        run, optim="adamw_torch", lora_dropout=0.0, **({"max_steps": 3} if run.smoke else {})
    )
    for name, count, sharded in (("one", 1, False), ("two", 2, False), ("shared", 2, True)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        asked: list[dict[str, Any]] = [
            {
                "side": name,
                "settings": settings.model_copy(update={"shard_base": sharded}),
                "environment": rank_environment(number, count, port),
            }
            for number in range(count)
        ]
        others = [
            run.start(f"several-{name}-{number}", "rank", **asked[number]) for number in range(1, count)
        ]
        try:
            for figures in run.part(f"several-{name}", "rank", SEVERAL_SECONDS, **asked[0]):
                run.note(**{f"{name}_{key}": value for key, value in figures.items()})
        finally:
            for process, _ in others:
                process.kill()
    run.note(
        two_equal=run.figures["two_adapter"] == run.figures["one_adapter"],
        shared_equal=run.figures["shared_adapter"] == run.figures["one_adapter"],
        two_speed_ratio=run.figures["two_tokens_per_second"] / run.figures["one_tokens_per_second"],
        shared_speed_ratio=run.figures["shared_tokens_per_second"] / run.figures["two_tokens_per_second"],
    )
    if "two_peak_gib" in run.figures:
        run.note(shared_saved_gib=run.figures["two_peak_gib"] - run.figures["shared_peak_gib"])


def rank_environment(number: int, count: int, port: int) -> dict[str, str]:
    """What `torchrun` would tell a process; its card is chosen here, before torch has seen all of them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return {
        **({"CUDA_VISIBLE_DEVICES": named[number] if named[0] else str(number)} if gpu() else {}),
        **dict.fromkeys(("RANK", "LOCAL_RANK"), str(number)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def methods(run: Run) -> None:
    """DPO and KTO on the small NF4 base: the first loss against its closed form, and the speed."""
    for method in ("dpo", "kto"):
        settings = nf4_settings(
            run,
            method=method,
            max_steps=3 if run.smoke else 8,
            gradient_accumulation_steps=1,
            optim="adamw_torch",
            lora_dropout=0.0,
        )
        for figures in run.part(f"method-{method}", "method", settings=settings):
            run.note(**{f"{method}_{key}": value for key, value in figures.items()})


def resume(run: Run) -> None:
    """A run with the recipe's paged 8-bit optimizer, killed with SIGKILL and resumed, against unbroken ones,
    on NF4 and on a GGUF's blocks.
    """
    for side in ("nf4",) if run.smoke else ("nf4", "quantized_small"):
        changes = (
            {"max_steps": 5, "save_steps": 2, "gradient_accumulation_steps": 1}
            if run.smoke
            else {"max_steps": 10, "save_steps": 3}
        )
        settings = nf4_settings(run, **changes, **({} if side == "nf4" else {"quantization": "gguf"}))
        try:
            list(run.part(f"resume-{side}-killed", "resume", settings=settings, side=side, killed=True))
        except PartError as error:
            if error.exit_code != -signal.SIGKILL:
                raise
        for figures in run.part(f"resume-{side}", "resume", settings=settings, side=side, killed=False):
            run.note(**{f"{side}_{key}": value for key, value in figures.items()})


def gpu() -> bool:
    """Whether torch sees a GPU."""
    from torch import cuda

    return bool(cuda.is_available())


def cards() -> int:
    """How many GPUs torch sees."""
    from torch import cuda

    return int(cuda.device_count())


def row_tokens(run: Run) -> int:
    """Tokens in a training row."""
    return 64 if run.smoke else 1_024


def nf4_settings(run: Run, **changes: Any) -> Training:
    """The 8 GB recipe's training, changed."""
    recipe = load_params(PROJECT / "recipes/qwen2.5-7b-8gb.yaml").training.model_dump()
    base: dict[str, Any] = {"max_steps": 8, "save_steps": 1_000, "sample_rows": 0, "loss": "auto"}
    if not gpu():
        base |= {"optim": "adamw_torch", "gradient_accumulation_steps": 2}
    return Training.model_validate(recipe | base | changes)


@dataclass(frozen=True)
class Row:
    """A line of the table: the figure's name, what it is called, how it is shown, and what it should be."""

    figure: str
    label: str
    show: str
    part: str
    goal: str = ""
    met: Callable[[Any], bool] | None = None


TABLE = (
    Row(
        "tests_passed",
        "kernels, dequantizers, NF4 and GGUF steps against references: tests passed",
        "{}",
        "tests",
        "> 0",
        lambda found: found > 0,
    ),
    Row("tests_failed", "… failed", "{}", "tests", "0", lambda found: found == 0),
    Row("tests_skipped", "… skipped", "{}", "tests"),
    Row("machine_torch", "set-up here: PyTorch's build", "{}", "machine"),
    Row("machine_torch_fits", "… is the one that runs", "{}", "machine"),
    Row("machine_llama", "… llama.cpp's backend", "{}", "machine"),
    Row("machine_llama_fits", "… for the card", "{}", "machine", "True", bool),
    Row("bf16_tflops", "the card: bfloat16 matrix product, TFLOP/s", "{:,.0f}", "speed"),
    Row(
        "ours_tokens_per_second",
        "7B shape in NF4, 1 × 1,024 tokens × 8, Quench: tokens/s",
        "{:,.0f}",
        "speed",
    ),
    Row("plain_tokens_per_second", "… plain Hugging Face + PEFT + TRL: tokens/s", "{:,.0f}", "plain"),
    Row("ratio", "… Quench ÷ plain", "{:.2f}", "speed", "≥ 1.3", lambda found: found >= 1.3),
    Row("unsloth_tokens_per_second", "… Unsloth: tokens/s", "{:,.0f}", "unsloth"),
    Row("utilization", "… Quench: share of the card's matrix product", "{:.1%}", "speed"),
    Row(
        "ours_peak_gib",
        "… Quench under an 8 GiB cap: peak GiB",
        "{:.2f}",
        "speed",
        "≤ 7.0",
        lambda found: found <= 7.0,
    ),
    Row("plain_peak_gib", "… plain, without a cap: peak GiB", "{:.2f}", "speed"),
    Row("unsloth_peak_gib", "… Unsloth, without a cap: peak GiB", "{:.2f}", "unsloth"),
    Row(
        "optimizer_bytes_per_parameter",
        "… paged 8-bit AdamW: bytes of state per trained parameter",
        "{:.2f}",
        "speed",
    ),
    Row(
        "longest_row",
        "… longest row that trains in 8 GiB, tokens",
        "{:,}",
        "planner",
        "≥ 2,972",
        lambda found: found >= 2_972,
    ),
    Row(
        "planner_error",
        "planner: largest error of the peak",
        "{:.1%}",
        "planner",
        "≤ 5 %",
        lambda found: found <= 0.05,
    ),
    Row(
        "planner_configurations",
        "… over so many configurations",
        "{}",
        "planner",
        "12",
        lambda found: found == 12,
    ),
    Row(
        "quantized_step_tokens_per_second",
        "7B shape on Q4_K_M's blocks, one step of 1,024: tokens/s",
        "{:,.0f}",
        "quantized",
    ),
    Row("quantized_step_peak_gib", "… peak GiB", "{:.2f}", "quantized"),
    Row(
        "quantized_speed_ratio",
        "… speed ÷ NF4's",
        "{:.2f}",
        "quantized",
        "≥ 0.80",
        lambda found: found >= 0.8,
    ),
    Row(
        "quantized_peak_ratio", "… peak ÷ NF4's", "{:.2f}", "quantized", "≤ 1.10", lambda found: found <= 1.1
    ),
    Row(
        "scales_step_tokens_per_second",
        "… the scales instead of an adapter: tokens/s",
        "{:,.0f}",
        "quantized",
    ),
    Row("scales_step_peak_gib", "… peak GiB", "{:.2f}", "quantized", "≤ 8.0", lambda found: found <= 8.0),
    Row("scales_speed_ratio", "… speed ÷ the adapter's", "{:.2f}", "quantized"),
    Row(
        "offload_speed_ratio",
        "7B shape in NF4, half of the layers in main memory: speed ÷ none",
        "{:.2f}",
        "offload",
    ),
    Row("offload_saved_gib", "… GiB of the peak saved", "{:.2f}", "offload"),
    Row(
        "offload_saved_of_planned",
        "… ÷ planned",
        "{:.2f}",
        "offload",
        "0.95 to 1.05",
        lambda found: 0.95 <= found <= 1.05,
    ),
    Row(
        "offload_loss_difference",
        "… largest relative difference of a step's loss",
        "{:.1g}",
        "offload",
        "≤ 1e-3",
        lambda found: found <= 1e-3,
    ),
    Row("two_speed_ratio", "two processes, a card each: speed ÷ one's", "{:.2f}", "several"),
    Row("two_equal", "… the same adapter as one's, to the byte", "{}", "several", "True", bool),
    Row("shared_speed_ratio", "… the base shared out between them: speed ÷ not so", "{:.2f}", "several"),
    Row(
        "shared_saved_gib",
        "… GiB of each card's peak saved",
        "{:.2f}",
        "several",
        "> 0",
        lambda found: found > 0,
    ),
    # no goal: what is shared out is quantized in main memory
    Row("shared_equal", "… the same adapter as one's, to the byte", "{}", "several"),
    Row(
        "dpo_first_loss",
        "DPO: loss of the first step, ln 2 by its formula",
        "{:.5f}",
        "methods",
        "0.69315",
        lambda found: abs(found - 0.693147) < 1e-4,
    ),
    Row("dpo_tokens_per_second", "… tokens/s, reference included", "{:,.0f}", "methods"),
    Row(
        "kto_first_loss",
        "KTO: loss of the first step, ½ by its formula",
        "{:.5f}",
        "methods",
        "0.50000",
        lambda found: abs(found - 0.5) < 1e-4,
    ),
    Row("kto_tokens_per_second", "… tokens/s, reference and other answers included", "{:,.0f}", "methods"),
    Row("nf4_unbroken_equal", "NF4: two unbroken runs end in the same bytes", "{}", "resume"),
    Row(
        "nf4_resumed_equal",
        "NF4: killed with SIGKILL and resumed, the same bytes as unbroken",
        "{}",
        "resume",
        "True",
        bool,
    ),
    Row(
        "quantized_small_unbroken_equal",
        "GGUF blocks: two unbroken runs end in the same bytes",
        "{}",
        "resume",
    ),
    Row(
        "quantized_small_resumed_equal",
        "GGUF blocks: killed and resumed, the same bytes as unbroken",
        "{}",
        "resume",
        "True",
        bool,
    ),
)


def table(run: Run) -> str:
    """All figures as Markdown; what wasn't seen is "not measured", with the reason."""
    lines = ["| what | seen | goal | |", "| --- | ---: | --- | --- |"]
    for row in TABLE:
        found = run.figures.get(row.figure)
        shown = "not measured" if found is None else row.show.format(found)
        lines.append(f"| {row.label} | {shown} | {row.goal} | {verdict(row, run)} |")
    for loss, tokens, checkpointing, measured, planned in run.figures.get("planned", []):
        seen = f"{measured / 1e9:.3f} GB" if measured else "not measured"
        setting = f"{loss}, {tokens:,} tokens, checkpointing {'on' if checkpointing else 'off'}"
        lines.append(f"| peak, {setting} | {seen} | | {planned / 1e9:.3f} GB planned |")
    return "\n".join(lines) + "\n"


def verdict(row: Row, run: Run) -> str:
    """Whether the goal was met, or why nothing was measured; tiny shapes have no goal."""
    if row.figure not in run.figures:
        return run.reasons.get(row.part, "")
    if row.met is None or run.smoke:
        return ""
    return "met" if row.met(run.figures[row.figure]) else "MISSED"


def heading(smoke: bool) -> str:
    """The machine and the versions that the figures are of."""
    import torch

    device = torch.cuda.get_device_name(0) if gpu() else f"CPU, {os.cpu_count()} cores"
    shape = (
        "tiny shapes (--smoke): only that the code runs" if smoke else "random weights of Qwen2.5-7B's shape"
    )
    return (
        f"{time.strftime('%Y-%m-%d')}, {device}, Python {platform.python_version()}, "
        f"{', '.join(map(installed, LIBRARIES))}; {shape}\n"
    )


def installed(library: str) -> str:
    """A library's name and version."""
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return f"{library} missing"


def main() -> int:
    """Measure the parts that were asked for and print the table; 1 if a goal is missed or a part failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, few steps")
    parser.add_argument(
        "--out", type=Path, help="folder for figures, logs and the table (default: a new temporary one)"
    )
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    asked = parser.parse_args()
    if not (gpu() or asked.smoke):
        sys.exit("there is no GPU here: take --smoke to run the same code on tiny shapes")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if not gpu():
        PROCESSES.set_forkserver_preload(
            [
                "benchmarks.gpu_parts",
                "pipeline.stages.train.stage",
                "transformers",
                "peft",
                "trl",
                "bitsandbytes",
            ]
        )
    out = asked.out or Path(tempfile.mkdtemp(prefix="quench-gpu-"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quench-bench-") as work:
        run = Run(out, Path(work), time.monotonic() + 60 * asked.minutes, asked.smoke)
        measure(run, asked.only)
        text = heading(asked.smoke) + "\n" + table(run)
    (out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    failed = set(run.reasons) - run.needless - {"unsloth", "tests" if asked.smoke else ""}
    return 1 if failed or "MISSED" in text else 0


def measure(run: Run, only: list[str]) -> None:
    """Every part in turn; the large files are written while the tests hold the GPU."""
    shapes = {"shape": "tiny" if run.smoke else "7b", "resume_shape": "tiny" if run.smoke else "0.5b"}
    writing, _ = run.start("write", "write", tokens=row_tokens(run), **shapes)
    for part in (tests, machine, speed, planner, quantized, offload, several, methods, resume):
        if part.__name__ not in only:
            continue
        try:
            if part is not tests:
                writing.join(run.left())
                if writing.exitcode:
                    raise PartError(f"the bases could not be written: {last_words(run.out / 'write.log')}")
            part(run)
        except Exception as error:  # a part that fails must not cost the others
            if isinstance(error, TooFew):
                run.needless.add(part.__name__)
            run.reasons[part.__name__] = " ".join(str(error).split())[:200] or type(error).__name__
            print(f"{part.__name__}: {run.reasons[part.__name__]}", file=sys.stderr, flush=True)
    writing.kill()


if __name__ == "__main__":
    sys.exit(main())
