"""Collect a GGUF's answers to held-out questions from `llama-server`, saved as they come, and score them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.chat.rows import other_references
from pipeline.chat.selection import SEED
from pipeline.chat.tokens import chat_request
from pipeline.config.products import ModelFiles
from pipeline.config.scorers import TOOL_CALLS
from pipeline.config.sections import Evaluate, External, Judge
from pipeline.core.hashing import json_hash
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.core.progress import progress
from pipeline.llamacpp.server import Server, Unparsed, serving
from pipeline.llamacpp.shared_prompt import Post, sharing
from pipeline.llamacpp.tools import Toolchain, llama_of
from pipeline.metrics.refusals import is_refusal
from pipeline.metrics.score import Score
from pipeline.metrics.scorers import parse, scored
from pipeline.metrics.statistics import interval
from pipeline.metrics.tool_calls import (
    CALLS,
    EXPECTED,
    UNPARSED,
    call_figures,
    expected_calls,
    made_calls,
)

UNKNOWN = "unknown"  # domain of a row without one
KEEP_SECONDS = 10.0  # seconds between two writes of the answers


def answers_of(
    server: Server, rows: list[dict[str, Any]], settings: Evaluate, label: str
) -> list[dict[str, Any]]:
    """Return each row's last assistant turn as `llama-server` answers it, greedily, as many rows at a time as
    it has slots; `label` names the model on the terminal. What all prompts begin with is computed once
    (`pipeline.llamacpp.shared_prompt`).
    """
    answers = []
    requests = [request_of(server, row, settings) for row in rows]
    bar = progress(f"{label}: answers", len(rows))
    with (
        sharing(server, requests) as post,
        ThreadPoolExecutor(server.parallel) as pool,
        bar as advance,
    ):
        for row, reply in zip(rows, pool.map(partial(_ask, post), requests), strict=True):
            answers.append(answered_row(row, reply))
            advance(1)
    return answers


def evaluated_server(
    model: Path, settings: Evaluate, tools: Toolchain, lora: Path | None = None, room: int = 0
) -> AbstractContextManager[Server]:
    """Return a `llama-server` with `model` and the settings of section evaluate, with the context of the
    longest row and answer, and at least `room` tokens; `lora` is applied to the model.
    """
    llama = llama_of(tools, settings)
    ctx_size = max(settings.ctx_size + settings.max_new_tokens, room)
    return serving(
        llama,
        ModelFiles(model, lora),
        ctx_size=ctx_size,
        parallel=settings.parallel,
        saves_slots=True,
    )


def answer_row(server: Server, row: dict[str, Any], settings: Evaluate) -> dict[str, Any]:
    """Request the last turn of one row through the OpenAI protocol, with the row's tools."""
    return answered_row(row, _ask(server.post, request_of(server, row, settings)))


def request_of(server: Server, row: dict[str, Any], settings: Evaluate) -> dict[str, Any]:
    """Return the request for the last turn of one row."""
    # cache_prompt: the request that warmed a slot changes the rounding, and so the answer. Rows that share a
    # batch change it a little too. Only one slot gives the same answers in every run, and there a common
    # prefix of rows is read once.
    limits = {
        "temperature": 0,
        "seed": SEED,
        "max_tokens": settings.max_new_tokens,
        "cache_prompt": server.parallel == 1,
    }
    return chat_request(row["messages"][:-1], row.get("tools")) | limits


