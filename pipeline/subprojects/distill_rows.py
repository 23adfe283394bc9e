"""Select the rows that a distillation learns from: training rows, and the chats of `data/distill`. These are
curated like those of `data/raw`, and nothing else learns from them.

A project of preferences is distilled on its chosen answers, one of prompts on the expected ones
(`pipeline.chat.selection`): the student learns how the original continues, not which answer is better.
"""

import hashlib
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from pipeline.chat.rows import TRAINED, TURN_LISTS, Row
from pipeline.chat.selection import has_stand_ins, learned_in
from pipeline.config.params import Params
from pipeline.config.sections import CurateKeys
from pipeline.core.errors import DataError
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.core.publish import publishing, read_json, remove
from pipeline.core.special_files import DVC_NOTE, is_users_data
from pipeline.subprojects.processes import changed_params, open_subproject, run_stage

# Settings for single files and domains of data/raw, its languages, pairs and splits. They do not apply to
# data/distill.
OF_RAW = (
    "formats",
    "documents",
    "fields",
    "transform",
    "languages",
    "source_weights",
    "temperature",
    "balance",
    "pairs",
    "val_fraction",
    "test_fraction",
)
ANSWERS = "quench-held-out.jsonl"  # file in the sub-project's data/guard
OF_A_TURN = 16  # bytes for the template text of one turn
HELD_OUT = ("val", "test")
COUNTS = ("rows_read", "rows_kept", "rejected", "untrained")  # keys of reports/data.json


class General(NamedTuple):
    """Curated chats of `data/distill`: the file of rows, the outcome (`COUNTS`, `files` {name: sha256})."""

    rows: Path
    account: dict[str, Any]


def curated(apart: Path, base: Path, params: Params, data: Path) -> General | None:
    """Return the chats of `data`/distill, made by stage curate in the sub-project `apart` (absolute), with
    the tokenizer of the folder `base`; None if there are none.

    Rules, redactions and guard files are those of section `curate`. Chats that share text with the answer of
    a held-out row of `data`/final are kept out too. Raises the error of a failed stage, `DataError` if a file
    that DVC knows is not there.
    """
    source = data / "distill"
    for pointer in source.rglob(f"*{DVC_NOTE}"):
        if not pointer.with_suffix("").exists():
            raise DataError(
                "Q-DISTILL-001",
                f"{pointer.with_suffix('')} is missing: run `dvc pull {pointer}`, which gets it",
            )
    if not any(path.is_file() and is_users_data(path.name) for path in source.rglob("*")):
        remove(apart)  # No copy stays of chats that were removed.
        return None
    curate = params.curate
    links = curation_links(curate, data, base) | {"data/raw": source}
    changes = settings() | {"decontaminate": [*curate.decontaminate, ANSWERS]}
    remove(apart / "data/guard")  # links to guard files that the settings may not name any more
    write_answers(data / "final", apart / "data/guard" / ANSWERS)
    open_subproject(apart, changed_params(params, {"curate": changes, "augment": {"kinds": []}}), links)
    run_stage(apart, "curate")
    report = read_json(apart / "reports/data.json", "run the stage again")
    files = {name: file["sha256"] for name, file in report["files"].items()}
    return General(apart / "data/final/train.jsonl", {key: report[key] for key in COUNTS} | {"files": files})


def curation_links(curate: CurateKeys, data: Path, base: Path) -> dict[str, Path]:
    """Return the links of a sub-project in which stage curate runs, without `data/raw`: to the guard files
    that the settings name, and to the base.
    """
    names = (*curate.decontaminate, *filter(None, [curate.names]))
    links = {f"data/guard/{name}": data / "guard" / name for name in names}
    return links | {"models/base": base, "models/base.json": base.with_name("base.json")}


def write_answers(final: Path, target: Path) -> None:
    """Write the assistant's texts in the held-out rows of the folder `final`, as texts that curation keeps
    out. Questions may share an instruction, and rows a system prompt, with chats about other things: of
    questions only equal ones are kept out (`marks`).
    """
    write_rows(
        target,
        (
            {"texts": [text for role, text in texts(row) if role in ("", "assistant")]}
            for row in held_out_rows(final)
        ),
    )


def held_out_rows(final: Path) -> Iterator[Row]:
    """Yield the rows of the folder `final` that are held out for watching and for measuring."""
    for split in HELD_OUT:
        path = final / f"{split}.jsonl"
        if path.is_file():
            yield from read_rows(path)


def settings() -> dict[str, Any]:
    """Return the settings by which section `curate` differs from the project's: every row is for training."""
    values = CurateKeys().model_dump(mode="json") | {"val_fraction": 0.0, "test_fraction": 0.0}
    return {key: values[key] for key in OF_RAW}


