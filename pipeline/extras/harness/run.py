"""Tasks of lm-evaluation-harness through our `llama-server`, on the user's own task files, offline.

Reads `data/evaluation/harness/**/*.yaml` and the data files that these name. Part of
`python -m pipeline evaluate@Q4_K_M`; `evaluate.harness` names the tasks. Needs the extra "harness".

The harness runs in a process of its own (`process.py`) for three reasons. It prints, draws bars and
sets seeds without asking. A task's own Python (`!function`) may do anything. And huggingface_hub reads the
offline setting only when it is first imported, which in this process happened long ago.
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.core.child import bound
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.extra_packages import install_command
from pipeline.llamacpp.server import Server

PROCESS = Path(__file__).with_name("process.py")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


def run_harness(server: Server, tasks: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Return the metrics of each task: {task: {metric: number or None, "rows": questions}}.

    A group with aggregates is listed like a task. A metric has the harness's name, "exact_match" and
    "exact_match_stderr" for example; after a filter it is "exact_match,FILTER". `folder` contains the task
    files; the paths of their data are relative to it. Answers are greedy. Raises `ConfigError` if the harness
    isn't installed, doesn't know a task or can't run it here, `ToolError` if it fails.
    """
    if find_spec("lm_eval") is None:
        raise ConfigError(
            "Q-EVALUATE-007",
            f"evaluate.harness needs lm-evaluation-harness: `{install_command('harness')}`, or set it to []",
        )
    if not folder.is_dir():
        raise ConfigError(
            "Q-EVALUATE-008",
            f"evaluate.harness names {', '.join(tasks)}, but there is no folder {folder}: put the task "
            "files there, or set it to []",
        )
    request = {
        "url": server.url,
        "authorization": server.client.headers["Authorization"],
        "slots": _slots(server),
        "tasks": tasks,
        "folder": str(folder.resolve()),
    }
    answer = _run(json.dumps(request), folder)
    if "refused" in answer:
        raise ConfigError("Q-EVALUATE-009", answer["refused"])
    if "failed" in answer:
        raise ToolError("Q-EVALUATE-010", f"lm-evaluation-harness failed: {answer['failed']}")
    return {task: _figures(results) for task, results in answer["results"].items()}


def _run(request: str, folder: Path) -> dict[str, Any]:
    """Return the answer of the process. Raises `ToolError` if its exit status is not 0."""
    with tempfile.TemporaryDirectory(prefix="quench-harness-") as cache:  # cache that is deleted afterwards
        done = subprocess.run(
            bound([sys.executable, "-P", str(PROCESS)]),
            cwd=folder,
            env=os.environ | OFFLINE | {"HF_HOME": cache},
            # This includes the key, because command-line arguments are visible to other users.
            input=request,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    if done.returncode != 0:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        raise ToolError(
            "Q-EVALUATE-010",
            f"lm-evaluation-harness ended with exit status {done.returncode}: "
            f"{words[-1] if words else 'it said nothing'}",
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _slots(server: Server) -> int:
    """Return the number of requests that the server answers at a time."""
    reply = server.client.get("/props")
    if reply.status_code != 200:
        raise ToolError(
            "Q-LLAMACPP-013", f"llama-server answered {reply.status_code} to /props: {reply.text[:300]}"
        )
    return int(reply.json()["total_slots"])


def _figures(results: dict[str, Any]) -> dict[str, Any]:
    """Return the harness's {"exact_match,none": 0.5, …} without the ",none", and with None for "N/A"."""
    figures: dict[str, Any] = {}
    for key, value in results.items():
        metric, comma, selected = key.partition(",")
        if comma:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            figures[metric if selected == "none" else key] = round(float(value), 6) if number else None
    return figures | {"rows": results.get("sample_len")}
