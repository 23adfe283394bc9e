"""The questions of general ability: `pipeline/metrics/general.jsonl` (120 questions, written for Quench) or a
file of the same form below `data/evaluation` (`evaluate.general`).
"""

from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import BadLine, parse_line, read_raw_lines

BUILTIN = Path(__file__).with_name("general.jsonl")
KEYS = {"subject", "question", "choices", "answer"}


@dataclass(frozen=True)
class Question:
    """Question at `line` of `file` ("builtin" or in data/evaluation); `answer` indexes the right choice."""

    file: str
    line: int
    subject: str
    question: str
    choices: tuple[str, ...]
    answer: int


def load_questions(name: str, root: Path) -> list[Question]:
    """Return the questions of `evaluate.general`: "builtin", "none" (no question), or a JSONL file below
    `data/evaluation` of the project.

    Raises `ConfigError` if there is no such file, `DataError` with file and line for a line that isn't one.
    """
    if name == "none":
        return []
    folder = root / "data/evaluation"
    path = BUILTIN if name == "builtin" else folder / name
    if path != BUILTIN and not (path.is_file() and path.resolve().is_relative_to(folder.resolve())):
        raise ConfigError(
            "Q-EVALUATE-003",
            f"evaluate.general is {name!r}, but there is no file {path}: set it to builtin, none or the "
            f"name of a file below {folder}",
        )
    questions = []
    with path.open("rb") as file:
        for number, _, line in read_raw_lines(file):
            try:
                questions.append(_question(name, number, line))
            except BadLine as error:
                raise DataError(
                    "Q-EVALUATE-004",
                    f"{path}, line {number}: {error}: correct the line, docs/data-formats.md shows one",
                ) from error
    if not questions:
        raise DataError(
            "Q-EVALUATE-005", f"{path} holds no question: fill it, or set evaluate.general to builtin or none"
        )
    return questions


def _question(file: str, number: int, line: bytes | None) -> Question:
    if line is None:
        raise BadLine("too_long", "the line is too long for a question")
    row = parse_line(line)
    if set(row) != KEYS:
        raise BadLine(
            "keys",
            f"a question has the keys {', '.join(sorted(KEYS))}, this has {', '.join(sorted(row)) or 'none'}",
        )
    for key in ("subject", "question"):
        if not isinstance(row[key], str) or not row[key].strip():
            raise BadLine(key, f"{key} must be a text")
    choices = row["choices"]
    answer = row["answer"]
    if (
        not isinstance(choices, list)
        or len(choices) < 2
        or not all(isinstance(choice, str) and choice.strip() == choice != "" for choice in choices)
    ):
        raise BadLine("choices", "choices must be two texts or more, without white space around them")
    if len(set(choices)) < len(choices):
        raise BadLine("choices", "a choice is there twice")
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise BadLine(
            "answer", f"answer is {answer!r}, but must be the index of a choice, 0 to {len(choices) - 1}"
        )
    return Question(file, number, row["subject"], row["question"], tuple(choices), answer)
