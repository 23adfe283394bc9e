"""What changed in `data/final` between two versions: rows by id and source, counts by split, domain and
reason.

    quench data diff HEAD~1 --rows 3

Streams both versions; of a row only 64 bits and its split stay in memory, and the source of those that
differ.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.chat.rows import Row, texts
from pipeline.commands.data.versions import SPLITS, Version, revision, workspace
from pipeline.core.wording import one_line, plural
from pipeline.stages.curate.rules.changes import excerpts

LINES = 20  # of a table of domains or reasons
SEEN = 8  # set in a split's number once the row was met in the other version


@dataclass(frozen=True)
class Place:
    """Where a row lies in one version."""

    id: str
    source: str
    split: str


@dataclass
class Difference:
    """Rows that differ; a changed row has the same source and other content."""

    same: int = 0
    moved: list[tuple[Place, str]] = field(default_factory=list)  # and the split it is in now
    added: list[Place] = field(default_factory=list)
    removed: list[Place] = field(default_factory=list)
    changed: list[tuple[Place, Place]] = field(default_factory=list)
    splits: dict[str, tuple[int, int]] = field(default_factory=dict)  # before, after
    domains: dict[str, tuple[int, int]] = field(default_factory=dict)


def compare(before: Version, after: Version) -> Difference:
    """Every row of both versions, matched by id first, by source then."""
    old: dict[int, int] = {}
    rows_before, rows_after = (Counter[str](), Counter[str]()), (Counter[str](), Counter[str]())
    for split, row in before.rows():
        old.setdefault(int(row["id"], 16), SPLITS.index(split))
        _count(rows_before, split, row)
    found, new = Difference(), {}
    for split, row in after.rows():
        _count(rows_after, split, row)
        known, place = old.get(int(row["id"], 16)), Place(row["id"], row["source"], split)
        if known is None:
            new[row["source"]] = place
            continue
        old[int(row["id"], 16)] = known | SEEN
        was = SPLITS[known & ~SEEN]
        if was == split or known & SEEN:
            found.same += 1
        else:
            found.moved.append((Place(row["id"], row["source"], was), split))
    for split, row in before.rows() if any(not state & SEEN for state in old.values()) else ():
        if old.pop(int(row["id"], 16), SEEN) & SEEN:
            continue
        place = Place(row["id"], row["source"], split)
        now = new.pop(row["source"], None)
        if now:
            found.changed.append((place, now))
        else:
            found.removed.append(place)
    found.added = list(new.values())
    found.splits, found.domains = (_beside(a, b) for a, b in zip(rows_before, rows_after, strict=True))
    return found


def summary(before: Version, after: Version, found: Difference) -> Iterable[str]:
    """The difference as lines of text."""
    yield f"data/final from {before.name} to {after.name}"
    parts = [
        (len(found.added), "added"),
        (len(found.removed), "removed"),
        (len(found.changed), "changed"),
        (len(found.moved), "moved between splits"),
    ]
    stated = ", ".join(f"{number:,} {what}" for number, what in parts if number)
    yield (
        f"rows: {stated}, {found.same:,} the same"
        if stated
        else f"no row differs ({plural(found.same, 'row')})"
    )
    yield from _table("split", {split: found.splits.get(split, (0, 0)) for split in SPLITS})
    yield from _table("domain", _differing(found.domains))
    reasons = _beside(*(Counter(version.stats().get("rejected") or {}) for version in (before, after)))
    yield from _table("rejected", _differing(reasons))
    leaked = sum(place.split != "test" and split == "test" for place, split in found.moved)
    if leaked:
        yield ""
        yield (
            f"beware: moved into test, where it was not held out before: {leaked:,}; don't measure a "
            f"model trained on {before.name} with it"
        )


def examples(before: Version, after: Version, found: Difference, count: int) -> Iterable[str]:
    """Up to `count` rows of each kind, each with the beginning of its text."""
    changed, added, removed = found.changed[:count], found.added[:count], found.removed[:count]
    old = _fetched(before, {place.id for place in removed} | {place.id for place, _ in changed})
    new = _fetched(after, {place.id for place in added} | {now.id for _, now in changed})
    for title, mark, places, rows in (("added", "+", added, new), ("removed", "-", removed, old)):
        yield from ["", title] if places else []
        for place in places:
            yield f"  {mark} {one_line(place.source)} ({place.split}): {one_line(rows[place.id])}"
    yield from ["", "changed"] if changed else []
    for was, now in changed:
        yield (
            f"  ~ {one_line(was.source)} "
            f"({was.split if was.split == now.split else f'{was.split} → {now.split}'})"
        )
        for mark, text in zip("-+", excerpts(old[was.id], new[now.id]), strict=True):
            yield f"    {mark} {one_line(text, 180)}"
    yield from ["", "moved"] if found.moved and count else []
    for place, split in found.moved[:count]:
        yield f"  > {one_line(place.source)}: {place.split} → {split}"


def main(root: Path, first: str, second: str | None, rows: int) -> None:
    """Print what changed from revision `first` to `second` (None: to the workspace), with `rows` examples of
    each kind.
    """
    before = revision(root, first)
    after = revision(root, second) if second else workspace(root)
    found = compare(before, after)
    for line in summary(before, after, found):
        print(line)
    for line in examples(before, after, found, rows) if rows else ():
        print(line)


def _count(counters: tuple[Counter[str], Counter[str]], split: str, row: Row) -> None:
    counters[0][split] += 1
    counters[1][row.get("domain", "(none)")] += 1


def _beside(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    return {name: (before.get(name, 0), after.get(name, 0)) for name in sorted(before.keys() | after.keys())}


def _differing(pairs: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def _table(title: str, pairs: Mapping[str, tuple[int, int]]) -> Iterable[str]:
    """Names with both numbers and their difference, the largest difference first (splits in their order)."""
    if not pairs:
        return
    ordered = (
        list(pairs.items())
        if title == "split"
        else sorted(pairs.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0]))
    )
    wide = max(16, *(len(one_line(name, 48)) for name, _ in ordered[:LINES]))
    yield ""
    yield f"{title:{wide}} {'before':>12} {'after':>12} {'change':>12}"
    for name, (a, b) in ordered[:LINES]:
        yield f"{one_line(name, 48):{wide}} {a:12,} {b:12,} {b - a:+12,}"
    if len(ordered) > LINES:
        yield f"… and {len(ordered) - LINES} more"


def _fetched(version: Version, ids: set[str]) -> dict[str, str]:
    """The texts of some rows."""
    if not ids:
        return {}
    return {
        row["id"]: "\n".join(text for _, text in texts(row)) for _, row in version.rows() if row["id"] in ids
    }
