"""Check for files of which no row can be read.

Such a file is not a bad row but a wrong file, and the stage stops.
"""

from pathlib import Path
from typing import Any

import orjson

from pipeline.config.sections import Curate
from pipeline.core.errors import DataError
from pipeline.core.text import one_line, plural
from pipeline.stages.curate.account import CurationStats, FileStats
from pipeline.stages.curate.inputs import by_glob
from pipeline.stages.curate.phases.cleaning import CLEANED, REJECTS, raw_folder

NAMED = 5  # files named in the sentence
DETAIL = 200  # characters of a reason


def check_files(root: Path, settings: Curate, work: Path, stats: CurationStats) -> None:
    """Raise `DataError` for files of which no row can be read, after all have been read.

    A file whose share in `curate.source_weights` is 0 is allowed to be unreadable.
    """
    unreadable = {
        name: file
        for name, file in stats.files.items()
        if file.is_unreadable() and by_glob(name, settings.source_weights, 1.0)
    }
    if not unreadable:
        return
    examples = _first_rejects(work / CLEANED / REJECTS, list(unreadable)[:NAMED])
    sentences = [_sentence(raw_folder(root) / name, unreadable[name], examples[name]) for name in examples]
    if len(unreadable) > NAMED:
        sentences.append(f"and so in {plural(len(unreadable) - NAMED, 'more file')}")
    first = next(iter(unreadable))
    functions = [by_glob(name, settings.transform, None) for name in unreadable]
    correct = "".join(f"correct {function}, " for function in dict.fromkeys(filter(None, functions)))
    mapping = ""
    if any("unknown_format" in file.rejected for file in unreadable.values()):
        mapping = " map its keys in curate.fields (`quench data check` proposes a mapping if it finds one),"
    raise DataError(
        "Q-CURATE-019",
        f"{'; '.join(sentences)}: {correct}mend or convert the file,{mapping} move it away, or set "
        f"curate.source_weights: {{{first}: 0}} to leave it out",
    )


def _sentence(path: Path, file: FileStats, example: dict[str, Any]) -> str:
    """Return a sentence on one file: the numbers of rows that fail for each reason, and the first of them."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in file.rejected.most_common(3))
    detail = one_line(example["detail"], DETAIL)
    where = f"line {example['line']}: {detail}"
    return f"{path}: none of {plural(file.rows, 'row')} can be read ({reasons}; {where})"


def _first_rejects(path: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the first reject of each file that is more than an empty line."""
    rejects: dict[str, dict[str, Any]] = {}
    with path.open("rb") as lines:
        for entry in map(orjson.loads, lines):
            if entry["file"] in names and entry["reason"] != "blank":
                rejects.setdefault(entry["file"], entry)
                if len(rejects) == len(names):
                    break
    return rejects
