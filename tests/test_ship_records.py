"""`quench ship` with damaged, missing and swapped records: one sentence and exit code 3 or 5, never a traceback, never a bundle."""

import contextlib
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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.commands import ship as command
from pipeline.errors import QuenchError
from pipeline.hashing import file_hash
from pipeline.params import Params

REFUSED = (3, 5)
GONE = None
BROKEN = [
    GONE, b"", b"{", b"{}", b"[]", b"null", b"NaN", b"7", b'"text"', b"[" * 100_000, b'{"a":' * 200 + b"1" + b"}" * 200, b"\xff\xfe{}", b'{"a": NaN}',
    b'{"a": 1, "a": 2}',
]  # fmt: skip
WRONG: list[Any] = [None, [], {}, "text", "", True, -1, 1.5, 10**30, [None], {"": None}, float("nan"), "\x1b[2J"]
COMMON = [
    "models/base.json", "models/adapter/run.json", "data/tokens/manifest.json", "reports/data.json", "reports/labels.json", "reports/train.json",
    "reports/parity.json",
]  # fmt: skip


class Made(NamedTuple):
    """A project to ship from."""

    root: Path
    params: Params
    level: str
    records: list[str]


def merged(root: Path) -> Made:
    records = [*COMMON, "models/merged/merge.json", "reports/merge.json", "reports/ways.json"]
    return Made(shipping.write_project(root), shipping.params(), "Q4_K_M", [*records, *(f"reports/eval/{model}.json" for model in shipping.MODELS)])


def adapter(root: Path) -> Made:
    models = ("base", "adapter", "source")
    return Made(adapter_inputs.write_project(root), adapter_inputs.params(), "adapter", [*COMMON, *(f"reports/eval/{one}.json" for one in models)])


@pytest.fixture(scope="module", params=[merged, adapter], ids=["merged", "adapter"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Each test puts back what it changes."""
    return request.param(tmp_path_factory.mktemp("records") / "project")


def shipped(made: Made) -> int:
    """The exit code; a QuenchError must be one line. Anything else that is raised is the failure looked for."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = command.main(made.params, made.root, made.level, None, None)
    except QuenchError as error:
        said.write(str(error))
        code = error.exit_code
    assert code == 0 or said.getvalue().strip()
    assert "\x1b" not in said.getvalue()
    assert (made.root / "models/bundle").exists() == (code == 0)
    shutil.rmtree(made.root / "models/bundle", ignore_errors=True)
    return code


@contextmanager
def damaged(made: Made, place: str, content: bytes | None) -> Iterator[None]:
    """`place` with another content, None for not there; what holds the hash of the adapter's folder follows, as after a training that wrote this."""
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
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
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
