"""attention: architectures that keep packed rows apart pass, the others are refused with the reason."""

import json
from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError
from pipeline.stages.preprocess.packing import LENGTHS, need_rows_apart, packed_positions, small_model

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 12,
    "vocab_size": 1000,
}


def base(folder: Path, **config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text"])
def test_attention_that_reads_positions_keeps_rows_apart(kind: str, tmp_path: Path) -> None:
    need_rows_apart(base(tmp_path, model_type=kind, sliding_window=512, **SIZES))


def test_a_real_base_passes(tiny_qwen2: Path) -> None:
    assert need_rows_apart(tiny_qwen2) < 1e-3


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        *(({"model_type": kind}, "Q-PREPROCESS-003") for kind in ("mamba", "falcon_mamba", "bloom")),
        ({"model_type": "no_such_model"}, "Q-PREPROCESS-002: .*no_such_model"),  # what can't be measured
        ({"model_type": "qwen2", "hidden_act": "none"}, "Q-PREPROCESS-002: .*none"),
    ],
)
def test_what_runs_on_from_row_to_row_is_refused(
    config: dict[str, str], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem):
        need_rows_apart(base(tmp_path, **config))


def test_the_small_model_has_a_layer_of_every_type_and_slides() -> None:
    config = small_model({"model_type": "gemma3_text", **SIZES}).config
    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    assert config.sliding_window < max(LENGTHS)
    assert config.vocab_size < 1000


def test_positions_are_those_of_trls_collator() -> None:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    rows = [{"input_ids": [1] * sum(LENGTHS), "seq_lengths": list(LENGTHS)}]
    theirs = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
    ours = packed_positions(LENGTHS)
    assert set(ours) == set(theirs) - {"input_ids", "labels"}
    for name, value in ours.items():
        assert value == theirs[name] if isinstance(value, int) else (value == theirs[name]).all(), name
