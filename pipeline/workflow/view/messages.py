"""Which of Snakemake's own sentences a user needs: errors, warnings, and a few of the others.

What a failed job makes Snakemake say in addition is left out, because the job's own error says more.
"""

import logging
from logging import LogRecord

from pipeline.core.text import safe
from pipeline.workflow.view.events import Message

TOLD = (  # beginnings of sentences without a level that a user needs
    "Nothing to be done",
    "Terminating processes on user request",
    "Will exit after finishing",
    "Trying to restart job",
)
LONGEST = 4000  # characters
NOISE = (  # beginnings of warnings and errors that say nothing new
    "--keep-incomplete mode is set",
    "Exiting because a job execution failed",
    "At least one job did not complete",
    "WorkflowError:\nAt least one job did not complete",
    "Complete log",
)
OF_A_JOB = ("RuleException", "CalledProcessError", "SpawnedJobError")  # exceptions of a job that failed


def message_of(record: LogRecord, *, failed: bool) -> Message | None:
    """Return a record's sentence, None if nobody needs it. `failed`: a job has failed before."""
    text = str(record.msg or "").strip()
    if not text or text.startswith(NOISE):
        return None
    shown = safe(text[:LONGEST], lines=True)
    if record.levelno >= logging.ERROR:
        if failed and getattr(record, "exception", "") in OF_A_JOB:
            return None
        return Message("error", shown)
    if record.levelno >= logging.WARNING:
        return Message("warning", shown)
    return Message("info", shown) if text.startswith(TOLD) else None
