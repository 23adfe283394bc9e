"""Be lm-evaluation-harness for one served model: the process behind `pipeline.stages.evaluate.harness`.

    python -P pipeline/stages/evaluate/harness_process.py < request.json

The request is {"url", "authorization", "slots", "tasks", "folder"}. Standard output gets one JSON object a
line: {"total": answers that will be asked for}, {"done": 1} after each, at last {"results": {task: {metric:
value}}}, or {"refused": a sentence} where the tasks can't be run. Everything else that is printed, by the
tasks' own Python too, goes to standard error.

The harness's `local-chat-completions` isn't used: it takes an answer that it can't read for an empty one,
drops stop words after the fourth, tries again whatever failed, and wants the key in the environment.
"""

import json
import logging
import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from lm_eval.api.model import LM  # type: ignore[import-untyped]
from lm_eval.evaluator import evaluate  # type: ignore[import-untyped]
from lm_eval.tasks import TaskManager  # type: ignore[import-untyped]
from lm_eval.tasks._yaml_loader import load_yaml  # type: ignore[import-untyped]

SEED = 1234  # the harness's own: it draws the examples of few-shot tasks
MAX_TOKENS = 256  # the harness's own, where a task names none
RESAMPLES = 1000  # for standard errors of metrics that have no formula
KNOWN = {"until", "max_gen_toks", "temperature", "do_sample"}  # of generation_kwargs
Say = Callable[[dict[str, Any]], None]


class Refused(Exception):
    """The tasks can't be run; the text is one sentence for the user."""


class Served(LM):  # type: ignore[misc]
    """A model behind an OpenAI-compatible chat endpoint, asked greedily, `slots` questions at a time."""

    def __init__(self, job: dict[str, Any], say: Say) -> None:
        super().__init__()
        self._slots, self._say = job["slots"], say
        self._client = httpx.Client(
            base_url=job["url"], headers={"Authorization": job["authorization"]}, timeout=600, trust_env=False
        )

    @property
    def tokenizer_name(self) -> str:
        """Part of the key of a cache that isn't used."""
        return ""

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The messages as JSON: the server renders them by the model's own template."""
        return json.dumps(chat_history, ensure_ascii=False)

    def generate_until(self, requests: list[Any]) -> list[str]:
        """One answer for each request."""
        self._say({"total": len(requests)})
        answers = []
        with ThreadPoolExecutor(self._slots) as pool:
            for answer in pool.map(self._answer, requests):
                answers.append(answer)
                self._say({"done": 1})
        return answers

    def _answer(self, request: Any) -> str:
        messages, wishes = request.args
        until = wishes.get("until") or []
        reply = self._client.post(
            "/v1/chat/completions",
            json={
                "messages": json.loads(messages),
                "temperature": 0,
                "seed": SEED,
                "max_tokens": wishes.get("max_gen_toks", MAX_TOKENS),
                "stop": [stop for stop in ([until] if isinstance(until, str) else until) if stop],
            },
        )
        if reply.status_code != 200:
            raise RuntimeError(f"llama-server answered {reply.status_code}: {reply.text[:300]}")
        return reply.json()["choices"][0]["message"].get("content") or ""

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Not possible: llama-server gives no log probabilities of a prompt (it refuses "echo")."""
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """Not possible, as above."""
        raise NotImplementedError


def load(manager: TaskManager, names: list[str], folder: Path) -> dict[str, Any]:
    """The harness's tasks and groups of these names. Raises `Refused`."""
    if unknown := [name for name in names if name not in manager.all_tasks]:
        for path in sorted(folder.glob("**/*.yaml")):  # the harness skips what it can't read
            try:
                load_yaml(path, resolve_func=False)
            except Exception as error:
                raise Refused(f"{path} can't be read ({_first_line(error)}): correct it") from error
        found = ", ".join(manager.all_tasks) or "none"
        raise Refused(
            f"evaluate.harness names {', '.join(unknown)}, but the tasks below {folder} are {found}: set it "
            "to those that are wanted"
        )
    complaints: list[str] = []
    listener = logging.Handler(logging.ERROR)
    listener.emit = lambda record: complaints.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lm_eval").addHandler(listener)
    try:
        loaded: dict[str, Any] = manager.load(names)
    except Exception as error:  # the files are the user's, and may be wrong in any way
        reason = complaints[-1] if complaints else f"{type(error).__name__}: {_first_line(error)}"
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
    """Raise `Refused` for what a chat endpoint can't do, what wouldn't be greedy, and metrics that would have
    to be fetched.
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
    if unknown := sorted(set(wishes) - KNOWN):
        raise Refused(
            f"the harness's task {name} has {', '.join(unknown)} in generation_kwargs, Quench knows "
            f"{', '.join(sorted(KNOWN))}: take it out"
        )
    missing = [metric for metric, function in task._metric_fn_list.items() if function is None]
    if missing and not task.config.process_results:
        raise Refused(
            f"the harness's task {name} has the metric {', '.join(missing)}, which would have to be "
            "fetched: use one of the harness's own"
        )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def run(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """The harness's results for the tasks of the request. Raises `Refused`."""
    folder = Path(job["folder"])
    loaded = load(TaskManager(include_path=folder, include_defaults=False), job["tasks"], folder)
    random.seed(SEED)
    np.random.seed(SEED)
    found = evaluate(
        lm=Served(job, say),
        task_dict=loaded,
        apply_chat_template=True,
        fewshot_as_multiturn=True,
        bootstrap_iters=RESAMPLES,
        log_samples=False,
    )
    return dict(found["results"])


def main() -> None:
    """Read the request, run it, say what came of it."""
    job = json.load(sys.stdin)
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anyone else prints is no message

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message, default=str), file=messages, flush=True)

    try:
        say({"results": run(job, say)})
    except Refused as why:
        say({"refused": str(why)})


if __name__ == "__main__":
    main()
