"""tests/recorded holds what the stages write now: the same files, keys and types. Where it does not, look at
what `pytest --record tests/test_recorded.py` changes.
"""

from pathlib import Path

import pytest
from recording import PROJECTS, RECORDED, kinds, neutral, record, recorded

MOST = 500_000  # bytes of all that is recorded


@pytest.fixture(params=PROJECTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def project(name: str, request: pytest.FixtureRequest) -> Path:
    """The finished project that `name` is recorded of."""
    return Path(request.getfixturevalue(PROJECTS[name]))


def test_stages_write_the_keys_and_types_that_are_recorded(
    name: str, project: Path, pytestconfig: pytest.Config
) -> None:
    found = neutral(project)
    if pytestconfig.getoption("--record"):
        record(name, found)
    expected = recorded(name)
    assert list(found) == list(expected)
    for path, text in found.items():
        assert kinds(path, text) == kinds(path, expected[path]), (
            f"{path}: pytest --record {Path(__file__).name}"
        )


def test_what_is_recorded_is_small_and_names_no_folder_of_its_maker() -> None:
    texts = [text for name in PROJECTS for text in recorded(name).values()]
    assert sum(len(text.encode()) for text in texts) <= MOST
    for words in (str(Path.home()), ".pytest_cache", str(RECORDED.parent.parent)):
        assert not [text for text in texts if words in text]


def test_another_key_or_type_is_seen() -> None:
    text = recorded("merged")["reports/parity.json"]
    for old, new, line in (
        ('"figure": 0.0,', '"figure": "0.0",', "checks.tokens_ids.figure: str"),
        ('"tokens_ids"', '"token_ids"', "checks.token_ids.figure: float"),
    ):
        assert line in kinds("parity.json", text.replace(old, new)) - kinds("parity.json", text)
