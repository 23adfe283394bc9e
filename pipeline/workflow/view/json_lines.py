"""The view for programs: every event as a line of JSON on standard output."""

import sys

from pipeline.workflow.view.events import Event, as_line
from pipeline.workflow.view.run import Run


class JsonView:
    """Lines of JSON."""

    def __init__(self) -> None:
        self._output = getattr(sys.stdout, "below", sys.stdout)

    def show(self, event: Event, run: Run) -> None:
        """Print an event."""
        self._output.write(f"{as_line(event)}\n")
        self._output.flush()

    def draw(self, run: Run) -> None:
        """Do nothing: there are events for all that changes."""

    def close(self) -> None:
        """Do nothing: every line is flushed."""
