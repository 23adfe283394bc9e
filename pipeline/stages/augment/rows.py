"""Written texts as rows: in the form of data/raw, and after curation, which runs in a sub-project.

The rules are those of section `curate`: secrets and personal data, refusals, garbage, lengths, control
tokens, `curate.decontaminate`. Every row is for training there. Near duplicates are not looked for, because
rows that share an answer are meant to be alike (`pipeline.stages.augment.filters` compares the written
texts).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.chat.rows import OTHERS, Row, line_of, untrained_turns
from pipeline.config.params import Params
from pipeline.config.sections import AugmentKind
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.core.publish import read_json, remove
from pipeline.stages.augment.filters import written_text
from pipeline.stages.augment.instructions import WRITTEN_SPLITS, Call, asked_turns, question_place
from pipeline.stages.augment.journal import Text
from pipeline.subprojects.distill_rows import curation_links
from pipeline.subprojects.distill_rows import settings as rows_for_training
from pipeline.subprojects.processes import changed_params, open_subproject, run_stage

KEPT = ("tools", "domain", "reward", OTHERS)


class Curated(NamedTuple):
    """Rows of each split, and (line of the raw file, reason) for each row that curation rejected."""

    rows: dict[str, list[Row]]
    rejected: list[tuple[int, str]]


def raw_row(kind: AugmentKind, call: Call, text: Text) -> dict[str, Any]:
    """Return the new row as a line of data/raw."""
    row = call.row
    more = {key: row[key] for key in KEPT if key in row}
    turn = text["turn"] | {"content": written_text(text)}
    if kind == "answers":
        return {"messages": [*asked_turns(row), turn], **more}
    if kind == "rejected":
        answer = row["messages"][-1] if row["kind"] == "chat" else _assistant_turn(row["answer"])
        more = {key: more[key] for key in ("tools", "domain") if key in more}
        return {
            "prompt": asked_turns(row),
            "chosen": untrained_turns([answer]),
            "rejected": [_assistant_turn(turn["content"])],
            **more,
        }
    place = question_place(row)
    turns = [
        {**turn, "content": written_text(text)} if number == place else turn
        for number, turn in enumerate(row["messages"])
    ]
    if row["kind"] == "preference":
        return {"prompt": turns, "chosen": row["chosen"], "rejected": row["rejected"], **more}
    kind_fields: dict[str, Any] = {key: row[key] for key in ("label", "answer") if key in row}
    return {"messages": turns, **kind_fields, **more}


def _assistant_turn(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def origin(call: Call, text: Text, writer: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    """Return the origin of a row as the row states it."""
    return {
        "of": call.row["id"],
        **writer,
        "prompt": call.instruction,
        "temperature": temperature,
        "seed": call.seed,
        "time": text["time"],
    }


def curated(
    project: Path,
    params: Params,
    root: Path,
    rows: Sequence[Mapping[str, Any]],
    origins: Sequence[tuple[str, Mapping[str, Any]]],
) -> Curated:
    """Return `rows` after stage curate has run on them in the sub-project `project` (absolute path).
    `origins` are the split and the origin of each row. Raises the error that the stage stopped with.
    """
    curate = params.curate
    remove(project / "data/guard")  # Links to files that the settings may no longer name.
    write_rows(project / "data/raw/written.jsonl", map(dict, rows))
    links = curation_links(curate, root / "data", root / "models/base")
    changes = rows_for_training() | {"languages": curate.languages}
    if curate.drop_duplicates == "near":
        changes["drop_duplicates"] = "exact"
    values = changed_params(params, {"curate": changes, "augment": {"kinds": []}})
    open_subproject(project, values, links)
    run_stage(project, "curate")
    rows_by_split: dict[str, list[Row]] = {split: [] for split in WRITTEN_SPLITS}
    for row in read_rows(project / "data/final/train.jsonl"):
        _, line = line_of(row["source"])
        split, row_origin = origins[line - 1]
        source = f"{row_origin['prompt']} of {row_origin['of']}"
        rows_by_split[split].append(row | {"source": source, "augmented": dict(row_origin)})
    return Curated(rows_by_split, list(_rejected(project)))


def _rejected(project: Path) -> Iterator[tuple[int, str]]:
    for reject in read_rows(project / "data/rejects.jsonl"):
        yield int(reject["line"] or 0), str(reject["reason"])


def figures_of(project: Path) -> dict[str, Any]:
    """Return the changes that curation made, by rule."""
    return dict(read_json(project / "reports/data.json", "run the stage again")["changed"])
