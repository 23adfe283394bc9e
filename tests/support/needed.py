"""Tests that need what not every machine has: a program, or time. Such a test is skipped there, and a table
at the end of the run counts the skipped ones by what they lack. `pytest --unmeasured` runs the tests in the
last run's table.
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator

import pytest

REASON = "not measured: needs "
KEPT = "quench/unmeasured"  # in pytest's cache: the tests in the table
STARTED = time.monotonic()  # of this run, or of this worker of it


def need(what: str) -> str:
    """The reason for skipping a test that needs `what`."""
    return REASON + what


def absent(*programs: str) -> str:
    """The reason for skipping a test that needs these programs; empty if all are installed."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])  # servers' place in Debian
    missing = [name for name in programs if not shutil.which(name, path=path)]
    return need(", ".join(missing)) if missing else ""


def programs(*names: str) -> pytest.MarkDecorator:
    """The mark of a test that needs these programs."""
    return pytest.mark.skipif(bool(absent(*names)), reason=absent(*names))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--unmeasured",
        action="store_true",
        help="run the tests that the last run skipped for want of what they need",
    )
    parser.addoption(
        "--begin-within",
        type=float,
        metavar="SECONDS",
        help="skip, as not measured, each test that would begin later than this after the start",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--unmeasured") and config.cache:
        config.args[:] = config.cache.get(KEPT, [])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that time has run out for, before its fixtures are made."""
    limit = item.config.getoption("--begin-within")
    if limit is not None and time.monotonic() - STARTED > limit:
        pytest.skip(need("more time"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table and keep which tests are in it."""
    skipped = list(_unmeasured(terminalreporter))
    if cache := getattr(config, "cache", None):  # there is none under `-p no:cacheprovider`
        cache.set(KEPT, sorted({test for test, _ in skipped}))
    if skipped:
        terminalreporter.section("not measured")
        for what, count in sorted(Counter(what for _, what in skipped).items()):
            terminalreporter.line(f"{count:6}  need{'s' * (count == 1)} {what}")


def _unmeasured(reporter: pytest.TerminalReporter) -> Iterator[tuple[str, str]]:
    """(test or file, what it needs) of each that was skipped for that."""
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if REASON in reason:
            yield report.nodeid, reason.partition(REASON)[2]
