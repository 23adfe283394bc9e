"""Search the best settings of training: `quench run sweep space.yaml`.

Reads `data/tokens` and `models/base`, which Snakemake makes first. Works in `models/.sweep/NAME/` (the
journal and a folder for each job) and writes `reports/sweep/NAME.json` and `NAME.html`. All other arguments
are passed to Snakemake: `quench run sweep space.yaml --workflow-profile profiles/slurm`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from pipeline.chat.manifest import NAME as MANIFEST
from pipeline.config.params import Params, load_params
from pipeline.core.child import bound
from pipeline.core.errors import ConfigError, DataError, GateError, ToolError
from pipeline.core.extra_packages import install_command
from pipeline.core.hashing import file_hash, tree_hash
from pipeline.core.interruption import Interruption
from pipeline.core.locks import absent
from pipeline.core.publish import publishing, read_json, remove, write_json, write_text
from pipeline.core.text import plural, safe
from pipeline.extras.sweep.show import render, show
from pipeline.extras.sweep.space import Space, check_space, read_space
from pipeline.extras.sweep.study import RESULTS, ROOT, SEARCH, SEEDS, Sweep, known_trials, repair
from pipeline.extras.sweep.verdict import Trials, collect, finalists
from pipeline.subprojects.processes import ERRORS
from pipeline.workflow.cluster_jobs import wait_for_jobs
from pipeline.workflow.prepare import be_the_only_one, is_dry_run, no_stage_at_work

SNAKEFILE = Path(__file__).with_name("Snakefile")
INPUTS = "inputs.json"  # hashes of the trials' inputs, in a sweep's folder
NAME = r"[A-Za-z0-9][\w.-]{0,60}"


def main(root: Path, space_file: Path, name: str, words: Sequence[str], *, as_json: bool) -> None:
    """Run the remaining jobs of the sweep, then write and print its result. Raises `ConfigError` for a space
    that can't be searched or that differs from the one it began with, `ToolError` if a job failed, and
    `GateError` if all have finished without a winner.
    """
    if find_spec("optuna") is None:
        raise ToolError("Q-SWEEP-004", f"the package optuna is not installed: `{install_command('sweep')}`")
    space = read_space(space_file)
    sweep = Sweep.named(root, name)
    is_continued = bool(known_trials(sweep, SEARCH, space))
    if is_continued:
        check_same(space, read_space(sweep.space), space_file, sweep)
        settings = load_params(sweep.params)
    else:
        settings = load_params(root / "params.yaml")
    check_space(space, settings)
    if not is_continued or unfinished_jobs(sweep, space):
        prepare(root, settings, words)
        be_the_only_one(root)
        wait_for_jobs(sweep.folder, is_dry_run=is_dry_run(list(words)))
        no_stage_at_work(root)
        repair(sweep)
        start(sweep, settings, space_file, begun=is_continued)
        try:
            before: list[str] = []
            # In a dry run the jobs stay the same.
            while (jobs := unfinished_jobs(sweep, space)) and jobs != before:
                run_jobs(sweep, jobs, words)
                before = jobs
        finally:
            report = publish(sweep, space, name)
    else:
        report = publish(sweep, space, name)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show(report, (root / RESULTS / f"{name}.html").resolve())
    if report["ended"] and not report["verdict"]:
        raise GateError("Q-SWEEP-011", report["sentence"])


def check_same(space: Space, begun: Space, file: Path, sweep: Sweep) -> None:
    """Raise `ConfigError` if the space differs from the sweep's.

    More trials, finalists and seeds may be added.
    """
    growing = {"trials", "finalists", "seeds"}
    now, before = (each.model_dump(mode="json", exclude=growing) for each in (space, begun))
    changed = [key for key in now if now[key] != before[key]]
    if changed:
        raise ConfigError(
            "Q-SWEEP-005",
            f"{', '.join(changed)} in {file} changed since the sweep {sweep.folder.name} began, and its "
            f"trials are of the other space: put that back, give the sweep another --name, or remove "
            f"{sweep.folder}",
        )


def prepare(root: Path, settings: Params, words: Sequence[str]) -> None:
    """Run Snakemake to make the inputs of the trials. Raises `ToolError` and similar errors if it fails."""
    if (root / "Snakefile").is_file():
        stages = ["preprocess", "base", *(["previous"] if settings.train.start_from else [])]
        snakemake = [sys.executable, "-m", "snakemake", *stages, *words]
        command = bound(snakemake, signal.SIGTERM)
        code = subprocess.run(command, cwd=root, stdout=sys.stderr, check=False).returncode
        if code:
            raise ERRORS.get(code, ToolError)(
                "Q-SWEEP-006", "what trials learn from could not be made; the reason stands above"
            )
    for place in ("data/tokens", "models/base"):
        if not (root / place).exists():
            raise absent(root / place, root)


def start(sweep: Sweep, settings: Params, space_file: Path, *, begun: bool) -> None:
    """Make the sweep's folder. If a trial has `begun`, check that the others learn from the same inputs."""
    tokens = sweep.root / "data/tokens"
    base = sweep.root / "models/base.json"
    inputs = {"data/tokens": tree_hash(tokens), "models/base.json": file_hash(base) if base.exists() else ""}
    if settings.train.start_from:
        inputs["models/previous"] = tree_hash(sweep.root / "models/previous")
    record = sweep.folder / INPUTS
    if begun:
        before = read_json(record, f"remove {sweep.folder}")
        changed = [place for place in inputs if inputs[place] != before.get(place)]
        if changed:
            raise ConfigError(
                "Q-SWEEP-005",
                f"{' and '.join(changed)} changed since the sweep {sweep.folder.name} began, so what is left "
                f"could not be compared with its trials: put that back, or give the sweep another --name",
            )
    elif not read_json(tokens / MANIFEST, "run `snakemake preprocess`")["splits"]["val"]["rows"]:
        raise DataError(
            "Q-SWEEP-009",
            "no rows are kept for monitoring, so trials could not be compared: raise curate.val_fraction",
        )
    else:
        write_json(record, inputs)
    for source, copy in ((space_file, sweep.space), (sweep.root / "params.yaml", sweep.params)):
        if copy == sweep.space or not begun:  # The space may have grown.
            with publishing(copy) as aside:
                shutil.copyfile(source, aside)
    write_text(sweep.folder / ROOT, str(sweep.root))


