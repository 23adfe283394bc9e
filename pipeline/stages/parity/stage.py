"""Run the parity checks: is the served model the trained one?

Each parity check has a figure, a limit and a verdict.

Reads `data/final/test.jsonl`, `models/base/`, `models/adapter/`, `models/merged/`, `reports/merge.json`,
every GGUF in `models/gguf/`, `reports/distill/`. With `base.quantization: gguf` there is no merge, and of the
GGUFs only the adapter's or the tuned one is read. Writes `reports/parity.json` and `reports/parity.html`; a
failed parity check fails the run (exit code 5). Command: `python -m pipeline parity`
"""

from itertools import islice
from pathlib import Path

from pipeline.chat.selection import chats_in, drawn, measured_in
from pipeline.config.params import Params
from pipeline.core.checks import overall
from pipeline.core.errors import DataError, GateError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import scratch_folder, write_json, write_text
from pipeline.llamacpp.tools import find_llama
from pipeline.stages.parity.check import KEYS, Measure, ParityChecks, measured
from pipeline.stages.parity.page import render_parity_page
from pipeline.stages.parity.routes import ROUTES
from pipeline.stages.parity.tool_calls import holds_calls

CALLING_ROWS = 4  # rows per parity.rows; a row that is only read costs less than one that is answered


def measure_parity(params: Params, root: Path) -> ParityChecks:
    """Measure the files below `root`, write both reports (even if a check failed) and return the checks.
    Raises `DataError` if the test split has no chat and no text.
    """
    file = root / "data/final/test.jsonl"
    rows = list(islice(measured_in(file), max(params.parity.conversations, params.parity.rows)))
    if not rows:
        raise DataError(
            "Q-PARITY-003",
            f"{file} holds no chat and no text, so parity has nothing to compare: raise curate.test_fraction",
        )
    with scratch_folder(root / "models/.parity") as scratch:
        measure = Measure(
            rows,
            params.parity,
            find_llama(params.machine),
            scratch,
            params.quantize.tensor_types,
            calling=drawn(filter(holds_calls, chats_in(file)), CALLING_ROWS * params.parity.rows),
        )
        route = ROUTES[params.graph](params, root, measure)
        checks = measured(route.probes, params.parity.depth)
    report = {
        "verdict": overall(checks.values()),
        "depth": params.parity.depth,
        "checks": {
            key: check.record(KEYS) | {"place": route.places.get(key, "")} for key, check in checks.items()
        },
        "files": {path.name: file_hash(path) for path in route.files},
    }
    write_json(root / "reports/parity.json", report)
    write_text(root / "reports/parity.html", render_parity_page(report, route.merge_report))
    return checks


def main(params: Params, root: Path) -> None:
    """Run the stage on files below `root`.

    Raises `GateError` for a failed check after writing the reports.
    """
    checks = measure_parity(params, root).values()
    print(*(f"parity: {check}" for check in checks), sep="\n")
    failed = [check for check in checks if check.verdict == "fail"]
    if failed:
        raise GateError(
            "Q-PARITY-001",
            "; ".join(
                f"{check.name} failed: {check.found}; likely cause: {check.remedy}" for check in failed
            ),
        )
