"""Measures on one GPU all that waits for one, the most important first, in at most nine minutes; prints one
table.

    python benchmarks/gpu_all.py [--out FOLDER] [--minutes 9] [--only PART ...]
    python benchmarks/gpu_all.py --smoke     # the same code on tiny shapes, on a CPU too

Runs from a plain checkout: it needs torch (2.11 to 2.13), transformers (5.17 to 5.23), peft, trl, datasets,
bitsandbytes, liger-kernel, gguf, tensorboard, pydantic, pyyaml, ruamel.yaml, orjson, pytest and hypothesis,
but neither llama.cpp nor a network, and 21 GB of disk for random models of Qwen2.5-7B's shape. Every part
runs in a process of its own, so that one failure costs no other part its figures; they are in
FOLDER/figures.jsonl as soon as they are seen, the logs beside them, the table in FOLDER/table.md at the end.
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
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
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
PARTS = (
    "tests",
    "machine",
    "speed",
    "packed",
    "planner",
    "quantized",
    "offload",
    "several",
    "methods",
    "resume",
)
ROUND_SECONDS = 150.0  # that a second round of the speed comparison takes
# of the time, at most, for the tests: what comes after them is why the card was asked for
TESTS_SHARE = 1 / 5
PACKED_WAYS = ("masked", "by_row", "varlen", "compiled", "compiled_varlen")
PACKED_SECONDS = 110.0  # of the ways to attend and of compiled layers, at most: compiling may take minutes
SEVERAL_SECONDS = 60.0  # of a training by several, at most: one that waits for another would wait on
# a part's process is a fork of a small one that has never seen the GPU
PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["pipeline.stages.train.stage", "transformers", "peft", "trl", "bitsandbytes"]
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
    rates: dict[str, list[float]] = field(default_factory=dict)  # tokens/s by side, of each round

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

    def keep(self, prefix: str, name: str, part: str, seconds: float = math.inf, **asked: Any) -> None:
        """Keep all figures of a part under names that begin with `prefix`."""
        for figures in self.part(name, part, seconds, **asked):
            self.note(**{f"{prefix}_{key}": value for key, value in figures.items()})

    def ratio(self, name: str, above: str, below: str) -> None:
        """Keep the ratio of two figures, where both were seen."""
        if {above, below} <= self.figures.keys():
            self.note(**{name: self.figures[above] / self.figures[below]})

    def difference(self, name: str, one: str, other: str) -> None:
        """Keep the relative difference of two figures, where both were seen."""
        if {one, other} <= self.figures.keys():
            self.note(**{name: abs(self.figures[one] / self.figures[other] - 1)})


class TooFew(Exception):
    """This machine has too few cards for a part, which is no failure."""


class PartError(Exception):
    """A part failed; with the exit code where it ended by itself."""

    def __init__(self, words: str, exit_code: int | None = None) -> None:
        super().__init__(words)
        self.exit_code = exit_code


def start_child(part: str, *rest: Any) -> None:
    """What a part's process does first: torch is imported there, so no process has seen the GPU before."""
    # CUDA is asked what there is as soon as torch is there
    os.environ.update(rest[-1].pop("environment", {}))
    from benchmarks.gpu_parts import child

    child(part, *rest)


