"""Write the logits of a small GGUF for a row of tokens to a file, in a process of its own: llama.cpp ends the
process in which it computes a model that its code was not written for.

    python -P pipeline/llamacpp/logits_process.py BIN GGUF '[5, 7, 9]' LOGITS.npy
"""

import json
import sys
from pathlib import Path

import numpy as np

from pipeline.config.products import ModelFiles
from pipeline.core.places import PROJECT
from pipeline.llamacpp.logits import Floats, open_gguf
from pipeline.llamacpp.tools import Llama, Toolchain, run_tool


def logits_apart(tools: Toolchain, gguf: Path, ids: list[int]) -> Floats:
    """Return the logits of a GGUF after each of `ids`: float32, (tokens, V).

    Raises `ToolError` if llama.cpp can't load or compute it.
    """
    target = gguf.with_suffix(".npy")
    words: list[str | Path] = [tools.bin, gguf, json.dumps(ids), target]
    environment = {"PYTHONPATH": str(PROJECT), "GGML_NO_BACKTRACE": "1"}
    run_tool([sys.executable, "-P", Path(__file__), *words], environment)
    values: Floats = np.load(target, allow_pickle=False)
    return values


def main(argv: list[str]) -> None:
    """Compute the row and write the file."""
    home, gguf, row, target = argv
    ids = json.loads(row)
    llama = Llama(Toolchain(Path(home), Path(home)))
    with open_gguf(llama, ModelFiles(Path(gguf)), ctx_size=len(ids), exact=True) as model:
        np.save(target, model.logits(ids, list(range(len(ids)))))


if __name__ == "__main__":
    main(sys.argv[1:])
