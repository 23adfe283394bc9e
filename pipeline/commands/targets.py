"""Check the names of stages and jobs after `quench run`, and translate them into Snakemake's targets.

Snakemake knows a stage with one job for each level only by its files, and answers a misspelled name with an
exception.
"""

import difflib
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from pathlib import Path

from pipeline.config.overrides import place_of
from pipeline.config.params import Params
from pipeline.core.errors import ConfigError
from pipeline.core.text import safe
from pipeline.workflow.stage_command import need_stage, need_work
from pipeline.workflow.stages import items_of, stages_in, values_of

OWN_RULE = re.compile(r"^\s*(?:rule|checkpoint)\s+(\w+)", re.MULTILINE)
OWN_INCLUDE = re.compile(r"^\s*include:(?!\s*resource\()", re.MULTILINE)


def in_snakemakes_words(words: Sequence[str], params: Params, root: Path) -> list[str]:
    """Return `words` with the files of each named job (`quantize@Q4_K_M`) instead of its name.

    Raises `ConfigError` for a name that no stage or job of `params` has.
    """
    plain = {name for name, stage in stages_in(params).items() if not stage.each}
    if all(word.startswith("-") or word in plain for word in words):
        return list(words)
    targets = targets_in(words)
    files = {target: list(files_of(target, params, root)) for target in targets}
    return [file for word in words for file in files.get(word, [word])]


def targets_in(words: Sequence[str]) -> list[str]:
    """Return the targets that Snakemake reads in `words`. The other words belong to an option. Returns [] if
    Snakemake can't parse them: it reports that itself.
    """
    from snakemake.cli import get_argument_parser

    try:
        with redirect_stderr(io.StringIO()):
            return list(get_argument_parser().parse_args(list(words)).targets)
    except SystemExit:
        return []


def files_of(target: str, params: Params, root: Path) -> Iterator[str]:
    """Yield Snakemake's targets for `target`: a file of each of its jobs, otherwise its own name."""
    if "/" in target or (root / target).exists() or is_rule(target, root):
        yield target
        return
    name, _, item = target.partition("@")
    if "=" in name:
        place_of(name.partition("=")[0])  # A setting without its section: the error names it.
    need_stage(name)
    stages = stages_in(params)
    values = values_of(params)
    if name not in stages:
        need_work(name, item, params)
    stage = stages[name]
    if not stage.each:
        if item:
            raise ConfigError("Q-WORKFLOW-019", f"stage {name} is one job: write just {name}")
        yield name
        return
    jobs = dict(items_of(stage.each, values))
    if not jobs:
        raise ConfigError("Q-WORKFLOW-021", f"the settings ask for no job of stage {name}")
    for job in [job_called(item, name, list(jobs))] if item else jobs:
        yield values.of(jobs[job]).fill(stage.written[0]).rstrip("/")


def job_called(item: str, stage: str, jobs: Sequence[str]) -> str:
    """Return the job of `stage` that is called `item`, in any case. Raises `ConfigError` if there is none."""
    by_name = {job.upper(): job for job in jobs}
    if item.upper() in by_name:
        return by_name[item.upper()]
    near = difflib.get_close_matches(item.upper(), by_name, n=1)
    hint = f"did you mean {stage}@{by_name[near[0]]}? " if near else ""
    raise ConfigError(
        "Q-WORKFLOW-019",
        f"the settings ask for no job {stage}@{safe(item, 80)}: {hint}They ask for {', '.join(jobs)}",
    )


def is_rule(name: str, root: Path) -> bool:
    """Return True if `name` is not a stage and may be a rule, either ours or from the project's own
    Snakefile.
    """
    snakefile = root / "Snakefile"
    text = snakefile.read_text(encoding="utf-8") if snakefile.is_file() else ""
    return name == "all" or name in OWN_RULE.findall(text) or OWN_INCLUDE.search(text) is not None
