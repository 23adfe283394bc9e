"""What puts the programs of Quench's environment on PATH: `eval "$(quench env)"`."""

import shlex
import sys
from pathlib import Path


def main() -> None:
    """Print a line for the shell. `snakemake`, `dvc` and the `python` that both call are then this
    environment's.
    """
    print(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
