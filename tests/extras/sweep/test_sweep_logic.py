"""A sweep from its first trial to its winner, with a training that is a formula: what is tried, what is
pruned, what a kill changes (nothing), who wins.
"""

import json
import math
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from scipy.stats import ttest_rel

from pipeline.config.params import Params, load_params
from pipeline.config.sections import Train
from pipeline.core.child import bound
from pipeline.core.errors import ConfigError, DataError, GateError, MachineError, QuenchError, ToolError
from pipeline.core.metrics_log import MetricsLog
from pipeline.core.places import PROJECT
from pipeline.core.publish import write_json
from pipeline.extras.sweep import command, job
from pipeline.metrics.statistics import holm
from pipeline.workflow import cluster_jobs

SPACE = {
    "keys": {
        "train.learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
        "train.r": {"low": 4, "high": 64, "log": True},
        "train.optim": ["auto", "sgd"],
    },
    "trials": 8,
    "seeds": 3,
    "finalists": 2,
    "startup": 3,
}


NAN, REAL_RUN = "the loss is NaN", job.run
PAIRS = [(3, 7), (3, 9), (7, 9)]


class Killed(BaseException):
    """Stands for kill -9: nothing of ours runs after it."""


def project_at(tmp_path: Path) -> Path:
    """A project that has what trials learn from."""
    (tmp_path / "params.yaml").write_text("# ours\ntrain:\n  learning_rate: 2.0e-4\n", encoding="utf-8")
    (tmp_path / "models/base").mkdir(parents=True)
    write_json(tmp_path / "data/tokens/manifest.json", {"splits": {"val": {"rows": 4}}})
    write_space(tmp_path)
    return tmp_path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return project_at(tmp_path)


def write_space(root: Path, **changed: Any) -> Path:
    file = root / "space.yaml"
    file.write_text(yaml.safe_dump(SPACE | changed), encoding="utf-8")
    return file


def settings_of(project: Path) -> Any:
    """Section train of a sub-project, whose params.yaml is JSON."""
    return Train(**json.loads((project / "params.yaml").read_text())["train"])


def loss_of(train: Any, step: int) -> float:
    """Least at a learning rate of 1e-3 and rank 16."""
    off = (math.log10(train.learning_rate) + 3) ** 2 + 0.1 * (math.log2(train.r) - 4) ** 2
    return 1 + off + (train.optim == "sgd") + 2 / step + 0.01 * math.sin(train.seed)


def formula(project: Path, worse: Callable[[], bool], *, killed_at: int = 0) -> bool:
    """Stands for stage train: ten evaluations by `loss_of`, and its report."""
    if worse():
        return True
    train = settings_of(project)
    log, rows = MetricsLog(project / "models/checkpoints" / job.METRICS_LOG), []
    log.truncate(0)
    for step in range(1, 11):
        rows += [
            {"kind": "step", "step": step, "loss": 1.0, "seconds": 0.5},
            {"kind": "eval", "step": step, "eval_loss": loss_of(train, step)},
        ]
        rows[-1] |= {"measures": {"accuracy": train.preference.beta}}
        log.append(rows[-2])
        log.append(rows[-1])
        if step == killed_at:
            raise Killed
        if worse():
            return True
    log.close()
    write_json(project / "reports/train.json", {"adapter_step": 10})
    return False


def in_process(sweep: Any, jobs: list[str], words: object) -> None:
    """Stands for Snakemake, one job at a time."""
    for one in jobs:
        job.main(one, sweep.folder)


def swept(
    root: Path, monkeypatch: pytest.MonkeyPatch, runs: Callable[..., None] = in_process, **changed: Any
) -> dict[str, Any]:
    monkeypatch.setattr(command, "run_jobs", runs)
    command.main(root, write_space(root, **changed), "space", [], as_json=True)
    found: dict[str, Any] = json.loads((root / "reports/sweep/space.json").read_text())
    return found


def shown(report: dict[str, Any]) -> list[Any]:
    """Return the part of a sweep's report that must not depend on kills."""
    return [
        [one[key] for key in ("trial", "state", "value", "settings", "steps", "evaluations")]
        for one in report["trials"]
    ] + [report["finalists"], report["verdict"]]


@pytest.fixture(autouse=True)
def _trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "run", formula)
    monkeypatch.setattr(
        command, "be_the_only_one", lambda root: None
    )  # the lock would last until pytest ends


