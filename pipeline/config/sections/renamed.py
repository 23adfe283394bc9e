"""Keys and values of `params.yaml` that an older version had; a file that still has them is refused with what
took their place.
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

_NATS = "is gone: parity.max_kld_exact limits the same difference, as a divergence in nats: remove the line"

# "section.key" that is gone: why, and what to do
GONE = {
    "curate.format": "is gone: remove the line if it was auto, else name the format in curate.formats, "
    '{"*": sharegpt} for example',
    "train.load_in_4bit": "is gone: set base.quantization to nf4 (where it was true) or none",
    "train.logging_steps": "is gone, because every step is logged: remove the line",
    "merge.method": "is gone, because every merge is streamed: remove the line (benchmarks/merge.py "
    "compares with PEFT's merge)",
    "parity.max_kld_trained": "is gone, for parity fails on damage only: report.gate.max_kld_trained "
    "limits the same divergence, so move the line there",
    "parity.max_nmse": _NATS,
    "parity.min_same_top": _NATS,
    "evaluate.scorer": "is gone: put it into the list evaluate.scorers ([json_fields], or [] for none)",
}