def write_drawn(
    final: Path, general: General | None, share: float, target: Path, size: int, seed: int
) -> dict[str, Any]:
    """Write rows with about `size` bytes of text, drawn by `seed`, or all if there are fewer, to `target`:
    the part `share` of `general`, the rest of train.jsonl in `final`, each replacing what the other lacks.
    Return the number of each, and the outcome of `general`.

    The size is limited because the original answers every row before it is learned from: it would also
    answer rows that no step reaches. Raises `DataError` if no row can be learned from, or none of `general`.
    """
    source = learnable(final / "train.jsonl", target.with_name("train-wanted.jsonl"))
    lines = shuffled(source, seed)
    if general is None:
        kept, _ = first_of(lines, size)
        if not kept:
            raise DataError(
                "Q-DISTILL-007",
                f"no row of {final / 'train.jsonl'} has an answer to distill on: put chats or texts into "
                "data/distill, or distill no level (quantize.distill, compare.strategies)",
            )
        write_lines(target, (source, kept))
        return {"train": len(kept)}
    held = {mark for row in held_out_rows(final) for mark in marks(row)}
    general_bytes = int(share * size)
    _, own_bytes = first_of(lines, size - general_bytes)
    others, taken = first_of(shuffled(general.rows, seed, held), max(1, general_bytes, size - own_bytes))
    if not others:
        raise DataError(
            "Q-DISTILL-006",
            "no row of data/distill can be learned from: put chats or texts there that are in no held-out "
            "row, or empty it",
        )
    kept, _ = first_of(lines, size - min(taken, general_bytes))
    write_lines(target, (source, kept), (general.rows, others))
    return {"train": len(kept), "general": len(others)} | {"data_distill": general.account}


def learnable(file: Path, aside: Path) -> Path:
    """Return `file`, or if it has rows other than chats or texts, `aside`, where these become chats."""
    if not has_stand_ins(file):
        return file
    write_rows(aside, learned_in(file, stand_ins=True))
    return aside


def shuffled(file: Path, seed: int, held: Container[str] = ()) -> list[tuple[int, int]]:
    """Return (place, bytes of text) of the lines of `file`, in an order drawn by `seed`. Rows of kinds that
    no training uses, and those with one of the `marks` in `held`, are left out.
    """
    import numpy as np  # `quench config plan` does not need it.

    lines = [
        (place, text_bytes(row))
        for place, row in enumerate(read_rows(file))
        if row["kind"] in TRAINED and not any(mark in held for mark in marks(row))
    ]
    order = list(range(len(lines)))
    np.random.default_rng(seed).shuffle(order)
    return [lines[number] for number in order]


def first_of(order: Iterable[tuple[int, int]], size: int) -> tuple[set[int], int]:
    """Return (the first places of `order` with `size` bytes together, or all if fewer; their bytes)."""
    kept = set[int]()
    taken = 0
    for place, length in order:
        if taken >= size:
            break
        kept.add(place)
        taken += length
    return kept, taken


def marks(row: Row) -> Iterator[str]:
    """Yield the marks that two rows share if they have the same question or text: the id, and a hash of each
    question or text.
    """
    yield str(row["id"])
    for role, text in texts(row):
        if role in ("", "user") and text.strip():  # A part of a long text ends in an empty segment.
            yield "asked " + hashlib.sha256(" ".join(text.casefold().split()).encode()).hexdigest()[:32]


def text_bytes(row: Row) -> int:
    """Return the UTF-8 bytes of a row's text, calls and reasoning, plus some per turn for the template."""
    text_size = sum(len(text.encode()) + OF_A_TURN for _, text in texts(row))
    more = [turn.get(key) for turn in row["messages"] for key in ("reasoning_content", "tool_calls")]
    return text_size + sum(len(orjson.dumps(part)) for part in (row.get("tools"), *more) if part)


def texts(row: Row) -> Iterator[tuple[str, str]]:
    """Yield (role, text) of each turn of a row, of all its answers; the role is "" in a text."""
    yield from ((turn["role"], turn["content"]) for key in TURN_LISTS for turn in row.get(key, []))
    if "answer" in row:
        yield "assistant", row["answer"]
    yield from (("", segment["text"]) for segment in row.get("segments", []))


def write_lines(target: Path, *parts: tuple[Path, set[int]]) -> None:
    """Publish the lines at the places of each file, in their order, as `target`."""
    with publishing(target) as aside, aside.open("wb") as new:
        for file, places in parts:
            with file.open("rb") as lines:
                new.writelines(line for place, line in enumerate(lines) if place in places)
