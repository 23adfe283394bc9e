"""Measure one GGUF: size, divergence from its reference, speed, serving, task quality, and general ability.

Reads `models/gguf/NAME-MODEL.gguf` and its reference (the 16-bit model; the base's for `base-LEVEL`),
`data/final/test.jsonl`, the adapter's tokenizer, and the files that `evaluate` names below
`data/evaluation/`; for the untuned base also `data/final/train.jsonl`. If base.quantization is gguf, the
models are the base's own file in `models/base/`, that file with `models/gguf/NAME-lora.gguf` or
`models/gguf/NAME-tuned.gguf`, and the file it was made from. Writes `reports/eval/MODEL.json` and
`reports/eval/MODEL.answers.jsonl`. If only the scorers changed since the last run, its answers are scored
again.
Command: `python -m pipeline evaluate@Q4_K_M`
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.chat.examples import example_rows, with_examples
from pipeline.chat.rows import Row
from pipeline.chat.selection import answerable_rows, encoded_rows, why_unanswered
from pipeline.chat.tokens import load_tokenizer, trained_positions
from pipeline.chat.trial import why_no_chats
from pipeline.config.levels import ModelName
from pipeline.config.methods import METHODS
from pipeline.config.params import Params
from pipeline.config.products import ModelFiles
from pipeline.config.sections import BASE, ORIGINAL, Evaluate
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.extras import provider
from pipeline.core.hashing import file_hash
from pipeline.core.jsonl import write_rows
from pipeline.core.publish import write_json
from pipeline.gguf.file import describe, kv_cache_bytes
from pipeline.llamacpp.logits import open_gguf
from pipeline.llamacpp.server import Server
from pipeline.llamacpp.tools import find_llama
from pipeline.metrics.answer_speed import is_disturbed, measure_again
from pipeline.metrics.asking import answers_of, evaluated_server
from pipeline.metrics.divergence import Prompt
from pipeline.metrics.general import ROWS, general_ability
from pipeline.metrics.general_questions import load_questions
from pipeline.stages.evaluate.divergence import divergence_of
from pipeline.stages.evaluate.kept import Measured, identity, keep, recall
from pipeline.stages.evaluate.speed import ROOM, serving_figures, speed


def evaluate(
    params: Params,
    root: Path,
    files: ModelFiles,
    reference: Path,
    sha256: Mapping[Path, str],
    *,
    untuned: bool,
) -> Measured:
    """Measure a model on held-out rows below `root`, with divergences from the GGUF `reference`. `sha256` has
    the hashes of the model's files.

    An adapter is on the model everywhere; `bytes` counts both files. The model is
    loaded once in process and once in a server that answers everything, in addition to the server that is
    measured. Without a merge, divergence is also given row by row. The `untuned` base is asked once more with
    examples in the prompt, for `task_with_examples`. If the held-out rows are texts, no question is asked,
    and `not_measured` says so. `seconds` among the figures is the time of each part.
    Raises `DataError` if no held-out row can be measured or a question file can't be used, `ToolError` if a
    tool fails.
    """
    llama = find_llama(params.machine)
    settings = params.evaluating
    rows = root / "data/final/test.jsonl"
    tools = llama.tools
    seconds = dict[str, float]()
    model, lora = files
    figures = {"file": model.name, "sha256": sha256[model], "llama_cpp": tools.version} | describe(model)
    if lora:
        figures["lora"] = {"file": lora.name, "sha256": sha256[lora], "bytes": lora.stat().st_size}
        figures["bytes"] += figures["lora"]["bytes"]
    figures["seconds"] = seconds
    figures |= {"ctx_size": settings.ctx_size, "kv_cache_bytes": kv_cache_bytes(model, settings.ctx_size)}
    loaded = load_tokenizer(root / "models/adapter")
    not_measured = why_not_measured(loaded, rows, settings)
    if not_measured:
        figures["not_measured"] = not_measured
    task_is_measured = bool(settings.scorers) and "task" not in not_measured
    with open_gguf(llama, files, ctx_size=settings.ctx_size, rows=ROWS) as opened:
        with timed(seconds, "divergence"):
            measured = divergence_rows(loaded, rows, settings)
            longest = max(len(row.ids) for row in measured)
            with open_gguf(llama, ModelFiles(reference), ctx_size=longest) as opened_reference:
                figures |= divergence_of(
                    opened,
                    opened_reference,
                    measured,
                    f"evaluate: {(lora or model).name}, divergence from {reference.name}",
                    itself=model == reference and lora is None,
                    by_row=params.graph != "merged",
                )
        with timed(seconds, "general"):
            questions = load_questions(settings.general, root)
            general_is_measured = bool(questions) and "general" not in not_measured
            figures["general"] = general_ability(opened, loaded, questions) if general_is_measured else None
    with timed(seconds, "serving"):
        figures["serving"] = serving_figures(model, params.serving, tools, lora)
    asked = answerable_rows(rows, settings.task_rows, settings.scorers) if task_is_measured else []
    examples = examples_for(loaded, root, settings) if untuned and asked else []
    # The examples together are at most as long as a row.
    room = max(ROOM, 2 * settings.ctx_size + settings.max_new_tokens) if examples else ROOM
    result = Measured(figures)
    with evaluated_server(model, settings, tools, lora, room) as server:
        with timed(seconds, "speed"):
            figures |= speed(server)
        with timed(seconds, "task"):
            label = (lora or model).name
            result.answers = answers_of(server, asked, settings, label)
            if examples:
                shown = [with_examples(row, examples) for row in asked]
                label = f"{label}, {len(examples)} examples in the prompt"
                result.answers_with_examples = answers_of(server, shown, settings, label)
                result.examples = len(examples)
            result.score(settings, root)
        with timed(seconds, "harness"):
            figures["harness"] = None if "harness" in not_measured else harness(server, root, settings)
    return result


def why_not_measured(tokenizer: Any, rows: Path, settings: Evaluate) -> dict[str, str]:
    """Return why task, general ability or harness can't be measured although they are configured. Empty if
    there are held-out chats.

    Texts contain no question, and a base without a usable chat template can't answer one.
    """
    unanswered = why_unanswered(rows)
    if unanswered is None:
        return {}
    reasons = {"task": unanswered} if settings.scorers else {}
    no_chats = why_no_chats(tokenizer, "the base")
    if no_chats is None:
        return reasons
    if settings.general != "none":
        reasons["general"] = no_chats
    if settings.harness:
        reasons["harness"] = no_chats
    return reasons


@contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Record the seconds that the body takes."""
    begin = time.perf_counter()
    yield
    seconds[part] = round(time.perf_counter() - begin, 2)