def unfinished_jobs(sweep: Sweep, space: Space) -> list[str]:
    """Return the unfinished jobs: trials, and when all are finished, finalists with other seeds."""
    search = known_trials(sweep, SEARCH, space)
    done = finished(search)
    trials = [f"trial-{number}" for number in range(space.trials)]
    unfinished = [job for job in trials if job not in done]
    if unfinished:
        return unfinished
    first = load_params(sweep.params).train.seed
    done = finished(known_trials(sweep, SEEDS, space))
    planned = [
        f"seed-{trial}-{first + extra}"
        for extra in range(1, space.seeds + 1)
        for trial in finalists(search, space)
    ]
    return [job for job in planned if job not in done]


def run_jobs(sweep: Sweep, jobs: Sequence[str], words: Sequence[str]) -> None:
    """Run jobs by Snakemake. Raises `ToolError` if one of them fails, and `Stopped` after a signal."""
    for name in ("done", "logs"):  # Optuna's journal is the record of what is done.
        remove(sweep.folder / name)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE), "--directory"]
    command += [str(sweep.folder), "--nolock", *words, "--", *(f"done/{job}" for job in jobs)]
    with Interruption():
        process = subprocess.Popen(
            bound(command, signal.SIGTERM), cwd=sweep.root, stdout=sys.stderr, start_new_session=True
        )
        try:
            code = process.wait()
        except BaseException:
            stop(process)
            raise
    if code:
        failed = [job for job in jobs if not (sweep.folder / "done" / job).exists()]
        logs = [sweep.folder / "logs" / f"{job}.log" for job in failed]
        log = next((log for log in logs if log.exists()), None)
        reason = f"a reason is at the end of {log}" if log else "the reason stands above"
        raise ToolError(
            "Q-SWEEP-006",
            f"{plural(len(failed), 'job')} of the sweep {sweep.folder.name} did not end; {reason}: correct "
            "that, then run the same command again",
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the local jobs, which save their checkpoints, and then Snakemake, which cancels the other jobs."""
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "pipeline.extras.sweep.job" in child.cmdline():
                    child.send_signal(signal.SIGTERM)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGINT)
    process.wait()


def publish(sweep: Sweep, space: Space, name: str) -> dict[str, Any]:
    """Write the sweep's report and page. Return the report."""
    search, seeds = (known_trials(sweep, part, space) for part in (SEARCH, SEEDS))
    report = collect(name, space, search, seeds)
    write_json(sweep.root / RESULTS / f"{name}.json", report)
    write_text(sweep.root / RESULTS / f"{name}.html", render(report))
    for job in finished(search | seeds):
        remove(sweep.folder / job / "models")  # left by a job that was killed before it removed it
    return report


def finished(trials: Trials) -> set[str]:
    """Return the jobs with a finished trial."""
    return {job for job, trial in trials.items() if trial.state.is_finished()}


def name_of(file: Path, given: str | None) -> str:
    """Return the sweep's name: the given one, or the file's.

    Raises `ConfigError` if it can't name a folder.
    """
    name = file.stem if given is None else given
    if not re.fullmatch(NAME, name):
        raise ConfigError(
            "Q-SWEEP-010",
            f"{safe(name, 80)!r} is not the name of a sweep: give one of letters and digits",
        )
    return name
