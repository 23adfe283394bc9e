"""OpenMP threads of this package's processes give way while they wait, unless the user says otherwise."""

import os
import subprocess
import sys

import pytest

from pipeline.llamacpp.server_process import environment

ASKED = """
import os
from pipeline.models.runtime import let_threads_give_way
let_threads_give_way()
print(os.environ.get("GOMP_SPINCOUNT"))
"""


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_give_way_unless_the_user_says_otherwise(given: dict[str, str], wanted: str) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], env=kept | given, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == wanted


def test_a_server_of_a_stage_waits_the_same_way() -> None:
    assert environment({"GOMP_SPINCOUNT": "1000"})["GOMP_SPINCOUNT"] == "1000"
