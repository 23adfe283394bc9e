"""The outputs of the stage, put together from those of all shards in their order, checked and published."""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.config.sections import Curate
from pipeline.core.jsonl import dump_line
from pipeline.core.publish import publishing, write_json, write_text
from pipeline.stages.curate.account import check_not_empty, check_stats
from pipeline.stages.curate.clean import file_entry, keep_sample
from pipeline.stages.curate.comparing.decide import SPLITS
from pipeline.stages.curate.page import render_data_page
from pipeline.stages.curate.phases.clean import CHANGES, REJECTS
from pipeline.stages.curate.phases.cluster import COUNTS
from pipeline.stages.curate.phases.cluster import SAMPLES as PAGE_SAMPLES
from pipeline.stages.curate.phases.plan import Plan, raw_folder
from pipeline.stages.curate.phases.work import Work, read
from pipeline.stages.curate.phases.write import CLUSTERS, DROPPED, SAMPLES


def publish(root: Path, settings: Curate, work: Work, plan: Plan) -> dict[str, Any]:
    """Publish the outputs below `root` and give the statistics (what `reports/data.json` holds). Raises
    `DataError` if no row can be used or a wanted split is empty; then nothing is published.
    """
    cleaned, written, data = work.each("clean"), work.each("write"), root / "data"
    counts: dict[str, Any] = read(work.made("cluster") / COUNTS)
    samples: dict[str, Any] = read(work.made("cluster") / PAGE_SAMPLES)
    with ExitStack() as stack:
        final, rejects, changes, clusters = (
            stack.enter_context(publishing(data / name))
            for name in ("final", "rejects.jsonl", "changes.jsonl", "clusters.jsonl")
        )
        final.mkdir()
        for split in SPLITS:
            parts = [folder / f"{split}.jsonl" for folder in written]
            if work.key:
                _join(parts, final / f"{split}.jsonl")
            else:  # one process, one shard, and nobody else needs the file
                parts[0].rename(final / f"{split}.jsonl")
        refused = b"".join(dump_line(file_entry(name, why)) for name, why in plan.refused.items())
        dropped = [folder / DROPPED for folder in written]
        _join([*(folder / REJECTS for folder in cleaned), *dropped], rejects, refused)
        _join([folder / CHANGES for folder in cleaned], changes)
        _join([folder / CLUSTERS for folder in written], clusters)
        check_stats(counts, final, rejects)
        check_not_empty(counts, samples.pop("all_rejects"), raw_folder(root), settings)
        samples["rejects"] += _dropped_samples(written)
        page = render_data_page(counts, samples)
    write_json(root / "reports/data.json", counts)
    write_text(root / "reports/data.html", page)
    return counts


def _join(parts: Sequence[Path], target: Path, head: bytes = b"") -> None:
    """Write `head` and the parts, one after the other."""
    with target.open("wb") as whole:
        whole.write(head)
        for path in parts:
            with path.open("rb") as part:
                shutil.copyfileobj(part, whole, 1 << 20)


def _dropped_samples(written: Sequence[Path]) -> list[dict[str, Any]]:
    """The first few rejects of every reason, of all shards."""
    shown: dict[str, list[dict[str, Any]]] = {}
    for folder in written:
        for reason, entries in read(folder / SAMPLES).items():
            for entry in entries:
                keep_sample(shown, reason, entry)
    return list(chain.from_iterable(shown.values()))
