"""Check a bundle that `quench ship` made, on this machine or another.

quench verify-bundle models/bundle/demo-Q4_K_M --key quench.pub
"""

import sys
from pathlib import Path

from pipeline.core.errors import GateError
from pipeline.ship.bundle import SCRIPT, UNIT
from pipeline.ship.signature import SIGNATURE
from pipeline.ship.verification import bundle_faults


def main(folder: Path, key: Path | None) -> int:
    """Print the verdict; the exit code: 5 with a line per reason if the bundle does not verify, else 0."""
    faults = bundle_faults(folder, key)
    if faults:
        print(f"{folder} does not verify:", *faults, sep="\n  ", file=sys.stderr)
        return GateError.exit_code
    unchecked = (
        "it is signed, but no --key tells by whom" if (folder / SIGNATURE).exists() else "it is not signed"
    )
    print(
        f"{folder} verifies: checksums, card, bill of materials and evidence agree with the "
        f"GGUF{', and so does the signature' if key else ''}"
    )
    if not key:
        print(
            f"  But {unchecked}: whoever made it may have written {SCRIPT}, {UNIT} and Modelfile. Read them "
            "before you run them."
        )
    return 0
