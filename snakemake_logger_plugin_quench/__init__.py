"""Quench's view of a run, as Snakemake finds logger plugins: by the name of a package on Python's path.

snakemake --logger quench
"""

from pipeline.workflow.view.handler import LogHandler, LogHandlerSettings

__all__ = ["LogHandler", "LogHandlerSettings"]
