"""Vocabularies of SentencePiece in a GGUF's header: their tokenizer.model, and their runs of spaces."""

import json
from pathlib import Path

import pytest
import sentencepiece
from tokenizer_folders import GEMMA_PLAIN, GEMMA_RUNS, gemma_folder, smollm_folder
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast

from pipeline.chat.tokenizer_file import plain_tokenizer
from pipeline.core.errors import DataError
from pipeline.gguf.header import Header
from pipeline.stages.base.runs_of_spaces import keep_runs_of_spaces, settle_runs_of_spaces
from pipeline.stages.base.sentencepiece_file import PIECES_FILE, SETTINGS_FILE, write_pieces

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
# as in a GGUF of Gemma, whose unknown token is a control token, and that has runs of spaces as tokens
KINDS = {
    "<eos>": CONTROL,
    "<unk>": CONTROL,
    "  ": USER_DEFINED,
    "   ": USER_DEFINED,
    "▁": NORMAL,
    "a": NORMAL,
    "▁a": NORMAL,
} | {f"<0x{number:02X}>": BYTE for number in range(256)}
EOS, UNKNOWN, TWO, THREE, SPACE, A, SPACE_A = range(7)
HEADER = Header(
    {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(KINDS),
        "tokenizer.ggml.token_type": list(KINDS.values()),
        "tokenizer.ggml.scores": [-float(number) for number in range(len(KINDS))],
        "tokenizer.ggml.unknown_token_id": UNKNOWN,
        "tokenizer.ggml.add_space_prefix": False,
    },
    {},
)


def test_a_gemmas_pieces_can_be_loaded_and_put_no_space_before_a_text(tmp_path: Path) -> None:
    """SentencePiece loads no model in which no piece is unknown."""
    (tmp_path / SETTINGS_FILE).write_text("{}")
    write_pieces(HEADER, tmp_path)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / PIECES_FILE))
    assert pieces.encode("a a") == [A, SPACE_A]
    assert pieces.unk_id() == UNKNOWN
    assert pieces.is_control(EOS)


def test_the_converter_reads_which_tokens_are_control_tokens_and_which_are_plain(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_text('{"model_max_length": 64}')
    write_pieces(HEADER, tmp_path)
    settings = json.loads((tmp_path / SETTINGS_FILE).read_text())
    assert settings["model_max_length"] == 64
    added = settings["added_tokens_decoder"]
    assert {int(number): (token["content"], token["special"]) for number, token in added.items()} == {
        UNKNOWN: ("<unk>", True),
        TWO: ("  ", False),
        THREE: ("   ", False),
    }


def test_runs_of_spaces_are_taken_out_of_a_text_the_longest_first(tmp_path: Path) -> None:
    """Merged from single ones, four spaces are two and two."""
    pieces = {word.replace(" ", "▁"): number for number, word in enumerate(KINDS)}
    merges = [("▁", "▁"), ("▁▁", "▁"), ("▁", "a")]
    plain = Tokenizer(models.BPE(pieces, merges))
    plain.normalizer = normalizers.Replace(" ", "▁")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain)
    assert tokenizer("    ")["input_ids"] == [TWO, TWO]
    keep_runs_of_spaces(tokenizer, HEADER)
    tokenizer.save_pretrained(tmp_path)
    for loaded in (tokenizer, PreTrainedTokenizerFast.from_pretrained(tmp_path)):
        assert loaded("    ")["input_ids"] == [THREE, SPACE]
        assert loaded("a     a")["input_ids"] == [A, THREE, TWO, A]
        assert loaded(" a")["input_ids"] == [SPACE_A]
        # The file has no token of this name.
        assert loaded("▁▁")["input_ids"] == [SPACE, SPACE]


def test_so_they_are_in_a_folder_whose_tokenizer_json_merges_them(tmp_path: Path) -> None:
    """As Gemma is published, by transformers' own conversion of tokenizer.model."""
    folder = gemma_folder(tmp_path)
    before = plain_tokenizer(folder)
    longest, shortest = (before.token_to_id(run) for run in (GEMMA_RUNS[-1], GEMMA_RUNS[0]))
    assert before.encode(" " * 33, add_special_tokens=False).ids != [longest, shortest]
    assert settle_runs_of_spaces(folder)
    after = plain_tokenizer(folder)
    assert after.encode(" " * 33, add_special_tokens=False).ids == [longest, shortest]
    for text in ("Which  river?\n   The Nile", " The Nile ", "\n\n\n"):
        assert after.encode(text).ids == before.encode(text).ids
    settings = json.loads((folder / SETTINGS_FILE).read_text())
    contents = {token["content"] for token in settings["added_tokens_decoder"].values()}
    assert contents >= {plain.replace("▁", " ") for plain in GEMMA_PLAIN}
    assert contents.isdisjoint(GEMMA_RUNS)
    assert not settle_runs_of_spaces(folder)


def test_other_tokenizers_stay_as_they_are_byte_for_byte(tmp_path: Path) -> None:
    file = smollm_folder(tmp_path) / "tokenizer.json"
    before = file.read_bytes()
    assert not settle_runs_of_spaces(tmp_path)
    assert file.read_bytes() == before


def test_a_broken_tokenizer_json_with_such_runs_is_refused(tmp_path: Path) -> None:
    (gemma_folder(tmp_path) / "tokenizer.json").write_text('{"added_tokens": ["▁▁"]}', encoding="utf-8")
    with pytest.raises(DataError):
        settle_runs_of_spaces(tmp_path)
