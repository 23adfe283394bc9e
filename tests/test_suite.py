"""What the tests name and what they cost (`benchmarks/suite.py`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.suite import counts_by_name

# how many no test names; lower a number when you name one
UNNAMED = {"keys": 0, "verbs": 0, "error ids": 60}


def test_no_key_verb_or_error_id_comes_without_a_test() -> None:
    unnamed = {kind: [name for name in names if not names[name]] for kind, names in counts_by_name().items()}
    assert not {kind: names for kind, names in unnamed.items() if len(names) > UNNAMED[kind]}
