"""A training run as seen by one of its processes, the record of its inputs (models/adapter/run.json), and the
check that existing checkpoints belong to it.

An interrupted run resumes only if it would end in the same bytes. If something else changed, resuming would
mix two runs, and starting again would lose the first one. So neither happens by itself. The module is longer
than others, because the run, its record and the decision on the record are one subject.
"""

import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import __version__
from pipeline.config.methods import METHODS, ROUNDS
from pipeline.config.sections import Train, Training
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.core.git import ask_git
from pipeline.core.hardware import cpu_name, hardware
from pipeline.core.hashing import file_hash, json_hash, tree_hash
from pipeline.core.interruption import Interruption
from pipeline.core.jsonl import parse_object
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.publish import remove, write_json
from pipeline.gguf.base_files import SOURCE_FILE, base_hashes
from pipeline.stages.train.checkpoints import (
    TORN,
    checkpoints_in,
    defect,
    newest_verified,
    read_notes,
    set_later_aside,
    step_of,
)

RUN = "run.json"
STATE = "trainer_state.json"  # file of a checkpoint with the progress of the run
RESTART = "start again with `python -m pipeline train --no-resume`"
LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "bitsandbytes",
    "accelerate",
    "datasets",
    "tokenizers",
    "liger-kernel",
)
NAMES = {
    "tokens_sha256": "the training rows (data/tokens)",
    "base.weights_sha256": "the base's weights",
    "base.config_sha256": "the base's config.json",
    "base.tokenizer_sha256": "the base's tokenizer",
    "base.template_sha256": "the base's chat template",
    "previous_sha256": "the adapter that training goes on from (models/previous)",
    "teacher_sha256": f"the file that is learned from ({SOURCE_FILE})",
}
# The place of weights changes no byte, like the number of processes, who reads the curves, and where the
# adapter was copied from that training goes on from, so a run may resume with these changed. The device
# itself and the adapter's hash are in the record.
NO_PART = {"offload", "device", "machine", "report_to", "start_from"}
# Suffix of the device's name if the base was quantized in main memory, because a GPU makes its sums in
# another order.
ELSEWHERE = ", base quantized in main memory"
# A run may resume with these changed, though no longer to the same bytes, because the order of sums depends
# on them.
MACHINE = ("device", "threads")
FITTED = ("settings.bnb_4bit_compute_dtype", "settings.optim")
GIT_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training job: rows, base, settings, and the output folders. `previous` is the folder with the adapter
    or scales that training goes on from, if it does. `group` is the group of processes that share the work
    (`pipeline.stages.train.distributed.group.Group`), or None if there is only this one.
    """

    tokens: Path
    base: Path
    adapter: Path
    checkpoints: Path
    tensorboard: Path
    settings: Training
    previous: Path | None = None
    group: Any = None

    @classmethod
    def below(cls, root: Path, settings: Training, group: Any) -> "Job":
        """Return the job of stage train on the project `root`, with its targets checked.

        Raises the errors of `fitted`.
        """
        # It brings PyTorch, which the rest of this module needs only for a run.
        from pipeline.models.own_targets import fitted

        base = root / "models/base"
        return cls(
            tokens=root / "data/tokens",
            base=base,
            adapter=root / "models/adapter",
            checkpoints=root / "models/checkpoints",
            tensorboard=root / "reports/tensorboard",
            settings=fitted(settings, base),
            previous=root / "models/previous" if settings.start_from else None,
            group=group,
        )

    @property
    def leads(self) -> bool:
        """True in the process that writes."""
        return self.group is None or bool(self.group.leads)


@dataclass(frozen=True, kw_only=True)
class Run(Job):
    """A job that has begun: its `record` (`pipeline.stages.train.run.describe`), and the checkpoint that
    it resumes from, or None if it starts from nothing.
    """

    record: dict[str, Any]
    start: Path | None
    tokenizer: Any
    interruption: Interruption
    metrics_log: MetricsLog

    def note(self, file: Path, values: dict[str, Any]) -> None:
        """Write values that all processes have measured, for a run that resumes.

        Do nothing if another process leads.
        """
        if self.leads:
            write_json(file, values)


def check_shared(settings: Training, count: int) -> None:
    """Raise `ConfigError` for settings that `count` processes can't share."""
    if count == 1:
        if settings.shares_base:
            raise ConfigError(
                "Q-TRAIN-040",
                "train.offload: shared shares the base's weights out among processes, and this is one alone: "
                "start several (--processes, or QUENCH_PROCESSES in the environment), or set it to none",
            )
        return
    if METHODS[settings.method].prompts:
        raise ConfigError(
            "Q-TRAIN-040",
            f"train.method grpo draws its rollouts in one process, and here are {count}: train without "
            "torchrun, srun, --processes and QUENCH_PROCESSES",
        )
    if settings.gradient_accumulation_steps < count:
        raise ConfigError(
            "Q-TRAIN-040",
            f"an optimizer step has {settings.gradient_accumulation_steps} micro-batches "
            f"(train.gradient_accumulation_steps), too few for {count} processes: raise it, or start fewer "
            "(--processes, or QUENCH_PROCESSES in the environment)",
        )


