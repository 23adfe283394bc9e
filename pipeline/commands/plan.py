"""Plan training: memory by part, the longest rows that fit, disk and time. Reads numbers only, no weights.

Reads `params.yaml` (or a recipe), the base's config.json, and the contents of `data/tokens`. If training is
on this machine's CPU, it measures that for two seconds and writes `.quench/machine-rate.json`.

    quench config plan --recipe qwen2.5-7b-8gb --vram 8
    quench config plan --vram 24 --processes 4              # one process a card
    quench config plan --serve --vram 8                     # memory of serving, level by level
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.commands import plan_serving
from pipeline.commands.params import idle_settings
from pipeline.commands.recipes import recipe_file
from pipeline.commands.terminal import figure, plain_table, wide_console
from pipeline.config.methods import METHODS
from pipeline.config.params import Params, load_params
from pipeline.config.sections import AUTO, Machine
from pipeline.core.errors import ConfigError, MachineError
from pipeline.core.hardware import Card, first_gpu, main_memory
from pipeline.core.publish import DISK_MARGIN
from pipeline.core.ranks import wanted_processes
from pipeline.core.text import listed
from pipeline.core.units import BOTH_UNITS, DISK_GB, MEMORY_GB, disk_gb, memory_gb
from pipeline.core.usage import Figures
from pipeline.llamacpp.devices import sees_gpu
from pipeline.planning.duration import PCIE, STEP_FACTOR
from pipeline.planning.machine_rate import Rate, keep_rate, measure_rate
from pipeline.planning.memory.parts import MemoryPlan
from pipeline.planning.model.base import find_shape
from pipeline.planning.model.config_file import load_shape
from pipeline.planning.plan import BASE, CACHE, Plan, Reduction, own_bytes, plan_run
from pipeline.planning.setup import setup_of, wants_gpu
from pipeline.planning.stages import planned_stages

if TYPE_CHECKING:
    from rich.table import Table

DEVICES = {"cuda": "GPU", "cpu": "CPU"}


@dataclass(frozen=True)
class Disk:
    """Bytes still to be written, with a fifth to spare, and free bytes."""

    needed: int
    free: int

    @property
    def missing(self) -> int:
        """Return the bytes that are missing."""
        return max(0, self.needed - self.free)


@dataclass(frozen=True)
class Hardware:
    """Hardware to plan for; None stands for this machine's. `vram` is a card's memory as sold, in GB (8: 8
    GiB). `tflops` is the speed of training in 10¹² operations a second. `processes` is the number of
    processes with such a card each.
    """

    vram: float | None = None
    tflops: float | None = None
    processes: int | None = None


def settings_of(params_file: Path | None, root: Path, recipe: str | None) -> Params:
    """Return the recipe's settings, otherwise those of `params_file` or the project's.

    Raises `ConfigError` for both.
    """
    if recipe is None:
        return load_params(params_file or root / "params.yaml")
    if params_file is not None:
        raise ConfigError(
            "Q-COMMANDS-005",
            f"--recipe {recipe} and --params {params_file} name two configurations: give one of them",
        )
    return load_params(recipe_file(recipe))


def main(
    params: Params, root: Path, hardware: Hardware, *, config: Path | None, serve: bool, as_json: bool
) -> None:
    """Print the plan of training, or of serving with `serve`.

    Raises `MachineError` if card or disk are too small.
    """
    vram = hardware.vram
    processes_given = hardware.processes
    processes = wanted_processes("train", None if processes_given is None else str(processes_given))
    shape = load_shape(config) if config else find_shape(params, root)
    if vram:
        card: Card | None = Card(f"a card of {vram:g} GB", int(vram * MEMORY_GB), "cuda")
    else:
        card = first_gpu()
    if params.train.device == "cpu" and not serve:
        card = main_memory()
    base = config.name if config else params.base.model
    # A model to be trained on a GPU is served there too, unless the settings differ.
    by_training = not serve or params.machine.n_gpu_layers == AUTO
    if card is None and not (wants_gpu(params.train) if by_training else params.serving.on_gpu):
        card = main_memory()
    if serve:
        plan_serving.main(params, root, shape, card, base=base, as_json=as_json)
        on_gpu = card and card.device == "cuda" and params.machine.n_gpu_layers != 0
        if on_gpu and not (vram or as_json or sees_gpu(params.machine.llama_cpp)):
            print(
                "The llama.cpp here sees no GPU, so `quench serve` would use main memory: build it for the "
                "card with `make setup LLAMA=auto`."
            )
        return
    speed: float | Rate | None = hardware.tflops
    if speed is None and card and card.device == "cpu":
        speed = measure_rate(root, shape, setup_of(params, shape, card).tokens)
        keep_rate(speed, root)
    plan = plan_run(params, shape, root, card, speed=speed, processes=processes)
    distillations = []
    if params.quantize.distill:
        from pipeline.subprojects.distill import plan_distillation  # This import loads numpy.

        distillations = [plan_distillation(params, shape, level, card) for level in params.quantize.distill]
    stages = dict(planned_stages(params, plan))
    disk = disk_of(plan, root)
    if as_json:
        value = plan.as_json() | {
            "free_disk": disk.free,
            "fits_disk": not disk.missing,
            "stages": {name: asdict(planned) for name, planned in stages.items()},
            "distill": [asdict(distillation) for distillation in distillations],
            "idle": idle_settings(params),
        }
        print(json.dumps(value, indent=2, ensure_ascii=False))
    else:
        show(plan, stages, base, disk)
        if params.machine.price_per_hour:
            print(price_of(stages, params.machine))
        if processes > 1:
            print(f"Memory is that of one of {processes} processes, time that of one alone.")
        elif params.train.shares_base:
            print("train.offload: shared is planned for several processes alone: give --processes.")
        if METHODS[params.train.method].prompts:
            print(
                "A forward has a prompt's completions together: the memory is that of preprocess.max_length "
                "tokens in all, and more if they are longer."
            )
        for distillation in distillations:
            print(distillation)
        for sentence in idle_settings(params).values():
            print(f"{sentence}.")
    if plan.fits is False and plan.card:
        raise MachineError(
            "Q-COMMANDS-006",
            f"training needs {memory_gb(plan.memory.total)} and does not fit {plan.card.words}: "
            f"{plan.remedy}",
        )
    if disk.missing:
        raise MachineError(
            "Q-TRAIN-006",
            f"the run needs {disk_gb(disk.needed)} of disk and {disk_gb(disk.free)} are free: make room",
        )


def disk_of(plan: Plan, root: Path) -> Disk:
    """Return the bytes that a run writes below `root` and the free bytes there. DVC's copies are not counted:
    they may be on another disk, or share blocks.
    """
    base = 0 if (root / "models" / "base").exists() else plan.disk[BASE]
    return Disk(int((own_bytes(plan.disk) + base) * DISK_MARGIN), shutil.disk_usage(root).free)


def show(plan: Plan, stages: Mapping[str, Figures], base: str, disk: Disk) -> None:
    """Print the plan as tables of at most 100 columns, plain if there is no terminal."""
    console = wide_console()
    write = partial(console.print, markup=False)
    write(
        f"{base}: {plan.setup.shape.parameters:,} parameters, {plan.setup.tokens:,} tokens in a forward, "
        f"{plan.setup.loss} loss, on the {DEVICES[plan.setup.device]}"
    )
    console.print(memory_table(plan.memory, plan.card))
    write(verdict(plan, disk))
    if plan.memory_reductions:
        console.print(reductions_table(plan.memory_reductions))
    files = ", ".join(
        f"{name} {size / DISK_GB:.2f}" for name, size in plan.disk.items() if name not in (BASE, CACHE)
    )
    write(
        f"Disk: {disk_gb(own_bytes(plan.disk))} ({files}), beside the base's {disk_gb(plan.disk[BASE])}; "
        f"{disk_gb(disk.free)} are free."
    )
    write(
        f"DVC's cache: {disk_gb(plan.disk[CACHE])} more, a copy of each of these but the checkpoints, and of "
        "the base, unless the file system shares blocks (Btrfs, XFS)."
    )
    if plan.rate:
        write(f"This machine: {plan.rate.sentence}.")
    write(f"Time of training: {duration(plan)}.")
    console.print(stages_table(stages))
    write(BOTH_UNITS)


def memory_table(memory: MemoryPlan, card: Card | None) -> "Table":
    """Return the table of training's memory, part by part, and of the available memory."""
    table = plain_table("part", "GB", "how", numbers=(1,))
    for part in memory.parts:
        if part.at_peak:
            table.add_row(part.name, figure(part.bytes), part.source)
        else:
            table.add_row(part.name, f"({figure(part.bytes)})", f"{part.source}; not at the peak")
    table.add_section()
    moment = "while the weights load" if memory.total == memory.loading else "the peak"
    table.add_row("total", figure(memory.total), moment, style="bold")
    if card:
        table.add_row("there is", figure(card.memory), card.name)
    return table


