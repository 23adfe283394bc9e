"""evaluate: the right positions are measured against the right reference, unusable input is refused, and
every part is in the figures.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from curating import chat

from pipeline.__main__ import run
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.params import load_params
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.stages.evaluate.stage import divergence_rows

ALL = {"perplexity", "perplexity_error", "same_top", "rms_dp"}
ALL |= {"kld_mean", "kld_median", "kld_p999", "kld_max"}
PARTS = {"speed", "serving", "task", "general", "harness"}


def report(finished: Path, model: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((finished / f"reports/eval/{model}.json").read_text())
    return found


def test_rows_are_measured_where_the_next_token_is_the_assistants(finished: Path, tmp_path: Path) -> None:
    rows, settings = tmp_path / "test.jsonl", load_params(finished / "params.yaml").evaluating
    write_rows(rows, [{"id": "r"} | chat("1+1?", "2")])
    tokenizer = load_tokenizer(finished / "models/adapter")
    (row,) = divergence_rows(tokenizer, rows, settings)
    assert row.ids[row.positions[-1] + 1] == tiny.END  # <|im_end|>
    assert [b - a for a, b in itertools.pairwise(row.positions)] == [1] * (len(row.positions) - 1)
    with pytest.raises(DataError, match="Q-EVALUATE-011"):
        divergence_rows(tokenizer, rows, settings.model_copy(update={"ctx_size": 8}))


def test_the_answers_file_has_one_line_a_row_with_its_score(finished: Path) -> None:
    lines = list(read_rows(finished / "reports/eval/F16.answers.jsonl"))
    assert len(lines) == report(finished, "F16")["task"]["rows"] == 2
    keys = {"id", "domain", "prompt", "reference", "answer", "stopped", "refused", "score", "scores"}
    assert all(line.keys() == keys for line in lines)


@pytest.mark.parametrize("model", ["F16", "base-F16", "Q4_K_M"])
def test_every_part_is_measured(finished: Path, model: str) -> None:
    found = report(finished, model)
    assert found["reference"] == "F16"
    assert found.keys() >= ALL | PARTS | {"kv_cache_bytes", "perplexity_rows", "perplexity_tokens"}
    assert found["all_tokens"].keys() == ALL | {"tokens"}
    assert found["all_tokens"]["tokens"] > found["perplexity_tokens"]
    shown = {"task_with_examples"} if model == "base-F16" else set()
    assert found["seconds"].keys() == PARTS | {"divergence"}
    assert found.keys() & {"task_with_examples"} == shown
    assert found["general"] is None  # evaluate.general is none there
    assert found["harness"] is None
    assert found["serving"]["ctx_size"] == load_params(finished / "params.yaml").serve.ctx_size
    assert found["kv_cache_bytes"] > 0


def test_the_base_is_asked_again_with_training_chats_in_its_prompt(finished: Path) -> None:
    found = report(finished, "base-F16")
    assert found["task_with_examples"]["examples"] >= 1
    assert found["task_with_examples"].keys() == found["task"].keys() | {"examples"}
    assert found["task_with_examples"]["rows"] == found["task"]["rows"]


def test_f16_is_proven_to_be_itself_and_a_level_is_not(finished: Path) -> None:
    same, level = report(finished, "F16"), report(finished, "Q4_K_M")
    assert same["self_divergence"] <= 1e-6
    assert same["kld_max"] <= 1e-6
    assert level["self_divergence"] is None
    assert level["kld_mean"] > 1e-6


def test_a_model_that_is_not_in_the_list_is_refused(finished: Path) -> None:
    with pytest.raises(ConfigError, match="Q-EVALUATE-012"):
        run("evaluate@Q8_0", finished, None)
