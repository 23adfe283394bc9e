"""Curves as braille characters: each has two by four dots."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from pipeline.extras.watch.history import Points

FIRST = 0x2800  # the character without a dot
# the bit of each dot, by row and column
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
Cells = list[list[tuple[int, int]]]


def drawn(series: Sequence[Points], width: int, height: int) -> tuple[Cells, float, float]:
    """Return the cells of a drawing, each (its character's code, the number of its last series), with the
    lowest and the highest value. All series share their scales.
    """
    cells: Cells = [[(FIRST, 0)] * width for _ in range(height)]
    values = [value for points in series for value in points.values]
    steps = [step for points in series for step in points.steps]
    if not values or width < 1 or height < 1:
        return cells, 0.0, 0.0
    low = min(values)
    high = max(values)
    first = min(steps)
    across = max(1, max(steps) - first)
    up = high - low
    columns = 2 * width
    rows = 4 * height
    per_column = across / (columns - 1)

    def dot(column: int, row: int, number: int) -> None:
        line = cells[row // 4]
        code, _ = line[column // 2]
        line[column // 2] = (code | DOTS[row % 4][column % 2], number)

    def row_of(value: float) -> int:
        share = (value - low) / up if up else 0.5
        return round((1 - share) * (rows - 1))

    for number, points in enumerate(series):
        before: tuple[int, int] | None = None
        for column in range(columns):
            # The values of all steps in this column: their range is drawn, so no spike is lost.
            start = bisect_left(points.steps, first + (column - 0.5) * per_column)
            end = bisect_left(points.steps, first + (column + 0.5) * per_column)
            inside = points.values[start:end]
            if not inside:
                continue
            top = row_of(max(inside))
            bottom = row_of(min(inside))
            if before is not None:
                _line(before, (column, (top + bottom) // 2), number, dot)
            for row in range(top, bottom + 1):
                dot(column, row, number)
            before = (column, row_of(inside[-1]))
    return cells, low, high


def _line(
    start: tuple[int, int], end: tuple[int, int], number: int, dot: Callable[[int, int, int], None]
) -> None:
    """Draw a line with `dot` from one dot to another one on its right."""
    (left, above), (right, below) = start, end
    length = max(right - left, abs(below - above), 1)
    for part in range(1, length):
        dot(left + (right - left) * part // length, above + round((below - above) * part / length), number)
