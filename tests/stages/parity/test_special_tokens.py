"""parity checks.special: ends of turn, beginnings, padding, templates, vocabularies and provenance records;
planted differences are caught and named.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from families import byte_folder
from qwen2_variants import change_json

from pipeline.chat.tokens import load_tokenizer
from pipeline.gguf.file import check_gguf
from pipeline.gguf.provenance import folder_fields
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.parity.special_tokens import chat_template, special_tokens, vocabularies_and_provenance

MERGE = {
    "adapter_sha256": "ab" * 32,
    "merge_base": "nf4",
    "method": "stream",
    "dtype": "float16",
    "adapters": [{"tensor": "x", "scale": 2.0}],
}


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """A folder with tokenizer, template, config, generation config and merge's record of `tiny.tiny_gguf`."""
    folder = byte_folder(tmp_path / "merged")
    (folder / "merge.json").write_text(json.dumps(MERGE), encoding="utf-8")
    return folder


def with_provenance(file: Path, merged: Path, **changed: Any) -> Path:
    """`tiny.tiny_gguf` that says that it was made from the model in `merged`; the file."""
    return tiny.tiny_gguf(file, **folder_fields(merged) | changed)


def test_what_agrees_passes(merged: Path, tools: Toolchain, tmp_path: Path) -> None:
    f16 = with_provenance(tmp_path / "model-F16.gguf", merged)
    level = with_provenance(tmp_path / "model-Q4_0.gguf", merged, quench__imatrix__sha256="ef")
    tokenizer = load_tokenizer(merged)
    checks = (
        special_tokens(tokenizer, merged, f16, tools),
        chat_template(tokenizer, merged, f16),
        vocabularies_and_provenance(merged, f16, [level]),
    )
    assert [(check.verdict, check.figure) for check in checks] == 3 * [("pass", 0.0)]


def in_file(name: str, **values: Any) -> Callable[[Path], None]:
    """Changes values of a JSON file in the merged folder."""
    return lambda folder: change_json(folder / name, keep_none=True, **values)


CONFIG, GENERATION, FILE = "config.json", "generation_config.json", "model-F16.gguf"
FIRST, LAST = "tokenizer__ggml__add_bos_token", "tokenizer__ggml__add_eos_token"


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        (in_file(GENERATION, eos_token_id=258), f"eos is 258 in {GENERATION} and 260 in the tokenizer"),
        (in_file(CONFIG, eos_token_id=[258, 259]), f"eos is [258, 259] in {CONFIG} and 260 in the tokenizer"),
        (in_file(CONFIG, eos_token_id=None), f"eos is None in {CONFIG} and 260 in the tokenizer"),
        (in_file(GENERATION, bos_token_id=258), f"bos is 258 in {GENERATION} and 259 in the tokenizer"),
        (in_file(CONFIG, pad_token_id=0), f"pad is 0 in {CONFIG} and 260 in the tokenizer"),
        ({"tokenizer__ggml__eos_token_id": 258}, "eos is 258 in GGUF and 260 in the tokenizer"),
        ({"tokenizer__ggml__padding_token_id": 5}, "pad is 5 in GGUF and 260 in the tokenizer"),
        ({"tokenizer__ggml__bos_token_id": 258}, "bos is 258 in GGUF and 259 in the tokenizer"),
        ({FIRST: True}, f"{FILE} adds [259] before and [] after a text, the tokenizer adds [] and []"),
        ({LAST: True}, f"{FILE} adds [] before and [260] after a text, the tokenizer adds [] and []"),
        (in_file(GENERATION, eos_token_id=[260, 65]), "token 65"),
    ],
)
def test_a_planted_difference_is_named(
    planted: Any, named: str, merged: Path, tools: Toolchain, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(merged)
    f16 = tiny.tiny_gguf(tmp_path / FILE, **(planted if isinstance(planted, dict) else {}))
    if not isinstance(planted, dict):
        planted(merged)
    check = special_tokens(tokenizer, merged, f16, tools)
    assert (check.verdict, check.figure) == ("fail", 1.0)
    assert named in check.sentence
    assert named[1:] in check.remedy


def test_a_template_that_was_changed_after_training_is_named(merged: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(merged)
    f16 = tiny.tiny_gguf(tmp_path / "model-F16.gguf", tokenizer__chat_template=tiny.CHATML + " ")
    check = chat_template(tokenizer, merged, f16)
    assert (check.verdict, check.figure) == ("fail", 1.0)
    assert f16.name in check.remedy
    (merged / "chat_template.jinja").unlink()
    check = chat_template(tokenizer, merged, f16)
    assert check.figure == 2.0
    assert "merged has no" in check.sentence
    in_file("tokenizer_config.json", chat_template=tiny.CHATML)(merged)
    assert chat_template(tokenizer, merged, f16).figure == 1.0


def test_a_level_with_another_vocabulary_is_named(merged: Path, tmp_path: Path) -> None:
    f16 = with_provenance(tmp_path / "model-F16.gguf", merged)
    tokens = check_gguf(f16).fields["tokenizer.ggml.tokens"]
    turned = [*tokens[1:], tokens[0]]
    other = with_provenance(tmp_path / "other-Q4_K_M.gguf", merged, tokenizer__ggml__tokens=turned)
    less = with_provenance(tmp_path / "less-Q4_K_M.gguf", merged, tokenizer__ggml__merges=None)
    check = vocabularies_and_provenance(merged, f16, [f16, other, less])
    assert (check.verdict, check.figure) == ("fail", 2.0)
    assert f"{other.name}: tokenizer.ggml.tokens" in check.sentence
    assert f"{less.name}: tokenizer.ggml.merges" in check.sentence


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"quench__adapter__sha256": "cd" * 32}, "old-Q4_K_M.gguf: quench.adapter.sha256"),
        ({"quench__merge__sha256": "cd" * 32}, "old-Q4_K_M.gguf: quench.merge.sha256"),
        ({"quench__merge__base": None}, "old-Q4_K_M.gguf: quench.merge.base is missing"),
        ({"quench__data__sha256": "cd" * 32}, "old-Q4_K_M.gguf: quench.data.sha256"),
    ],
)
def test_a_level_of_an_older_merge_is_named(
    merged: Path, tmp_path: Path, changed: dict[str, Any], detail: str
) -> None:
    f16 = with_provenance(tmp_path / FILE, merged)
    old = with_provenance(tmp_path / "old-Q4_K_M.gguf", merged, **changed)
    check = vocabularies_and_provenance(merged, f16, [f16, old])
    assert (check.verdict, check.figure) == ("fail", 1.0)
    assert check.sentence.endswith(f"first difference: {detail}")
    key = detail.split()[1]
    assert f"({key})" in check.remedy and f"{old.name}`" in check.remedy


