"""Watch a training: in the terminal, as lines of text, or on a page of the loopback."""

from pipeline.core.extras import Extra

EXTRA = Extra(
    page="docs/watching.md", verbs="verb", provides={"status --live": "verb"}, pip="watch", imports="textual"
)
