"""Every key of params.yaml and every verb of the command line is named by a test (`benchmarks/suite.py`)."""

from benchmarks.suite import counts_by_name


def test_no_key_or_verb_comes_without_a_test() -> None:
    counts = counts_by_name()
    unnamed = {
        kind: [name for name, tests in counts[kind].items() if not tests] for kind in ("keys", "verbs")
    }
    assert unnamed == {"keys": [], "verbs": []}
