"""parity: planted differences between what was trained and what is served are caught and named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.chat import load_tokenizer
from pipeline.parity import in_words
from pipeline.seams.seam import count_seam, equal_seam, first_difference
from pipeline.seams.text import agrees, level_vocabularies, special_tokens


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished project whose files can be changed."""
    return Path(shutil.copytree(finished, tmp_path / "project"))


def run(project: Path) -> tuple[int, dict[str, Any]]:
    code = main(["parity", "--root", str(project)])
    return code, json.loads((project / "reports/parity.json").read_text())["seams"]


def test_a_template_with_a_space_more_fails_the_run_by_name(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = project / "models/adapter/chat_template.jinja"
    text = template.read_text(encoding="utf-8")
    assert "<|im_end|>\\n" in text
    template.write_text(text.replace("<|im_end|>\\n", "<|im_end|> \\n"), encoding="utf-8")
    code, seams = run(project)
    assert code == 5
    assert (seams["template_text"]["verdict"], seams["f16_logits"]["verdict"]) == ("fail", "pass")
    assert "seam Template text failed" in capsys.readouterr().err


def test_a_gguf_of_another_model_fails_the_logits(project: Path) -> None:
    folder = project / "models/gguf"
    shutil.copyfile(folder / "tiny-Q4_K_M.gguf", folder / "tiny-F16.gguf")  # a level under F16's name
    code, seams = run(project)
    assert code == 5
    assert seams["f16_logits"]["verdict"] == "fail"
    assert seams["template_text"]["verdict"] == seams["token_ids"]["verdict"] == "pass"


def test_an_adapter_that_was_not_merged_fails_the_merge(project: Path) -> None:
    """Also where its weights are large: the tiny adapter of two steps changes next to nothing."""
    from safetensors.torch import load_file, save_file

    file = project / "models/adapter/adapter_model.safetensors"
    save_file({name: value * 30 for name, value in load_file(file).items()}, file)
    code, seams = run(project)
    assert code == 5
    assert (seams["merge_logits"]["verdict"], seams["f16_logits"]["verdict"]) == ("fail", "pass")


def test_an_end_of_turn_that_differs_is_named(project: Path) -> None:
    merged, f16 = project / "models/merged", project / "models/gguf/tiny-F16.gguf"
    tokenizer = load_tokenizer(project / "models/adapter")
    assert special_tokens(tokenizer, merged, f16).verdict == "pass"
    config = json.loads((merged / "generation_config.json").read_text())
    (merged / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": 151_643}))
    seam = special_tokens(tokenizer, merged, f16)
    assert seam.verdict == "fail"
    assert "eos is 151643 in generation_config.json and 151645 in the tokenizer" in seam.detail


def test_a_level_with_another_vocabulary_is_named(project: Path, tmp_path: Path) -> None:
    from tiny import tiny_gguf

    f16, level = project / "models/gguf/tiny-F16.gguf", project / "models/gguf/tiny-Q4_K_M.gguf"
    assert level_vocabularies(f16, [level]).verdict == "pass"
    seam = level_vocabularies(f16, [level, tiny_gguf(tmp_path / "other-Q4_K_M.gguf")])
    assert seam.verdict == "fail"
    assert "other-Q4_K_M.gguf: tokenizer.ggml.tokens" in seam.detail


@pytest.mark.parametrize(
    ("kind", "tokenizer_id", "other", "expected"),
    [("eos", 2, 2, True), ("eos", 2, [1, 2], True), ("eos", 2, 1, False), ("eos", 2, None, False), ("bos", None, 1, True), ("bos", 1, None, True),
     ("bos", 1, 2, False)],
)  # fmt: skip
def test_agrees(kind: str, tokenizer_id: int | None, other: Any, expected: bool) -> None:
    assert agrees(kind, tokenizer_id, other) is expected


def test_conversations_with_tools_are_left_to_the_other_seams() -> None:
    words = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    assert in_words({"messages": words})
    assert not in_words({"messages": words, "tools": [{}]})
    assert not in_words({"messages": [*words, {"role": "tool", "content": "4"}]})
    assert not in_words({"messages": [words[1] | {"tool_calls": [{}]}]})


def test_the_first_difference_shows_both_sides() -> None:
    assert first_difference("abcdef", "abXdef") == "at 2 training has 'cdef', llama-server 'Xdef'"
    assert first_difference([1, 2], [1, 2, 3]) == "at 2 training has [], llama-server [3]"


@pytest.mark.parametrize("side", ["before", "after"])
def test_logits_that_are_no_numbers_fail(finished: Path, side: str) -> None:
    """A NaN once passed: the largest of 0.0 and NaN is 0.0 to Python."""
    import numpy as np

    from pipeline.params import load_params
    from pipeline.seams.outputs import logit_seams

    limits = load_params(finished / "params.yaml").parity
    good = [np.ones((3, 4), np.float32), np.ones((2, 4), np.float32)]
    bad = [good[0], good[1].copy()]
    bad[1][1] = np.nan
    assert {seam.verdict for seam in logit_seams("x", "X", good, good, limits, "").values()} == {"pass"}
    (seam,) = logit_seams("x", "X", bad if side == "before" else good, bad if side == "after" else good, limits, "").values()
    assert (seam.verdict, seam.figure) == ("fail", 1.0)


def test_a_seam_that_compared_nothing_has_not_passed() -> None:
    assert count_seam("X", "x", 0, 0, "").verdict == equal_seam("X", "x", []).verdict == "not measured"
    assert equal_seam("X", "x", [("a", "a")]).verdict == "pass"
    failed = equal_seam("X", "x", [("a", "a"), ("b", "c"), ("d", "e")])
    assert (failed.verdict, failed.figure) == ("fail", 2.0)
    assert failed.detail == "3 compared; first difference: at 0 training has 'b', llama-server 'c'"
