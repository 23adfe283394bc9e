"""What the jobs of compare made for seeds and levels that `params.yaml` does not ask for any more, and the
scratch of all of them, removed when compare is done; so is what stage distill left of a level that it is not
asked for any more.

Results leave the disk only if DVC's cache can bring them back: those of another `--params` file, or of a
project without DVC, are nowhere else.
"""

import sys
from pathlib import Path

from pipeline.config.budgets import FOLDER as BUDGETS
from pipeline.config.params import Params
from pipeline.config.strategies import FOLDER
from pipeline.core.locks import stages_at_work
from pipeline.core.publish import remove
from pipeline.subprojects.distill import FOLDER as DISTILLING
from pipeline.workflow.hashes import Hashes
from pipeline.workflow.integrity import is_cached
from pipeline.workflow.record import open_project
from pipeline.workflow.stages import filled, table, values_of


def remove_leftovers(root: Path, params: Params) -> None:
    """Remove results that `params`, the project's own, do not ask for, and scratch; nothing while one of the
    jobs is at work. What can't be removed is named on stderr.
    """
    if any(stage.startswith("compare_") for stage in stages_at_work(root)):
        return
    values = values_of(params)
    jobs = [stage for name, stage in table().stages.items() if name.startswith("compare_")]
    asked = {Path(path) for stage in jobs for path in filled(stage.written, stage, values)}
    folders = {Path(path).parent for stage in jobs for path in stage.written}
    results = [path for folder in sorted(folders) for path in (root / folder).glob("[!.]*")]
    others = [path for path in results if path.relative_to(root) not in asked]
    if others and (root / ".dvc").is_dir():
        with open_project(root, wait=True, alone=False) as repo, Hashes(root) as hashes:
            others = [path for path in others if is_cached(path, Path(repo.cache.local.path), hashes)]
        _remove(others)
    # the training of a job that was killed may still save its work
    scratch = [*(root / FOLDER).glob("*")]
    # of a level that is still asked for, a killed run goes on
    scratch += [one for one in (root / DISTILLING).glob("*") if one.name not in params.quantize.distill]
    scratch += [one for one in (root / BUDGETS).glob("*") if one.name not in params.quantize.budgets]
    _remove([project for project in scratch if not stages_at_work(project)])


def _remove(paths: list[Path]) -> None:
    for path in paths:
        try:
            remove(path)
        except OSError as error:
            print(f"{path} can't be removed ({error.strerror}): remove it by hand", file=sys.stderr)
