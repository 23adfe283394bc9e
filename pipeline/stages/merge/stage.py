"""Merge the adapter into the base's weights on the CPU, in blocks of rows: summed in float64, rounded once.

Reads `models/base/` and `models/adapter/`. Writes `models/merged/`: safetensors shards, config, generation
config, tokenizer and template, and `merge.json`, which records how it was merged.
Command: `python -m pipeline merge`
"""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pipeline.config.params import Params
from pipeline.core.hashing import file_hash
from pipeline.core.publish import need_disk, publishing, remove, write_json
from pipeline.llamacpp.tools import find_toolchain
from pipeline.models.merging.adapter import weights_of
from pipeline.models.merging.inputs import RECORD, check_same_base, need_nf4, read_run
from pipeline.stages.merge.choose import SCRATCH, Choice, MergeBase, merge_the_better
from pipeline.stages.merge.stream import idle_adapters, stream

# Type of the merged weights by convert.type. It is the type that the GGUF stores, so they are rounded once.
DTYPES = {"F16": "float16", "BF16": "bfloat16"}


def merge(merge_base: MergeBase, merged: Path, *, base: Path, adapter: Path, dtype: str) -> dict[str, Any]:
    """Write the model of `base` with `adapter` merged into it to `merged`.

    Return the record, which is also `merged/merge.json`. `merge_base` selects the weights that the adapter is
    added to: the base's 16-bit weights, or their NF4 rounding from training for exactly the linears that were
    in NF4. Some blocks of rows are in memory at a time, and each is rounded once. Tensors that the adapter
    does not change are copied bit for bit, or rounded if the base has another type. Raises `DataError` if
    adapter and base don't fit, if a setting of the adapter is not supported, or if a weight does not fit
    `dtype`.
    """
    run = read_run(adapter)
    record: dict[str, Any] = {
        "adapter_sha256": file_hash(weights_of(adapter)),
        "base_weights_sha256": check_same_base(base, run),
        "dtype": dtype,
        "method": "stream",
        "merge_base": merge_base,
        "nf4": asdict(need_nf4(adapter, run)) if merge_base == "nf4" else None,
    }
    need_disk(merged.parent, sum(shard.stat().st_size for shard in base.glob("*.safetensors")))
    with publishing(merged) as aside:
        aside.mkdir()
        record |= stream(base, adapter, aside, dtype, run.nf4, into_nf4=merge_base == "nf4")
        write_json(aside / RECORD, record)
    return record


def unmeasured_choice(setting: Literal["auto"] | MergeBase, is_recorded: bool) -> Choice:
    """Return the merge base of a `setting` of `merge.base` that needs no measurement."""
    if setting != "auto":
        return Choice(setting, "merge.base asks for it")
    if is_recorded:
        return Choice("16-bit", "Training saw the base's own 16-bit weights")
    return Choice("16-bit", "It was not recorded which weights training saw")


def main(params: Params, root: Path) -> None:
    """Run the stage on the files below `root`.

    If `merge.base` is auto, make both merges and keep the better one.
    """
    settings = params.merge
    merged = root / "models/merged"
    base = root / "models/base"
    adapter = root / "models/adapter"
    make = partial(merge, base=base, adapter=adapter, dtype=DTYPES[params.convert.type])
    remove(merged.with_name(SCRATCH))  # Remove both merges of a killed run, tens of GB at 7B.
    run = read_run(adapter)
    if settings.base == "auto" and run.nf4:
        tools = find_toolchain(params.machine.llama_cpp)
        choice, done = merge_the_better(make, params, root, tools)
    else:
        choice = unmeasured_choice(settings.base, run.recorded)
        done = make(choice.merge_base, merged)
    write_json(
        root / "reports/merge.json",
        done | asdict(choice) | {"asked": settings.base, "warnings": idle_adapters(done["adapters"])},
    )
    print(
        f"merge: {done['adapted']} of {done['tensors']} tensors adapted, {done['bytes'] / 1e6:.0f} MB, into "
        f"{choice.merge_base}: {choice.reason}"
    )
