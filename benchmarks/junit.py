"""What a report of pytest's (`--junitxml`) counts."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

COUNTS = ("tests", "failures", "errors", "skipped")


def suite_of(report: Path) -> ElementTree.Element:
    """The suite of a report, with its tests."""
    return next(ElementTree.parse(report).iter("testsuite"))  # noqa: S314 (pytest's own)


def counts_of(suite: ElementTree.Element) -> dict[str, int]:
    """How many tests a suite has, and how many of them failed, could not be run and were skipped."""
    return {name: int(suite.attrib[name]) for name in COUNTS}