def last_words(log: Path) -> str:
    """The last line of a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][-200:] if said else "it said nothing"


def tests(run: Run) -> None:
    """tests/gpu: every dequantizer and kernel against its reference, NF4 and GGUF steps against the CPU's.

    Each file in a pytest of its own, all at once: one test after the other compiles kernels for minutes.
    """
    if not gpu():
        raise PartError("there is no GPU here")
    until = time.monotonic() + TESTS_SHARE * run.left()
    files = sorted((PROJECT / "tests/gpu").glob("test_*.py"))
    sessions = [(file.stem, start_pytest(run, file)) for file in files]
    late = [name for name, session in sessions if not ended(session, until)]
    if not (reports := [*run.out.glob("test_*.xml")]):
        raise PartError(f"pytest reported nothing ({last_words(run.out / f'{files[0].stem}.log')})")
    counts = Counter[str]()
    for report in reports:
        suite = next(ElementTree.parse(report).iter("testsuite"))  # noqa: S314 (pytest's own report)
        for name in ("tests", "failures", "errors", "skipped"):
            counts[name] += int(suite.attrib[name])
    failed = counts["failures"] + counts["errors"]
    run.note(
        tests_passed=counts["tests"] - failed - counts["skipped"],
        tests_failed=failed,
        tests_skipped=counts["skipped"],
    )
    if late:
        raise PartError(f"the time was over in {', '.join(late)}")


def start_pytest(run: Run, file: Path) -> "subprocess.Popen[bytes]":
    """Run a file's GPU tests; report and log have its name."""
    # without the project's own options, which ask for plugins
    plain = ("-o", "addopts=", "-q", "-p", "no:cacheprovider", f"--junitxml={run.out / file.stem}.xml")
    command = [sys.executable, "-m", "pytest", file, "-m", "gpu", *plain]
    with (run.out / f"{file.stem}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=PROJECT)


def ended(session: "subprocess.Popen[bytes]", until: float) -> bool:
    """Whether it ended by itself; one that doesn't is told to report what it has run."""
    with suppress(subprocess.TimeoutExpired):
        session.wait(max(0.0, until - time.monotonic()))
        return True
    session.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        session.wait(20)
    session.kill()
    return False


def machine(run: Run) -> None:
    """What set-up would choose here: a PyTorch build, against the running build, and llama.cpp's backend."""
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
    """Our stage under an 8 GiB cap against plain Hugging Face + PEFT + TRL, and Unsloth if installed."""
    settings = nf4_settings(run, max_steps=4 if run.smoke else 5)
    in_turns(run, settings)
    if {"bf16_tflops", "ours_tokens_per_second"} <= run.figures.keys():
        flops = run.figures["ours_tokens_per_second"] * FLOPS_PER_TOKEN
        run.note(utilization=flops / run.figures["bf16_tflops"] / 1e12)
    try:
        run.keep("unsloth", "unsloth", "unsloth", settings=settings, tokens=row_tokens(run))
    except PartError as error:
        run.reasons["unsloth"] = str(error)


def in_turns(run: Run, settings: Training) -> None:
    """One round of our stage and of plain; the speeds are medians of the rounds so far."""
    asked = {"settings": settings, "tokens": row_tokens(run), "cap_gib": 8.0}
    for side in [side for side in ("ours", "plain") if side not in run.reasons]:
        rates = run.rates.setdefault(side, [])
        try:
            for figures in run.part(f"{side}-{len(rates) + 1}", side, **asked):
                if "tokens_per_second" in figures:
                    rates.append(figures["tokens_per_second"])
                    rate, peak = median(rates), figures["peak_gib"]
                    figures = {f"{side}_tokens_per_second": rate, f"{side}_peak_gib": peak}
                run.note(**figures)
        except PartError as error:  # the other side's figures count without it
            run.reasons[side] = run.reasons["speed"] = f"{side}: {error}"
    run.ratio("ratio", "ours_tokens_per_second", "plain_tokens_per_second")


def packed(run: Run) -> None:
    """Steps on a row that is packed from eight of one length: attention with the mask, by row and of variable
    length, and compiled layers, each against Hugging Face + PEFT on the same row.
    """
    settings = nf4_settings(run, lora_dropout=0.0)
    asked = {"settings": settings, "tokens": row_tokens(run), "rounds": 1 if run.smoke else 5}
    run.keep("packed_plain", "packed-plain", "packed_plain", **asked)
    try:
        run.keep("packed", "packed-ours", "packed_ours", PACKED_SECONDS, **asked)
    finally:  # What was seen before a failure counts.
        for way in PACKED_WAYS:
            run.ratio(
                f"packed_{way}_ratio", f"packed_{way}_tokens_per_second", "packed_plain_tokens_per_second"
            )
        for way in PACKED_WAYS[1:]:  # each against the first, with the mask
            run.difference(f"packed_{way}_loss_difference", f"packed_{way}_loss", "packed_masked_loss")


def planner(run: Run) -> None:
    """The planner's error over 12 configurations (6 on a CPU, unmeasured); the longest row under the cap."""
    lengths = [32, 64] if run.smoke else [512, 1_024, 2_048]
    rows = []
    for loss in ("auto", "chunked") if gpu() else ("chunked",):
        asked = {"lengths": lengths, "cap_gib": 8.0, "find_longest": loss == "auto"}
        for figures in run.part(f"planner-{loss}", "planner", settings=nf4_settings(run, loss=loss), **asked):
            run.note(**{key: value for key, value in figures.items() if key != "planned"})
            if "planned" in figures:
                rows.append(figures["planned"])
                errors = [(planned - measured) / measured for *_, measured, planned in rows if measured]
                run.note(
                    planned=rows,
                    planner_error=max(map(abs, errors), default=None),
                    planner_configurations=len(errors) or None,
                )


def steps(run: Run, name: str, prefix: str, side: str, **changes: Any) -> None:
    """Keep the figures of single optimizer steps of a side."""
    settings = nf4_settings(run, optim="adamw_torch", **changes)
    tokens, rounds = row_tokens(run), 1 if run.smoke else 5
    run.keep(prefix, name, "step_speed", settings=settings, side=side, tokens=tokens, rounds=rounds)


def quantized(run: Run) -> None:
    """An optimizer step on GGUF blocks (Q4_K_M's types), of adapter and scales, against adapters on NF4."""
    for side, changes in {
        "quantized": {"quantization": "gguf"},
        "nf4": {},
        "scales": {"quantization": "gguf", "tuner": "scales"},
    }.items():
        steps(run, f"step-{side}", f"{side}_step", side, **changes)
    run.ratio("quantized_speed_ratio", "quantized_step_tokens_per_second", "nf4_step_tokens_per_second")
    run.ratio("scales_speed_ratio", "scales_step_tokens_per_second", "quantized_step_tokens_per_second")
    run.ratio("quantized_peak_ratio", "quantized_step_peak_gib", "nf4_step_peak_gib")


def offload(run: Run) -> None:
    """Optimizer steps on NF4 with half of the layers in main memory, against none: losses, speed and peak."""
    if "nf4_step_losses" not in run.figures:
        steps(run, "step-nf4", "nf4_step", "nf4")
    steps(run, "offloaded", "offloaded", "nf4", offload=1 if run.smoke else 14)
    losses = zip(run.figures["offloaded_losses"], run.figures["nf4_step_losses"], strict=True)
    run.note(offload_loss_difference=max(abs(offloaded / without - 1) for offloaded, without in losses))
    run.ratio("offload_speed_ratio", "offloaded_tokens_per_second", "nf4_step_tokens_per_second")
    if "nf4_step_peak_gib" in run.figures:
        saved = run.figures["nf4_step_peak_gib"] - run.figures["offloaded_peak_gib"]
        run.note(offload_saved_gib=saved)
        if not run.smoke:  # of one layer next to nothing is saved
            run.note(offload_saved_of_planned=saved / run.figures["offloaded_saving_planned_gib"])


def several(run: Run) -> None:
    """The stage on the small base by one process and by two, a card each; then by two between whom the base
    is shared out: the adapter, speed and peak.
    """
    if gpu() and cards() < 2:
        raise TooFew("there is one GPU, and this takes two")
    fewer = {"max_steps": 3} if run.smoke else {}
    settings = nf4_settings(run, optim="adamw_torch", lora_dropout=0.0, **fewer)
    for name, count, kept in (("one", 1, "none"), ("two", 2, "none"), ("shared", 2, "shared")):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        chosen = {"side": name, "settings": settings.model_copy(update={"offload": kept})}
        places = [rank_environment(number, count, port) for number in range(count)]
        asked: list[dict[str, Any]] = [chosen | {"environment": place} for place in places]
        others = [run.start(f"several-{name}-{other}", "rank", **asked[other]) for other in range(1, count)]
        try:
            run.keep(name, f"several-{name}", "rank", SEVERAL_SECONDS, **asked[0])
        finally:
            for process, _ in others:
                process.kill()
    run.note(
        two_equal=run.figures["two_adapter"] == run.figures["one_adapter"],
        shared_equal=run.figures["shared_adapter"] == run.figures["one_adapter"],
    )
    run.ratio("two_speed_ratio", "two_tokens_per_second", "one_tokens_per_second")
    run.ratio("shared_speed_ratio", "shared_tokens_per_second", "two_tokens_per_second")
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
        changes = {"max_steps": 3 if run.smoke else 8, "optim": "adamw_torch", "lora_dropout": 0.0}
        settings = nf4_settings(run, method=method, gradient_accumulation_steps=1, **changes)
        run.keep(method, f"method-{method}", "method", settings=settings)


def resume(run: Run) -> None:
    """A run with the recipe's paged 8-bit optimizer, killed with SIGKILL and resumed, against unbroken ones,
    on NF4 and on a GGUF's blocks.
    """
    for side in ("nf4",) if run.smoke else ("nf4", "quantized_small"):
        changes: dict[str, Any] = {"max_steps": 10, "save_steps": 3}
        if run.smoke:
            changes = {"max_steps": 5, "save_steps": 2, "gradient_accumulation_steps": 1}
        if side != "nf4":
            changes["quantization"] = "gguf"
        settings = nf4_settings(run, **changes)
        try:
            list(run.part(f"resume-{side}-killed", "resume", settings=settings, side=side, killed=True))
        except PartError as error:
            if error.exit_code != -signal.SIGKILL:
                raise
        run.keep(side, f"resume-{side}", "resume", settings=settings, side=side, killed=False)


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
    """A line of the table: whose figure, its name, its format, what it should be, and its label."""

    part: str
    figure: str
    show: str
    goal: str
    label: str


TABLE = """
tests tests_passed || > 0 | kernels, dequantizers, NF4 and GGUF steps against references: tests passed
tests tests_failed || 0 | … failed
tests tests_skipped ||| … skipped
machine machine_torch ||| set-up here: PyTorch's build
machine machine_torch_fits ||| … is the one that runs
machine machine_llama ||| … llama.cpp's backend
machine machine_llama_fits || True | … for the card
speed bf16_tflops |,.0f|| the card: bfloat16 matrix product, TFLOP/s
speed ours_tokens_per_second |,.0f|| 7B shape in NF4, 1 × 1,024 tokens × 8, Quench: tokens/s
plain plain_tokens_per_second |,.0f|| … plain Hugging Face + PEFT + TRL: tokens/s
speed ratio |.2f| ≥ 1.3 | … Quench ÷ plain
unsloth unsloth_tokens_per_second |,.0f|| … Unsloth: tokens/s
speed utilization |.1%|| … Quench: share of the card's matrix product
speed ours_peak_gib |.2f| ≤ 7.0 | … Quench under an 8 GiB cap: peak GiB
speed plain_peak_gib |.2f|| … plain, without a cap: peak GiB
unsloth unsloth_peak_gib |.2f|| … Unsloth, without a cap: peak GiB
speed optimizer_bytes_per_parameter |.2f|| … paged 8-bit AdamW: bytes of state per trained parameter
packed packed_plain_tokens_per_second |,.0f|| 7B shape in NF4, a row of 8 × 128, HF + PEFT: tokens/s
packed packed_masked_ratio |.2f|| … Quench, attention with a mask: speed ÷ HF + PEFT's
packed packed_by_row_ratio |.2f|| … Quench, attention by row: the same
packed packed_varlen_ratio |.2f|| … Quench, attention of variable length: the same
packed packed_compiled_ratio |.2f|| … Quench, compiled layers, with a mask: the same
packed packed_compiled_varlen_ratio |.2f|| … Quench, compiled layers, variable length: the same
packed packed_by_row_loss_difference |.1g| ≤ 1e-3 | … relative difference of the loss from the mask's, by row
packed packed_varlen_loss_difference |.1g| ≤ 1e-3 | … the same, variable length
packed packed_compiled_loss_difference |.1g| ≤ 1e-3 | … the same, compiled layers
packed packed_compiled_varlen_loss_difference |.1g| ≤ 1e-3 | … the same, compiled layers, variable length
planner longest_row |,| ≥ 2,972 | … longest row that trains in 8 GiB, tokens
planner planner_error |.1%| ≤ 5 % | planner: largest error of the peak
planner planner_configurations || 12 | … over so many configurations
quantized quantized_step_tokens_per_second |,.0f|| 7B shape on Q4_K_M's blocks, one step of 1,024: tokens/s
quantized quantized_step_peak_gib |.2f|| … peak GiB
quantized quantized_speed_ratio |.2f| ≥ 0.80 | … speed ÷ NF4's
quantized quantized_peak_ratio |.2f| ≤ 1.10 | … peak ÷ NF4's
quantized scales_step_tokens_per_second |,.0f|| … the scales instead of an adapter: tokens/s
quantized scales_step_peak_gib |.2f| ≤ 8.0 | … peak GiB
quantized scales_speed_ratio |.2f|| … speed ÷ the adapter's
offload offload_speed_ratio |.2f|| 7B shape in NF4, half of the layers in main memory: speed ÷ none
offload offload_saved_gib |.2f|| … GiB of the peak saved
offload offload_saved_of_planned |.2f| 0.95 to 1.05 | … ÷ planned
offload offload_loss_difference |.1g| ≤ 1e-3 | … largest relative difference of a step's loss
several two_speed_ratio |.2f|| two processes, a card each: speed ÷ one's
several two_equal || True | … the same adapter as one's, to the byte
several shared_speed_ratio |.2f|| … the base shared out between them: speed ÷ not so
several shared_saved_gib |.2f| > 0 | … GiB of each card's peak saved
several shared_equal ||| … the same adapter as one's, to the byte
methods dpo_first_loss |.5f| 0.69315 | DPO: loss of the first step, ln 2 by its formula
methods dpo_tokens_per_second |,.0f|| … tokens/s, reference included
methods kto_first_loss |.5f| 0.50000 | KTO: loss of the first step, ½ by its formula
methods kto_tokens_per_second |,.0f|| … tokens/s, reference and other answers included
resume nf4_unbroken_equal ||| NF4: two unbroken runs end in the same bytes
resume nf4_resumed_equal || True | NF4: killed with SIGKILL and resumed, the same bytes as unbroken
resume quantized_small_unbroken_equal ||| GGUF blocks: two unbroken runs end in the same bytes
resume quantized_small_resumed_equal || True | GGUF blocks: killed and resumed, the same bytes as unbroken
"""  # shared_equal has no goal: what is shared out is quantized in main memory


def rows() -> Iterator[Row]:
    """The lines of the table, in order."""
    for line in TABLE.strip().splitlines():
        name, *cells = map(str.strip, line.split("|"))
        yield Row(*name.split(), *cells)


def table(run: Run) -> str:
    """All figures as Markdown; what wasn't seen is "not measured", with the reason."""
    lines = ["| what | seen | goal | |", "| --- | ---: | --- | --- |"]
    for row in rows():
        figure = run.figures.get(row.figure)
        shown = "not measured" if figure is None else format(figure, row.show)
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
    if not row.goal or run.smoke:
        return ""
    return "met" if met(row.goal, run.figures[row.figure]) else "MISSED"


def met(goal: str, figure: float) -> bool:
    """Whether a figure is as wanted: `True`, `> 0`, `≥ 1.3`, `≤ 5 %`, `0.95 to 1.05`, or a number to 1e-4."""
    if goal == "True":
        return bool(figure)
    low, *_, high = 2 * [float(number.replace(",", "")) for number in re.findall(r"\d[\d.,e-]*", goal)]
    if goal.endswith("%"):
        high /= 100
    if " to " in goal:
        return low <= figure <= high
    judged = {">": figure > low, "≥": figure >= low, "≤": figure <= high}
    return judged.get(goal[0], abs(figure - low) < 1e-4)


def heading(smoke: bool) -> str:
    """The machine and the versions that the figures are of."""
    import torch

    device = torch.cuda.get_device_name(0) if gpu() else f"CPU, {os.cpu_count()} cores"
    shape = "random weights of Qwen2.5-7B's shape"
    if smoke:
        shape = "tiny shapes (--smoke): only that the code runs"
    versions = ", ".join([f"Python {platform.python_version()}", *map(installed, LIBRARIES)])
    return f"{time.strftime('%Y-%m-%d')}, {device}, {versions}; {shape}\n"


def installed(library: str) -> str:
    """A library's name and version."""
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return f"{library} missing"


def main() -> int:
    """Measure the parts that were asked for and print the table; 1 if a goal is missed or a part failed."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, few steps")
    parser.add_argument(
        "--out", type=Path, help="folder for figures, logs and the table (default: a new one)"
    )
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    asked = parser.parse_args()
    if not (gpu() or asked.smoke):
        sys.exit("there is no GPU here: take --smoke to run the same code on tiny shapes")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if not gpu():
        PROCESSES.set_forkserver_preload(["benchmarks.gpu_parts", *PRELOADED])
    out = asked.out or Path(tempfile.mkdtemp(prefix="quench-gpu-"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quench-bench-") as work:
        run = Run(out, Path(work), time.monotonic() + 60 * asked.minutes, asked.smoke)
        measure(run, asked.only)
        text = heading(asked.smoke) + "\n" + table(run)
        (out / "table.md").write_text(text, encoding="utf-8")
        print(text, flush=True)  # before 21 GB are removed, which a machine that is lent may not wait for
    failed = set(run.reasons) - run.needless - {"unsloth", "tests" if asked.smoke else ""}
    return 1 if failed or "MISSED" in text else 0


def measure(run: Run, only: list[str]) -> None:
    """Every part in turn; the large files are written while the tests hold the GPU."""
    shapes = {"shape": "tiny" if run.smoke else "7b", "resume_shape": "tiny" if run.smoke else "0.5b"}
    writing, _ = run.start("write", "write", tokens=row_tokens(run), **shapes)
    for part in PARTS:
        if part not in only:
            continue
        try:
            if part != "tests":
                writing.join(run.left())
                if writing.exitcode:
                    raise PartError(f"the bases could not be written: {last_words(run.out / 'write.log')}")
            globals()[part](run)
        except Exception as error:  # a part that fails must not cost the others
            if isinstance(error, TooFew):
                run.needless.add(part)
            run.reasons[part] = " ".join(str(error).split())[:200] or type(error).__name__
            print(f"{part}: {run.reasons[part]}", file=sys.stderr, flush=True)
    if "speed" in only and run.deadline - time.monotonic() > ROUND_SECONDS and not run.smoke:
        in_turns(run, nf4_settings(run, max_steps=5))
    writing.kill()


if __name__ == "__main__":
    sys.exit(main())
