"""Decide which file to use: the best that fits, or the ones that the rows don't distinguish.

Pure arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

from pipeline.core.text import listed, plural
from pipeline.core.units import memory_gb
from pipeline.metrics.statistics import CHANCE, compare_scores, holm

COARSE = 5.0  # points; a possible difference of this size deserves a note


@dataclass(frozen=True)
class Entry:
    """Figures of a file that decide: mean score (0 to 1), its size and the memory it needs in bytes, whether
    it fits (None: not known), and generated tokens per second in the slowest, median and fastest run.
    """

    name: str
    score: float
    bytes: int
    memory: int
    fits: bool | None
    slowest: float
    speed: float
    fastest: float


@dataclass(frozen=True)
class Pair:
    """Paired comparison: the second file's mean score less the first's, in points of 100, on the `rows` that
    both have a score for. `p_holm` is `p_value` corrected for as many tests as there are pairs.
    """

    first: str
    second: str
    points: float
    low: float
    high: float
    p_value: float
    p_holm: float
    method: str
    rows: int

    @property
    def measurable(self) -> bool:
        """Return True if both the interval and the test show that the difference is more than chance."""
        return self.p_holm < CHANCE and (self.low > 0 or self.high < 0)

    def of(self, *names: str) -> bool:
        """Return True if these are its two files."""
        return {self.first, self.second} == set(names)


@dataclass(frozen=True)
class Verdict:
    """Result of the comparison. `best` is None if no file fits. `alike` contains the files that fit and are
    not measurably worse than the best, including the best. `notes` are warnings.
    """

    sentence: str
    best: str | None
    alike: tuple[str, ...]
    smallest: str | None
    fastest: str | None
    notes: tuple[str, ...]


def pairs_of(points: Mapping[str, Sequence[float]]) -> list[Pair]:
    """Test every two files against each other on the same rows in the same order.

    The p-values are corrected by Holm.
    """
    pairs = list(combinations(points, 2))
    tests = [compare_scores(points[first], points[second]) for first, second in pairs]
    adjusted = holm([test.p_value for test in tests])
    return [
        Pair(first, second, p_holm=p_holm, rows=len(points[first]), **asdict(test))
        for (first, second), test, p_holm in zip(pairs, tests, adjusted, strict=True)
    ]


def decide(entries: Sequence[Entry], pairs: Sequence[Pair], rows: int, room: str) -> Verdict:
    """Decide over all files. `room` describes in words the memory that they must fit in."""
    fitting = [entry for entry in entries if entry.fits is not False]
    unsure = tuple(
        f"whether {entry.name} fits is not known: its memory could not be measured."
        for entry in fitting
        if entry.fits is None
    )
    if not fitting:
        least = min(entries, key=lambda entry: entry.memory)
        sentence = f"No file fits in {room}: {least.name} needs the least, {memory_gb(least.memory)}."
        return Verdict(sentence, None, (), None, None, ())
    best = max(fitting, key=lambda entry: entry.score)
    beware = (*unsure, *_too_large(best, entries, pairs, room))
    alike = [entry for entry in fitting if entry is best or not _worse(entry.name, best.name, pairs)]
    # Of three files, the best may be like both others although these two differ.
    alike = [entry for entry in alike if not any(_worse(entry.name, other.name, pairs) for other in alike)]
    if len(alike) == 1:
        sentence = _best_sentence(best, [entry for entry in fitting if entry is not best], pairs, room)
        return Verdict(sentence, best.name, (best.name,), best.name, best.name, beware)
    smallest = smallest_of(alike)
    fastest = fastest_of(alike)
    one_size = max(entry.bytes for entry in alike) <= 1.01 * min(entry.bytes for entry in alike)
    closing = _closing(smallest, fastest, len(alike), one_size)
    sentence = (
        f"{listed([entry.name for entry in alike])} fit in {room} and are not distinguishable on "
        f"{plural(rows, 'row')} ({_range(alike)} points); {closing}."
    )
    notes = (*beware, *_coarse(best.name, alike, pairs, rows))
    return Verdict(sentence, best.name, tuple(entry.name for entry in alike), smallest, fastest, notes)


def smallest_of(alike: Sequence[Entry]) -> str | None:
    """Return the smallest file.

    Returns None if another is at most a hundredth larger, as two levels of one model may be.
    """
    first, second = sorted(alike, key=lambda entry: entry.bytes)[:2]
    return first.name if second.bytes > 1.01 * first.bytes else None


def fastest_of(alike: Sequence[Entry]) -> str | None:
    """Return the file whose slowest run is faster than every other file's fastest.

    Returns None if there is none.
    """
    first = max(alike, key=lambda entry: entry.speed)
    others = [entry.fastest for entry in alike if entry is not first]
    return first.name if first.slowest > max(others) else None


def _worse(first: str, second: str, pairs: Sequence[Pair]) -> bool:
    """Return True if the first file is measurably worse than the second."""
    return any(
        pair.measurable and (pair.points > 0) == (pair.second == second)
        for pair in pairs
        if pair.of(first, second)
    )


def _too_large(best: Entry, entries: Sequence[Entry], pairs: Sequence[Pair], room: str) -> list[str]:
    return [
        f"{entry.name} is better ({100 * entry.score:.1f} points) and does not fit: it needs "
        f"{memory_gb(entry.memory)} of {room}."
        for entry in entries
        if entry.fits is False and _worse(best.name, entry.name, pairs)
    ]


def _best_sentence(best: Entry, others: Sequence[Entry], pairs: Sequence[Pair], room: str) -> str:
    if not others:
        return f"{best.name} is the only file that fits in {room}: {100 * best.score:.1f} points."
    runner_up = max(others, key=lambda entry: entry.score)
    pair = next(pair for pair in pairs if pair.of(best.name, runner_up.name))
    side = 1 if pair.second == best.name else -1
    low, high = sorted((side * pair.low, side * pair.high))
    return (
        f"{best.name} is the best file that fits in {room}: {100 * best.score:.1f} points, "
        f"{side * pair.points:.1f} ({low:.1f} to {high:.1f}) more than {runner_up.name}, the next."
    )


def _range(alike: Sequence[Entry]) -> str:
    low = f"{100 * min(entry.score for entry in alike):.1f}"
    high = f"{100 * max(entry.score for entry in alike):.1f}"
    return low if low == high else f"{low} to {high}"


def _closing(smallest: str | None, fastest: str | None, count: int, one_size: bool) -> str:
    of_them = "of the two" if count == 2 else "of them"
    if smallest and smallest == fastest:
        return f"{smallest} is the smallest and the fastest {of_them}"
    if smallest:
        small = f"{smallest} is the smallest"
    elif one_size:
        small = "they are of one size"
    else:
        small = "none is the smallest"
    if fastest and smallest:
        fast = f"{fastest} the fastest {of_them}"
    elif fastest:
        fast = f"{fastest} is the fastest"
    else:
        fast = "their speeds overlap"
    return f"{small} and {fast}"


def _coarse(best: str, alike: Sequence[Entry], pairs: Sequence[Pair], rows: int) -> list[str]:
    spans = [pair for pair in pairs for entry in alike if pair.of(best, entry.name)]
    # Without a row that differs, up to 3 / n of all rows may (the rule of three; Hanley, Lippman-Hand 1983).
    halves = [(pair.high - pair.low) / 2 or 300 / pair.rows for pair in spans]
    if not halves or max(halves) <= COARSE:
        return []
    return [
        f"{plural(rows, 'row')} show no difference below about {max(halves):.0f} points: give more --rows "
        "for a firmer answer."
    ]
