"""Each extra says what it contributes, and the core asks for that by place."""

import re
import tomllib

import pytest
from verbs import verb_names

from pipeline.config.params import Params
from pipeline.config.sections.values import keys_of
from pipeline.core import extras as module
from pipeline.core.errors import ConfigError
from pipeline.core.extras import extras, modules_used_by, need_extra, provider, stage_package, verb_modules
from pipeline.core.places import PACKAGE, PROJECT
from pipeline.workflow.stages import optional, table

ASKED = re.compile(r'\bprovider\(\s*"([^"]+)"\s*\)|"(ship --\w+)" (?:if|else)|else "(ship --\w+)"')
KEYS = [".".join(place) for place, _ in keys_of(Params)]


def test_each_package_is_an_extra() -> None:
    assert extras().keys() == {
        folder.name for folder in (PACKAGE / "extras").glob("[a-z]*") if folder.is_dir()
    }


@pytest.mark.parametrize("name", extras())
def test_what_an_extra_names_is_there(name: str) -> None:
    extra = extras()[name]
    assert (PROJECT / extra.page).is_file()
    assert extra.verbs or extra.provides or extra.settings
    for place in extra.provides:
        assert provider(place).__name__ == f"pipeline.extras.{name}.{extra.provides[place]}"
    for setting in extra.settings:
        assert setting in KEYS
        need_extra(setting)
    if extra.verbs:
        assert name in verb_names() or f"{name} train" in verb_names()
    if extra.pip:
        project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert extra.pip in project["optional-dependencies"] and extra.imports


def test_each_place_that_the_core_asks_has_one_provider() -> None:
    provided = [place for extra in extras().values() for place in extra.provides]
    asked = {
        "".join(match.groups(""))
        for file in PACKAGE.rglob("*.py")
        for match in ASKED.finditer(file.read_text(encoding="utf-8"))
    }
    assert sorted(provided) == sorted(asked)


def test_a_stage_of_an_extra_is_asked_for_by_a_setting_that_needs_the_extra() -> None:
    assert stage_package("train") is None
    for name in table().stages:
        package = stage_package(name.partition("_")[0])
        if package:
            asking = optional("merged")[name].setting
            assert asking in extras()[package.rpartition(".")[2]].settings


def test_without_an_extra_one_sentence_names_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "extras", dict)
    for place, named in (("run sweep", "`quench run sweep`"), ("evaluate.harness", "evaluate.harness")):
        with pytest.raises(ConfigError, match=f"Q-CORE-017.*{named} needs an extra"):
            provider(place)
    with pytest.raises(ConfigError, match=r"Q-CORE-017.*train\.report_to needs an extra"):
        need_extra("train.report_to")
    assert verb_modules() == modules_used_by("evaluate") == []
