"""Compare two runs, commits, branches or folders, on the rows that both held out.

Reads of each run `params.lock.yaml`, `data/final/`, `reports/data.json`, `reports/metrics.json` and
`reports/eval/`, of a commit through DVC. Writes `reports/runs.html`.

    quench status --compare HEAD .
    quench status --compare HEAD~1 HEAD --json
"""

import json
from pathlib import Path

from pipeline.core.publish import write_text
from pipeline.extras.runs.compare import compare_runs
from pipeline.extras.runs.read import read_run
from pipeline.extras.runs.show import as_record, print_comparison, render, verdict

PAGE = "reports/runs.html"


def main(root: Path, first: str, second: str, *, as_json: bool = False) -> None:
    """Print how the runs differ, and write the page, or only print JSON.

    Raises `ConfigError` for a name that is no run, `DataError` for a run whose evaluations are not here.
    """
    found = compare_runs(read_run(root, first), read_run(root, second))
    if as_json:
        print(json.dumps(as_record(found), indent=1, ensure_ascii=False, allow_nan=False))
        return
    print_comparison(found)
    print(verdict(found))
    write_text(root / PAGE, render(found))
    print(f"The page: {(root / PAGE).resolve()}")
