"""Put everything that was measured on one page, and recommend the level to serve.

Reads reports/{data,labels,train,parity}.json, reports/train.csv and train.jsonl, models/base.json, the chat template in
models/adapter, and reports/eval/MODEL.json with MODEL.answers.jsonl for every model of `evaluate.models`.
Writes reports/index.html, quants.csv, quants.json, metrics.json, card.md, Modelfile and serve.txt.

    python -m pipeline report
"""

import csv
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline import __version__
from pipeline.errors import DataError
from pipeline.jsonl import read_rows
from pipeline.llamacpp.tools import DEFAULT_HOME, PROJECT, Toolchain
from pipeline.params import Params, Serve
from pipeline.publish import publishing, write_json
from pipeline.reporting.ollama import chat_template, ollama_template
from pipeline.reporting.page import Inputs, number, page_values, percent, points, render, seam_counts, size
from pipeline.reporting.recommend import Recommendation, recommend
from pipeline.watching.journal import Journal

# each input: the stage that makes it, and what this stage can't do without
NEEDED = {
    "reports/data.json": ("curate", ("rows_read", "rows_kept", "rejected", "splits")),
    "reports/labels.json": ("preprocess", ("splits",)),
    "reports/train.json": ("train", ("steps", "loss_first", "loss_last")),
    "reports/parity.json": ("parity", ("verdict", "seams")),
    "models/base.json": ("base", ("source", "model", "architecture", "files")),
}
FIGURES = ("bytes", "bits_per_weight", "tensors", "fallback_tensors", "perplexity", "perplexity_error", "kld_mean", "kld_p999", "kld_max", "same_top",
           "prompt_tok_s", "prompt_tok_s_spread", "generation_tok_s", "generation_tok_s_spread", "kv_cache_bytes")  # fmt: skip
TASK_FIGURES = ("score", "score_low", "score_high", "perfect", "valid", "stopped", "rows")
KEY_FILE = ".quench/api-key"  # where `quench serve` keeps its key


def report(*, inputs: Inputs, folder: Path, name: str, serve: Serve, memory_gb: float, max_task_drop: float, context_ratio: float = 1.0,
           jinja: str | None = None, llama_home: str | None = None) -> Recommendation:  # fmt: skip
    """Write the report's files into `folder` and give the recommendation.

    `name` is the GGUFs' name (`convert.name`), `memory_gb` in GB, `max_task_drop` in points of 100, `context_ratio` the
    served context over the evaluated one, `jinja` the base's chat template.
    """
    advice = recommend(inputs.evaluations, memory_gb=memory_gb, max_task_drop=max_task_drop, context_ratio=context_ratio)
    advice = _with_seams(advice, inputs.parity)
    # where nothing fits, the files still name the smallest level, with the warning beside it
    tuned = {model: found["bytes"] for model, found in inputs.evaluations.items() if model in advice.arithmetic}
    level = advice.model or min(tuned, key=lambda model: (tuned[model], model))
    gguf = f"models/gguf/{name}-{level}.gguf"
    values = page_values(inputs, advice) | {
        "name": name, "level": level, "gguf": gguf, "serve": serve, "raw_command": serve_line(gguf, serve, llama_home), "key_file": KEY_FILE,
        "memory_gb": memory_gb, "max_task_drop": max_task_drop, "ollama": ollama_template(jinja), "version": __version__,
        "llama_version": inputs.evaluations[level].get("llama_cpp", "of unknown version"),
        "front_matter": front_matter(inputs.base),
    }  # fmt: skip
    for file in ("index.html", "card.md", "Modelfile", "serve.txt"):
        with publishing(folder / file) as aside:
            aside.write_text(render(f"{file}.jinja", **values), encoding="utf-8")
    table = {model: flat_figures(found) for model, found in inputs.evaluations.items()}
    write_csv(folder / "quants.csv", table)
    measured = {model: {key: value for key, value in row.items() if value is not None} for model, row in table.items()}
    write_json(folder / "quants.json", measured | {"recommended": advice.model})
    write_json(folder / "metrics.json", headline_figures(measured, inputs.train))
    return advice