def test_a_sweep_ends_with_a_winner_and_the_command_that_applies_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = swept(root, monkeypatch)
    assert [one["trial"] for one in report["trials"]] == list(range(8))
    first = report["trials"][0]["settings"]
    own = load_params(root / "params.yaml").train
    assert first == {"train.learning_rate": own.learning_rate, "train.r": own.r, "train.optim": own.optim}
    states = {one["state"] for one in report["trials"]}
    assert states == {"complete", "pruned"}
    assert all(one["state"] == "complete" for one in report["trials"][: SPACE["startup"]])
    assert all(one["steps"] < 10 for one in report["trials"] if one["state"] == "pruned")
    ended = [one for one in report["trials"] if one["state"] == "complete"]
    best = min(ended, key=lambda one: one["value"])
    assert report["finalists"][0]["trial"] == best["trial"] and len(report["finalists"]) == 2
    assert all(set(one["values"]) == {"43", "44", "45"} for one in report["finalists"])  # not the search's 42
    assert report["verdict"]["winner"] == best["trial"]
    assert f"train.r={best['settings']['train.r']}" in report["apply"]
    assert not list((root / "models/.sweep/space").glob("*/models"))
    page = (root / "reports/sweep/space.html").read_text()
    assert report["verdict"]["sentence"] in page and page.count("<svg") == 1


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [1, 10])
def test_a_sweep_that_is_killed_tries_the_same_and_finds_the_same(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    whole = shown(swept(root, monkeypatch))
    other = tmp_path_factory.mktemp("killed")
    for name in ("params.yaml", "data/tokens/manifest.json"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_bytes((root / name).read_bytes())
    (other / "models/base").mkdir(parents=True)
    trained = 0

    def sometimes(project: Path, worse: Callable[[], bool]) -> bool:
        nonlocal trained
        trained += 1
        return formula(project, worse, killed_at=killed_at if trained % 2 else 0)

    monkeypatch.setattr(job, "run", sometimes)
    for _ in range(40):
        try:
            again = swept(other, monkeypatch)
            break
        except Killed:
            with (other / "models/.sweep/space/journal.log").open("ab") as journal:
                journal.write(b'{"op_code":')  # a power cut's
    assert shown(again) == whole
    before = trained
    swept(other, monkeypatch)
    assert trained == before  # only shown again


def test_equal_settings_are_trained_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []
    monkeypatch.setattr(
        job, "run", lambda project, worse: trained.append(project.name) or formula(project, worse)
    )
    report = swept(root, monkeypatch, keys={"train.r": [8, 16]}, trials=6, pruner="none")
    assert len([name for name in trained if name.startswith("trial")]) == 2
    assert len(report["trials"]) == 6 and len(report["finalists"]) == 2
    values = {one["settings"]["train.r"]: one["value"] for one in report["trials"]}
    assert all(one["value"] == values[one["settings"]["train.r"]] for one in report["trials"])


def test_what_diverges_counts_as_bad_and_what_can_not_be_trained_as_failed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(project: Path, worse: Callable[[], bool]) -> bool:
        train = settings_of(project)
        if train.learning_rate > 1e-2:
            raise GateError("Q-TRAIN-009", NAN)
        if train.optim == "sgd":
            raise ConfigError("Q-TRAIN-016", "no")
        return formula(project, worse)

    monkeypatch.setattr(job, "run", bad)
    report = swept(root, monkeypatch)
    states = {one["state"]: one["reason"] for one in report["trials"] if one["reason"]}
    assert states["fail"] == "no" and states["pruned"] == NAN
    assert report["verdict"]


def ending_with(error: QuenchError) -> Callable[[Path, Callable[[], bool]], bool]:
    """A training that raises this."""

    def train(project: Path, worse: Callable[[], bool]) -> bool:
        raise error

    return train


def test_what_is_not_due_to_the_settings_leaves_the_trial_for_the_next_start(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"014": ToolError, "037": MachineError, "018": GateError, "020": GateError, "039": GateError}
    faults |= dict.fromkeys(("028", "029", "036", "038"), ConfigError)
    for number, kind in faults.items():
        monkeypatch.setattr(job, "run", ending_with(kind(f"Q-TRAIN-{number}", "not the settings' fault")))
        with pytest.raises(kind, match=f"Q-TRAIN-{number}"):
            swept(root, monkeypatch, trials=1)
        report = json.loads((root / "reports/sweep/space.json").read_text())
        assert [one["state"] for one in report["trials"]] == ["running"] and report["verdict"] is None
    monkeypatch.setattr(job, "run", formula)
    assert swept(root, monkeypatch, trials=1)["trials"][0]["state"] == "complete"


def diverging(*projects: str) -> Callable[[Path, Callable[[], bool]], bool]:
    """`formula`, but that these jobs diverge."""

    def train(project: Path, worse: Callable[[], bool]) -> bool:
        if project.name.startswith(projects):
            raise GateError("Q-TRAIN-009", NAN)
        return formula(project, worse)

    return train


def test_a_finalist_with_a_training_that_failed_is_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "run", diverging("seed-0-44"))
    report = swept(root, monkeypatch, keys={"train.r": [8, 16, 32]}, pruner="none", finalists=3)
    failed = {one["trial"]: one["failed"] for one in report["finalists"]}
    assert failed.pop(0) == {"44": NAN} and not any(failed.values())
    assert report["verdict"]["winner"] in failed and set(report["verdict"]["means"]) == set(map(str, failed))
    assert "seed-0-44" in report["sentence"]
    assert report["sentence"] in (root / "reports" / "sweep" / "space.html").read_text()


@pytest.mark.parametrize(
    ("failing", "log"), [("seed", "seed-0-43/train.log"), ("trial", "trial-0/train.log")]
)
def test_a_sweep_in_which_nothing_is_left_to_compare_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch, failing: str, log: str
) -> None:
    monkeypatch.setattr(job, "run", diverging(failing))
    for _ in range(2):  # again, when nothing is left to run
        with pytest.raises(GateError, match=rf"Q-SWEEP-011.*{log}"):
            swept(root, monkeypatch, trials=1)
    report = json.loads((root / "reports/sweep/space.json").read_text())
    assert report["ended"] and report["verdict"] is None


