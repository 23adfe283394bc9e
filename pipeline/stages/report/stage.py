"""Put all measurements on one page, judge each level by the gate, and recommend the one to serve.

Reads reports/{data,labels,train,merge,parity}.json (no merge.json if base.quantization is gguf),
reports/train.csv and train.jsonl, models/base.json, matrices and chat template in models/adapter, and
reports/eval/MODEL.json with MODEL.answers.jsonl for every model of `evaluate.models`. Writes
reports/index.html, quants.csv, quants.json, metrics.json, card.md, Modelfile and serve.txt. What it says of
the last run is kept in .quench/report-runs.jsonl.

    python -m pipeline report
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.products import product_of
from pipeline.config.sections import Serve
from pipeline.core.errors import DataError
from pipeline.core.places import PROJECT
from pipeline.core.publish import publishing
from pipeline.core.text import console
from pipeline.core.usage import usages
from pipeline.gate.inputs import Inputs, load_inputs
from pipeline.gate.next_steps import Case, NextStep, next_steps
from pipeline.gate.recommend import Recommendation, advise
from pipeline.gate.verdict import Judgment
from pipeline.llamacpp.tools import DEFAULT_HOME
from pipeline.metrics.adapter_norms import adapter_norms
from pipeline.models.merging.adapter import WEIGHTS
from pipeline.pages.templating import fill
from pipeline.serve.key import KEY_FILE
from pipeline.ship.card import PrintedTools, front_matter, printed_command, text_values
from pipeline.ship.ollama import chat_template
from pipeline.stages.report.front import examples
from pipeline.stages.report.last_run import changes_since, earlier_run, keep, record_of
from pipeline.stages.report.level_table import show
from pipeline.stages.report.page import page_values, with_warnings
from pipeline.stages.report.quants import write_data_files


@dataclass(frozen=True)
class Report:
    """The recommendation, each tuned model's verdict by the gate, and what to do next."""

    advice: Recommendation
    verdicts: dict[str, Judgment]
    steps: list[NextStep]


def report(params: Params, root: Path, inputs: Inputs) -> Report:
    """Write the report below `root`/reports. Raises `DataError` if the adapter's folder is missing."""
    folder = root / "reports"
    adapter = root / "models/adapter"
    name = params.convert.name
    serve = params.serving
    advice, verdicts = advise(inputs, params.report, serve)
    advice = with_warnings(advice, inputs)
    # If nothing can be recommended, the files still name the smallest level, with the warning next to it.
    level = advice.model or min(verdicts, key=lambda model: (inputs.evaluations[model].bytes, model))
    files = product_of(inputs.evaluations).files(Path(), name, level)
    gguf = str(files.gguf)
    lora = str(files.lora) if files.lora else None
    if not adapter.is_dir():
        raise DataError("Q-CORE-001", f"{adapter} is missing: run `python -m pipeline train`, which makes it")
    jinja = chat_template(adapter)
    texts = text_values(inputs, advice, name=name, level=level, serve=serve, jinja=jinja) | {
        "front_matter": front_matter(inputs.base, level, datasets=inputs.data.on_hub()),
        "gguf": gguf,
        "lora_gguf": lora,
        "raw_command": serve_line(gguf, serve, params.machine.llama_cpp, lora),
        "key_file": KEY_FILE,
    }
    # trained scales are not an adapter
    norms = adapter_norms(adapter) if (adapter / WEIGHTS).is_file() else []
    steps = next_steps(Case(inputs, advice, verdicts, params))
    present = record_of(params, inputs, advice.model, verdicts)
    earlier = earlier_run(root, present)
    page = (
        texts
        | page_values(inputs, advice, verdicts, norms, usages(root))
        | {
            "examples": examples(inputs, level),
            "steps": steps,
            "since": changes_since(earlier, present) if earlier else None,
            "settings": params.report,
            "price": params.machine.price,
            "llama_version": inputs.evaluations[level].llama_cpp or "of unknown version",
        }
    )
    written = {file: fill(f"{file}.jinja", **texts) for file in ("card.md", "Modelfile", "serve.txt")}
    written["index.html"] = fill("index.html.jinja", **page)
    for file, text in written.items():
        with publishing(folder / file) as aside:
            aside.write_text(text, encoding="utf-8")
    write_data_files(folder, inputs.evaluations, verdicts, advice.model, inputs.train.loss_last)
    keep(root, present)
    return Report(advice, verdicts, steps)


def main(params: Params, root: Path) -> None:
    """Read the inputs below `root`, write the report, show the levels on the terminal."""
    inputs = load_inputs(root, params)
    made = report(params, root, inputs)
    show(inputs.evaluations, made.advice, made.verdicts, made.steps)
    console(highlight=False).print(f"The page: {root / 'reports/index.html'}", markup=False, soft_wrap=True)


def serve_line(gguf: str, serve: Serve, llama_home: str | None, lora: str | None = None) -> str:
    """Return a `llama-server` command for `gguf` with `lora` in the project, with `quench serve`'s flags."""
    # In a checkout the build is in the project's own folder.
    default_home = DEFAULT_HOME.relative_to(PROJECT) if DEFAULT_HOME.is_relative_to(PROJECT) else DEFAULT_HOME
    home = Path(llama_home) if llama_home else default_home
    tools = PrintedTools(home / "build" / "bin", home)
    return shlex.join(printed_command(tools, gguf, serve, KEY_FILE, lora))
