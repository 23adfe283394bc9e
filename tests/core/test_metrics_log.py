"""pipeline.core.metrics_log: rows outlive a kill, and a torn line costs no other."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import DataError
from pipeline.core.metrics_log import MetricsLog

WRITER = """
import sys
from pathlib import Path
from pipeline.core.metrics_log import MetricsLog
metrics_log = MetricsLog(Path(sys.argv[1]))
for step in range(1, 100_000):
    metrics_log.append({"kind": "step", "step": step, "loss": 1 / step})
    print(step, flush=True)
"""


def test_what_was_appended_is_there_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "steps.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout
    output = [int(writer.stdout.readline()) for _ in range(20)][-1]
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    steps = [row["step"] for row in MetricsLog(path).rows()]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= output


numbers = st.floats() | st.integers(-(2**53), 2**53)
logs = st.lists(st.dictionaries(st.sampled_from(["loss", "grad_norm", "seconds"]), numbers), max_size=8)


SAMPLES = {"samples": [{"answer": "NaN\x00\x07\x1b[2J\u2028\ufeff\n"}]}


@settings(deadline=None)
@given(found=logs, cut=st.integers(0, 200))
def test_a_torn_last_line_is_dropped_and_the_next_row_is_whole(
    tmp_path_factory: pytest.TempPathFactory, found: list[dict], cut: int
) -> None:
    path = tmp_path_factory.mktemp("metrics_log") / "steps.jsonl"
    metrics_log = MetricsLog(path)
    for step, row in enumerate(found, start=1):
        metrics_log.append(row | {"step": step} | SAMPLES)
    whole = metrics_log.rows()
    expected = [row | SAMPLES for row in found]
    assert repr([{key: row[key] for key in row if key != "step"} for row in whole]) == repr(
        expected
    )  # with NaN
    content = path.read_bytes() if found else b""
    # strict JSON: no bare NaN
    assert all(json.loads(line, parse_constant=pytest.fail) for line in content.split(b"\n")[:-1])
    metrics_log.close()
    path.write_bytes(content[: max(0, len(content) - cut)])
    left = content[: max(0, len(content) - cut)].count(b"\n")
    assert repr(MetricsLog(path).rows()) == repr(whole[:left])
    again = MetricsLog(path)
    again.append({"step": left + 1})
    assert repr(again.rows()) == repr([*whole[:left], {"step": left + 1}])


def test_truncate_keeps_the_steps_up_to_the_checkpoint_and_goes_on(tmp_path: Path) -> None:
    metrics_log = MetricsLog(tmp_path / "steps.jsonl")
    rows = [("step", 1), ("step", 2), ("eval", 2), ("step", 3)]
    for kind, step in rows:
        metrics_log.append({"kind": kind, "step": step})
    metrics_log.truncate(after_step=2)
    metrics_log.append({"kind": "step", "step": 3, "again": True})
    assert [(row["kind"], row["step"]) for row in metrics_log.rows()] == rows
    assert metrics_log.rows()[-1]["again"]
    MetricsLog(tmp_path / "none.jsonl").truncate(0)
    assert MetricsLog(tmp_path / "none.jsonl").rows() == []


@pytest.mark.parametrize("damage", [b"\0\0\0\n", b'{"step": 1\n', b"[1]\n", b'{"step": NaN}\n'])
def test_a_damaged_whole_line_is_not_passed_over(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damage + b'{"step": 3}\n')
    with pytest.raises(DataError, match=r"Q-CORE-007: line 2 of .*steps\.jsonl "):
        MetricsLog(path).rows()
