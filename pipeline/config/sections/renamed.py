"""Keys and values of `params.yaml` that had another name in an older version; a file that still has it is
refused with the new one.
"""

# "section.key" or "section" as it was: as it is now
KEYS: dict[str, str] = {
    "curate.normalise": "curate.normalize",
    "train.packed": "train.keep_quantized",
    "train.heal_top_k": "train.distill_top_k",
    "train.heal_sft_weight": "train.distill_sft_weight",
}

# "section.key" as it is now: {the value as it was: as it is now}
VALUES: dict[str, dict[str, str]] = {
    "curate.turns": {"mend": "repair"},
    "curate.control_tokens": {"neutralise": "neutralize"},
    "train.method": {"heal": "distill"},
    "merge.base": {"w16": "16-bit"},
}

# "section.key" that is gone: why, and what to do
GONE = {
    "merge.method": "is gone, because every merge is streamed: remove the line (benchmarks/merge.py "
    "compares with PEFT's merge)"
}
