"""Events of a run, which all views show. `quench run --json` prints one a line.

The types here are the source of `docs/run-events.schema.json` (JSON Schema 2020-12). A later version may add
events and fields, so a reader ignores what it doesn't know.

    python -m pipeline.workflow.view.events > docs/run-events.schema.json
"""

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal


@dataclass(frozen=True)
class Timed:
    """The base of every event: the time at which it happened, in seconds since 1970."""

    time: float = field(default_factory=time.time, kw_only=True)


@dataclass(frozen=True)
class Planned:
    """A stage that is to run: how many jobs it has, the seconds that they take, if that is known, and why.

    `changed` is true if something of its own has changed, false if it never ran or follows others.
    """

    stage: str
    jobs: int
    seconds: float | None
    why: str
    changed: bool


@dataclass(frozen=True)
class Plan(Timed):
    """Snakemake has planned. `up_to_date` are the stages before these that need not run."""

    stages: list[Planned]
    up_to_date: list[str]
    event: Literal["plan"] = field(default="plan", kw_only=True)


@dataclass(frozen=True)
class Started(Timed):
    """A job has started, on this machine (`local`) or another one, where it may have to wait.

    `seconds` is how long it will take by earlier runs or the plan, None if unknown.
    """

    job: str
    stage: str
    log: str
    seconds: float | None
    local: bool
    event: Literal["started"] = field(default="started", kw_only=True)


@dataclass(frozen=True)
class Line(Timed):
    """A job has written a line into its log."""

    job: str
    text: str
    event: Literal["line"] = field(default="line", kw_only=True)


@dataclass(frozen=True)
class Warned(Timed):
    """A job has written a warning into its log."""

    job: str
    text: str
    event: Literal["warning"] = field(default="warning", kw_only=True)


@dataclass(frozen=True)
class Progress(Timed):
    """How far a job is: a share from 0 to 1, seconds that are left (None: unknown), and that in words."""

    job: str
    share: float
    left: float | None
    text: str
    event: Literal["progress"] = field(default="progress", kw_only=True)


@dataclass(frozen=True)
class Finished(Timed):
    """A job is done: its stage ran, or its outputs came back from DVC's cache."""

    job: str
    how: Literal["ran", "restored"]
    seconds: float
    event: Literal["finished"] = field(default="finished", kw_only=True)


@dataclass(frozen=True)
class Failed(Timed):
    """A job has failed, or was stopped with the run. `lines` are the last ones of its log."""

    job: str
    seconds: float
    log: str
    lines: list[str]
    stopped: bool
    event: Literal["failed"] = field(default="failed", kw_only=True)


@dataclass(frozen=True)
class Message(Timed):
    """A sentence of Snakemake's own."""

    level: Literal["info", "warning", "error"]
    text: str
    event: Literal["message"] = field(default="message", kw_only=True)


@dataclass(frozen=True)
class Advice:
    """A command that one may type next, and what it does."""

    command: str
    what: str


@dataclass(frozen=True)
class End(Timed):
    """The run is over. `missing` jobs of the plan have not been done."""

    seconds: float
    done: int
    restored: int
    failed: int
    missing: int
    next: list[Advice]
    event: Literal["end"] = field(default="end", kw_only=True)


Event = Plan | Started | Line | Warned | Progress | Finished | Failed | Message | End


def as_line(event: Event) -> str:
    """Return an event as a line of JSON, its kind and time first."""
    values = asdict(event)
    first = {name: values.pop(name) for name in ("event", "time")}
    return json.dumps(first | {"time": round(first["time"], 3)} | values, ensure_ascii=False)


def schema() -> str:
    """Return the JSON Schema of a line, as text."""
    from pydantic import Field, TypeAdapter

    event = Annotated[Event, Field(discriminator="event")]
    content = TypeAdapter(event).json_schema(mode="serialization")
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Event of `quench run --json`",
    }
    return json.dumps(head | content, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema(), end="")
