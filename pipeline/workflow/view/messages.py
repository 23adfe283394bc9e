"""Which of Snakemake's own sentences a user needs: all but what it says at every run.

What a failed job makes Snakemake say in addition is left out too, because the job's own error says more.
"""

import logging
import re
from logging import LogRecord

from pipeline.core.text import safe
from pipeline.workflow.view.events import Message

OUR_WORDS = {  # beginnings of what Snakemake says when it is to stop, and what is said instead
    "Terminating processes on user request": "stopping: what runs saves its work, and the same command goes "
    "on from there",
    "Will exit after finishing": "stopping, once the jobs that run are done",
}
STOPPING = tuple(OUR_WORDS)
LONGEST = 4000  # characters
NOISE = re.compile(
    r"Assuming unrestricted shared filesystem|Building DAG of jobs|Using shell:|Provided |Rules claiming more"
    r"|Group jobs|Select jobs to execute|Execute \d|Job stats|Reasons:|This was a dry-run|host:|Elapsed time"
    r"|Workflow has started|Shutting down|Complete log|Removing temporary output|Storing output"
    r"|\d+ jobs have (?:missing|outdated)"
    r"|--keep-incomplete mode is set|Exiting because a job execution failed"
    r"|(?:WorkflowError:\s+)?At least one job did not complete"
)
# What is said of a job whose command failed, beside a record of the job itself.
OF_A_JOB = re.compile(r"RuleException:\s+CalledProcessError|SpawnedJobError|CalledProcessError")

KILL_STATUS = "exit status 137"  # what a shell makes of SIGKILL, of which the job itself can say nothing
KILLED = "a job was killed (SIGKILL), by somebody or for want of memory: the same command goes on"


def message_of(record: LogRecord) -> Message | None:
    """Return a record's sentence, None if nobody needs it."""
    text = str(record.msg or "").strip()
    if not text or record.levelno < logging.INFO or NOISE.match(text):
        return None
    shown = safe(text[:LONGEST], lines=True)
    if record.levelno >= logging.ERROR:
        if OF_A_JOB.match(text):
            return Message("error", KILLED) if text.rstrip(".").endswith(KILL_STATUS) else None
        return Message("error", shown)
    if record.levelno >= logging.WARNING:
        return Message("warning", shown)
    for beginning, words in OUR_WORDS.items():
        if text.startswith(beginning):
            return Message("info", words)
    return Message("info", shown)
