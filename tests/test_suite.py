"""What the tests name (`benchmarks/suite.py`), and what the code does (`benchmarks/house_scatter.py`)."""

import ast

from benchmarks.house_scatter import Feature, names, outside
from benchmarks.suite import counts_by_name

# how many no test names; lower a number when you name one
UNNAMED = {"keys": 0, "verbs": 0, "error ids": 60}


def test_no_key_verb_or_error_id_comes_without_a_test() -> None:
    unnamed = {kind: [name for name in names if not names[name]] for kind, names in counts_by_name().items()}
    assert not {kind: names for kind, names in unnamed.items() if len(names) > UNNAMED[kind]}


def test_a_feature_is_named_by_code_outside_its_home_and_not_by_sentences() -> None:
    sentence = '"""budget"""\nraise E("a budget")  # budget'
    modules = {"a.py": "row['budget']", "b.py": sentence, "home/c.py": "import budget", "d.py": "x.budgets"}
    named = {module: set(names(ast.parse(text))) for module, text in modules.items()}
    assert outside(Feature("home", "budget"), named) == {"a.py": ["'budget'"], "d.py": ["budgets"]}