def headline_figures(measured: Mapping[str, Mapping[str, Any]], trained: Mapping[str, Any]) -> dict[str, Any]:
    """The few figures that `dvc metrics show` puts side by side, a column each; quants.json has all of them."""
    figures: dict[str, Any] = {"loss": round(trained["loss_last"], 4)}
    for name, key, scale in (("score", "task_score", 100), ("kld", "kld_mean", 1), ("mb", "bytes", 1e-6)):
        column = {model: round(row[key] * scale, 4 if scale == 1 else 1) for model, row in measured.items() if key in row}
        if column:
            figures[name] = column
    return figures


def main(params: Params, root: Path) -> None:
    """Read the inputs below `root`, write the report, show the levels on the terminal."""
    inputs = load_inputs(root, params.evaluate.models)
    advice = report(
        inputs=inputs, folder=root / "reports", name=params.convert.name, serve=params.serve, memory_gb=params.report.memory_gb,
        max_task_drop=params.report.max_task_drop, context_ratio=params.serve.ctx_size / params.evaluate.ctx_size,
        jinja=read_template(root / "models" / "adapter"), llama_home=params.llamacpp.home,
    )  # fmt: skip
    show(inputs.evaluations, advice, root / "reports" / "index.html")


def load_inputs(root: Path, models: Sequence[str]) -> Inputs:
    """Every input below `root`. Raises `DataError` with the file and the stage that makes it where one is missing or not whole."""
    found = {Path(file).stem: read_report(root / file, stage, keys) for file, (stage, keys) in NEEDED.items()}
    log = root / "reports" / "train.csv"
    if not log.is_file():
        raise DataError(f"{log} is missing: run `python -m pipeline train`, which makes it")
    with log.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    evaluations = {model: read_report(root / "reports" / "eval" / f"{model}.json", f"evaluate@{model}", ("bytes",)) for model in models}
    scored = [model for model, result in evaluations.items() if result.get("task")]
    answers = {model: read_answers(root / "reports" / "eval" / f"{model}.answers.jsonl", f"evaluate@{model}") for model in scored}
    for model in scored:
        if [row["id"] for row in answers[model]] != [row["id"] for row in answers[scored[0]]]:
            remedy = f"run `python -m pipeline evaluate@{model}` again"
            raise DataError(f"reports/eval/{model}.answers.jsonl answers other rows than {scored[0]}.answers.jsonl: {remedy}")
    journal = Journal(root / "reports" / "train.jsonl").rows()  # runs of older versions have none: what it holds is then not measured
    return Inputs(data=found["data"], labels=found["labels"], train=found["train"], log=rows, journal=journal, parity=found["parity"],
                  base=found["base"], evaluations=evaluations, answers=answers)  # fmt: skip


def read_report(path: Path, stage: str, keys: Sequence[str]) -> dict[str, Any]:
    """One JSON object that has `keys`. Raises `DataError` that names `stage`, which makes it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing: run `python -m pipeline {stage}`, which makes it") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read ({error}): run `python -m pipeline {stage}` again") from error
    lacking = [key for key in keys if key not in value] if isinstance(value, dict) else list(keys)
    if lacking:
        raise DataError(f"{path} lacks {', '.join(lacking)}: run `python -m pipeline {stage}` again")
    return dict(value)


def read_answers(path: Path, stage: str) -> list[dict[str, Any]]:
    """One model's answers. Raises `DataError` that names `stage`, which makes them."""
    if not path.is_file():
        raise DataError(f"{path} is missing: run `python -m pipeline {stage}`, which makes it")
    return list(read_rows(path))


