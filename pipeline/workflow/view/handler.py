"""The handler that Snakemake gives its records to (`snakemake --logger quench`, as the profiles say).

It chooses a view and gives it events. A thread looks at the jobs' logs meanwhile. A view that fails, because
its terminal is gone for example, shows no more; the run goes on in any case.

On a terminal, and for JSON, jobs write into their logs only (`pipeline.workflow.remote.SHELL`), from which
the view has their lines. Otherwise jobs print their lines themselves.
"""

import atexit
import errno
import logging
import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

from pipeline.core.text import to_nowhere
from pipeline.workflow import source_cache
from pipeline.workflow.remote import QUIET, VIEW

if TYPE_CHECKING:
    from pipeline.workflow.view.events import Event
    from pipeline.workflow.view.run import Run

LIVE = "live"
PLAIN = "plain"
JSON = "json"
AUTO = "auto"
LAST_SECONDS = 1.0  # that the thread has to end
LOOK_SECONDS = 0.2  # between two looks at the logs, and two drawings of the table
# Variables that ask for plain lines: https://no-color.org, and what services of continuous integration set.
PLAIN_IF_SET = ("NO_COLOR", "CI")


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """Options of Snakemake's command line for this view."""

    form: str = field(
        default=AUTO,
        metadata={
            "help": "live (a table that changes), plain (lines), json (events, one a line, on standard "
            "output) or auto: live on a terminal, else plain.",
            "env_var": False,
            "required": False,
        },
    )


class View(Protocol):
    """A form of the view."""

    def show(self, event: "Event", run: "Run") -> None:
        """Show what has happened."""

    def draw(self, run: "Run") -> None:
        """Show how things stand now."""

    def close(self) -> None:
        """Give the terminal back."""


