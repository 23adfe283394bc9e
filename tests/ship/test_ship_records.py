"""`quench ship` with damaged, missing or swapped records: a sentence, exit 3 or 5, no traceback or bundle."""

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import adapter_inputs
import pytest
import shipping
import yaml
from draws import draws
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.commands import ship as command
from pipeline.commands.project import Project
from pipeline.config.params import Params
from pipeline.core.errors import QuenchError
from pipeline.core.hashing import file_hash, tree_hash

REFUSED = (3, 5)
GONE = None
BROKEN = [
    *(GONE, b"", b"{", b"{}", b"[]", b"null", b"NaN", b"7", b'"text"'),
    b"[" * 100_000,
    b'{"a":' * 200 + b"1" + b"}" * 200,
    b"\xff\xfe{}",
    b'{"a": NaN}',
    b'{"a": 1, "a": 2}',
]
WRONG: list[Any] = [None, [], {}, "text", "", True, -1, 1.5, 10**30, [None], {"": None}]
WRONG += [float("nan"), "\x1b[2J"]
COMMON = [
    "models/base.json",
    "models/adapter/run.json",
    "data/tokens/manifest.json",
    "reports/data.json",
    "reports/labels.json",
    "reports/train.json",
    "reports/parity.json",
]


class Made(NamedTuple):
    """A project to ship from."""

    root: Path
    params: Params
    level: str
    records: list[str]


def merged(root: Path) -> Made:
    records = [*COMMON, "models/merged/merge.json", "reports/merge.json"]
    return Made(
        shipping.write_project(root),
        shipping.params(),
        "Q4_K_M",
        [*records, *(f"reports/eval/{model}.json" for model in shipping.MODELS)],
    )


def adapter(root: Path) -> Made:
    models = ("base", "adapter", "source")
    return Made(
        adapter_inputs.write_project(root),
        adapter_inputs.params(),
        "adapter",
        [*COMMON, *(f"reports/eval/{one}.json" for one in models)],
    )


