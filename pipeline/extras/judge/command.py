"""Find which of several GGUF files is best on the user's own held-out chats and fits in memory. Any files
that llama.cpp loads can be compared, of any architecture and size: "14B at 2 bit, 7B at 4 or 4B at 8 in 8
GB?"

Every file answers the same rows through its own chat template in llama-server. Its speed and memory are
measured there too. Reads `data/final/test.jsonl` or --data, and params.yaml if there is one. Writes
`reports/judge.html`, `reports/judge.json` and the answers below `reports/judge/`.

    quench judge A.gguf B.gguf --memory "8 GB"
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.chat.selection import COMPARED_ROWS
from pipeline.config.params import Params, load_params
from pipeline.config.sections import AUTO, Evaluate, Serve
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hardware import machine
from pipeline.core.publish import write_json, write_text
from pipeline.extras.judge.divergence import divergences
from pipeline.extras.judge.files import Candidate, candidates, check_rows, describe
from pipeline.extras.judge.measure import answers_of, load_values, measure_served, memory_values, room_of
from pipeline.extras.judge.rows import held_out_rows
from pipeline.extras.judge.show import render, show
from pipeline.extras.judge.verdict import Entry, decide, pairs_of
from pipeline.llamacpp.devices import devices
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.metrics.asking import score_answers
from pipeline.metrics.scorers import check_references, parse

DATA = Path("data/final/test.jsonl")
PAGE = Path("reports/judge.html")
REPORT = Path("reports/judge.json")
ENDED = 0.9  # share of answers that end by themselves; below it the file gets a note


@dataclass(frozen=True)
class Options:
    """Options of the command. None stands for the value of params.yaml."""

    data: Path | None = None
    rows: int | None = None
    scorers: tuple[str, ...] = ()
    reference: Path | None = None
    memory: str | None = None
    ctx_size: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None


def main(
    params_file: Path | None, root: Path, files: Sequence[Path], options: Options, *, as_json: bool
) -> None:
    """Judge the files, write the report and the page, and print the verdict."""
    report = judge(settings_of(params_file, root), root, files, options)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show(report, (root / PAGE).resolve())


def settings_of(params_file: Path | None, root: Path) -> Params:
    """Load `params_file`, otherwise the project's params.yaml, otherwise the defaults.

    Foreign files need no project.
    """
    file = params_file or root / "params.yaml"
    return load_params(file) if params_file or file.exists() else Params()


def judge(params: Params, root: Path, files: Sequence[Path], options: Options) -> dict[str, Any]:
    """Measure the files and publish the report and the page. Return the report. Raises `ConfigError`,
    `DataError` and `ToolError` for what can't be judged, before anything long begins.
    """
    tools = find_toolchain(params.machine.llama_cpp)
    evaluate = evaluated(params, options)
    load = load_of(params, options, tools)
    room, room_words = room_of(options.memory, load)
    for scorer in evaluate.scorers:
        parse(scorer, evaluate.judge, root, evaluate.external)
    judged = candidates(files)
    check_context(judged, load.ctx_size)
    reference = None
    if options.reference:
        reference = describe(options.reference, options.reference.stem)
    data = options.data or root / DATA
    wanted = options.rows or COMPARED_ROWS
    rows = held_out_rows(data, wanted, evaluate.scorers, params.curating, root)
    check_references(rows, evaluate.scorers, root)
    served = measure_served(
        judged,
        load,
        tools,
        lambda file, server: check_rows(
            file, server, rows, ctx_size=load.ctx_size, max_new_tokens=evaluate.max_new_tokens
        ),
    )
    answers = {file.name: answers_of(file, rows, load, evaluate, tools, root) for file in judged}
    tasks = {name: scored(name, of_file, evaluate, root) for name, of_file in answers.items()}
    klds = divergences(judged, reference, rows[: evaluate.perplexity_rows], load, tools, root)
    values = {
        file.name: file_values(file, judged)
        | {
            "memory": memory_values(file, load, room, served[file.name]),
            "served": served[file.name].as_values(),
            "task": tasks[file.name],
            "divergence": klds[file.name],
        }
        for file in judged
    }
    points = common_points(answers)
    pairs = pairs_of(points)
    entries = [entry(name, figures, points[name]) for name, figures in values.items()]
    verdict = decide(entries, pairs, len(next(iter(points.values()))), room_words)
    report = {
        "verdict": asdict(verdict) | {"notes": [*verdict.notes, *unended(values), *spoilt(values)]},
        "files": values,
        "pairs": [asdict(pair) | {"measurable": pair.measurable} for pair in pairs],
        "rows": len(rows),
        "data": (options.data or DATA).name,
        "scorers": evaluate.scorers,
        "max_new_tokens": evaluate.max_new_tokens,
        **load_values(load),
        "room_bytes": room,
        "room": room_words,
        "reference": reference.name if reference else None,
        "machine": machine(),
        "llama_cpp": tools.version,
    }
    write_json(root / REPORT, report)
    write_text(root / PAGE, render(report, answers))
    return report


def evaluated(params: Params, options: Options) -> Evaluate:
    """Return section evaluate with the options applied and one row at a time. Raises `ConfigError` if nothing
    would be scored.
    """
    scorers = list(options.scorers) or params.evaluate.scorers
    if not scorers:
        raise ConfigError(
            "Q-JUDGE-007",
            "evaluate.scorers is [], so no answer would be scored: name a scorer with --scorer, rouge_l for "
            "example",
        )
    return params.evaluating.model_copy(update={"scorers": scorers, "parallel": 1})


def load_of(params: Params, options: Options, tools: Toolchain) -> Serve:
    """Return the settings for loading files: the context of section serve, and the threads and the card of
    section machine. If llama.cpp finds no card, auto becomes 0.
    """
    settings = params.machine
    layers = settings.n_gpu_layers if options.gpu_layers is None else options.gpu_layers
    return params.serving.model_copy(
        update={
            "ctx_size": options.ctx_size or params.serve.ctx_size,
            "threads": options.threads or settings.threads,
            "n_gpu_layers": 0 if layers == AUTO and not devices(tools) else layers,
        }
    )


def check_context(files: Sequence[Candidate], ctx_size: int) -> None:
    """Raise `ConfigError` if a file was made for a shorter context. Its memory would fit nowhere."""
    for file in files:
        if file.positions and ctx_size > file.positions:
            raise ConfigError(
                "Q-JUDGE-013",
                f"{file.name} was made for {file.positions} tokens and the context is {ctx_size}: give "
                f"--ctx-size {file.positions}, or leave the file out",
            )


def scored(name: str, answers: list[dict[str, Any]], settings: Evaluate, root: Path) -> dict[str, Any]:
    """Return the figures of the task and give every answer its score.

    Raises `DataError` if no answer has one.
    """
    figures = score_answers(
        answers, settings.scorers, judge=settings.judge, external=settings.external, root=root
    )
    if figures["score"] is None:
        raise DataError(
            "Q-JUDGE-012",
            f"no answer of {name} has a score by {settings.scorer}: look at the judge, or name another "
            "--scorer",
        )
    return figures


def file_values(file: Candidate, all_of_them: Sequence[Candidate]) -> dict[str, Any]:
    """Return the description of a file as JSON."""
    same = next((other.name for other in all_of_them if other.sha256 == file.sha256 and other.copy == 0), "")
    return {
        "path": file.path.name,
        "sha256": file.sha256,
        "same_bytes_as": same if file.copy else None,
        "bytes": file.bytes,
        "architecture": file.architecture,
        "parameters": file.parameters,
        "bits_per_weight": file.bits_per_weight,
        "tensor_types": dict(file.types),
        "context_length": file.positions,
    }


def common_points(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[float]]:
    """Return every file's scores on the rows that all files have a score for. Means over different rows can't
    be compared. Raises `DataError` if there is no such row.
    """
    scores = {name: [answer["score"] for answer in of_file] for name, of_file in answers.items()}
    kept = [at for at, row in enumerate(zip(*scores.values(), strict=True)) if None not in row]
    if not kept:
        raise DataError(
            "Q-JUDGE-012",
            "no row has a score from every file: look at the judge's answers, or name another --scorer",
        )
    return {name: [points[at] for at in kept] for name, points in scores.items()}


def entry(name: str, values: Mapping[str, Any], points: Sequence[float]) -> Entry:
    """Return a file's figures that decide. `points` are its scores on the common rows."""
    speed = values["served"]["generation_tok_s"]
    if values["served"]["disturbed"]:  # A disturbed speed may have any value, so it decides nothing.
        speed = {"low": 0.0, "median": speed["median"], "high": math.inf}
    return Entry(
        name=name,
        score=fmean(points),
        bytes=values["bytes"],
        memory=values["memory"]["total_bytes"],
        fits=values["memory"]["fits"],
        slowest=speed["low"],
        speed=speed["median"],
        fastest=speed["high"],
    )


def spoilt(values: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a note if something else kept the machine busy while speeds were measured."""
    files = [name for name, figures in values.items() if figures["served"]["disturbed"]]
    if not files:
        return []
    return [
        f"other load disturbed the speeds of {', '.join(files)}, so they decide nothing: judge again once it "
        "has ended."
    ]


def unended(values: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a note on each file whose answers often reached their limit."""
    return [
        f"only {figures['task']['stopped']:.0%} of {name}'s answers ended by themselves: raise "
        "evaluate.max_new_tokens if the others were cut off."
        for name, figures in values.items()
        if figures["task"]["stopped"] < ENDED
    ]
