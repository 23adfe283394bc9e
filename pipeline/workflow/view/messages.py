"""Which of Snakemake's own sentences a user needs: errors, warnings, and a few of the others.

What a failed job makes Snakemake say in addition is left out, because the job's own error says more.
"""

import logging
import re
from logging import LogRecord

from pipeline.core.text import safe
from pipeline.workflow.view.events import Message

STOPPING = "Terminating processes on user request"
TOLD = {  # beginnings of sentences that are neither warnings nor errors, and that a user needs; in our words
    "Nothing to be done": "",
    STOPPING: "stopping: what runs saves its work, and the same command goes on from there",
    "Will exit after finishing": "stopping, once the jobs that run are done",
    "Trying to restart job": "",
}
LONGEST = 4000  # characters
NOISE = (  # beginnings of warnings and errors that say nothing new
    "--keep-incomplete mode is set",
    "Exiting because a job execution failed",
    "At least one job did not complete",
    "WorkflowError:\nAt least one job did not complete",
    "Complete log",
)
# What is said of a job whose command failed, beside a record of the job itself.
OF_A_JOB = re.compile(r"RuleException:\s+CalledProcessError|SpawnedJobError|CalledProcessError")


def message_of(record: LogRecord) -> Message | None:
    """Return a record's sentence, None if nobody needs it."""
    text = str(record.msg or "").strip()
    if not text or text.startswith(NOISE):
        return None
    shown = safe(text[:LONGEST], lines=True)
    if record.levelno >= logging.ERROR:
        return None if OF_A_JOB.match(text) else Message("error", shown)
    if record.levelno >= logging.WARNING:
        return Message("warning", shown)
    for beginning, words in TOLD.items():
        if text.startswith(beginning):
            return Message("info", words or shown)
    return None