# --- inputs that the adapter depends on ---------------------------------------------------------------------


def describe(tokens: Path, base: Path, settings: Training, previous: Path | None = None) -> dict[str, Any]:
    """Return the inputs that the adapter depends on. The same record gives the same bytes on the same kind
    of machine. Raises `DataError` if the file that is learned from is missing.
    """
    import torch

    source = base / SOURCE_FILE
    has_teacher = METHODS[settings.method].teacher
    if has_teacher and not source.is_file():
        raise DataError(
            "Q-TRAIN-027",
            f"{source}, the original that train.method {settings.method} learns from, is missing: run "
            "`snakemake --force base`",
        )
    return {
        "tokens_sha256": tree_hash(tokens),
        **({"teacher_sha256": file_hash(source)} if has_teacher else {}),
        **({"previous_sha256": tree_hash(previous)} if previous else {}),
        "base": base_hashes(base),
        "settings": settings.model_dump(mode="json", exclude=NO_PART),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "device": device_name(settings),
        "threads": torch.get_num_threads(),
    }


def device_name(settings: Training) -> str | None:
    """Return the device by its maker's name, with a note if NF4 was not quantized there."""
    import torch

    if not torch.cuda.is_available():
        return cpu_name()
    return torch.cuda.get_device_name(0) + (ELSEWHERE if settings.makes_nf4_in_ram else "")


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) for every difference between two records."""
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        before = old.get(key)
        after = new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, f"{name}.")
        elif before != after:
            shown = name.replace("settings.", "train.").replace("versions.", "library ")
            why = "; auto is what the machine is fast in" if name in FITTED else ""
            sentence = NAMES.get(name) or f"{shown} ({before} → {after}{why})"
            yield name, sentence


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the differences of two runs' records as (key, sentence).

    A setting that one of them lacks is newer than that record, which was made as with its default.
    """
    defaults = Train().model_dump(mode="json", exclude=NO_PART)
    before, after = (
        record | {"settings": _filled(defaults, record.get("settings", {}))} for record in (old, new)
    )
    return list(differences(before, after))