def answered_row(row: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a row and the reply to its request.

    `stopped`: the model ended the answer by itself; `refused`: the answer is nothing but a stock refusal;
    `calls` and `expected_calls`: the tool calls that llama-server reads in the answer and that the row has
    there; `unparsed`: llama-server can't read the answer.
    """
    *prompt, last = row["messages"]
    return {
        "id": row["id"],
        "domain": _domain(row.get("domain")),
        "prompt": prompt[-1]["content"] if prompt else "",
        "reference": last["content"],
        **other_references(row),
        **_present(EXPECTED, expected_calls(last)),
        **reply,
        "refused": is_refusal(reply["answer"]),
    }


def _ask(post: Post, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer's text, its calls if it has any, and whether it ended by itself; for an answer that
    llama-server can't read, only that.
    """
    try:
        choice = post("/v1/chat/completions", request)["choices"][0]
    except Unparsed:
        return {"answer": "", UNPARSED: True, "stopped": False}
    message = choice["message"]
    return {
        "answer": message.get("content") or "",
        **_present(CALLS, made_calls(message)),
        "stopped": choice["finish_reason"] != "length",
    }


def _present(key: str, values: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the values by their key if there are any."""
    return {key: values} if values else {}


def kept_answers(
    file: Path,
    rows: Sequence[dict[str, Any]],
    asking: AbstractContextManager[Callable[[dict[str, Any]], dict[str, Any]]],
    label: str,
) -> list[dict[str, Any]]:
    """Return the answer to each row: from `file` if it is there, otherwise by the function of `asking`, which
    is only entered if one is missing. New answers are put into `file`. `kill -9` loses the answers of the
    last ten seconds.
    """
    kept = read_kept(file)
    keys = [json_hash(row) for row in rows]
    missing = {key: row for key, row in zip(keys, rows, strict=True) if key not in kept}
    if missing:
        written = time.monotonic()
        with asking as ask, progress(label, len(missing)) as advance:
            try:
                for key, row in missing.items():
                    kept[key] = ask(row)
                    advance(1)
                    if time.monotonic() - written > KEEP_SECONDS:
                        write_kept(file, kept)
                        written = time.monotonic()
            finally:
                write_kept(file, kept)
    return [dict(kept[key]) for key in keys]


def read_kept(file: Path) -> dict[str, dict[str, Any]]:
    """Return {row hash: answer} in `file`; empty if it is missing.

    Raises `DataError` if a line is not a JSON object.
    """
    if not file.exists():
        return {}
    return {row.pop("row"): row for row in read_rows(file)}


def write_kept(file: Path, kept: Mapping[str, dict[str, Any]]) -> None:
    """Publish all answers."""
    write_rows(file, ({"row": key, **answer} for key, answer in kept.items()))


def score_answers(
    answers: list[dict[str, Any]],
    scorers: Sequence[str],
    *,
    judge: Judge | None = None,
    external: External | None = None,
    root: Path = Path(),
) -> dict[str, Any]:
    """Score every answer in place (`score` by the first scorer that can score a reference, `scores` by each;
    None: not measured) and return the sums.

    `scorers` are spelled as in `evaluate.scorers`, `judge` is evaluate.judge, `external` evaluate.external,
    `root` the project's folder. Means come with their 95 % interval. `unscored` lists for a scorer the
    references it can't score by. Raises `DataError` if a user's function fails, `ConfigError` for a scorer
    that can't be made, `ToolError` if a judge, a program or a sandbox is out of reach.
    """
    parsed = [parse(spelled, judge, root, external) for spelled in scorers]
    with ExitStack() as running:
        for scorer in parsed:
            running.enter_context(scorer.running)
        scores = dict[str, list[Score]]()
        unscored = dict[str, str]()
        for scorer in parsed:
            scores[scorer.name], refused = scored(scorer, answers)
            if refused:
                unscored[scorer.name] = f"{len(refused)} of {len(answers)} references: {min(refused)}"
            elif scorer.name == TOOL_CALLS and not any(answer.get(EXPECTED) for answer in answers):
                unscored[scorer.name] = f"any of {len(answers)} references: none of them calls a tool"
    decides = next((scorer.name for scorer in parsed if _any_measured(scores[scorer.name])), parsed[0].name)
    first = scores[decides]
    for place, answer in enumerate(answers):
        answer["score"] = _rounded(first[place].points)
        answer["scores"] = {name: _rounded(points[place].points) for name, points in scores.items()}
    return {
        "scorer": decides,
        "unscored": unscored,
        "rows": len(answers),
        **mean_points(score.points for score in first),
        "perfect": _share(score.points == 1.0 for score in first if score.points is not None),
        "valid": _share(score.valid for score in first if score.points is not None),
        "stopped": _share(answer["stopped"] for answer in answers),
        "refused": _share(answer["refused"] for answer in answers),
        "domains": domain_means(
            [answer.get("domain") for answer in answers], [score.points for score in first]
        ),
        "scores": {
            name: mean_points(score.points for score in points)
            | {
                "valid": _share(score.valid for score in points if score.points is not None),
                "measured": sum(score.points is not None for score in points),
            }
            for name, points in scores.items()
        },
        **({CALLS: call_figures(answers)} if TOOL_CALLS in scores else {}),
    }


def _any_measured(scores: Iterable[Score]) -> bool:
    return any(score.points is not None for score in scores)


def domain_means(domains: Sequence[object], points: Sequence[float | None]) -> dict[str, Any]:
    """Return the rows and mean points of each domain, by its name; the arguments are row by row."""
    by_domain: dict[str, list[float | None]] = {}
    for domain, row_points in zip(domains, points, strict=True):
        by_domain.setdefault(_domain(domain), []).append(row_points)
    return {name: {"rows": len(rows), **mean_points(rows)} for name, rows in sorted(by_domain.items())}


def _domain(domain: object) -> str:
    # Rows that Quench did not write may contain anything.
    return domain if isinstance(domain, str) else UNKNOWN


def mean_points(row_points: Iterable[float | None]) -> dict[str, float | None]:
    """Return the mean of the points that were measured, with its 95 % interval (0 to 1 for a single row)."""
    points = [value for value in row_points if value is not None]
    if not points:
        return {"score": None, "score_low": None, "score_high": None}
    low, high = interval(points) if len(points) > 1 else (0.0, 1.0)
    return {
        "score": round(sum(points) / len(points), 4),
        "score_low": round(low, 4),
        "score_high": round(high, 4),
    }


def _share(values: Iterable[bool]) -> float | None:
    counted = list(values)
    return round(sum(counted) / len(counted), 4) if counted else None


def _rounded(points: float | None) -> float | None:
    return None if points is None else round(points, 4)