def reductions_table(reductions: Iterable[Reduction]) -> "Table":
    """Return the table of changes that make training fit."""
    table = plain_table(
        "change, each on top of those above", "saves GB", "total GB", "enough", numbers=(1, 2)
    )
    for reduction in reductions:
        table.add_row(
            reduction.change,
            figure(reduction.saves),
            figure(reduction.total),
            "yes" if reduction.enough else "no",
        )
    return table


def stages_table(stages: Mapping[str, Figures]) -> "Table":
    """Return the table of each stage's main memory, time and disk."""
    title = "stage: main memory, time, disk (–: not planned)"
    table = plain_table(title, "GB", "time", "GB of disk", numbers=(1, 2, 3))
    for name, planned in stages.items():
        table.add_row(
            name,
            "–" if planned.peak is None else figure(planned.peak),
            "–" if planned.seconds is None else in_words(planned.seconds),
            "–" if planned.disk is None else f"{planned.disk / DISK_GB:.2f}",
        )
    return table


def verdict(plan: Plan, disk: Disk) -> str:
    """Return sentences on memory and disk: whether the run fits, and the longest rows that would."""
    full = ""
    if disk.missing:
        full = f"It does not fit on the disk: {disk_gb(disk.missing)} too much. "
    if plan.card is None or plan.longest_row is None:
        unknown = (
            "Whether it fits is not measured: there is no GPU here; name a card's memory with --vram GB."
        )
        return f"{full}{unknown}"
    spare = plan.card.memory - plan.memory.total
    if spare < 0:
        fits = f"{full}It does not fit: {memory_gb(-spare)} too much."
    elif full:
        fits = f"{full}The memory is enough, with {memory_gb(spare)} to spare."
    else:
        fits = f"It fits, with {memory_gb(spare)} to spare."
    if not plan.longest_row:
        return f"{fits} Not even rows of one token fit."
    limit = ""
    if plan.longest_row == plan.setup.shape.positions:
        limit = ", the most that the model has positions for"
    return f"{fits} The longest rows that fit are of {plan.longest_row:,} tokens{limit}."


