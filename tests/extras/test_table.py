"""The table of extras: each row names what is there, and each package has a row."""

import tomllib

import pytest
from verbs import verb_names

from pipeline.config.params import Params
from pipeline.config.sections.values import keys_of
from pipeline.core.places import PACKAGE, PROJECT
from pipeline.extras.table import EXTRAS, load_extra
from pipeline.workflow.stages import table


def test_each_package_is_an_extra_of_its_name() -> None:
    packages = {file.parent.name for file in (PACKAGE / "extras").glob("*/__init__.py")}
    assert packages == EXTRAS.keys()
    assert all(extra.module.startswith(f"{name}.") for name, extra in EXTRAS.items())


@pytest.mark.parametrize("name", EXTRAS)
def test_what_a_row_names_is_there(name: str) -> None:
    extra = EXTRAS[name]
    assert load_extra(name).__name__ == f"pipeline.extras.{extra.module}"
    assert (PROJECT / extra.page).is_file()
    assert extra.verb or extra.stage or extra.setting
    if extra.setting:
        assert extra.setting in [".".join(place) for place, _ in keys_of(Params)]
    if extra.verb:
        assert extra.verb.removesuffix(" sweep") in verb_names() or f"{extra.verb} train" in verb_names()
    if extra.stage:
        assert extra.stage in table().stages
    if extra.pip:
        project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert extra.pip in project["optional-dependencies"] and extra.imports
