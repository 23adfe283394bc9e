"""Show two texts and their differences, as words marked in HTML."""

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

LONGEST = 2000  # characters of a text that are shown
NEAR, LONG = 10, 50  # Words shown on either side of a difference; more than `LONG` further ones are left out.
# A sequence of letters, of digits, or one other character (code differs in less than what is between two
# blanks), with the blanks before it.
WORD = re.compile(r"\s*(?:[^\W\d_]+|\d+|\S)|\s+")


def clipped(text: object, longest: int = LONGEST) -> str:
    """Return the text's beginning, and how much more there is."""
    complete = str(text)
    more = len(complete) - longest
    return f"{complete[:longest]}… ({more:,} more characters)" if more > 0 else complete


def marked(before: str, after: str) -> "Markup":
    """Return `after` with its own words in `<ins>` and those only in `before` in `<del>`; long sequences of
    equal words are shortened. Everything is escaped.
    """
    from markupsafe import Markup, escape

    old, new = WORD.findall(clipped(before)), WORD.findall(clipped(after))
    parts: list[str] = []
    steps = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for place, (kind, i, j, k, m) in enumerate(steps):
        if kind == "equal":
            is_last = place == len(steps) - 1
            parts.append(escape(_shortened(new[k:m], first=place == 0, last=is_last)))
            continue
        if i < j:
            parts.append(f"<del>{escape(''.join(old[i:j]))}</del>")
        if k < m:
            parts.append(f"<ins>{escape(''.join(new[k:m]))}</ins>")
    return Markup("").join(Markup(part) for part in parts)  # noqa: S704 (each part is escaped above)


def _shortened(words: list[str], *, first: bool, last: bool) -> str:
    """Return equal words: those near a difference, … for the rest."""
    head, tail = (0 if first else NEAR), (0 if last else NEAR)
    if len(words) <= head + tail + LONG or (first and last):
        return "".join(words)
    return "".join(words[:head]) + " … " + "".join(words[len(words) - tail :])
