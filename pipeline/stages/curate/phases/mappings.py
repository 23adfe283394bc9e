"""Check of `curate.fields` for mappings that fit none of the rows for which they are given. Such a mapping is
a mistake in the settings, and the stage stops.
"""

from pathlib import Path
from typing import Any

from pipeline.config.sections import Curate
from pipeline.core.errors import ConfigError
from pipeline.core.text import plural
from pipeline.intake.rows.fields import MAPPED
from pipeline.intake.rows.transform import Transform
from pipeline.stages.curate.account import CurationStats, FileStats
from pipeline.stages.curate.inputs import by_glob
from pipeline.stages.curate.mapped import file_problem, lacking
from pipeline.stages.curate.phases.cleaning import raw_folder

NAMED = 5  # files named in the sentence


def check_fields(root: Path, settings: Curate, stats: CurationStats) -> None:
    """Raise `ConfigError` for a mapping that no row of a file fits, and for a target whose source is missing
    in all files of the glob. All files have been read by then.

    A target that only some files of a glob lack is mentioned in the report. Files without a share are
    ignored.
    """
    if not settings.fields:
        return
    files = stats.files
    globs = {glob: glob for glob in settings.fields}
    glob_of = {
        name: by_glob(name, globs, None) for name in files if by_glob(name, settings.source_weights, 1.0)
    }
    problems = []
    for glob, stated in settings.fields.items():
        of_glob = {name: files[name] for name in glob_of if glob_of[name] == glob}
        problems += [(name, stated, targets) for name, targets in _problems(stated, of_glob).items()]
    if not problems:
        return
    raw = raw_folder(root)
    functions = {name: by_glob(name, settings.transform, None) for name, *_ in problems[:NAMED]}
    transforms = {
        name: Transform(function, root / "data/guard") for name, function in functions.items() if function
    }
    shown = "; ".join(
        file_problem(raw / name, name, stated, targets, transforms.get(name))
        for name, stated, targets in problems[:NAMED]
    )
    more = f"; and so in {plural(len(problems) - NAMED, 'more file')}" if len(problems) > NAMED else ""
    raise ConfigError(
        "Q-CURATE-020",
        f"curate.fields: {shown}{more}: correct the mapping (`quench data check` proposes one) or remove it",
    )


def _problems(stated: dict[str, Any], files: dict[str, FileStats]) -> dict[str, list[str]]:
    """Return the files that no row fits with the targets, and the first file for targets that all lack."""
    lacks = {name: lacking(stated, file.mapped) for name, file in files.items()}
    unfit = {name: targets for name, targets in lacks.items() if targets and not files[name].mapped[MAPPED]}
    fitting = [name for name in lacks if name not in unfit]
    everywhere = [target for target in stated if all(target in lacks[name] for name in fitting)]
    if fitting and everywhere:
        unfit[fitting[0]] = everywhere
    return unfit
