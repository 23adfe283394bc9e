"""Build the manual: a site of the pages in docs/ and of those that are made from the code."""

from pipeline.core.extras import Extra

EXTRA = Extra(page="docs/tutorial.md", provides={"doctor docs": "command"}, pip="docs", imports="zensical")
