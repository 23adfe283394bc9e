"""Train in a sub-project, from the checkpoints of a killed run if there are any."""

from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.subprojects.processes import run_stage


def train(project: Path, *words: str) -> None:
    """Run stage train in `project` with options `words`; a killed training goes on, if its inputs are still
    the same.

    Raises what the stage ended with.
    """
    try:
        run_stage(project, "train", *words)
    except ConfigError:
        if not any((project / "models/checkpoints").glob("checkpoint-*")):
            raise
        # a killed training of other settings or rows left them here, where nobody else can need them
        print(f"the checkpoints in {project.name} are of other inputs: training starts again", flush=True)
        run_stage(project, "train", "--no-resume", *words)
