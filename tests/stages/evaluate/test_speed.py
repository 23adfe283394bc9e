"""speed: the server's own runs as median, lowest and highest, and how busy others kept the machine."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from qwen2_variants import cut_models
from tiny import tiny_params

from pipeline.config.sections import Evaluate
from pipeline.llamacpp.tools import Toolchain
from pipeline.metrics.answer_speed import cpu_time, other_load
from pipeline.metrics.asking import evaluated_server
from pipeline.stages.evaluate.speed import speed


def test_every_length_and_depth_is_measured(tools: Toolchain) -> None:
    # a context that is too short for the deepest, which gets its room
    settings = Evaluate(**tiny_params(Path("base"))["evaluate"] | {"ctx_size": 64})
    with evaluated_server(cut_models(tools) / "tiny-F16.gguf", settings, tools, room=545) as up:
        found = speed(up)
    prompt, generation = found["speed"]["prompt"], found["speed"]["generation"]
    assert [one["tokens"] for one in prompt] == [128, 512]
    assert [(one["depth"], one["tokens"]) for one in generation] == [(0, 32), (512, 32)]
    assert all(
        0 < one["low"] <= one["median"] <= one["high"] and one["runs"] == 2 for one in prompt + generation
    )
    assert found["prompt_tok_s"] == prompt[1]["median"]
    assert found["prompt_tok_s_spread"] == pytest.approx(
        (prompt[1]["high"] - prompt[1]["low"]) / 2, abs=0.011
    )
    assert found["generation_tok_s"] == generation[0]["median"]
    assert 0 <= found["speed"]["other_load"] <= 1


def test_the_median_is_not_moved_by_one_slow_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.stages.evaluate.speed.RUNS", 3)
    read = itertools.chain([50.0], itertools.cycle([100.0, 10.0, 102.0]))  # the first is thrown away

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/tokenize":
            return {"tokens": [1] * 600}
        return {"timings": {"prompt_per_second": next(read), "predicted_per_second": 9.0}}

    properties = SimpleNamespace(json=lambda: {"default_generation_settings": {"n_ctx": 545}})
    server: Any = SimpleNamespace(post=post, client=SimpleNamespace(get=lambda path: properties))
    found = speed(server)
    runs = {"median": 100.0, "low": 10.0, "high": 102.0, "runs": 3}
    assert found["speed"]["prompt"] == [{"tokens": 128, **runs}, {"tokens": 512, **runs}]
    assert (found["prompt_tok_s"], found["prompt_tok_s_spread"]) == (100.0, 46.0)


@contextmanager
def busy_strangers(number: int) -> Iterator[None]:
    """So many processes that use a core each and are no children of this one."""
    spin = "import os, time\nend = time.time() + 60\nprint(os.getpid(), flush=True)\n"
    spin += "while time.time() < end: pass"
    start = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {spin!r}])"
    started = []
    for _ in range(number):
        with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout
            started.append(int(parent.stdout.readline()))
    try:
        yield
    finally:
        for one in started:
            os.kill(one, 9)


def test_a_busy_process_beside_is_seen_and_a_child_is_not(
    tools: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that is measured is a child of this process, and so no other load."""
    monkeypatch.setattr("pipeline.stages.evaluate.speed.RUNS", 20)
    settings = Evaluate(**tiny_params(Path("base"))["evaluate"])
    cores = os.cpu_count() or 1
    with (
        busy_strangers(cores),
        evaluated_server(cut_models(tools) / "tiny-F16.gguf", settings, tools, room=545) as up,
    ):
        found = speed(up)
    assert found["speed"]["disturbed"]
    assert found["prompt_tok_s"] > 0  # the raw figure stays
    before = cpu_time()
    spin = "import time; end = time.process_time() + 1\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)
    after = cpu_time()
    assert after.own - before.own >= 0.9
    assert other_load(before, after).share <= 1 - 0.9 / max(after.total - before.total, 0.9)