def _filled(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return `given` with the defaults of the keys that it lacks, also in groups."""
    groups = {
        key: _filled(default, given[key])
        for key, default in defaults.items()
        if isinstance(default, dict) and isinstance(given.get(key), dict)
    }
    return defaults | given | groups


class Unfinished(NamedTuple):
    """A run that was stopped: its last checkpoint's step, and sentences on the settings that have changed."""

    step: int
    changed: list[str]


def unfinished(folder: Path, settings: Training) -> Unfinished | None:
    """Return the run in `folder` if it was stopped after a checkpoint; None otherwise.

    Settings that the stage fits to base and machine are not compared. Raises `DataError` if the run's record
    is damaged.
    """
    previous = _read(folder / RUN)
    checkpoints = checkpoints_in(folder)
    if previous is None or previous["finished"] or not checkpoints:
        return None
    now = settings.model_dump(mode="json", exclude=NO_PART)
    found = changes({"settings": previous["record"]["settings"]}, {"settings": now})
    changed = [text for key, text in found if key not in (*FITTED, "settings.target_modules")]
    return Unfinished(step_of(checkpoints[-1]), changed)


def run_id(record: dict[str, Any]) -> str:
    """Return a hash that identifies a run's checkpoints: that of its record without what may change."""
    return json_hash({key: value for key, value in record.items() if key not in MACHINE})


# --- the checkpoint to start from ---------------------------------------------------------------------------


def find_start(
    folder: Path, record: dict[str, Any], *, resume: bool | Path, replay: bool = False
) -> Path | None:
    """Return the checkpoint in `folder` to resume from, or None for a start from nothing. The folder then
    belongs to this run.

    `resume` may be a chosen checkpoint. A start from nothing (without `resume`, or after a *finished* run
    with other inputs) empties the folder. With `resume` the files that identify their own inputs stay, with
    `replay` the rounds stay. Raises `ConfigError` if there is an unfinished run with other inputs, settings
    or libraries, and for a choice that is not a checkpoint. Nothing is deleted then.
    """
    previous = _read(folder / RUN) if resume else None
    if resume and previous is None and checkpoints_in(folder):
        raise ConfigError(
            "Q-TRAIN-028",
            f"{folder} holds checkpoints without a {RUN}, so they can't be matched to a run (another "
            f"version's?): {RESTART}, which deletes them",
        )
    changed = changes(previous["record"], record) if previous else []
    hard = [text for key, text in changed if key not in MACHINE]
    if isinstance(resume, Path):
        same = run_id(previous["record"] if previous else record)
        start: Path | None = _chosen(folder, resume, same, hard)
    else:
        is_replaced = bool(previous and hard and previous["finished"])
        start = newest_verified(folder) if previous and not is_replaced else None
        if start is not None and hard:
            raise ConfigError(
                "Q-TRAIN-029",
                f"{folder} holds an unfinished run (step {step_of(start)}), and since then "
                f"{'; '.join(hard)} changed: "
                f"put that back to resume it, or {RESTART}",
            )
    if start is None:
        method = record["settings"].get("method")
        keeps = METHODS[method].keeps if method in METHODS else ()
        if resume:
            kept = {TORN, *keeps}
        elif replay:
            kept = {ROUNDS}
        else:
            kept = set()
        for path in folder.glob("*"):
            if path.name not in kept:
                remove(path)
    for _, text in changed if start else []:
        print(
            f"train: {text} changed: the run resumes, but not to the very bytes of an unbroken one",
            file=sys.stderr,
        )
    write_json(folder / RUN, {"record": record, "finished": False})
    return start


def _chosen(folder: Path, named: Path, run: str, hard: list[str]) -> Path:
    """Return the checkpoint that a user named (its path, or its name in `folder`), verified and of the run
    with this id. Later ones are set aside.

    Raises `ConfigError` for one of another place or run, or one whose best adapter is gone, `DataError` for a
    torn one. Nothing is moved then.
    """
    checkpoints = {path.resolve(): path for path in checkpoints_in(folder)}
    others = "there is none, so leave --resume out"
    if checkpoints:
        others = f"choose one of {', '.join(map(str, checkpoints.values()))}"
    start = checkpoints.get(named.resolve()) or checkpoints.get((folder / named).resolve())
    if start is None:
        raise ConfigError("Q-TRAIN-030", f"{named} is not a checkpoint in {folder}: {others}")
    trouble = defect(start)
    if trouble:
        raise DataError("Q-TRAIN-031", f"{start} is torn ({trouble}), so no run can resume from it: {others}")
    if hard:
        raise ConfigError(
            "Q-TRAIN-029",
            f"{start} is of a run before {'; '.join(hard)} changed: put that back to resume from it",
        )
    if read_notes(start).get("run") != run:
        raise ConfigError(
            "Q-TRAIN-030", f"{start} is of another run than {folder / RUN}, and was copied here: {others}"
        )
    best = _best_of(start)
    trouble = defect(folder / best) if best else None
    if trouble:
        raise ConfigError(
            "Q-TRAIN-032",
            f"{best}, the best adapter until {start}, is gone or torn ({trouble}), and may be what the run "
            f"ends with: {others}",
        )
    set_later_aside(folder, start)
    return start


def _best_of(checkpoint: Path) -> str | None:
    """Return the best checkpoint until this one if `train.early_stopping_patience` is set."""
    state = checkpoint / STATE
    if not state.is_file():
        return None
    step = json.loads(state.read_text(encoding="utf-8")).get("best_global_step")
    return f"checkpoint-{step}" if step else None


def finish(folder: Path, record: dict[str, Any]) -> None:
    """Record that the run's adapter is published, so the next run may replace its checkpoints."""
    write_json(folder / RUN, {"record": record, "finished": True})


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        run = parse_object(path.read_bytes())
    except ValueError:
        run = {}
    if not isinstance(run.get("record"), dict) or "finished" not in run:
        raise DataError(
            "Q-TRAIN-033",
            f"{path} can't be read, so these checkpoints can't be matched to a run: {RESTART}",
        )
    return run


# --- record for reports/train.json --------------------------------------------------------------------------


def run_record(
    root: Path, *, argv: Sequence[str], seeds: Mapping[str, int], hashes: Mapping[str, str]
) -> dict[str, Any]:
    """Return the record as JSON without host, user, absolute paths.

    `root` is the project, `argv` `sys.argv`.
    """
    return {
        "hardware": hardware(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions(),
        "seeds": dict(seeds),
        "command": command(argv),
        "git": git_state(root),
        "hashes": dict(hashes),
    }


def versions() -> dict[str, str | None]:
    """Return the version of Quench and of every library that it requires, or None if not installed."""
    names = sorted(
        {
            re.split(r"[^\w.-]", line, maxsplit=1)[0]
            for line in requires("quench") or ()
            if "extra ==" not in line
        }
    )
    return {"quench": __version__} | {name: _version(name) for name in names}


def command(argv: Sequence[str]) -> list[str]:
    """Return the command line as a list.

    Absolute paths are cut to their last part because they name users and machines.
    """
    program = Path(argv[0]).name
    start = ["python", "-m", "pipeline"] if program == "__main__.py" else [program]
    return start + [re.sub(r"(^|(?<==))/(?:.*/)?(?=[^/]*$)", "…/", argument) for argument in argv[1:]]


def git_state(root: Path) -> dict[str, Any] | None:
    """Return the commit and whether tracked files but dvc.lock differ; None outside a repository.

    If Git fails, `failed` has the reason in place of both: no training ends for that.
    """
    differing = ("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)dvc.lock")
    try:
        commit = ask_git(root, "rev-parse", "--verify", "--quiet", "HEAD", patience=GIT_SECONDS)
        if commit is None:
            return None
        dirty = bool(ask_git(root, *differing, patience=GIT_SECONDS))
    except ToolError as error:
        return {"failed": error.sentence}
    return {"commit": commit.decode().strip(), "dirty": dirty}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
