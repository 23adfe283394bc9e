"""lm-evaluation-harness: local tasks on a real server, offline; what can't run is refused in one sentence."""

import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from needed import need
from rigged import rigged

from pipeline.config.products import ModelFiles
from pipeline.core.errors import ConfigError, ToolError
from pipeline.extras.harness.run import run_harness
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.tools import Llama, Toolchain

pytestmark = pytest.mark.skipif(find_spec("lm_eval") is None, reason=need("lm_eval"))

TASK = {
    "task": "says_he",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "data/questions.jsonl"}},
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
FIRST = [{"function": "regex", "regex_pattern": "^(.)"}, {"function": "take_first"}]
FILTERED = {"task": "first_letter", "filter_list": [{"name": "first", "filter": FIRST}]}


@pytest.fixture(scope="module")
def server(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that answers every question with "he" and ends."""
    file = rigged(tmp_path_factory.mktemp("served") / "he-F16.gguf")
    with serving(Llama(tools), ModelFiles(file), ctx_size=256, parallel=2) as up:
        yield up


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four questions, one of which is to be answered with "he"."""
    (tmp_path / "data").mkdir()
    questions = [
        {"question": f"Which pronoun has number {i}?", "answer": answer}
        for i, answer in enumerate(["she", "he", "it", "they"])
    ]
    (tmp_path / "data/questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    write(tmp_path)
    return tmp_path


def write(folder: Path, **changed: object) -> None:
    task = TASK | changed
    (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump(task))


@pytest.mark.slow
def test_local_tasks_are_scored_through_the_server(
    server: Server, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(folder, **FILTERED)
    (folder / "own.py").write_text(
        "import os, sys\nprint('{\"results\": 1}')\ndef ask(doc):\n    os.environ['LEFT_BEHIND'] = '1'\n    "
        "return doc['question']\n"
    )
    (folder / "own.yaml").write_text(
        yaml.safe_dump(TASK | {"task": "own_python"}).replace("'{{question}}'", "!function own.ask")
    )
    (folder / "pair.yaml").write_text(
        yaml.safe_dump(
            {
                "group": "pair",
                "task": ["says_he", "own_python"],
                "aggregate_metric_list": [{"metric": "exact_match", "weight_by_size": True}],
            }
        )
    )
    before = dict(os.environ)
    found = run_harness(server, ["first_letter", "pair"], folder)
    assert found["says_he"] == found["own_python"]
    assert found["says_he"]["exact_match"] == 0.25
    assert found["says_he"]["exact_match_stderr"] == pytest.approx(0.25, abs=1e-3)
    assert found["says_he"]["rows"] == 4
    assert found["first_letter"] == {"exact_match,first": 0.0, "exact_match_stderr,first": 0.0, "rows": 4}
    assert (found["pair"]["exact_match"], found["pair"]["rows"]) == (0.25, 8)
    assert dict(os.environ) == before
    printed = capfd.readouterr()
    assert "Requesting" not in printed.err and not printed.out
    assert not list(folder.glob("**/*.arrow"))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {
                "output_type": "multiple_choice",
                "doc_to_choice": ["he", "she"],
                "doc_to_target": 0,
                "metric_list": [{"metric": "acc"}],
            },
            r"task says_he has output_type multiple_choice, which needs log probabilities .* make it "
            r"generate_until",
        ),
        (
            {"generation_kwargs": {"temperature": 0.7, "do_sample": True}},
            r"task says_he samples its answers, .*: take do_sample",
        ),
        ({"generation_kwargs": {"top_p": 0.7}}, r"task says_he has top_p in generation_kwargs, Quench knows"),
        (
            {"generation_kwargs": {"until": ["a", "b", "c", "d", "e"]}},
            r"task says_he has 5 texts in until, and its client sends 4",
        ),
        (
            {"metric_list": [{"metric": "squad"}]},
            r"can't load says_he \(squad not found .*nothing is fetched",
        ),
        (
            {"metric_list": [{"metric": "squad", "aggregation": "mean"}]},
            r"task says_he has the metric squad, which would have to be fetched",
        ),
        (
            {"dataset_path": "allenai/ai2_arc", "dataset_kwargs": None},
            r"can't load says_he .*nothing is fetched",
        ),
        ({"dataset_kwargs": {"data_files": {"test": "nowhere.jsonl"}}}, r"can't load says_he .*nowhere"),
    ],
)
def test_what_cannot_be_run_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], sentence: str
) -> None:
    write(folder, **changed)
    monkeypatch.chdir(folder)
    # slow to import; it looks for unknown metrics on the hub
    monkeypatch.setitem(sys.modules, "evaluate", None)
    with pytest.raises(Exception, match=sentence) as refusal:
        load(["says_he"], folder)
    assert type(refusal.value).__name__ == "Refused"
    assert "\n" not in str(refusal.value)


def load(names: list[str], folder: Path) -> None:
    """Load tasks in this process, as the harness's process does first, so that lm_eval is imported once."""
    from lm_eval.tasks import TaskManager

    from pipeline.extras.harness import process

    process.load(TaskManager(include_path=folder, include_defaults=False), names, folder)


def test_an_unreadable_file_is_named(folder: Path) -> None:
    (folder / "broken.yaml").write_text("task: [")
    with pytest.raises(Exception, match=r"broken.yaml can't be read .*: correct it"):
        load(["hellaswag"], folder)


@pytest.mark.slow
def test_an_unknown_task_is_refused_with_those_found(server: Server, folder: Path) -> None:
    with pytest.raises(ConfigError, match="Q-EVALUATE-009"):
        run_harness(server, ["hellaswag"], folder)
    with pytest.raises(ConfigError, match="Q-EVALUATE-008"):
        run_harness(server, ["hellaswag"], folder / "elsewhere")


@pytest.mark.slow
def test_a_failure_is_not_taken_for_an_empty_answer(server: Server, folder: Path) -> None:
    write(folder, doc_to_text="{{question * 50}}")
    with pytest.raises(ToolError, match=r"Q-EVALUATE-010.*Status code: 400, Response text: .*context"):
        run_harness(server, ["says_he"], folder)


def test_without_the_extra_the_install_command_is_named(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.extras.harness.run.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="Q-EVALUATE-007"):
        run_harness(server, ["says_he"], folder)