class LogHandler(LogHandlerBase):
    """Handler of Snakemake's records."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Choose the view (called by the base class), before Snakemake makes its cache."""
        source_cache.use_project()
        self._form = self._chosen()
        os.environ[VIEW] = QUIET if self._form in (LIVE, JSON) else ""
        self._run: Run | None = None
        self._view: View | None = None
        self._broken = False
        self._state = threading.RLock()  # of run and view
        self._over = threading.Event()
        self._looking: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record of Snakemake's. It never raises."""
        if _is_silent(self.common_settings):
            return
        with self._state:
            try:
                if self._run is None:
                    self._begin()
                if self._broken:
                    self._print(record, least=logging.WARNING)
                elif self.common_settings.verbose and _is_for_experts(record):
                    self._print(record)
                elif self._run:
                    self._show(self._run.take(record))
                if getattr(record, "event", None) == LogEvent.RUN_INFO:
                    self._start_looking()
            except Exception as error:
                self._fail(error)

    def close(self) -> None:
        """Show how the run ended. A second call does nothing."""
        if self._over.is_set():
            return
        self._over.set()
        if self._looking:
            self._looking.join(LAST_SECONDS)
        with self._state, suppress(Exception):
            if self._run and self._view and self._run.is_planned and not self._broken:
                if not self.common_settings.dryrun:
                    self._show([*self._run.look(), self._run.end()])
                self._view.close()
        _leave_lost_terminal()
        if self._form != LIVE and "colorama" in sys.modules:
            # DVC's logger would end the output of a terminal with an escape code.
            atexit.unregister(sys.modules["colorama"].initialise.reset_all)
        super().close()

    def _chosen(self) -> str:
        """Return the form that was asked for, or that fits where the output goes."""
        form = self.settings.form if isinstance(self.settings, LogHandlerSettings) else AUTO
        given = self.common_settings
        if form in (LIVE, PLAIN, JSON):
            return form
        if form != AUTO:
            from snakemake_interface_common.exceptions import WorkflowError

            raise WorkflowError(f"--logger-quench-form is live, plain, json or auto, not {form!r}")
        asked_plain = any(os.environ.get(name) for name in PLAIN_IF_SET) or os.environ.get("TERM") == "dumb"
        is_plain = asked_plain or given.nocolor or given.verbose or given.dryrun
        return LIVE if not is_plain and _has_terminal() else PLAIN

    def _begin(self) -> None:
        from pipeline.workflow.view.run import Run

        self._run = Run(Path(), self._foresee if self._shows_plan_once() else None)
        self._view = self._new_view()

    def _new_view(self) -> View:
        if self.common_settings.dryrun and self._form != JSON:
            from pipeline.workflow.view.preview import DryView

            return DryView()
        if self._form == LIVE:
            from pipeline.workflow.view.live import LiveView

            return LiveView()
        if self._form == JSON:
            from pipeline.workflow.view.json_lines import JsonView

            return JsonView()
        from pipeline.workflow.view.plain import PlainView

        return PlainView()

    def _show(self, happened: "Iterable[Event]") -> None:
        for event in happened:
            if self._run and self._view and not self._broken:
                self._view.show(event, self._run)

    def _start_looking(self) -> None:
        if self._looking is None and not self.common_settings.dryrun:
            self._looking = threading.Thread(target=self._look, daemon=True, name="view")
            self._looking.start()

    def _look(self) -> None:
        """Follow the jobs' logs until the run is over."""
        if not self._shows_plan_once():
            self._foresee()
        while not self._over.wait(LOOK_SECONDS):
            with self._state:
                try:
                    if self._run and self._view and not self._broken:
                        self._show(self._run.look())
                        self._view.draw(self._run)
                except Exception as error:
                    self._fail(error)

    def _shows_plan_once(self) -> bool:
        """Return True if the plan has to have its times when it is first shown."""
        return self._form == JSON or bool(self.common_settings.dryrun)

    def _foresee(self) -> None:
        """Give the run its forecast. It takes a moment, for which Snakemake should not wait."""
        from pipeline.config.params import load_params
        from pipeline.workflow.overview.times import forecast

        with suppress(Exception):  # Without a forecast no times are shown.
            known = forecast(Path(), load_params(Path("params.yaml")))
            with self._state:
                if self._run:
                    self._run.know(known)

    def _print(self, record: logging.LogRecord, least: int = logging.DEBUG) -> None:
        """Print a record, if it has at least this level, as Snakemake itself does."""
        from snakemake.logging import DefaultFormatter

        if record.levelno < least:
            return
        text = DefaultFormatter(self.common_settings.quiet).format(record)
        if text and text != "None":
            print(text, file=sys.stderr, flush=True)

    def _fail(self, error: Exception) -> None:
        """Show no more, after an error of the view's own or of its terminal."""
        if self._broken:
            return
        self._broken = True
        with suppress(Exception):
            if self._view:
                self._view.close()
        _leave_lost_terminal()
        with suppress(Exception):
            if not isinstance(error, OSError):
                os.environ[VIEW] = ""  # The jobs that come print their lines themselves.
                print(
                    f"the view of this run failed ({error!r}): the run goes on, and its logs are in logs/",
                    file=sys.stderr,
                )


def _leave_lost_terminal() -> None:
    """Send what is printed to nowhere if the terminal is gone.

    What is still in a stream's buffer would fail when the interpreter exits, which makes the exit code 120.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError):  # A closed stream has nothing left.
            try:
                stream.flush()
                os.write(stream.fileno(), b"")
            except OSError as error:
                if error.errno == errno.EIO:
                    to_nowhere(stream)


def _is_silent(given: object) -> bool:
    """Return True for `snakemake --quiet all`."""
    quiet = getattr(given, "quiet", None) or ()
    return not getattr(given, "dryrun", False) and any(str(about).lower() == "all" for about in quiet)


def _is_for_experts(record: logging.LogRecord) -> bool:
    """Return True for a record that only `--verbose` shows."""
    return getattr(record, "event", None) in (None, LogEvent.SHELLCMD, LogEvent.RESOURCES_INFO) or (
        record.levelno <= logging.DEBUG
    )


def _has_terminal() -> bool:
    """Return True if both outputs are a terminal whose foreground this process is in."""
    try:
        outputs = [stream.fileno() for stream in (sys.stdout, sys.stderr)]
        return all(map(os.isatty, outputs)) and os.tcgetpgrp(outputs[1]) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
