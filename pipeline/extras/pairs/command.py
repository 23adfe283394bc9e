"""Make preference pairs from the model's own answers (rejection sampling). The model answers training
requests several times, and a scorer judges the answers. The best (or the row's own) and the worst answer
become a row of data/raw.

Reads `data/final/train.jsonl`, never a held-out row, and the model's GGUF. Writes FILE, which must not exist
yet, its account `reports/pairs/FILE.json` and the answers below `reports/pairs/`.

    quench data pairs data/raw/own.jsonl Q4_K_M -k 8 --rows 500
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.chat.selection import SEED
from pipeline.commands.project import Project
from pipeline.config.params import Params
from pipeline.config.scorers import TOOL_CALLS
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import write_rows
from pipeline.core.publish import remove, write_json
from pipeline.core.text import most, plural, words
from pipeline.extras.pairs.answering import FOLDER, Sampling, hashes, sampled_answers, training_requests
from pipeline.extras.pairs.choosing import counts, own_answer, pair_of, score
from pipeline.metrics.scorers import check_references, parse


@dataclass(frozen=True)
class Options:
    """Options of the command. None stands for the value of section evaluate."""

    answers: int = 8
    rows: int | None = None
    seed: int | None = None
    temperature: float = 1.0
    scorer: str | None = None
    min_gap: float = 0.0
    chosen: Literal["best", "reference"] = "best"


def main(
    project: Project, target: Path, model: str | None, options: Options, *, as_json: bool = False
) -> None:
    """Make the pairs. Print how many there are and the path of the account, or the account itself."""
    account = make(project, target, model, options)
    if as_json:
        print(json.dumps({"file": str(target), **account}, indent=2, ensure_ascii=False))
        return
    place = account_file(project.root, target)
    print(f"{target}: {sentence(account)}")
    print(f"the account: {place}; `snakemake` curates the pairs like any other rows")


def make(project: Project, target: Path, model: str | None, options: Options) -> dict[str, Any]:
    """Publish the pairs and their account. Return the account.

    Raises `ConfigError` and `DataError` for invalid input before the model is asked. Raises `DataError` if no
    pair results; then nothing is written.
    """
    params = project.params
    root = project.root
    check_target(root, target)
    evaluate = params.evaluating
    scorer = scorer_of(params, options)
    parse(scorer, evaluate.judge, root, evaluate.external)
    name = project.name_of(model)
    files = project.files(name)
    project.verify(*files)
    sampling = Sampling(options.answers, options.temperature, SEED if options.seed is None else options.seed)
    rows = training_requests(root, options.rows or evaluate.task_rows, sampling.seed)
    check_references(rows, [scorer], root)
    tools = project.tools
    answers = sampled_answers(files, rows, sampling, evaluate, tools, root)
    references: list[dict[str, Any] | None] = [None] * len(rows)
    if options.chosen == "reference":
        # The row's own answers are scored with the others, because a scorer may need long to start.
        answers = [[*of_row, own_answer(row)] for row, of_row in zip(rows, answers, strict=True)]
    scored = score(rows, answers, scorer, evaluate, root)
    if options.chosen == "reference":
        references = [of_row.pop() for of_row in scored]
    outcomes = [
        pair_of(row, of_row, options.min_gap, reference)
        for row, of_row, reference in zip(rows, scored, references, strict=True)
    ]
    pairs = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    account = {
        "model": name,
        "files": hashes(files),
        "llama_cpp": tools.version,
        "scorer": scorer,
        **asdict(sampling),
        "max_new_tokens": evaluate.max_new_tokens,
        "min_gap": options.min_gap,
        "chosen": options.chosen,
        **counts(outcomes, scored),
    }
    if not pairs:
        raise DataError(
            "Q-PAIRS-004",
            f"{sentence(account)}, so nothing is written: ask more rows (--rows), for more answers (-k) or "
            "with another --scorer",
        )
    write_json(account_file(root, target), account)
    publish(root, target, pairs)
    return account


def check_target(root: Path, target: Path) -> None:
    """Raise `ConfigError` unless `target` is a new JSONL file that stage curate would read."""
    raw = (root / "data/raw").resolve()
    place = target.resolve()
    inside = place.relative_to(raw).parts if place.is_relative_to(raw) else ()
    if target.suffix != ".jsonl" or not inside or any(part.startswith(".") for part in inside):
        raise ConfigError(
            "Q-PAIRS-001",
            f"{target} is not a file that curate reads: name a .jsonl file below {root / 'data/raw'} "
            "that is not hidden",
        )
    if os.path.lexists(target):
        raise exists(target)


def exists(target: Path) -> ConfigError:
    """Return the error for a file that would have to be overwritten."""
    return ConfigError(
        "Q-PAIRS-002", f"{target} is there already and is not overwritten: name another file, or move it"
    )


def scorer_of(params: Params, options: Options) -> str:
    """Return the scorer that decides. Raises `ConfigError` if there is none, or if it scores tool calls."""
    scorer = options.scorer or params.evaluate.scorer
    if scorer == "none":
        raise ConfigError(
            "Q-PAIRS-005",
            "evaluate.scorers is [], so no answer can be called better: name a scorer with --scorer, rouge_l "
            "for example",
        )
    if scorer == TOOL_CALLS:
        raise ConfigError(
            "Q-PAIRS-006",
            "tool_calls scores calls of tools, and pairs are made of answers in words: name another scorer "
            "with --scorer, rouge_l for example",
        )
    return scorer


def sentence(account: Mapping[str, Any]) -> str:
    """Return the account as a sentence."""
    counted = f"{plural(account['pairs'], 'pair')} of {plural(account['requests'], 'request')}"
    dropped = [
        f"{title}: " + ", ".join(f"{number} {words(why)}" for why, number in most(account[key]))
        for title, key in (("no pair of", "no_pair"), ("answers left out", "answers_left_out"))
        if account[key]
    ]
    best = account["best_score"]
    worst = account["worst_score"]
    scores = []
    if best is not None:
        scores.append(f"{account['scorer']} best {best:.2f}, worst {worst:.2f} on average")
    return "; ".join([counted, *dropped, *scores])


def account_file(root: Path, target: Path) -> Path:
    """Return the path of the account of `target`.

    It is not next to `target`, because curate would read it as data.
    """
    inside = target.resolve().relative_to((root / "data/raw").resolve())
    return root / FOLDER / f"{inside}.json"


def publish(root: Path, target: Path, pairs: Sequence[dict[str, Any]]) -> None:
    """Move the pairs to where curate reads them, complete and without overwriting a file. data/raw belongs to
    the user, so an incomplete file must not stay in it.
    """
    aside = account_file(root, target).with_suffix(".rows")
    write_rows(aside, pairs)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(aside, target)
    except FileExistsError:
        raise exists(target) from None
    except OSError:  # The target is on another disk.
        write_rows(target, pairs)
    finally:
        with suppress(OSError):
            remove(aside)