def test_a_sweep_may_grow_but_not_change(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = swept(root, monkeypatch, trials=4)
    more = swept(root, monkeypatch, trials=6)
    assert shown(more)[:4] == shown(few)[:4] and len(more["trials"]) == 6
    for changed in ({"seed": 1}, {"keys": SPACE["keys"] | {"train.r": [8, 16]}}):
        with pytest.raises(ConfigError, match="Q-SWEEP-005"):
            swept(root, monkeypatch, trials=6, **changed)
    write_json(root / "data/tokens/manifest.json", {"splits": {"val": {"rows": 5}}})
    assert swept(root, monkeypatch, trials=6) == more  # nothing is left to train
    with pytest.raises(ConfigError, match="Q-SWEEP-005"):
        swept(root, monkeypatch, trials=7)


def test_a_project_without_rows_to_watch_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(root / "data/tokens/manifest.json", {"splits": {"val": {"rows": 0}}})
    with pytest.raises(DataError, match="Q-SWEEP-009"):
        swept(root, monkeypatch)


def judged_by(
    folders: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, losses: dict[int, tuple[float, ...]]
) -> tuple[dict[str, Any], dict[int, int]]:
    """Run a sweep over ranks with these losses, one for each seed; return its verdict and {trial: rank}."""
    monkeypatch.setitem(globals(), "loss_of", lambda train, step: losses[train.r][train.seed - 43])
    root, keys = project_at(folders.mktemp("sweep")), {"train.r": [*losses]}
    report = swept(root, monkeypatch, keys=keys, pruner="none", finalists=len(losses))
    ranks = {one["trial"]: one["settings"]["train.r"] for one in report["trials"]}
    assert len(report["finalists"]) == len(losses)
    return report["verdict"], ranks


def test_finalists_that_seeds_do_not_tell_apart_are_called_so(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = partial(judged_by, tmp_path_factory, monkeypatch)
    apart, ranks = judged({3: (1.00, 1.01, 0.99), 7: (2.01, 2.02, 2.0)})
    assert ranks[apart["winner"]] == 3 and apart["alike"] == []
    alike = {3: (1.0, 1.2, 0.8), 7: (1.1, 0.9, 1.3)}
    found, ranks = judged(alike)
    assert ranks[found["winner"]] == 3 and [ranks[trial] for trial in found["alike"]] == [7]
    assert found["means"][str(found["winner"])] == pytest.approx(
        {"low": 1 - 0.4968, "mean": 1.0, "high": 1 + 0.4968}, abs=1e-4
    )  # t of 2 degrees: 4.303
    # a third finalist makes three pairs, not two: the best of three was chosen
    third = alike | {9: (1.5, 1.71, 1.3)}
    chances = [ttest_rel(third[one], third[other]).pvalue for one, other in PAIRS]
    expected = dict(zip(PAIRS, holm(chances), strict=True))
    found, ranks = judged(third)
    assert ranks[found["winner"]] == 3
    assert {ranks[int(trial)]: test["p_value"] for trial, test in found["differences"].items()} == (
        pytest.approx({7: expected[3, 7], 9: expected[3, 9]})
    )


def test_the_metric_is_one_that_the_method_measures_and_the_highest_wins(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "params.yaml").write_text("train:\n  method: dpo\n", encoding="utf-8")
    keys = {"train.preference.beta": [0.2, 0.5]}
    with pytest.raises(ConfigError, match="Q-SWEEP-002"):
        swept(root, monkeypatch, metric="reward", keys=keys)
    report = swept(root, monkeypatch, metric="accuracy", keys=keys, pruner="none")
    betas = {one["trial"]: one["settings"]["train.preference.beta"] for one in report["trials"]}
    assert set(betas.values()) == {0.2, 0.5} and betas[report["verdict"]["winner"]] == 0.5


RATE = {"low": 1e-5, "high": 1e-3, "log": True}
GRID = {"low": 0.0, "high": 0.15, "step": 0.05}


@pytest.mark.parametrize(
    ("key", "searched", "own", "tried"),
    [
        ("learning_rate", RATE, 2e-4, 2e-4),
        ("learning_rate", RATE, 2e-3, None),
        ("r", [8, 16], 4, None),
        ("lora_dropout", GRID, 0.1 + 1e-12, 0.1),  # what Optuna would draw
        ("lora_dropout", GRID, 0.15, 0.15),
        ("lora_dropout", GRID, 0.12, None),
        ("r", {"low": 8, "high": 64, "step": 8}, 16, 16),
        ("r", {"low": 8, "high": 64, "step": 8}, 12, None),
        ("lora_alpha", {"low": 1, "high": 64}, 3, 3),
        ("target_modules", [["q_proj"], ["q_proj", "v_proj"]], ["q_proj"], ["q_proj"]),
    ],
)
def test_the_first_trial_is_what_params_have_where_the_space_has_that(
    root: Path, monkeypatch: pytest.MonkeyPatch, key: str, searched: Any, own: Any, tried: Any
) -> None:
    train, keys = {"learning_rate": 2e-4, key: own}, {"train.learning_rate": RATE, f"train.{key}": searched}
    (root / "params.yaml").write_text(json.dumps({"train": train}), encoding="utf-8")
    report = swept(root, monkeypatch, keys=keys, trials=4, finalists=1, seeds=2)
    first, *others = [one["settings"][f"train.{key}"] for one in report["trials"]]
    rate = report["trials"][0]["settings"]["train.learning_rate"]
    assert (rate == train["learning_rate"], tried in (None, first)) == (tried is not None, True)
    for value in (first, *others):
        if isinstance(searched, list):
            assert value in searched
        else:
            assert searched["low"] <= value <= searched["high"]
            steps = (value - searched["low"]) / searched["step"] if "step" in searched else 0.0
            assert steps == pytest.approx(round(steps)) and type(value) is type(searched["low"])


def test_the_space_of_the_page_has_what_a_winner_has_to_beat(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (PROJECT / "docs/sweeps.md").read_text(encoding="utf-8")
    space = yaml.safe_load(text.split("```yaml\n")[1].partition("```")[0])
    report = swept(root, monkeypatch, **space | {"trials": 1})
    own = load_params(root / "params.yaml").training.model_dump()
    (first,) = (one["settings"] for one in report["trials"])
    searched = {key: own[key.removeprefix("train.")] for key in space["keys"]}
    assert searched.pop("train.lora_dropout") is None  # the method's
    assert first == searched | {"train.lora_dropout": 0.05}
    assert f"| {space['trials']} |" in text


def test_a_job_that_is_none_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept(root, monkeypatch, trials=1)
    with pytest.raises(ConfigError, match="Q-SWEEP-007"):
        job.main("trial-x", root / "models/.sweep/space")


def test_a_dry_run_tries_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_jobs", lambda sweep, jobs, words: None)
    command.main(root, root / "space.yaml", "space", ["-n"], as_json=True)
    report = json.loads((root / "reports/sweep/space.json").read_text())
    assert report["trials"] == [] and report["verdict"] is None
    # and it began nothing: what it looked at may change
    (root / "params.yaml").write_text("train:\n  learning_rate: 3.0e-4\n", encoding="utf-8")
    write_json(root / "data/tokens/manifest.json", {"splits": {"val": {"rows": 5}}})
    begun = swept(root, monkeypatch, trials=1, seed=1)
    assert begun["trials"][0]["settings"]["train.learning_rate"] == 3e-4


def test_jobs_that_a_cluster_still_has_are_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "models/.sweep/space"
    monkeypatch.setattr(
        cluster_jobs,
        "jobs_at_work",
        lambda place: ["train (SLURM job 17, running)"] if place == folder else [],
    )
    with pytest.raises(MachineError, match="Q-WORKFLOW-011"):
        command.main(root, root / "space.yaml", "space", ["-n"], as_json=True)


def test_a_sweep_on_another_disk_finds_its_project(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path_factory.mktemp("disk") / "models"
    shutil.move(root / "models", disk)
    (root / "models").symlink_to(disk)
    inputs: set[Path] = set()

    def train(project: Path, worse: Callable[[], bool]) -> bool:
        inputs.add((project / "data/tokens").resolve())
        return formula(project, worse)

    def as_a_job(sweep: Any, jobs: list[str], words: object) -> None:
        for one in jobs:
            job.main(one, sweep.folder.resolve())

    monkeypatch.setattr(job, "run", train)
    swept(root, monkeypatch, trials=1, runs=as_a_job)
    assert inputs == {(root / "data/tokens").resolve()}


def test_a_training_is_looked_at_only_when_it_said_more(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    class Watched(MetricsLog):
        def rows(self) -> list[Any]:
            reads.append(1)
            return super().rows()

    def patient(project: Path, worse: Callable[[], bool]) -> bool:
        return any(worse() for _ in range(50)) or formula(project, worse)

    monkeypatch.setattr(job, "MetricsLog", Watched)
    monkeypatch.setattr(job, "run", patient)
    (trial,) = swept(root, monkeypatch, trials=1)["trials"]
    assert len(trial["evaluations"]) == 10
    # at first, after each evaluation, at the end; the trial and three seeds
    assert len(reads) <= 4 * (1 + 10 + 1)


def test_what_snakemake_makes_first_ends_with_the_sweep(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    (root / "Snakefile").touch()

    def snakemake(words: list[str], **about: object) -> SimpleNamespace:
        given.append(words)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("pipeline.extras.sweep.command.subprocess.run", snakemake)
    command.prepare(root, Params(), [])
    assert given[0] == bound(given[0][-5:], signal.SIGTERM)
    going_on = Params.model_validate({"train": {"start_from": "../last"}})
    command.prepare(root, going_on, [])
    assert given[1][-1] == "previous"


@pytest.mark.parametrize(
    ("lines", "id"),
    [
        ("the end of a traceback", "Q-SWEEP-006"),  # not the attempt's before it
        ("train: Q-TRAIN-037: process 1 is gone", "Q-TRAIN-037"),
        ("train: Q-TRAIN-018: NaN\ntrain: Q-TRAIN-037: process 0 is gone", "Q-TRAIN-018"),
    ],
)
def test_a_training_ends_with_what_it_said_itself(
    root: Path, monkeypatch: pytest.MonkeyPatch, lines: str, id: str
) -> None:
    @contextmanager
    def saying(*_: str, output: Any) -> Iterator[subprocess.Popen[bytes]]:
        command = ["sh", "-c", 'echo "$1"; exit "$2"', "sh", said[-1], str(GateError.exit_code)]
        with subprocess.Popen(command, stdout=output) as process:
            yield process

    monkeypatch.setattr(job, "run", REAL_RUN)
    monkeypatch.setattr(job, "started", saying)
    said: list[str] = []
    for text, expected in (("train: Q-TRAIN-029: inputs changed", "Q-TRAIN-029"), (lines, id)):
        said.append(text)
        with pytest.raises(QuenchError, match=f"^{expected}: "):
            swept(root, monkeypatch, trials=1)