def duration(plan: Plan) -> str:
    """Return the duration of training with its assumptions, or the reason why it is not measured."""
    per_token = f"{plan.flops_per_token / 1e9:.1f} GFLOP a token"
    if plan.tflops is None:
        return f"not measured ({per_token}): give what the card reaches with --tflops"
    origin = "as given"
    if plan.tflops_assumed:
        assumed = "of these cores" if plan.setup.device == "cpu" else "from the card's name"
        origin = f"assumed {assumed}"
    elif plan.tflops_measured:
        origin = f"by this machine's products ÷ {STEP_FACTOR:g}"
    megabytes = plan.copied_bytes_per_token / 1e6
    copies = ""
    if megabytes:
        copies = f", {megabytes:.1f} MB of weights copied for it at {PCIE / 1e9:g} GB/s assumed"
    rate = f"{plan.tokens_per_second:,.0f} tokens/s ({per_token}, {plan.tflops:.3g} TFLOP/s {origin}{copies})"
    if plan.work is None or plan.seconds is None:
        return f"{rate}; how many tokens there are is not measured: run `snakemake preprocess`"
    return f"{in_words(plan.seconds)} for {plan.work.tokens:,} tokens in {plan.work.steps:,} steps at {rate}"


def price_of(stages: Mapping[str, Figures], machine: Machine) -> str:
    """Return a sentence on the price of the whole run, as far as the time of its stages is planned."""
    unknown = [name for name, planned in stages.items() if planned.seconds is None]
    price = machine.price(sum(planned.seconds or 0.0 for planned in stages.values()))
    without = f", without {listed(unknown)}, whose time is not planned" if unknown else ""
    return f"Price of all stages: about {price}{without}."


def in_words(seconds: float) -> str:
    """Return hours, minutes or seconds as text."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
