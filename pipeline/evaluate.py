"""Measure one GGUF: size, speed, perplexity, divergence from F16, and how well it does the task.

Reads `models/gguf/NAME-MODEL.gguf`, `models/gguf/NAME-F16.gguf`, `data/final/test.jsonl`, the adapter's tokenizer.
Writes `reports/eval/MODEL.json` and `reports/eval/MODEL.answers.jsonl`.
Command: `python -m pipeline evaluate@Q4_K_M`
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.chat import IGNORED, chat_request, chats, encodable, load_tokenizer
from pipeline.errors import ConfigError, DataError
from pipeline.hashing import file_hash
from pipeline.jsonl import read_rows, write_rows
from pipeline.llamacpp.gguf_file import describe, kv_cache_bytes
from pipeline.llamacpp.logits import divergence, log_softmax, open_gguf, perplexity
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.tools import Toolchain, bench, find_toolchain
from pipeline.params import Evaluate, Params
from pipeline.progress import progress
from pipeline.publish import write_json
from pipeline.scoring import SCORERS, interval

BENCH = {"prompt_tokens": 256, "generated_tokens": 64, "repetitions": 3}


def evaluate(
    *, model: Path, reference: Path, tokenizer: Path, rows: Path, settings: Evaluate, tools: Toolchain
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure `model`, with divergences from `reference` (F16); gives (figures, answers).

    Raises `DataError` where no held-out row can be measured, `ToolError` where a tool fails.
    """
    held_out = list(islice(chats(read_rows(rows)), max(settings.perplexity_rows, settings.task_rows)))
    figures = {"file": model.name, "sha256": file_hash(model), "llama_cpp": tools.version} | describe(model)
    figures |= {"ctx_size": settings.ctx_size, "kv_cache_bytes": kv_cache_bytes(model, settings.ctx_size)}
    figures |= compare(model, reference, encoded_rows(tokenizer, held_out[: settings.perplexity_rows], settings.ctx_size), settings, tools)
    figures |= speed(model, settings, tools)
    task, answers = None, []
    if settings.scorer != "none":
        answers = answer_rows(model, answerable(held_out)[: settings.task_rows], settings, tools)
        task = score_answers(answers, settings.scorer, settings.seed)
    return figures | {"task": task}, answers


def encoded_rows(tokenizer: Path, rows: list[dict[str, Any]], ctx_size: int) -> list[tuple[list[int], list[int]]]:
    """(ids, positions whose next token is trained) of each row that the template can render and the context holds."""
    kept = [
        (encoded.ids, [i - 1 for i, label in enumerate(encoded.labels) if label != IGNORED])
        for encoded in encodable(load_tokenizer(tokenizer), rows, ctx_size)
    ]
    if not kept:
        raise DataError(f"no held-out chat can be measured ({len(rows)} read): raise curate.test_fraction or evaluate.ctx_size")
    return kept


def compare(model: Path, reference: Path, rows: list[tuple[list[int], list[int]]], settings: Evaluate, tools: Toolchain) -> dict[str, Any]:
    """Perplexity on the assistant's tokens and, at the same positions, KL divergence and same top token against `reference`.

    Both models are in memory and go row by row, so nothing of vocabulary × tokens is ever stored.
    """
    losses, klds, same = [], [], []
    load = {"ctx_size": settings.ctx_size, "threads": settings.threads, "n_gpu_layers": settings.n_gpu_layers}
    bar = progress(f"evaluate: {model.name}, perplexity and divergence", len(rows))
    with bar as advance, open_gguf(tools, model, **load) as ours, open_gguf(tools, reference, **load) as theirs:
        for ids, positions in rows:
            candidate = log_softmax(ours.logits(ids, positions))  # (T, V)
            expected = log_softmax(theirs.logits(ids, positions))
            losses.append(-candidate[np.arange(len(positions)), [ids[i + 1] for i in positions]])
            klds.append(divergence(expected, candidate))
            same.append(candidate.argmax(axis=-1) == expected.argmax(axis=-1))
            advance(1)
    value, error = perplexity(np.concatenate(losses))
    kld = np.concatenate(klds)
    return {
        "perplexity": round(value, 4), "perplexity_error": round(error, 4), "perplexity_rows": len(rows), "perplexity_tokens": len(kld),
        "kld_mean": float(kld.mean()), "kld_p999": float(np.percentile(kld, 99.9)), "kld_max": float(kld.max()),
        "same_top": round(float(np.concatenate(same).mean()), 4),
    }  # fmt: skip


