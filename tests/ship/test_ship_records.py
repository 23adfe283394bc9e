"""`quench ship` with damaged, missing or swapped records: a sentence, exit 3 or 5, no traceback or bundle."""

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
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
from pipeline.core.hashing import file_hash

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
    records = [*COMMON, "models/merged/merge.json", "reports/merge.json", "reports/strategies.json"]
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
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Each test puts back what it changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.metrics.paired.SWAPS", 50)  # an exact p-value is not what is tested
        yield request.param(tmp_path_factory.mktemp("records") / "project")


def shipped(made: Made) -> int:
    """The exit code; a QuenchError must be one line. Any other exception is the failure looked for."""
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
            code = command.main(Project(made.params, made.root), made.level, None, None)
    except QuenchError as error:
        output.write(str(error))
        code = error.exit_code
    assert code == 0 or output.getvalue().strip()
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


ROTTEN = [
    "models/adapter/adapter_model.safetensors",
    "models/adapter/run.json",
    "models/adapter/chat_template.jinja",
    "data/tokens/train.parquet",
    "data/final/train.jsonl",
    "data/final/val.jsonl",
    "data/final/test.jsonl",
]


@pytest.mark.parametrize("place", ROTTEN)
@pytest.mark.parametrize(
    "spoil",
    [lambda data: None, lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]],
    ids=["missing", "one bit"],
)
def test_what_the_model_was_made_of_is_compared_with_what_its_records_name(
    made: Made, place: str, spoil: Callable[[bytes], bytes | None]
) -> None:
    file = made.root / place
    before = file.read_bytes()
    try:
        file.unlink()
        if (after := spoil(before)) is not None:
            file.write_bytes(after)
        assert shipped(made) in REFUSED
    finally:
        file.write_bytes(before)
    assert shipped(made) == 0


def test_another_runs_rows_are_refused_though_they_are_whole(made: Made) -> None:
    """Rows that were curated since: whole, and not those that the model was trained and measured on."""
    manifest = made.root / "data/tokens/manifest.json"
    with damaged(made, "data/final/train.jsonl", b'{"id": "other"}\n'):
        assert shipped(made) in REFUSED
        rows = json.loads(manifest.read_text())
        rows["rows"]["train.jsonl"] = file_hash(made.root / "data/final/train.jsonl")
        # preprocessed since, and not trained on
        with damaged(made, "data/tokens/manifest.json", json.dumps(rows).encode()):
            assert shipped(made) in REFUSED
    with damaged(
        made,
        f"reports/eval/{made.level}.json",
        without(made.root / f"reports/eval/{made.level}.json", "rows_sha256"),
    ):
        assert shipped(made) in REFUSED


def test_rows_curated_since_have_a_remedy_that_does_something(made: Made) -> None:
    """`dvc checkout` brings nothing back where curate recorded them; what follows has to run."""
    with damaged(made, "data/final/train.jsonl", b'{"id": "other"}\n'), pytest.raises(QuenchError) as refused:
        command.main(Project(made.params, made.root), made.level, None, None)
    assert refused.value.id == "Q-SHIP-006"


def test_a_base_of_another_name_is_refused(made: Made) -> None:
    value = json.loads((made.root / "models/base.json").read_text()) | {"model": "another", "license": "mit"}
    with damaged(made, "models/base.json", json.dumps(value).encode()):
        assert shipped(made) in REFUSED


def test_a_control_character_never_gets_into_the_texts(made: Made) -> None:
    value = json.loads((made.root / "models/base.json").read_text())
    value["architecture"]["architectures"] = ["Llama\u202eFor"]
    with damaged(made, "models/base.json", json.dumps(value).encode()):
        assert shipped(made) in REFUSED


def without(file: Path, key: str) -> bytes:
    return json.dumps(
        {name: value for name, value in json.loads(file.read_text()).items() if name != key}
    ).encode()


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