@pytest.mark.parametrize(
    ("record", "key"),
    [
        ({"adapter_sha256": "cd" * 32}, "quench.adapter.sha256"),
        ({"merge_base": "16-bit"}, "quench.merge.base"),
        ({"adapters": [{"tensor": "x", "scale": 4.0}]}, "quench.merge.sha256"),
    ],
)
def test_a_gguf_of_an_older_merge_is_named(
    merged: Path, tmp_path: Path, record: dict[str, Any], key: str
) -> None:
    """The GGUF and its level agree, and were both made before the merged model."""
    f16 = with_provenance(tmp_path / "model-F16.gguf", merged)
    in_file("merge.json", **record)(merged)
    check = vocabularies_and_provenance(merged, f16, [f16])
    assert check.verdict == "fail"
    assert f"({key})" in check.remedy and "--force convert`" in check.remedy


def test_a_table_without_a_row_for_every_token_is_named(merged: Path, tmp_path: Path) -> None:
    """Whichever of the two tables it is."""
    head = {"output.weight": np.zeros((260, 32), np.float16)}
    f16 = with_provenance(tmp_path / FILE, merged, tensors=head)
    check = vocabularies_and_provenance(merged, f16, [])
    assert (check.verdict, check.figure) == ("fail", 1.0)
    assert "261 tokens, 260 rows" in check.remedy


def test_several_named_templates_are_compared_by_name(merged: Path, tmp_path: Path) -> None:
    (merged / "chat_template.jinja").unlink()
    for_tools = tiny.CHATML + "{{ tools }}"
    listed = [
        {"name": name, "template": t} for name, t in (("default", tiny.CHATML), ("tool_use", for_tools))
    ]
    in_file("tokenizer_config.json", chat_template=listed)(merged)
    less = tiny.tiny_gguf(tmp_path / "less-F16.gguf")
    both = tiny.tiny_gguf(tmp_path / "both-F16.gguf", tokenizer__chat_template__tool_use=for_tools)
    tokenizer = load_tokenizer(merged)
    assert [chat_template(tokenizer, merged, file).figure for file in (less, both)] == [1.0, 0.0]
