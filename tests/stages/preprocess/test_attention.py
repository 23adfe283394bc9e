"""attention: architectures that keep packed rows apart are known, the others with the reason."""

import json
from pathlib import Path

import pytest

from pipeline.core.errors import ConfigError
from pipeline.models.packed_rows import LENGTHS, packed_positions, rows_apart
from pipeline.models.small_model import small_model
from pipeline.models.text_config import read_text_config
from pipeline.stages.preprocess.packing import need_rows_apart

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


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text", "phi3"])
def test_attention_that_reads_positions_keeps_rows_apart(kind: str, tmp_path: Path) -> None:
    apart = rows_apart(base(tmp_path, model_type=kind, sliding_window=512, **SIZES))
    assert apart.difference is not None and not apart.reason


def test_layers_of_several_head_sizes_keep_rows_apart(tmp_path: Path) -> None:
    """Gemma 4: every sixth layer is wider, and numbered so in the settings."""
    apart = rows_apart(base(tmp_path, model_type="gemma4_text"))
    assert apart.difference is not None and not apart.reason


def test_a_real_base_passes(tiny_qwen2: Path) -> None:
    assert rows_apart(tiny_qwen2).difference < 1e-3
    need_rows_apart(tiny_qwen2, "dpo")


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
        need_rows_apart(base(tmp_path, **config), "dpo")


def test_the_small_model_has_a_layer_of_every_type_and_slides(tmp_path: Path) -> None:
    config = small_model(read_text_config(base(tmp_path, model_type="gemma3_text", **SIZES))).config
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
