"""What one does after a run: look at the page, ask the model, give it away, or run what is left."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.workflow.graph_source import LAST
from pipeline.workflow.view.events import Advice

RAW = "data/raw"
FIGURES = Path("reports/quants.json")  # the stage `report` writes in it which level it recommends


def next_steps(root: Path, stages: Sequence[str], *, is_complete: bool) -> list[Advice]:
    """Return the commands for after a run of `stages`. `is_complete`: all of them are done."""
    if not is_complete:
        return [Advice("quench run", "goes on with what is left, after what is said above")]
    unrecorded = [*_unrecorded(root)]
    if stages and LAST not in stages:
        return [Advice("quench run", f"runs the rest, up to the {LAST}"), *unrecorded]
    if not (root / "reports/index.html").is_file():
        return unrecorded
    level = _recommended(root)
    page = Advice("quench status --open", "opens the report")
    if not level:
        return [page, *unrecorded]
    return [
        page,
        *unrecorded,
        Advice(f"quench serve {level}", "serves the recommended model"),
        Advice("quench chat", "asks it, in another terminal"),
        Advice(f"quench ship {level}", "makes the bundle to give away"),
    ]


def _unrecorded(root: Path) -> Iterator[Advice]:
    if (root / ".dvc").is_dir() and (root / RAW).is_dir() and not (root / f"{RAW}.dvc").is_file():
        yield Advice(f"dvc add {RAW}", "records your data, which a clone lacks otherwise")


def _recommended(root: Path) -> str:
    try:
        name = json.loads((root / FIGURES).read_text(encoding="utf-8")).get("recommended")
    except (OSError, ValueError, AttributeError):
        return ""
    return name if isinstance(name, str) else ""
