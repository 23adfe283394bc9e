"""An external scorer: what it answers arrives in whatever order, and each way to fail is one sentence."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pipeline.core.errors import QuenchError
from pipeline.core.places import PROJECT
from pipeline.metrics.external import ExternalScorer

PROMPT = [{"role": "user", "content": "2 + 2?"}]
HEAD = """
import json, os, sys, time
def ask():
    return json.loads(sys.stdin.readline())
def say(id, rewards):
    print(json.dumps({"id": id, "rewards": rewards}))
"""
START = "say(ask()['id'], [])\n"


def program(tmp_path: Path, body: str) -> list[str]:
    """A scorer that runs `body` after it has answered the first line."""
    file = tmp_path / "scorer.py"
    file.write_text(HEAD + START + body)
    return [sys.executable, "-S", str(file)]


def failure(command: list[str], timeout: float = 20, start: float = 20, calls: int = 1) -> QuenchError:
    """Return the error of the first of `calls` requests that fails."""
    with pytest.raises(QuenchError) as error, ExternalScorer(command, timeout, start) as scorer:
        for number in range(calls):
            scorer.rewards(str(number), PROMPT, ["4", "5"])
    assert "\n" not in error.value.sentence
    return error.value


def test_the_example_scores_completions_against_the_answer() -> None:
    assert os.access(PROJECT / "examples/scorer.py", os.X_OK)
    with ExternalScorer(["examples/scorer.py"], 20, folder=PROJECT) as scorer:
        assert scorer.rewards("a", PROMPT, ["4", "It is 4", "5"], answer="4") == [1.0, 0.8, 0.0]
        assert scorer.rewards("b", PROMPT, [""]) == [0.0]
        pid = scorer.process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_the_program_gets_is_the_protocol(tmp_path: Path) -> None:
    got = str(tmp_path / "got")
    body = f"given = sys.stdin.readline(); open({got!r}, 'w').write(given); say('r', [1, -2.5])"
    with ExternalScorer(program(tmp_path, body), 20) as scorer:
        assert scorer.rewards("r", PROMPT, ["ä\n", ""], answer="4") == [1.0, -2.5]
    assert json.loads((tmp_path / "got").read_text()) == {
        "id": "r",
        "prompt": PROMPT,
        "completions": ["ä\n", ""],
        "answer": "4",
    }


def test_answers_out_of_order_reach_who_asked(tmp_path: Path) -> None:
    body = """
asked = [ask() for _ in range(6)]
for one in reversed(asked):
    say(one["id"], [float(one["completions"][0])])
"""
    with ExternalScorer(program(tmp_path, body), 20) as scorer, ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda n: scorer.rewards(f"r{n}", PROMPT, [str(n)]), range(6)))
    assert found == [[float(n)] for n in range(6)]


@pytest.mark.parametrize(
    ("body", "id"),
    [
        ("ask(); print('no JSON')", "Q-EXTERNAL-003"),
        ("ask(); print('[1, 2]')", "Q-EXTERNAL-003"),
        ("say(ask()['id'], [1])", "Q-EXTERNAL-003"),
        ("say(ask()['id'], 'two')", "Q-EXTERNAL-003"),
        ("say(ask()['id'], [1, float('nan')])", "Q-EXTERNAL-003"),
        ("say(ask()['id'], [1, float('inf')])", "Q-EXTERNAL-003"),
        ("say(ask()['id'], [1, 10**400])", "Q-EXTERNAL-003"),
        ("say(ask()['id'], [1, True])", "Q-EXTERNAL-003"),
        ("say(ask()['id'], [1, '2'])", "Q-EXTERNAL-003"),
        ("ask(); say('other', [1, 2])", "Q-EXTERNAL-003"),
        ("ask(); sys.exit('no model')", "Q-EXTERNAL-001"),
        ("ask(); os.kill(os.getpid(), 9)", "Q-EXTERNAL-001"),
    ],
)
def test_what_is_no_answer_is_one_sentence(tmp_path: Path, body: str, id: str) -> None:
    # it stays: an end of its own would be the other error
    assert failure(program(tmp_path, body + "\nsys.stdin.read()\n")).id == id


def test_a_closed_output_is_an_end_though_the_program_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.metrics.external.END_SECONDS", 0.1)
    assert failure(program(tmp_path, "ask(); os.close(1); time.sleep(60)")).id == "Q-EXTERNAL-001"


def test_an_end_is_said_with_its_status_and_last_words(tmp_path: Path) -> None:
    body = "ask(); print('loading', file=sys.stderr); print('no GPU \\x1b[31m', file=sys.stderr); sys.exit(7)"
    said = failure(program(tmp_path, body)).sentence
    assert "exit status 7" in said
    assert "no GPU" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    "body", ["time.sleep(60)", "print('busy', file=sys.stderr)\nwhile True: ask()", "time.sleep(60)\nask()"]
)
def test_a_scorer_that_hangs_is_stopped_in_time(tmp_path: Path, body: str) -> None:
    began = time.monotonic()
    assert failure(program(tmp_path, body), timeout=0.3).id == "Q-EXTERNAL-002"
    assert time.monotonic() - began < 10


def test_a_request_larger_than_the_pipe_is_within_the_limit_too(tmp_path: Path) -> None:
    command = program(tmp_path, "time.sleep(60)")
    with pytest.raises(QuenchError) as error, ExternalScorer(command, 0.3) as scorer:
        scorer.rewards("long", PROMPT, ["x" * (1 << 20)])
    assert error.value.id == "Q-EXTERNAL-002"


def test_after_a_failure_nothing_waits_any_more(tmp_path: Path) -> None:
    with ExternalScorer(program(tmp_path, "ask(); sys.exit(3)"), 20) as scorer:
        for number in range(3):
            with pytest.raises(QuenchError) as error:
                scorer.rewards(str(number), PROMPT, ["4"])
            assert error.value.id == "Q-EXTERNAL-001"


def test_a_bad_reward_leaves_the_program_usable(tmp_path: Path) -> None:
    with ExternalScorer(program(tmp_path, "say(ask()['id'], [])\nsay(ask()['id'], [2])"), 20) as scorer:
        with pytest.raises(QuenchError):
            scorer.rewards("one", PROMPT, ["4"])
        assert scorer.rewards("two", PROMPT, ["4"]) == [2.0]


@pytest.mark.parametrize("command", [[], ["no-such-program"], ["./no/such.py"], [""], ["/etc/passwd"]])
def test_a_command_that_can_not_run_is_a_mistake_in_the_settings(command: list[str]) -> None:
    assert failure(command).id == "Q-EXTERNAL-004"


def test_a_program_that_does_not_speak_is_known_at_the_start(tmp_path: Path) -> None:
    began = time.monotonic()
    assert (
        failure([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start=0.3).id == "Q-EXTERNAL-002"
    )
    assert failure([sys.executable, "-S", "-c", "print('hello')"]).id == "Q-EXTERNAL-003"
    assert time.monotonic() - began < 15


def test_all_that_it_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.metrics.external.END_SECONDS", 0.1)
    body = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
say(ask()["id"], [1])
time.sleep(600)
"""
    with ExternalScorer(program(tmp_path, body), 20) as scorer:
        scorer.rewards("1", PROMPT, ["4"])
    child = int((tmp_path / "child").read_text())
    state = ""
    for _ in range(100):  # a busy machine takes its time over a process that has been killed
        try:
            state = psutil.Process(child).status()
        except psutil.NoSuchProcess:
            return
        if state == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.1)
    pytest.fail(f"process {child} goes on: {state}")