@pytest.fixture(scope="module", params=[merged, adapter], ids=["merged", "adapter"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Each test puts back what it changes."""
    made: Made = request.param(tmp_path_factory.mktemp("records") / "project")
    return made


def shipped(made: Made, said: str = "") -> int:
    """The exit code; a QuenchError must be one line. Any other exception is the failure looked for. `said`
    must be in what is printed: an error's id.
    """
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
            code = command.main(Project(made.params, made.root), made.level, None, None)
    except QuenchError as error:
        output.write(str(error))
        code = error.exit_code
    assert code == 0 or output.getvalue().strip()
    assert said in output.getvalue()
    assert "\x1b" not in output.getvalue()
    assert bool(list(made.root.glob("models/bundle/*"))) == (code == 0)
    shutil.rmtree(made.root / "models/bundle", ignore_errors=True)
    return code


@contextmanager
def damaged(made: Made, place: str, content: bytes | None) -> Iterator[None]:
    """`place` with another content, None for not there; what holds the hash of the adapter's folder follows,
    as after a training that wrote this.
    """
    file, report = made.root / place, made.root / "reports/train.json"
    before, trained = file.read_bytes(), report.read_bytes()
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    if place.startswith("models/adapter/"):
        shipping.trained_again(made.root)
    try:
        yield
    finally:
        report.write_bytes(trained)
        file.write_bytes(before)


def test_the_undamaged_project_is_shipped(made: Made) -> None:
    assert shipped(made) == 0


def test_a_record_that_is_missing_or_no_record_is_refused(made: Made) -> None:
    for place in made.records:
        for content in BROKEN:
            with damaged(made, place, content):
                assert shipped(made) in REFUSED, (place, content and content[:40])


def paths(value: Any, depth: int = 0) -> Iterator[tuple[Any, ...]]:
    """The place of every value inside a JSON value, of lists only their first's."""
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    for key, inner in items:
        yield (key,)
        yield from ((key, *rest) for rest in paths(inner))


def put(value: Any, place: tuple[Any, ...], new: Any) -> None:
    for key in place[:-1]:
        value = value[key]
    if new is GONE:
        del value[place[-1]]
    else:
        value[place[-1]] = new


@settings(
    max_examples=draws(30), derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_no_damaged_value_is_a_traceback(made: Made, data: st.DataObject) -> None:
    """A value of another kind anywhere in a record that the judgment is made from."""
    record = data.draw(st.sampled_from([*COMMON, f"reports/eval/{made.level}.json"]))
    value = json.loads((made.root / record).read_text(encoding="utf-8"))
    put(value, data.draw(st.sampled_from(list(paths(value)))), data.draw(st.sampled_from([GONE, *WRONG])))
    with damaged(made, record, json.dumps(value).encode()):
        assert shipped(made) in (0, *REFUSED)


ROTTEN = {  # what is said if it is missing, and if one bit is another
    "models/adapter/adapter_model.safetensors": ("Q-SHIP-004: ", "Q-SHIP-006: "),
    "models/adapter/run.json": ("Q-CORE-001: ", "Q-GATE-001: "),
    "models/adapter/chat_template.jinja": ("Q-SHIP-006: ", "Q-SHIP-006: "),
    "data/tokens/train.parquet": ("Q-SHIP-006: ", "Q-SHIP-006: "),
    "data/final/train.jsonl": ("Q-SHIP-004: ", "Q-SHIP-006: "),
    "data/final/val.jsonl": ("Q-SHIP-004: ", "Q-SHIP-006: "),
    "data/final/test.jsonl": ("Q-SHIP-004: ", "Q-SHIP-006: "),
}


@pytest.mark.parametrize("place", ROTTEN)
@pytest.mark.parametrize("changed", [False, True], ids=["missing", "one bit"])
def test_what_the_model_was_made_of_is_compared_with_what_its_records_name(
    made: Made, place: str, changed: bool
) -> None:
    file = made.root / place
    before = file.read_bytes()
    try:
        file.unlink()
        if changed:
            file.write_bytes(before[:-2] + bytes([before[-2] ^ 1]) + before[-1:])
        assert shipped(made, ROTTEN[place][changed]) in REFUSED
    finally:
        file.write_bytes(before)


@pytest.mark.parametrize("place", [("run",), ("run", "hashes", "adapter"), ("rows_sha256",)])
def test_a_record_that_does_not_say_what_it_is_about_is_refused(made: Made, place: tuple[str, ...]) -> None:
    report = "reports/train.json" if "run" in place else f"reports/eval/{made.level}.json"
    value = json.loads((made.root / report).read_text())
    put(value, place, GONE)
    with damaged(made, report, json.dumps(value).encode()):
        assert shipped(made, "Q-SHIP-005: ") in REFUSED


def test_another_runs_rows_are_refused_though_they_are_whole(made: Made) -> None:
    """Rows that were curated since: whole, and not those that the model was trained and measured on."""
    tokens, run = "data/tokens/manifest.json", "models/adapter/run.json"
    with damaged(made, "data/final/train.jsonl", b'{"id": "other"}\n'):
        # `dvc checkout` brings nothing back where curate recorded them: what follows has to run
        assert shipped(made, "Q-SHIP-006: ") in REFUSED
        manifest = json.loads((made.root / tokens).read_text())
        manifest["rows"]["train.jsonl"] = file_hash(made.root / "data/final/train.jsonl")
        # preprocessed since, and not trained on
        with damaged(made, tokens, json.dumps(manifest).encode()):
            assert shipped(made, "Q-SHIP-006: ") in REFUSED
    del manifest["rows"]["train.jsonl"]
    with damaged(made, tokens, json.dumps(manifest).encode()):
        trained = json.loads((made.root / run).read_text())
        trained["tokens_sha256"] = tree_hash(made.root / "data/tokens")
        with damaged(made, run, json.dumps(trained).encode()):
            assert shipped(made, "Q-SHIP-005: ") in REFUSED


def test_rows_that_a_model_wrote_are_refused_if_they_are_missing_or_others(made: Made) -> None:
    tokens, run = "data/tokens/manifest.json", "models/adapter/run.json"
    manifest = json.loads((made.root / tokens).read_text())
    manifest["rows"]["questions-train.jsonl"] = "0" * 64
    with damaged(made, tokens, json.dumps(manifest).encode()):
        trained = json.loads((made.root / run).read_text())
        trained["tokens_sha256"] = tree_hash(made.root / "data/tokens")
        with damaged(made, run, json.dumps(trained).encode()):
            assert shipped(made, "Q-SHIP-004: ") in REFUSED
            written = made.root / "data/augmented/questions-train.jsonl"
            written.parent.mkdir(exist_ok=True)
            written.write_bytes(b"")
            try:
                assert shipped(made, "Q-SHIP-006: ") in REFUSED
            finally:
                written.unlink()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "another", "license": "mit"}, "models/base.json"),
        ({"architecture": {"architectures": ["Llama\u202eFor"], "model_type": "llama"}}, "Q-SHIP-003: "),
    ],
    ids=["of another name", "of hidden text"],
)
def test_another_base_is_refused(made: Made, values: dict[str, Any], said: str) -> None:
    base = json.loads((made.root / "models/base.json").read_text())
    with damaged(made, "models/base.json", json.dumps(base | values).encode()):
        assert shipped(made, said) in REFUSED


def test_a_changed_parity_report_is_refused_by_the_record_that_dvc_keeps(tmp_path: Path) -> None:
    """It names no hash of itself: only dvc.lock knows what parity wrote."""
    made = merged(tmp_path / "project")
    report = made.root / "reports/parity.json"
    record_with_dvc(made, {"parity": ["reports/parity.json", "reports/parity.html"]})
    assert shipped(made) == 0
    value = json.loads(report.read_text())
    check = next(iter(value["checks"].values()))
    check["detail"] = "all was compared"
    report.write_text(json.dumps(value))
    assert shipped(made) == 3


def record_with_dvc(made: Made, outputs: dict[str, list[str]]) -> None:
    """A DVC project whose dvc.lock has these outputs of stages, as they are."""
    (made.root / ".dvc").mkdir()
    (made.root / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    (made.root / "params.yaml").write_text(
        yaml.safe_dump(made.params.model_dump(mode="json"), allow_unicode=True)
    )
    (made.root / "reports/parity.html").write_text("page")
    outs = {
        stage: [{"path": path, "hash": "md5", **of_dvc(made.root / path)} for path in paths]
        for stage, paths in outputs.items()
    }
    (made.root / "dvc.yaml").write_text(
        yaml.safe_dump(
            {"stages": {stage: {"cmd": "true", "outs": paths} for stage, paths in outputs.items()}}
        )
    )
    lock = {
        "schema": "2.0",
        "stages": {stage: {"cmd": "true", "outs": found} for stage, found in outs.items()},
    }
    (made.root / "dvc.lock").write_text(yaml.safe_dump(lock))


def of_dvc(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    return {"md5": hashlib.md5(data, usedforsecurity=False).hexdigest(), "size": len(data)}
