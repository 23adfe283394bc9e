"""Run lm-evaluation-harness on one served model: the process behind `pipeline.extras.harness.run`.

    python -P pipeline/extras/harness/process.py < request.json

The request is {"url", "authorization", "slots", "tasks", "folder"}. Standard output gets one JSON object:
{"results": {task: {metric: value}}}, or a sentence: {"refused": …} if the tasks can't be run, {"failed": …}
if they stopped in the middle. Everything else that is printed, also by the tasks' own Python, goes to
standard error. The harness's own `local-chat-completions` queries the model.
"""

import json
import logging
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.evaluator import evaluate  # type: ignore[import-untyped]
from lm_eval.models.openai_completions import LocalChatCompletion  # type: ignore[import-untyped]
from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]
from lm_eval.tasks._yaml_loader import load_yaml  # type: ignore[import-untyped]

SEED = 1234  # The harness's own seed, which draws the examples of few-shot tasks.
RESAMPLES = 1000  # bootstrap samples for standard errors of metrics without a formula
KNOWN = {"until", "max_gen_toks", "temperature", "do_sample"}  # supported keys of generation_kwargs
REPLY = "Response text: "  # start of the server's reply in the harness's message on a failed request
MOST_STOPS = 4  # limit of the harness's client, which ignores further ones


class Refused(Exception):
    """Error for tasks that can't be run; the text is one sentence for the user."""


class Failed(Exception):
    """Error for a task that stopped in the middle; the text is one sentence."""


@contextmanager
def complaints(level: int) -> Iterator[list[str]]:
    """Yield the list of messages that the harness logs during the body."""
    heard: list[str] = []
    listener = logging.Handler(level)
    listener.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lm_eval")
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)


def load(manager: TaskManager, names: list[str], folder: Path) -> dict[str, Any]:
    """Return the harness's tasks and groups with these names. Raises `Refused`."""
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        for path in sorted(folder.glob("**/*.yaml")):  # the harness skips files that it can't read
            try:
                load_yaml(path, resolve_func=False)
            except Exception as error:
                raise Refused(f"{path} can't be read ({_first_line(error)}): correct it") from error
        available = ", ".join(manager.all_tasks) or "none"
        raise Refused(
            f"evaluate.harness names {', '.join(unknown)}, but the tasks below {folder} are {available}: set "
            "it to those that are wanted"
        )
    with complaints(logging.ERROR) as heard:
        try:
            loaded: dict[str, Any] = manager.load(names)
        except Exception as error:  # the user's files may be wrong in any way
            reason = heard[-1] if heard else _of(error)
            raise Refused(
                f"lm-evaluation-harness can't load {', '.join(names)} ({reason}): correct the task below "
                f"{folder}; it must name local data (dataset_path: json with data_files), nothing is fetched"
            ) from error
    for name, task in loaded["tasks"].items():
        _check(name, task)
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=SEED)
    return loaded


def _check(name: str, task: Any) -> None:
    """Raise `Refused` for a task that a chat endpoint or the harness's client can't run, that wouldn't be
    greedy, or whose metrics would have to be fetched.
    """
    kind = task.OUTPUT_TYPE
    if kind != "generate_until":
        raise Refused(
            f"the harness's task {name} has output_type {kind}, which needs log probabilities of given "
            "text, and llama-server gives none: "
            "make it generate_until, or ask such questions with evaluate.general"
        )
    wishes = task.config.generation_kwargs or {}
    if wishes.get("do_sample") or wishes.get("temperature"):
        raise Refused(
            f"the harness's task {name} samples its answers, Quench asks greedily: take do_sample and "
            "temperature out of its generation_kwargs"
        )
    unknown = sorted(set(wishes) - KNOWN)
    if unknown:
        raise Refused(
            f"the harness's task {name} has {', '.join(unknown)} in generation_kwargs, Quench knows "
            f"{', '.join(sorted(KNOWN))}: take it out"
        )
    until = wishes.get("until")
    if isinstance(until, list) and len(until) > MOST_STOPS:
        raise Refused(
            f"the harness's task {name} has {len(until)} texts in until, and its client sends {MOST_STOPS}: "
            "take out those that are not needed"
        )
    missing = [metric for metric, function in task._metric_fn_list.items() if function is None]
    if missing and not task.config.process_results:
        raise Refused(
            f"the harness's task {name} has the metric {', '.join(missing)}, which would have to be "
            "fetched: use one of the harness's own"
        )


def _of(error: Exception) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def run(*, url: str, authorization: str, slots: int, tasks: list[str], folder: str) -> dict[str, Any]:
    """Return the harness's results for the tasks of the request. Raises `Refused` or `Failed`."""
    place = Path(folder)
    loaded = load(TaskManager(include_path=place, include_defaults=False), tasks, place)
    random.seed(SEED)
    np.random.seed(SEED)
    model = LocalChatCompletion(
        base_url=f"{url}/v1/chat/completions",
        header={"Authorization": authorization},
        num_concurrent=max(2, slots),  # a single connection takes another code path, which uses proxies
        max_retries=1,  # failures are reported, not repeated
        timeout=600,
        seed=SEED,
    )
    with complaints(logging.WARNING) as heard:
        try:
            results = evaluate(
                lm=model,
                task_dict=loaded,
                apply_chat_template=True,
                fewshot_as_multiturn=True,
                bootstrap_iters=RESAMPLES,
                log_samples=False,
            )
        except Exception as error:
            raise Failed(next((line for line in heard if REPLY in line), _of(error))) from error
    return dict(results["results"])


def main() -> None:
    """Read the request, run it, print the result."""
    job = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)  # libraries print to standard error, not into the answer
        outcome: dict[str, Any]
        try:
            outcome = {"results": run(**job)}
        except Refused as why:
            outcome = {"refused": str(why)}
        except Failed as why:
            outcome = {"failed": str(why)}
        json.dump(outcome, answer, default=str)


if __name__ == "__main__":
    main()
