"""Every error has an id from the catalog, of its class; every entry of the catalog is raised."""

import ast
import pickle
import re

from pipeline.config.params import Params
from pipeline.config.sections.values import keys_of
from pipeline.core import errors
from pipeline.core.catalog import catalog
from pipeline.core.places import PACKAGE

CLASSES = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.QuenchError)
}


def test_every_entry_names_a_class_and_says_what_to_do() -> None:
    for id, problem in catalog().items():
        assert problem.error in CLASSES, id
        assert problem.when.endswith(".") and problem.remedy.endswith("."), id


def test_every_entry_is_raised_and_stands_in_one_file() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert not [id for id in catalog() if f'"{id}"' not in source]
    for file in (PACKAGE / "core/catalog").glob("*.yaml"):
        ids = re.findall(r"^(Q-.*):$", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(ids) == len(set(ids)), file
        assert {catalog()[id].area.lower() for id in ids} == {file.stem}


def test_a_key_of_params_yaml_is_marked_as_code() -> None:
    """So that the test of the docs finds out when a key is gone."""
    keys = {".".join(place) for place, _ in keys_of(Params) if len(place) > 1}
    plain = [
        (id, key)
        for id, problem in catalog().items()
        for text in re.sub("`[^`]*`", "", f"{problem.when} {problem.remedy}").split()
        if (key := text.strip(".,:;()")) in keys
    ]
    assert plain == []


def test_an_id_names_its_class_where_it_is_raised() -> None:
    raised = [
        (f"{path}:{call.lineno}", call.func.id, call.args[0] if call.args else None)
        for path in sorted(PACKAGE.rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in CLASSES
    ]
    given = [(where, kind, str(id.value)) for where, kind, id in raised if isinstance(id, ast.Constant)]
    assert not [
        one
        for one in given
        if one[2].startswith("Q-") and (one[2] not in catalog() or catalog()[one[2]].error != one[1])
    ]


def test_an_error_keeps_its_id_between_processes() -> None:
    error = pickle.loads(pickle.dumps(errors.DataError("Q-CORE-001", "a is gone")))  # noqa: S301
    assert (type(error), error.id, error.sentence) == (errors.DataError, "Q-CORE-001", "a is gone")
