"""Quench: from a folder of chat logs to a local model one can trust."""

import os
import sys

if sys.path and os.path.isfile(os.path.join(sys.path[0], ".quench/code/version")):  # noqa: PTH113, PTH118
    # `python -m pipeline` in a project: the user's own yaml.py there would hide a package that is needed.
    sys.path.append(sys.path.pop(0))

__version__ = "0.1.0"