def speed(model: Path, settings: Evaluate, tools: Toolchain) -> dict[str, float]:
    """Prompt and generation speed by llama-bench, in tokens per second, with standard deviations."""
    measured = bench(tools, model, threads=settings.threads, n_gpu_layers=settings.n_gpu_layers, **BENCH)
    return {
        "prompt_tok_s": measured["prompt"], "prompt_tok_s_spread": measured["prompt_spread"],
        "generation_tok_s": measured["generation"], "generation_tok_s_spread": measured["generation_spread"],
    }  # fmt: skip


def answerable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chats whose last turn is an answer in words: a call of a tool is not scored. Raises `DataError` where there is none."""
    found = [row for row in rows if row["messages"][-1]["role"] == "assistant" and not row["messages"][-1].get("tool_calls")]
    if not found:
        raise DataError(f"no held-out chat ends in an answer that can be scored ({len(rows)} read): set evaluate.scorer to none, or mend the chats")
    return found


def answer_rows(model: Path, rows: list[dict[str, Any]], settings: Evaluate, tools: Toolchain) -> list[dict[str, Any]]:
    """Each row's last assistant turn as `llama-server` answers it, greedily, `settings.parallel` rows at a time."""
    up = serving(tools, model, ctx_size=settings.ctx_size, parallel=settings.parallel, threads=settings.threads, n_gpu_layers=settings.n_gpu_layers)
    answers = []
    bar = progress(f"evaluate: {model.name}, answers", len(rows))
    with up as server, ThreadPoolExecutor(settings.parallel) as pool, bar as advance:
        for answer in pool.map(lambda row: answer_row(server, row, settings), rows):
            answers.append(answer)
            advance(1)
    return answers


def answer_row(server: Server, row: dict[str, Any], settings: Evaluate) -> dict[str, Any]:
    """Ask for the last turn of one row through the OpenAI protocol; `stopped`: the model ended the answer by itself."""
    *asked, last = row["messages"]
    limits = {"temperature": 0, "seed": settings.seed, "max_tokens": settings.max_new_tokens}
    reply = server.post("/v1/chat/completions", chat_request(asked, row.get("tools")) | limits)
    choice = reply["choices"][0]
    return {
        "id": row["id"], "prompt": asked[-1]["content"], "reference": last["content"],
        "answer": choice["message"].get("content") or "", "stopped": choice["finish_reason"] != "length",
    }  # fmt: skip


def score_answers(answers: list[dict[str, Any]], scorer: str, seed: int) -> dict[str, Any]:
    """Score every answer in place (key `score`) and sum up: mean with its 95 % interval, share perfect, valid, stopped.

    Raises `DataError` where a reference can't be scored by this scorer.
    """
    scores = []
    for answer in answers:
        try:
            scores.append(SCORERS[scorer](answer["reference"], answer["answer"]))
        except ValueError as error:
            raise DataError(f"test row {answer['id']} can't be scored by {scorer} ({error}): set evaluate.scorer to exact_match or none") from error
        answer["score"] = round(scores[-1].points, 4)
    points = [score.points for score in scores]
    low, high = interval(points, seed)
    return {
        "scorer": scorer, "rows": len(points), "score": round(sum(points) / len(points), 4), "score_low": round(low, 4), "score_high": round(high, 4),
        "perfect": round(sum(p == 1.0 for p in points) / len(points), 4), "valid": round(sum(s.valid for s in scores) / len(points), 4),
        "stopped": round(sum(a["stopped"] for a in answers) / len(points), 4),
    }  # fmt: skip


def main(params: Params, root: Path, model: str) -> None:
    """Run the stage for one model (`F16`, `base-F16` or a level) on the files below `root`."""
    if model not in params.evaluate.models:
        raise ConfigError(f"{model} is not in evaluate.models ({', '.join(params.evaluate.models)}): add it there, spelt the same")
    folder, name = root / "models/gguf", params.convert.name
    figures, answers = evaluate(
        model=folder / f"{name}-{model}.gguf",
        reference=folder / f"{name}-F16.gguf",
        tokenizer=root / "models/adapter",
        rows=root / "data/final/test.jsonl",
        settings=params.evaluate,
        tools=find_toolchain(params.llamacpp.home),
    )
    write_rows(root / f"reports/eval/{model}.answers.jsonl", answers)
    write_json(root / f"reports/eval/{model}.json", {"model": model} | figures)
    task = f", task score {figures['task']['score']:.1%}" if figures["task"] else ""
    print(f"evaluate: {model}: {figures['bytes'] / 1e6:.0f} MB, perplexity {figures['perplexity']:.3f}, mean KLD {figures['kld_mean']:.4f}{task}")
