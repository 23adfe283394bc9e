"""merge.base auto: one merge on the disk at a time; the merge that measured better is published, whole."""

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


@pytest.mark.parametrize(
    ("better", "made"), [("nf4", ["16-bit", "nf4"]), ("16-bit", ["16-bit", "nf4", "16-bit"])]
)
def test_one_merge_is_there_at_a_time(
    better: str, made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        kld = [0.1 if merged.name == better else 0.3] * 40
        return {
            level: Divergence(kld, kld[0], 1.0, 0.9, 0.1, 40, 0, (5, 5))
            for level in ("F16", PARAMS.quantize.deciding)
        }

    @contextmanager
    def reference(*_: Any) -> Iterator[None]:
        yield None

    (tmp_path / "models").mkdir()
    monkeypatch.setattr(choose, "measure", measure)
    monkeypatch.setattr(choose, "held_out", lambda *_: [])
    monkeypatch.setattr(choose, "kept_logits", reference)
    choice, record = choose.merge_the_better(make, PARAMS, tmp_path, None)  # type: ignore[arg-type]
    assert (choice.merge_base, record, calls) == (better, {"merge_base": better}, made)
    assert set(choice.candidates) == {"16-bit", "nf4"}
    assert (tmp_path / "models/merged/weights").read_text() == better
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["merged"]
