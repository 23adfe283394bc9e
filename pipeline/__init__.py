"""Quench: from a folder of chat logs to a local model one can trust."""

import os

__version__ = "0.1.0"

# OpenMP's threads, in PyTorch and in llama.cpp, wait for each other by spinning. Where another program has a
# core, they spin while the last one has none, and a step takes three times as long (benchmarks/waiting.py).
# With fewer turns they give the core away; alone on a machine nothing changes. OpenMP reads it when it is
# loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
