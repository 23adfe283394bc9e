"""Logits of the trained model on held-out rows, with which the shipped files are compared.

    python -m pipeline.extras.compare.reference FOLDER data/final/test.jsonl CTX_SIZE

reads `models/base` and `models/adapter` below FOLDER and writes `reference/` there; CTX_SIZE is the context
that held-out rows must fit. It is a process of its own, which frees the model's memory.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.config.tuners import trained_file
from pipeline.core.errors import DataError, QuenchError
from pipeline.core.publish import publishing, read_json, write_json
from pipeline.core.text import screen
from pipeline.metrics.divergence import Prompt, Reference

FOLDER = "reference"
LOGITS = "logits"
PROMPTS = "prompts.json"
KLD_ROWS = 16  # held-out rows whose logits are compared, at most 64 positions each


def write_reference(root: Path, rows: Path, ctx_size: int) -> None:
    """Publish `root`/reference: prompts (token ids and the positions whose next token training teaches) and
    float32 logits (positions, V).

    The trained model computes in float32 on its own weights, so that no divergence contains rounding of its
    arithmetic. If the adapter's folder contains no weights, the training result is in the base's own file,
    and that is the model. Raises `DataError` if no row can be used, `MachineError` if the disk is full.
    """
    from pipeline.chat.selection import encoded_rows
    from pipeline.chat.tokens import load_tokenizer, trained_positions
    from pipeline.metrics.divergence import thinned, write_logits
    from pipeline.metrics.forward import trained_model

    base = root / "models/base"
    adapter = root / "models/adapter"
    target = root / FOLDER
    encoded = encoded_rows(load_tokenizer(tokenizer_folder(root)), rows, KLD_ROWS, ctx_size)
    prompts = [Prompt(row.ids, thinned(trained_positions(row))) for row in encoded]
    if not prompts:
        raise DataError(
            "Q-COMPARE-006", f"{rows} has no chat or text that can be compared: raise curate.test_fraction"
        )
    weights = adapter if has_weights(adapter) else None
    model = trained_model(base, weights, float32=True, settings_of=adapter)
    with publishing(target) as aside:
        aside.mkdir()
        width = write_logits(aside / LOGITS, prompts, model)
        write_json(aside / PROMPTS, {"width": width, "prompts": [vars(prompt) for prompt in prompts]})


def has_weights(adapter: Path) -> bool:
    """Return True if a folder contains trained weights, not only the record of its run."""
    return trained_file(adapter).is_file()


def tokenizer_folder(root: Path) -> Path:
    """Return the folder in a sub-project with the tokenizer that training used."""
    adapter = root / "models/adapter"
    return adapter if has_weights(adapter) else root / "models/base"


def load_reference(root: Path) -> Reference:
    """Return the reference that `write_reference` wrote in `root`."""
    record = read_json(root / FOLDER / PROMPTS, "run `snakemake` again")
    return Reference(
        root / FOLDER / LOGITS,
        [Prompt(**prompt) for prompt in record["prompts"]],
        record["width"],
    )


@screen()
def main(words: Sequence[str]) -> int:
    """Write the reference of the sub-project and the rows that the command line names."""
    project, rows, ctx_size = words
    try:
        write_reference(Path(project), Path(rows), int(ctx_size))
    except QuenchError as error:
        print(f"compare: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
