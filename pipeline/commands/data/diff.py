"""Compare two versions of `data/final`: rows by id and source, counts by split, domain and reason.

    quench data diff HEAD~1 --rows 3

Streams both versions. Only 64 bits and the split of each row stay in memory, and the source of those that
differ.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.chat.rows import texts
from pipeline.commands.data.versions import SPLITS, Version, revision, workspace
from pipeline.core.text import one_line, plural
from pipeline.stages.curate.rules.changes import excerpts

LINES = 20  # lines of a table of domains or reasons
SEEN = 8  # bit set in a split's number once the row was found in the other version


@dataclass(frozen=True)
class Place:
    """Place of a row in one version."""

    id: str
    source: str
    split: str


@dataclass
class Difference:
    """Rows that differ. A changed row has the same source and other content."""

    same: int = 0
    moved: list[tuple[Place, str]] = field(default_factory=list)  # old place, and the new split
    added: list[Place] = field(default_factory=list)
    removed: list[Place] = field(default_factory=list)
    changed: list[tuple[Place, Place]] = field(default_factory=list)
    splits: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))
    domains: tuple[Counter[str], Counter[str]] = field(default_factory=lambda: (Counter(), Counter()))

    @property
    def moved_into_test(self) -> int:
        """Return the number of rows that are held out now and were not before."""
        return sum(place.split != "test" and split == "test" for place, split in self.moved)


def compare(before: Version, after: Version) -> Difference:
    """Match every row of both versions, first by id, then by source."""
    old: dict[int, int] = {}
    new: dict[str, list[Place]] = {}  # places by source; rows of one exported conversation share a source
    difference = Difference()
    for split, row in before.rows():
        old.setdefault(int(row["id"], 16), SPLITS.index(split))
        difference.splits[0][split] += 1
        difference.domains[0][row.get("domain", "(none)")] += 1
    for split, row in after.rows():
        difference.splits[1][split] += 1
        difference.domains[1][row.get("domain", "(none)")] += 1
        entry = old.get(int(row["id"], 16))
        if entry is None:
            new.setdefault(row["source"], []).append(Place(row["id"], row["source"], split))
            continue
        old[int(row["id"], 16)] = entry | SEEN
        was = SPLITS[entry & ~SEEN]
        if was == split or entry & SEEN:
            difference.same += 1
        else:
            difference.moved.append((Place(row["id"], row["source"], was), split))
    for split, row in before.rows() if any(not state & SEEN for state in old.values()) else ():
        if old.pop(int(row["id"], 16), SEEN) & SEEN:
            continue
        place = Place(row["id"], row["source"], split)
        if new.get(row["source"]):
            difference.changed.append((place, new[row["source"]].pop(0)))
        else:
            difference.removed.append(place)
    difference.added = list(chain.from_iterable(new.values()))
    return difference


def summary(before: Version, after: Version, difference: Difference) -> Iterable[str]:
    """Yield the difference as lines of text."""
    yield f"data/final from {before.name} to {after.name}"
    kinds: dict[str, list[Any]] = {
        "added": difference.added,
        "removed": difference.removed,
        "changed": difference.changed,
        "moved between splits": difference.moved,
    }
    counts = [f"{len(rows):,} {kind}" for kind, rows in kinds.items() if rows]
    same = f"rows: {', '.join(counts)}, {difference.same:,} the same"
    yield same if counts else f"no row differs ({plural(difference.same, 'row')})"
    yield from _table("split", *difference.splits)
    yield from _table("domain", *difference.domains)
    yield from _table(
        "rejected", *(Counter(version.stats().get("rejected") or {}) for version in (before, after))
    )
    if difference.moved_into_test:
        yield (
            "\nbeware: moved into test, where it was not held out before: "
            f"{difference.moved_into_test:,}; don't measure a model trained on {before.name} with it"
        )


def as_value(before: Version, after: Version, difference: Difference, rows: int) -> dict[str, Any]:
    """Return the difference as JSON: numbers, and the places of up to `rows` rows of each kind."""
    kinds: dict[str, list[Any]] = {
        "added": [asdict(place) for place in difference.added],
        "removed": [asdict(place) for place in difference.removed],
        "changed": [{"before": asdict(was), "after": asdict(now)} for was, now in difference.changed],
        "moved": [asdict(place) | {"to": split} for place, split in difference.moved],
    }
    return {
        "from": before.name,
        "to": after.name,
        "same": difference.same,
        **{kind: len(places) for kind, places in kinds.items()},
        "moved_into_test": difference.moved_into_test,
        "splits": _both(*difference.splits),
        "domains": _both(*difference.domains),
        "rejected": _both(*(version.stats().get("rejected") or {} for version in (before, after))),
        "rows": {kind: places[:rows] for kind, places in kinds.items()},
    }


def _both(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, dict[str, int]]:
    return {"before": dict(before), "after": dict(after)}


def examples(before: Version, after: Version, difference: Difference, count: int) -> Iterable[str]:
    """Yield up to `count` rows of each kind, each with the beginning of its text."""
    changed = difference.changed[:count]
    added = difference.added[:count]
    removed = difference.removed[:count]
    old = _fetched(before, {place.id for place in removed} | {place.id for place, _ in changed})
    new = _fetched(after, {place.id for place in added} | {now.id for _, now in changed})
    for title, mark, places, rows in (("added", "+", added, new), ("removed", "-", removed, old)):
        yield from ["", title] if places else []
        yield from (
            f"  {mark} {one_line(place.source)} ({place.split}): {one_line(rows[place.id])}"
            for place in places
        )
    yield from ["", "changed"] if changed else []
    for was, now in changed:
        split = was.split if was.split == now.split else f"{was.split} → {now.split}"
        yield f"  ~ {one_line(was.source)} ({split})"
        for mark, text in zip("-+", excerpts(old[was.id], new[now.id]), strict=True):
            yield f"    {mark} {one_line(text, 180)}"
    moved = [
        f"  > {one_line(place.source)}: {place.split} → {split}" for place, split in difference.moved[:count]
    ]
    yield from ["", "moved", *moved] if moved else []


def main(root: Path, first: str, second: str | None, rows: int, *, as_json: bool = False) -> None:
    """Print what changed from revision `first` to `second` (None: workspace), with `rows` examples a kind."""
    before = revision(root, first)
    after = revision(root, second) if second else workspace(root)
    difference = compare(before, after)
    if as_json:
        print(json.dumps(as_value(before, after, difference, rows), indent=2, ensure_ascii=False))
        return
    for line in chain(summary(before, after, difference), examples(before, after, difference, rows)):
        print(line)  # Lines are printed one by one: the summary appears even if the examples can't be read.


def _table(title: str, before: Counter[str], after: Counter[str]) -> Iterable[str]:
    """Yield a table of names with both numbers and their difference. It lists all splits in their order,
    otherwise the names that differ, the largest difference first.
    """
    change = {name: after[name] - before[name] for name in before.keys() | after.keys()}
    names: Sequence[str] = SPLITS
    if title != "split":
        names = sorted(filter(change.get, change), key=lambda name: (-abs(change[name]), name))
    if not names:
        return
    wide = max(16, *(len(one_line(name, 48)) for name in names[:LINES]))
    yield f"\n{title:{wide}} {'before':>12} {'after':>12} {'change':>12}"
    for name in names[:LINES]:
        yield f"{one_line(name, 48):{wide}} {before[name]:12,} {after[name]:12,} {change.get(name, 0):+12,}"
    if len(names) > LINES:
        yield f"… and {len(names) - LINES} more"


def _fetched(version: Version, ids: set[str]) -> dict[str, str]:
    """Return the texts of some rows, by id."""
    return {
        row["id"]: "\n".join(text for _, text in texts(row))
        for _, row in (version.rows() if ids else ())
        if row["id"] in ids
    }
