"""What the jobs of compare made for seeds and levels that `params.yaml` does not ask for any more.

Results leave the disk only if DVC's cache can bring them back: those of another `--params` file, or of a
project without DVC, are nowhere else.
"""

from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.strategies import FOLDER
from pipeline.core.locks import stages_at_work
from pipeline.core.publish import remove
from pipeline.workflow.hashes import Hashes
from pipeline.workflow.integrity import is_cached
from pipeline.workflow.record import open_project
from pipeline.workflow.stages import filled_outputs, table


def remove_leftovers(root: Path, params: Params, *, finished: bool = False) -> None:
    """Remove results and scratch that `params`, the project's own, do not ask for; with `finished`, when all
    is measured, the scratch of what they ask for too. Scratch stays while one of the jobs is at work.
    """
    values = params.model_dump(mode="json")
    jobs = [stage for name, stage in table().stages.items() if name.startswith("compare_")]
    asked = {Path(path) for stage in jobs for path in filled_outputs(stage, values)}
    folders = {Path(path).parent for stage in jobs for path in stage.written}
    results = [path for folder in sorted(folders) for path in (root / folder).glob("[!.]*")]
    others = [path for path in results if path.relative_to(root) not in asked]
    if others and (root / ".dvc").is_dir():
        with open_project(root, wait=True, alone=False) as repo, Hashes(root) as hashes:
            for path in others:
                if is_cached(path, Path(repo.cache.local.path), hashes):
                    remove(path)
    if any(stage.startswith("compare_") for stage in stages_at_work(root)):
        return
    # a sub-project is called like its job's result
    kept = set() if finished else {path.name.removesuffix(".json") for path in asked}
    for project in (root / FOLDER).glob("*"):
        if project.name not in kept and not stages_at_work(project):  # a killed job's training saves its work
            remove(project)
