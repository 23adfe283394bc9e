"""A project on which stage curate runs, and rows to run it on."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from canonical import check_row

from pipeline.config.params import load_params
from pipeline.config.sections import Curate
from pipeline.core.jsonl import read_rows
from pipeline.core.places import PROJECT
from pipeline.stages.curate.stage import curate

Row = dict[str, Any]
SPLITS = ("train", "val", "test")
RECIPE = load_params(PROJECT / "recipes/demo.yaml").model_dump(mode="json")["curate"]
ALL_TRAINED = {"val_fraction": 0.0, "test_fraction": 0.0}
TOKENS = ["<|im_start|>", "<|im_end|>", "  "]  # some tokenizers add runs of spaces: harmless in text
WORDS = [
    f"{a}{b}{c}"
    for a in ("ka", "lo", "mi", "ru")
    for b in ("ta", "ne", "so", "vi")
    for c in ("n", "x", "la", "do", "")
]


def given(**changes: Any) -> Curate:
    """The demo's settings with changes, and no row held out unless they say so."""
    return Curate.model_validate(RECIPE | ALL_TRAINED | changes)


class Project:
    """A folder with data/raw and models/base.json."""

    def __init__(
        self,
        root: Path,
        files: Mapping[str, bytes],
        tokens: Sequence[str] = TOKENS,
        guard: Mapping[str, str | bytes] | None = None,
    ) -> None:
        self.root, self.raw = root, root / "data/raw"
        self.raw.mkdir(parents=True)
        for name, content in files.items():
            (self.raw / name).parent.mkdir(parents=True, exist_ok=True)
            (self.raw / name).write_bytes(content)
        (root / "data/guard").mkdir()
        for name, text in (guard or {}).items():
            (root / "data/guard" / name).write_bytes(text.encode() if isinstance(text, str) else text)
        (root / "models").mkdir()
        (root / "models/base.json").write_text(json.dumps({"added_tokens": tokens}))

    def run(self, processes: int = 1, **changes: Any) -> Row:
        return curate(self.root, given(**changes), processes).as_dict()

    def rows(self, *splits: str) -> list[Row]:
        """The kept rows of these splits; of none, those of training. All are canonical."""
        names = splits or ("train",)
        rows = [row for name in names for row in read_rows(self.root / f"data/final/{name}.jsonl")]
        for row in rows:
            check_row(row)
        return rows

    def lines(self, *splits: str) -> list[int]:
        """The lines in which these rows stand in data/raw."""
        return [int(row["source"].rpartition(":")[2]) for row in self.rows(*splits)]

    def rejects(self) -> list[Row]:
        return list(read_rows(self.root / "data/rejects.jsonl"))

    def changes(self) -> list[Row]:
        return list(read_rows(self.root / "data/changes.jsonl"))

    def clusters(self) -> set[frozenset[int]]:
        """The lines of every cluster of duplicates."""
        found = read_rows(self.root / "data/clusters.jsonl")
        return {frozenset(int(source.rpartition(":")[2]) for source in one["rows"]) for one in found}

    def outputs(self) -> dict[str, bytes]:
        """All that the stage has published."""
        found = [
            *(self.root / "data/final").glob("*"),
            *(self.root / "data").glob("*.jsonl"),
            *(self.root / "reports").glob("*"),
        ]
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in found}


def of_rows(root: Path, rows: Iterable[Row], **more: Any) -> Project:
    """A project with one file."""
    return Project(root, {"a.jsonl": lines(*rows)}, **more)


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def chat(question: str, answer: str = "4", **more: Any) -> Row:
    """A row of one exchange."""
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **more}


def with_system(system: str, row: Row) -> Row:
    return row | {"messages": [{"role": "system", "content": system}, *row["messages"]]}


def sentence(seed: int, words: int = 60) -> str:
    """Some words with hardly a run of three in common with those of another seed."""
    dice = random.Random(seed)  # noqa: S311
    return " ".join(
        dice.choice(WORDS) + str(seed) if dice.random() < 0.3 else dice.choice(WORDS) for _ in range(words)
    )
