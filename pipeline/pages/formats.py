"""Format figures as report text: sizes, shares, points, p-values; a dash if not measured.

These are the templates' filters.
"""

import re
from typing import Any

from pipeline.core.text import count
from pipeline.core.units import size_text

MISSING = "–"


def number(value: Any, digits: int = 2) -> str:
    """Return 12.34; a dash if there is no number."""
    return f"{value:,.{digits}f}" if is_number(value) else MISSING


def percent(value: Any, digits: int = 1) -> str:
    """Return a share of 1 as 97.9 %."""
    return f"{value * 100:.{digits}f} %" if is_number(value) else MISSING


def points(value: Any) -> str:
    """Return a share of 1 as points of 100: 75.7."""
    return number(value * 100, 1) if is_number(value) else MISSING


def signed(value: Any, digits: int = 1) -> str:
    """Return +2.1 or −2.1, with a real minus; 0.0 if it rounds to nothing."""
    if not is_number(value):
        return MISSING
    text = f"{abs(value):.{digits}f}"
    return text if float(text) == 0 else ("+" if value > 0 else "−") + text


def probability(value: Any) -> str:
    """Return a p-value as text: 0.032, < 0.001, or 0.0496.

    The last is not 0.050, because that would be past 0.05, where a difference is noise.
    """
    if not is_number(value):
        return MISSING
    if value < 0.001:
        return "< 0.001"
    text = f"{value:.3f}"
    if text == "0.050" and value < 0.05:
        return f"{int(value * 10_000) / 10_000:.4f}"
    return text


def p_value(value: float) -> str:
    """Return p = 0.032 or p < 0.001, as in a sentence."""
    text = probability(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def significant(value: Any) -> str:
    """Return three significant digits (0.00123, 1.2e-07, 98.5; never -0), and text as it is."""
    if is_number(value):
        return f"{value + 0.0:.3g}"
    return value if isinstance(value, str) else MISSING


def size(value: Any) -> str:
    """Return bytes as 105.5 MB or 4.68 GB (decimal units)."""
    return size_text(value) if is_number(value) else MISSING


def duration(value: Any) -> str:
    """Return seconds as 0.4 s, 48 s, 7.7 min or 14.2 h."""
    if not is_number(value):
        return MISSING
    if value < 10:
        return f"{value:.1f} s"
    if value < 100:
        return f"{value:.0f} s"
    if value < 6000:
        return f"{value / 60:.1f} min"
    return f"{value / 3600:.1f} h"


def anchor(command: str) -> str:
    """Return the id of a command on the page."""
    return "command-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", command)


def is_number(value: Any) -> bool:
    """Return True if `value` is an int or a float, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


FIGURES = {  # filters of the templates
    function.__name__: function
    for function in (number, percent, points, signed, probability, significant, size, count, duration)
}
