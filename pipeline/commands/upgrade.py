"""Upgrade a project to the installed version: `quench doctor upgrade`.

Before anything is written, it prints the stages that would run again with the reason: their code differs,
dvc.yaml gives them other inputs or settings, or they follow such a stage. Reads .quench/code, dvc.yaml,
dvc.lock and params.yaml; writes all except dvc.lock.
"""

import sys
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import typer
import yaml

from pipeline.config.overrides import put
from pipeline.config.params import Read
from pipeline.core.errors import ConfigError
from pipeline.core.publish import need_folder
from pipeline.workflow.cluster_jobs import wait_for_jobs
from pipeline.workflow.dvc_yaml import put_graph, wanted_text
from pipeline.workflow.keys.code_keys import LOCK, key_files
from pipeline.workflow.prepare import no_stage_at_work, take_run_lock
from pipeline.workflow.project import (
    changed_code,
    installed_version,
    is_project,
    read_settings,
    take_over,
    version_of,
)
from pipeline.workflow.stages import Stage, Values, filled, stages_in, values_of
from pipeline.workflow.state.lockfile import graph_stages, overlap, recorded_stages
from pipeline.workflow.state.settings import differences, need_settings

MOST_FILES = 3  # files of a stage's code that are listed


def main(root: Path, *, yes: bool) -> None:
    """Print what an upgrade of `root` would run again and, if the user agrees, do it. Raises `ConfigError` if
    `root` is not a project.
    """
    need_folder(root)
    if not is_project(root):
        raise ConfigError(
            "Q-WORKFLOW-025",
            f"{root.resolve()} is not a project made by `quench new`: a checkout of Quench is upgraded by "
            "`git pull` and `make setup`",
        )
    with take_run_lock(root):
        no_stage_at_work(root)
        wait_for_jobs(root, is_dry_run=True)
        _upgrade(root, yes=yes)


def _upgrade(root: Path, *, yes: bool) -> None:
    read = read_settings(root)
    reasons = changes(root, read)
    file = root / "dvc.yaml"
    old_graph = file.read_text(encoding="utf-8") if file.is_file() else ""
    is_new_graph = old_graph != wanted_text(root, read.params)
    print(f"Quench {version_of(root)} made this project, {installed_version()} is installed.")
    if not reasons and not is_new_graph:
        need_settings(root, read)
        take_over(root)
        print("Nothing would run again.")
        return
    _print(root, read, reasons)
    if not yes and not (sys.stdin.isatty() and typer.confirm("Upgrade?")):
        print("Nothing is changed yet: `quench doctor upgrade --yes` does it.")
        return
    put_graph(root, read.params)
    need_settings(root, read)
    take_over(root)
    print("Upgraded. `snakemake -n` shows the plan; `git add -u` and a commit keep it.")


def changes(root: Path, read: Read) -> dict[str, str]:
    """Return {stage of the project's graph: reason to run again}, without stages that only follow others."""
    graph = stages_in(read.params)
    code = changed_code(root)
    before = graph_stages(root / "dvc.yaml")
    now = yaml.safe_load(wanted_text(root, read.params))["stages"]
    values = values_of(read.params)
    recorded = recorded_stages(root)
    reasons: dict[str, str] = {}
    for name, stage in graph.items():
        why = []
        keys = [Path(values.fill(file)).stem for file in key_files(name, stage.methods)]
        files = sorted({file for key in keys for file in code.get(key, [])})
        if files:
            more = f" and {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
            why.append(f"its code has changed: {', '.join(files[:MOST_FILES])}{more}")
        if before.get(name) != now[name]:
            why.append("its inputs, settings or outputs in dvc.yaml have changed")
        ran_with = _ran_with(name, recorded, values)
        differing = list(differences(ran_with, values.settings))
        if differing:
            why.append(f"other settings: {', '.join(differing)}")
        if why:
            reasons[name] = "; ".join(why)
    return reasons


def followers(graph: Mapping[str, Stage], values: Values, first: set[str]) -> dict[str, str]:
    """Return {stage: stages whose outputs it reads} for all direct and indirect followers of a stage in
    `first`.
    """
    written = {name: [*map(Path, filled(stage.written, stage, values))] for name, stage in graph.items()}
    read = {name: [*map(Path, filled(stage.deps, stage, values))] for name, stage in graph.items()}

    def meet(name: str, other: str) -> bool:
        return any(overlap(path, output) for path in read[name] for output in written[other])

    reasons: dict[str, str] = {}
    while True:
        again = first | reasons.keys()
        new: dict[str, str] = {}
        for name in graph:
            if name in again:
                continue
            before = [other for other in graph if other in again and meet(name, other)]
            if before:
                new[name] = ", ".join(before)
        if not new:
            return reasons
        reasons |= new


def _ran_with(stage: str, recorded: dict[str, Any], values: Values) -> dict[str, Any]:
    """Return the settings that a job of `stage` ran with: those in dvc.lock (`recorded`), otherwise
    `values`.
    """
    before = deepcopy(dict(values.settings))
    for job, entry in recorded.items():
        if job.partition("@")[0] == stage:
            for key, value in entry.get("params", {}).get(LOCK, {}).items():
                put(before, tuple(key.split(".")), value)
    return before


def _print(root: Path, read: Read, reasons: dict[str, str]) -> None:
    """Print the stages that would run again among those that have run, in the order of the graph."""
    graph = stages_in(read.params)
    done = {stage.partition("@")[0] for stage in recorded_stages(root)}
    later = followers(graph, values_of(read.params), set(reasons))
    rows = [
        (name, reasons.get(name) or f"reads what {later[name]} writes, so if that differs")
        for name in graph
        if name in reasons or name in later
    ]
    again = [row for row in rows if row[0] in done]
    print("Would run again:" if again else "No stage that has run would run again.")
    for name, why in again:
        print(f"  {name:<12} {why}")
    others = [name for name, _ in rows if name not in done]
    if others:
        print(f"Changed, but not run here yet: {', '.join(others)}")