def divergence_rows(tokenizer: Any, rows: Path, settings: Evaluate) -> list[Prompt]:
    """Return the drawn rows as ids, with the positions that training teaches.

    Raises `DataError` if there are none.
    """
    encoded = encoded_rows(tokenizer, rows, settings.perplexity_rows, settings.ctx_size)
    if not encoded:
        raise DataError(
            "Q-EVALUATE-011",
            f"no held-out chat or text of {rows} can be measured: raise curate.test_fraction",
        )
    return [Prompt(row.ids, trained_positions(row)) for row in encoded]


def examples_for(tokenizer: Any, root: Path, settings: Evaluate) -> list[Row]:
    """Return the training chats that the untuned base is shown before each question; empty if none is wanted
    or short enough.
    """
    if not settings.base_examples:
        return []
    train = root / "data/final/train.jsonl"
    return example_rows(tokenizer, train, settings.base_examples, settings.ctx_size)


def harness(server: Server, root: Path, settings: Evaluate) -> dict[str, Any] | None:
    """Return lm-evaluation-harness's results for the tasks of `evaluate.harness`; None if there are none."""
    if not settings.harness:
        return None
    figures: dict[str, Any] = provider("evaluate.harness").run_harness(
        server, settings.harness, root / "data/evaluation/harness"
    )
    return figures


def main(params: Params, root: Path, model: str) -> None:
    """Run the stage for one model on the files below `root`.

    `model` is `F16` (`BF16` if that is convert.type), `base-F16`, a level or `base-LEVEL`. If
    base.quantization is gguf, it is `base`, `adapter` or `tuned`, or `source`. Raises `ConfigError` if
    `evaluate.models` does not list it.
    """
    if model not in params.evaluate.models:
        raise ConfigError(
            "Q-EVALUATE-012",
            f"{model} is not in evaluate.models ({', '.join(params.evaluate.models)}): add it there, spelled "
            "the same",
        )
    reference = compared_with(params, model)
    files = params.files(root, model)
    compared = params.files(root, reference)
    settings = params.evaluating
    # Gigabytes are read once: a model may be its own reference.
    models = dict.fromkeys(filter(None, (*files, compared.gguf)))
    sha256 = {file: file_hash(file) for file in models}
    made_of = identity(params, root, list(sha256.values()), find_llama(params.machine).tools)
    measured = recall(root, model, made_of, settings)
    if measured:
        print(
            f"evaluate: {model}: only the scorers changed: its {len(measured.answers)} answers are scored "
            "again"
        )
        measured.score(settings, root)
    else:
        untuned = model == BASE or ModelName(model).untuned
        measured = evaluate(params, root, files, compared.gguf, sha256, untuned=untuned)
    keep(root, model, made_of, settings, measured)
    figures = measured.figures
    answers_path = root / f"reports/eval/{model}.answers.jsonl"
    write_rows(answers_path, measured.answers)
    hashes = {
        "answers_sha256": file_hash(answers_path),
        "rows_sha256": file_hash(root / "data/final/test.jsonl"),
    }
    write_json(
        root / f"reports/eval/{model}.json", {"model": model, "reference": reference} | hashes | figures
    )
    for what, why in figures.get("not_measured", {}).items():
        print(f"evaluate: {model}: {what} was not measured: {why}")
    for scorer, references in ((figures["task"] or {}).get("unscored") or {}).items():
        print(f"evaluate: {model}: {scorer} did not measure {references}")
    scored = (figures["task"] or {}).get("score")
    score = "" if scored is None else f", task score {scored:.1%}"
    print(
        f"evaluate: {model}: {figures['bytes'] / 1e6:.0f} MB, perplexity {figures['perplexity']:.3f}, mean "
        f"KLD {figures['kld_mean']:.4f}{score}"
    )
    shown = figures.get("task_with_examples") or {}
    if shown.get("score") is not None:
        print(
            f"evaluate: {model}: task score {shown['score']:.1%} with {shown['examples']} training chats in "
            "the prompt"
        )
    if is_disturbed(figures):
        print(
            f"evaluate: {model}: the speeds are disturbed, something else took "
            f"{figures['speed']['other_load']:.0%} of the CPU time: once it has ended, run "
            f"`{measure_again([model])}`"
        )


def compared_with(params: Params, model: str) -> str:
    """Return the model from which the divergence of `model` is measured.

    Without a merge, the adapter or the trained scales are compared with the base (how far tuning moved it).
    If they are meant to recover the file that the base was made from, they are compared with that file. The
    base is compared with that file, or with itself if there is none.
    """
    if params.graph == "merged":
        return ModelName(model).reference(params.convert.type)
    moved = model == params.product.served and not METHODS[params.train.method].teacher
    return BASE if moved or params.base.level is None else ORIGINAL
