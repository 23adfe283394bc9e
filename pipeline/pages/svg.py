"""Inline SVG for the pages: the element with its title and description, text, numbers. The same input gives
the same bytes.
"""

from collections.abc import Sequence
from xml.sax.saxutils import escape


def svg(
    name: str, kind: str, size: tuple[float, float], title: str, description: str, parts: Sequence[str]
) -> str:
    """An `<svg>` of class `kind` with ids that begin with `name`; `size` is its viewBox, `description` says
    in words what is drawn.
    """
    head = f'<svg class="drawing {kind}" viewBox="0 0 {short(size[0])} {short(size[1])}" role="img"'
    label = f' aria-labelledby="{name}-title {name}-description">'
    words = (
        f'<title id="{name}-title">{escape(title)}</title><desc '
        f'id="{name}-description">{escape(description)}</desc>'
    )
    return "\n".join([head + label, words, *parts, "</svg>"])


def text(x: float, y: float, words: str, kind: str, *, anchor: str = "start", longest: int = 52) -> str:
    """A line of text of class `kind`; what goes beyond `longest` letters is cut with an ellipsis."""
    shown = words if len(words) <= longest else words[: longest - 1].rstrip(" ,") + "…"
    return f'<text class="{kind}" x="{short(x)}" y="{short(y)}" text-anchor="{anchor}">{escape(shown)}</text>'


def short(value: float) -> str:
    """At most one decimal: 12, 12.5."""
    return f"{value:.1f}".removesuffix(".0")
