"""The report of a changed project: for each change to the recorded project, the new lines of the page, of the
terminal and of the files beside it.
"""

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_inputs
from golden import Golden, changed_lines
from html_page import lines_of
from parity_inputs import failed_report
from report_inputs import MODELS, change, demo_params, put

from pipeline.config.params import Params
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.stages.report import stage

pytestmark = pytest.mark.usefixtures("plots_once")

FILES = ("card.md", "Modelfile", "serve.txt", "quants.csv")
Change = Callable[[Path], None]


def said(params: Params, root: Path) -> str:
    """All that the report says, a line for each."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        stage.main(params, root)
    page = lines_of((root / "reports/index.html").read_text(encoding="utf-8"))
    beside = [(root / "reports" / name).read_text(encoding="utf-8") for name in FILES]
    figures = json.loads((root / "reports/quants.json").read_text(encoding="utf-8"))
    beside.append(json.dumps(figures, indent=1) + "\n")
    return "".join([page, printed.getvalue().replace(str(root), "ROOT"), *beside])


def evaluations(**changed: Any) -> Change:
    """The same changes in each model's report; without `task` there are no answers."""

    def apply(root: Path) -> None:
        for model in MODELS:
            change(root / f"reports/eval/{model}.json", **changed)
            if changed.get("task", "kept") is None:
                (root / f"reports/eval/{model}.answers.jsonl").unlink()

    return apply


def report(name: str, **changed: Any) -> Change:
    return lambda root: change(root / name, **changed)


def little_recorded(root: Path) -> None:
    """Replace the training's reports by the few that an older release left."""
    (root / "reports/train.jsonl").unlink()
    rows = "1,1.5,0.001,nan\n2,1.2,0.0009,0\n3,nan,0.0008,nan\n"
    (root / "reports/train.csv").write_text(f"step,loss,learning_rate,grad_norm\n{rows}")
    put(root / "reports/train.json", {"steps": 2, "loss_first": 1.5, "loss_last": 1.2})


def nothing_recorded(root: Path) -> None:
    little_recorded(root)
    (root / "reports/train.csv").write_text("step,loss\n")


def failed_rule(root: Path) -> None:
    failed = {"level": "fail", "rule": "finite loss", "step": 7, "text": "the loss is <nan>"}
    unknown = {"level": "PASS", "rule": "speed", "step": None, "text": "", "cause": ""}
    figures = {"planned_steps": 80, "adapter_step": 25, "resumed_from": "checkpoint-20"}
    rules = [failed | {"cause": "a forward fault"}, unknown]
    change(root / "reports/train.json", monitoring=rules, **figures)


def many_samples(root: Path) -> None:
    """31 evaluations of nine samples: six are shown, of four."""
    asked = [{"prompt": f"p{number}", "reference": "r"} for number in range(9)]
    row = {"kind": "eval", "eval_loss": 0.1}
    rows: list[dict[str, Any]] = [
        row | {"step": step, "samples": [one | {"answer": f"at {step}"} for one in asked]}
        for step in range(10, 310, 10)
    ]
    write_rows(root / "reports/train.jsonl", [*rows, row | {"step": 400, "samples": []}])


def no_better(root: Path) -> None:
    """The untuned base answers as Q4_K_M does."""
    folder = root / "reports/eval"
    change(folder / "base-F16.json", task=field(folder / "Q4_K_M.json", "task"))
    shutil.copy(folder / "Q4_K_M.answers.jsonl", folder / "base-F16.answers.jsonl")


def examples_in_the_prompt(root: Path) -> None:
    """The untuned base was asked again with three training chats before each question."""
    task = field(root / "reports/eval/Q4_K_M.json", "task")
    shown = task | {"examples": 3, "score": 0.41, "score_low": 0.3, "score_high": 0.52}
    change(root / "reports/eval/base-F16.json", task_with_examples=shown)


def field(file: Path, name: str) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))[name]


def few_marks(*models: str, few: int) -> Change:
    """As by a judge whose marks can be read for the first few answers only."""

    def apply(root: Path) -> None:
        for model in models:
            file = root / f"reports/eval/{model}.json"
            task = field(file, "task")
            task["scores"]["json_fields"]["measured"] = few
            change(file, task=task)
            rows = list(read_rows(answers := file.with_suffix(".answers.jsonl")))
            for row in rows[few:]:
                row["score"] = None
            write_rows(answers, rows)

    return apply


