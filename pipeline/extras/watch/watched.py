"""A source and its history together, read by one thread at a time, and the requests of whoever watches."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.config.methods import METHODS
from pipeline.core.errors import DataError
from pipeline.extras.watch.history import History
from pipeline.extras.watch.source import Source
from pipeline.stages.train.requests import CHECKPOINT, EVALUATION

STOP = ""
# request: what is said when it is on its way
SAID = {
    CHECKPOINT: "a checkpoint is written after this step",
    EVALUATION: "the held-out rows are evaluated after this step",
    STOP: "the training stops with a checkpoint; the same command resumes it",
}


class Watched:
    """A run that is watched."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._history = History()
        self._lock = threading.Lock()

    @contextmanager
    def history(self) -> Iterator[History]:
        """Give what is known, which nothing changes meanwhile."""
        with self._lock:
            yield self._history

    def read(self) -> Iterator[None]:
        """Add what is new, and yield after each piece: the first ones of a long run take seconds."""
        for news in self.source.news():
            with self._lock:
                self._history.add(news)
            yield

    def read_all(self) -> None:
        """Add what is new."""
        for _ in self.read():
            pass

    def need_training(self) -> None:
        """Raise `DataError` if no training runs, and none ran."""
        with self.history() as history:
            if history.state == "waiting":
                raise DataError(
                    "Q-WATCH-002",
                    f"{self.source.name} has no training to watch: run `snakemake train`, or name another "
                    "folder",
                )

    def ask(self, request: str) -> str:
        """Pass a request to the training. Return what comes of it in one sentence."""
        with self.history() as history:
            method = history.settings.method if history.settings else "sft"
            several = history.several
            elsewhere = history.facts.elsewhere
        if elsewhere:
            return "it runs on another machine: `quench remote stop` ends it there"
        if request != STOP and several:
            return "several processes train together, and would have to agree first: only stopping works"
        if request == EVALUATION and METHODS[method].prompts:
            return (
                "an evaluation would draw answers in between, and change the ones that follow: it is not done"
            )
        said = self.source.ask(request)
        return SAID[request] if said == "asked" else said
