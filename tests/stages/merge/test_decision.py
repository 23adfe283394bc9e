"""merge.base auto: one merge on the disk at a time; the closer one, where rows tell the two apart, else that
into the 16-bit weights, is published, whole.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT
from pipeline.metrics.divergence import Divergence
from pipeline.stages.merge import choose

PARAMS = load_params(PROJECT / "recipes" / "demo.yaml")
SAME = [0.1 + 0.001 * (row % 7) for row in range(40)]
FAR = [value + 0.2 for value in SAME]


@pytest.mark.parametrize(
    ("sixteen_bit", "nf4", "better", "words"),
    [
        (SAME, FAR, "16-bit", "16-bit base is closer to the trained model by 0.2000 to 0.2000 nats, 40 rows"),
        (FAR, SAME, "nf4", "NF4 base is closer to the trained model by 0.2000 to 0.2000 nats, 40 rows"),
        (SAME, SAME, "16-bit", "40 rows can't tell the two merges apart"),
        (FAR, [value + row % 2 - 0.5 for row, value in enumerate(FAR)], "16-bit", "can't tell"),
        (FAR[:8], SAME[:8], "nf4", "8 rows"),
        (FAR[:7], SAME[:7], "16-bit", "7 rows can't tell"),  # too few are no evidence
        ([float("nan"), *FAR], [0.1, *SAME], "16-bit", "can't tell"),
    ],
)
def test_the_rule(
    sixteen_bit: list[float],
    nf4: list[float],
    better: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def make(merge_base: str, folder: Path) -> dict[str, Any]:
        assert not [other for other in folder.parent.glob("*") if other.is_dir()]
        folder.mkdir()
        (folder / "weights").write_text(merge_base)
        calls.append(merge_base)
        return {"merge_base": merge_base}

    def measure(merged: Path, *_: Any) -> choose.Divergences:
        assert (merged / "weights").read_text() == merged.name
        kld = {"16-bit": sixteen_bit, "nf4": nf4}[merged.name]
        # at 16 bit it is the other way round
        rows = {"F16": [-value for value in kld], PARAMS.quantize.deciding: kld}
        return {level: Divergence(row, row[0], 1.0, 0.9, 0.1, 40, 0, (5, 5)) for level, row in rows.items()}

    @contextmanager
    def reference(*_: Any) -> Iterator[None]:
        yield None

    (tmp_path / "models").mkdir()
    monkeypatch.setattr(choose, "measure", measure)
    monkeypatch.setattr(choose, "held_out", lambda *_: [])
    monkeypatch.setattr(choose, "kept_logits", reference)
    choice, record = choose.merge_the_better(make, PARAMS, tmp_path, None)  # type: ignore[arg-type]
    made = ["16-bit", "nf4", *(["16-bit"] if better == "16-bit" else [])]
    assert (choice.merge_base, record, calls) == (better, {"merge_base": better}, made)
    assert choice.reason.startswith(f"At {PARAMS.quantize.deciding} ") and words in choice.reason
    assert set(choice.candidates) == {"16-bit", "nf4"}
    assert (tmp_path / "models/merged/weights").read_text() == better
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["merged"]