def no_score(root: Path) -> None:
    file = root / "reports/eval/Q5_K_M.json"
    change(file, task=field(file, "task") | dict.fromkeys(("score", "score_low", "score_high")))


def forgot(questions: int) -> Change:
    """Q4_K_M answers that many of the questions wrong that the base answers right."""

    def apply(root: Path) -> None:
        base, file = (root / f"reports/eval/{model}.json" for model in ("base-F16", "Q4_K_M"))
        right = field(base, "general")["right"]
        lost = [number for number, one in enumerate(right) if one][:questions]
        now = [0 if number in lost else one for number, one in enumerate(right)]
        change(file, general=field(file, "general") | {"right": now})

    return apply


def little_known_of_the_merge(root: Path) -> None:
    """As PEFT's own merge leaves it."""
    file = root / "reports/merge.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    put(file, {key: value for key, value in found.items() if key not in ("adapters", "candidates")})


def another_template(root: Path) -> None:
    (root / "models/adapter/chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")


def spoilt_speed(root: Path) -> None:
    file = root / "reports/eval/Q4_K_M.json"
    change(file, speed=field(file, "speed") | {"other_load": 0.41, "disturbed": True})


TIED = {"kept": "output.weight", "kept_type": "Q8_0", "dropped": "token_embd.weight", "dropped_type": "Q5_0"}
TRAIN, ARC = "reports/train.json", {"acc": 0.4312, "acc_stderr": 0.021, "n": 60}
PART = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "sees_images": True}
CHANGES: dict[str, Change] = {
    "little recorded": little_recorded,
    "nothing recorded": nothing_recorded,
    "failed rule": failed_rule,
    "gaps in the record": report(TRAIN, run={"git": None, "hardware": {"gpus": None, "cpu": None}}),
    "hardly a record": report(TRAIN, run={"os": "Linux"}),
    "many samples": many_samples,
    "tied head": report("models/base.json", tied=TIED | {"farthest_row": 0.0608}),
    "dated template": report("models/base.json", template_date="2024-07-26"),
    "text part of a wrapper": report("models/base.json", text_part_of=PART, prompt_ended_in="<think>\n"),
    "new tokens": report("models/base.json", new_tokens={"<tool>": 8022, "</tool>": 8023}),
    "parity failed": lambda root: put(root / "reports/parity.json", failed_report()),
    "no better": no_better,
    "examples in the prompt": examples_in_the_prompt,
    "few marks": few_marks("Q4_K_M", few=3),
    "no score": no_score,
    "no scorer": evaluations(task=None, kv_cache_bytes=None),
    "forgot 5": forgot(5),
    "forgot 20": forgot(20),
    "PEFT's merge": little_known_of_the_merge,
    "another template": another_template,
    "refused": report("reports/eval/Q4_K_M.json", kld_mean=0.93),
    "harness": report("reports/eval/F16.json", harness={"arc_local": ARC}),
    "spoilt speed": spoilt_speed,
    "base on the hub": report("models/base.json", source="hub", model="Qwen/Qwen2.5-7B-Instruct"),
    "no usage": lambda root: shutil.rmtree(root / ".quench/usage"),
    "nothing fits": lambda root: None,
    "a price": lambda root: None,
    "limits of speed": lambda root: None,
}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what the report says of the project as it is."""
    root = report_inputs.write_inputs(tmp_path_factory.mktemp("usual"))
    return said(demo_params(), root)


@pytest.mark.parametrize("case", CHANGES)
def test_what_is_said_otherwise(case: str, usual: str, tmp_path: Path, snapshot: Any) -> None:
    CHANGES[case](report_inputs.write_inputs(tmp_path))
    params = demo_params()
    if case == "nothing fits":
        params.report.__dict__["memory_gb"] = 0.01
    if case == "limits of speed":  # Between the runs of one level, below those of another; all read in time.
        params.report.gate.__dict__.update(min_generation_tok_s=98.0, max_first_token_seconds=60.0)
    if case == "a price":
        params.machine.__dict__["price_per_hour"] = 90.0
    found = said(params, tmp_path)
    assert "None" not in found.replace("None: every", "")
    assert changed_lines(usual, found) == snapshot(extension_class=Golden)
