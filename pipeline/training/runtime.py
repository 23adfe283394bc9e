"""How PyTorch and its libraries behave in this process: quiet, and with a set number of threads."""

import os
import sys
import warnings
from logging import getLogger


def silence_libraries() -> None:
    """Keep hints about other set-ups, which are the same in every run, off the terminal; call it before they are imported."""
    for noisy in ("trl", "bitsandbytes"):
        getLogger(noisy).setLevel("ERROR")
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|trl")
    from transformers.utils import logging

    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()


def use_all_cores() -> None:
    """One thread a core that this process may use, whatever OMP_NUM_THREADS says: Snakemake sets it, DVC doesn't, and the sums would differ."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