def read_template(adapter: Path) -> str | None:
    """The chat template that was trained, None where there are several. Raises `DataError` where the folder is missing."""
    if not adapter.is_dir():
        raise DataError(f"{adapter} is missing: run `python -m pipeline train`, which makes it")
    return chat_template(adapter)


@dataclass(frozen=True)
class _Printed(Toolchain):
    """A toolchain whose commands are printed, not run: its build need not be on this machine."""

    def tool(self, name: str) -> Path:
        return self.bin / name


def serve_line(gguf: str, serve: Serve, llama_home: str | None) -> str:
    """The `llama-server` command for `gguf`, to be run in the project's folder, with `quench serve`'s flags."""
    from pipeline.llamacpp.server import server_command

    home = Path(llama_home) if llama_home else DEFAULT_HOME.relative_to(PROJECT)
    command = server_command(_Printed(home / "build" / "bin", home), Path(gguf), port=serve.port, key_file=Path(KEY_FILE), ctx_size=serve.ctx_size,
                             parallel=1, threads=serve.threads, n_gpu_layers=serve.n_gpu_layers, flash_attn=serve.flash_attn,
                             n_predict=serve.n_predict)  # fmt: skip
    return shlex.join(command)


def front_matter(base: Mapping[str, Any]) -> str:
    """The Hugging Face model card's metadata as YAML; `base_model` only where the base has an address on the hub."""
    values: dict[str, Any] = {"license": str(base.get("license") or "unknown").lower()}
    if base["source"] == "hub":
        values |= {"base_model": base["model"], "base_model_relation": "quantized"}
    return yaml.safe_dump(values | {"pipeline_tag": "text-generation", "tags": ["gguf", "llama.cpp", "lora", "quench"]}, sort_keys=False).rstrip()


def flat_figures(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """A model's figures in one level: `task_score` and so on for the task's; None for what was not measured."""
    task = evaluation.get("task") or {}
    return {key: evaluation.get(key) for key in FIGURES} | {f"task_{key}": task.get(key) for key in TASK_FIGURES}


def write_csv(target: Path, table: Mapping[str, Mapping[str, Any]]) -> None:
    """Publish one line per model; an empty cell where nothing was measured."""
    with publishing(target) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", *FIGURES, *(f"task_{key}" for key in TASK_FIGURES)])
        writer.writerows([model, *row.values()] for model, row in table.items())


def show(evaluations: Mapping[str, Mapping[str, Any]], advice: Recommendation, page: Path) -> None:
    """Print the levels as a table of at most 80 columns, the recommendation and where the page is."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("model", no_wrap=True)
    for heading in ("size", "bpw", "ppl", "KLD", "same top", "tok/s", "score"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model, found in evaluations.items():
        table.add_row(
            model, size(found["bytes"]), number(found.get("bits_per_weight")), number(found.get("perplexity")), number(found.get("kld_mean"), 4),
            percent(found.get("same_top")), number(found.get("generation_tok_s"), 1), points((found.get("task") or {}).get("score")),
            style="bold" if model == advice.model else None,
        )  # fmt: skip
    console = Console(highlight=False, width=max(80, Console().width))  # a narrower terminal wraps the table rather than losing figures
    console.print(table)
    for line in (advice.reason, *(f"Beware: {warning}" for warning in advice.warnings)):
        console.print(line, markup=False)
    console.print(f"The page: {page}", markup=False, soft_wrap=True)


def _with_seams(advice: Recommendation, parity: Mapping[str, Any]) -> Recommendation:
    """The advice, headed by a warning where a seam failed."""
    failed = seam_counts(parity)["fail"]
    if not failed and parity["verdict"] == "pass":
        return advice
    seams = {0: "Parity did not pass", 1: "1 seam failed"}.get(failed, f"{failed} seams failed")
    words = f"{seams}: do not serve these files before the cause is found (section Seams)."
    return Recommendation(advice.model, advice.reason, (words, *advice.warnings), advice.arithmetic, advice.gains)
