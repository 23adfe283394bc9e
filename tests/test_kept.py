"""kept: made once under a key, again where something changed, and keys that nobody uses go."""

import kept as module
import pytest
from conftest import STAGES

from pipeline.core.places import PACKAGE
from pipeline.workflow.package import Package
from pipeline.workflow.sources import read_source


@pytest.mark.parametrize(
    ("edited", "again"),
    [
        ("stages/report/stage.py", {"finished"}),
        ("commands/new.py", set()),
        ("stages/train/learner.py", {"finished", "evaluated"}),
        ("stages/train/grpo/learner.py", set()),
        ("gguf/header.py", {"finished", "evaluated", "a model"}),
    ],
)
def test_an_edit_makes_again_what_its_code_has_made(
    edited: str, again: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"finished": STAGES, "evaluated": STAGES[:-1], "a model": ()}
    package = Package()
    source = read_source((PACKAGE / edited).read_bytes() + b"print()\n", is_python=True)
    keys = []
    for sources in (package.sources, package.sources | {edited: source}):
        monkeypatch.setattr(module, "_package", lambda sources=sources: Package(sources))
        keys.append({name: module.made_by.__wrapped__(stages, "") for name, stages in made.items()})
    assert {name for name in made if keys[0][name] != keys[1][name]} == again
