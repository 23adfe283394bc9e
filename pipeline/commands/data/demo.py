"""Write the demo's data where there is no checkout: `quench data demo` runs examples/pydoc.py."""

import subprocess
import sys
from pathlib import Path

from pipeline.core.errors import ToolError
from pipeline.core.places import resource

FILE = "data/raw/pydoc.jsonl"


def main(root: Path, kind: str) -> None:
    """Write `root`/data/raw/pydoc.jsonl with chats of this kind. Raises `ToolError` if the script fails."""
    script = resource("examples/pydoc.py")
    done = subprocess.run([sys.executable, script, "--out", root / FILE, "--kind", kind], check=False)
    if done.returncode:
        raise ToolError(
            "Q-COMMANDS-038", f"{script.name} failed with exit status {done.returncode}, see above"
        )
