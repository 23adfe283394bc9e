"""Keep what was measured of a model, so that another choice of scorers only scores its answers again.

A record is in `.quench/evaluated/MODEL.json`, with the answers themselves. It is used if everything that the
measurement depends on is the same by hash, and the scorers are not: a stage that is run again with the same
settings is meant to measure again.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.chat.selection import answerable_rows
from pipeline.config.params import Params
from pipeline.config.sections import Evaluate
from pipeline.core.hardware import machine
from pipeline.core.hashing import file_hash, json_hash, tree_hash
from pipeline.core.publish import read_if_there, write_json
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.asking import score_answers
from pipeline.metrics.commonest import commonest_points
from pipeline.workflow.keys.code_keys import key_file

FOLDER = Path(".quench/evaluated")
SCORING = ("scorers", "judge", "external")  # keys of evaluate that only say how answers are scored
Answers = list[dict[str, Any]]


@dataclass
class Measured:
    """Figures of a model, its answers, and those that it gave with `examples` chats in the prompt."""

    figures: dict[str, Any]
    answers: Answers = field(default_factory=list)
    answers_with_examples: Answers = field(default_factory=list)
    examples: int = 0

    def score(self, settings: Evaluate, root: Path) -> None:
        """Score all answers in place, and put the sums among the figures, with what the commonest expected
        answer would score.
        """
        self.figures["task"] = None
        if self.answers:
            self.figures["task"] = _sums(self.answers, settings, root)
            line = commonest_points(self.answers, settings.scorers, root, settings.external)
            if line:
                self.figures["task"]["commonest"] = line
        if self.answers_with_examples:
            sums = _sums(self.answers_with_examples, settings, root)
            self.figures["task_with_examples"] = {"examples": self.examples, **sums}


def _sums(answers: Answers, settings: Evaluate, root: Path) -> dict[str, Any]:
    return score_answers(
        answers, settings.scorers, judge=settings.judge, external=settings.external, root=root
    )


def identity(params: Params, root: Path, models: Sequence[str], tools: Toolchain) -> str:
    """Return a hash of all that the measurement of a model depends on, but for the scorers. `models` are the
    hashes of the model's files and of its reference.
    """
    key = root / key_file("evaluate")
    final = root / "data/final"
    hashed = [final / "train.jsonl", final / "test.jsonl", key]
    folders = [root / "models/adapter", root / "data/evaluation"]
    settings = params.evaluating.model_dump(mode="json", exclude={"models", *SCORING})
    return json_hash(
        {
            "models": list(models),
            "files": [file_hash(file) for file in hashed if file.is_file()],
            "folders": [tree_hash(folder) for folder in folders if folder.is_dir()],
            "settings": settings,
            "serving": params.serving.model_dump(mode="json"),
            "llama_cpp": tools.version,
            "machine": machine(),
        }
    )


def scoring(settings: Evaluate) -> dict[str, Any]:
    """Return the settings by which answers are scored."""
    return settings.model_dump(mode="json", include=set(SCORING))


def keep(root: Path, model: str, made_of: str, settings: Evaluate, measured: Measured) -> None:
    """Write the record of a model, also with disturbed speeds: the report says how to measure them again."""
    record = {"identity": made_of, "scoring": scoring(settings), "measured": asdict(measured)}
    write_json(root / FOLDER / f"{model}.json", record)


def recall(root: Path, model: str, made_of: str, settings: Evaluate) -> Measured | None:
    """Return what was measured if only the scorers differ, and if they ask what was asked; otherwise None."""
    try:
        record = read_if_there(root / FOLDER / f"{model}.json")
    except ValueError:
        return None
    if record.get("identity") != made_of or record["scoring"] == scoring(settings):
        return None
    measured = Measured(**record["measured"])
    if not measured.answers or not settings.scorers:
        return None
    rows = answerable_rows(root / "data/final/test.jsonl", settings.task_rows, settings.scorers)
    same_rows = [row["id"] for row in rows] == [answer["id"] for answer in measured.answers]
    return measured if same_rows else None
