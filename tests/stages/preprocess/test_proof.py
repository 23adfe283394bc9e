"""proof: what is written against the template's text, whatever tokenizers do to spaces and characters."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import proving
import pytest
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from proving import chat, load_bases
from qwen2_variants import change_json
from tokenizer_folders import smollm_folder, with_config

from pipeline.chat.rendering import Unrenderable
from pipeline.chat.tokens import IGNORED, Encoded, encode, load_tokenizer
from pipeline.core.errors import DataError
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.preprocess.proof import load_base
from pipeline.stages.preprocess.stretches import Base, same


@pytest.fixture(scope="module")
def bases(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Base]:
    return load_bases(tmp_path_factory.mktemp("bases"), tools)


def proven(folder: Path, base: Base, rows: list[Any], change: Any = None) -> dict[str, int]:
    return proving.proven(folder, base, rows, change)[1]


WORDS = st.text(
    st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="<|>"), min_size=1, max_size=20
).filter(str.strip)


@pytest.mark.parametrize("name", ["smollm", "qwen3"])
@settings(max_examples=draws(25))
@given(output=st.lists(WORDS, min_size=2, max_size=6).filter(lambda output: len(output) % 2 == 0))
def test_what_is_encoded_is_proven_whatever_is_said(
    name: str, bases: dict[str, Base], tmp_path_factory: pytest.TempPathFactory, output: list[str]
) -> None:
    rows = [chat(*output)]
    counts = proven(tmp_path_factory.mktemp("one"), bases[name], rows)
    assert counts["rows"] in (0, 1)  # the encoder may reject: a combining mark at a turn's border
    assert counts["trained_turns"] == (len(output) // 2 if counts["rows"] else 0)


def test_counts_are_those_of_the_file(bases: dict[str, Base], tmp_path: Path) -> None:
    rows = [chat("a", "b", "c", "d"), chat("only a question"), chat("e", "f")]
    counts = proven(tmp_path, bases["qwen3"], rows)
    assert counts.pop("tokens") > counts.pop("trained_tokens")
    assert counts == {"rows": 2, "sequences": 3, "packed_rows": 3, "trained_turns": 3}


def swap(found: list[tuple[str, Encoded]]) -> list[tuple[str, Encoded]]:
    """The first two sequences under each other's name."""
    return [(found[1][0], found[0][1]), (found[0][0], found[1][1]), *found[2:]]


def other_ids(found: list[tuple[str, Encoded]]) -> list[tuple[str, Encoded]]:
    """A masked token is another one."""
    name, one = found[0]
    place = one.labels.index(IGNORED) + 1
    ids = [*one.ids[:place], one.ids[place] + 1, *one.ids[place + 1 :]]
    return [(name, Encoded(ids, one.labels)), *found[1:]]


def bigger(found: list[tuple[str, Encoded]]) -> list[tuple[str, Encoded]]:
    name, one = found[0]
    return [(name, Encoded([*one.ids[:-1], 1 << 20], one.labels)), *found[1:]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (swap, "Q-PREPROCESS-012"),
        (other_ids, "Q-PREPROCESS-012: row .* masked"),
        (bigger, "Q-PREPROCESS-006: .* 1048576"),
        (lambda found: found[1:], "Q-PREPROCESS-014"),
        (lambda found: [*found, found[0]], "Q-PREPROCESS-014"),
        (lambda found: [*found, ("made-up", found[0][1])], "Q-PREPROCESS-014: row made-up "),
        (lambda found: [one for one in found if not one[0].endswith("#2")], "Q-PREPROCESS-014: turn 4 "),
    ],
)
def test_a_difference_is_named(change: Any, problem: str, bases: dict[str, Base], tmp_path: Path) -> None:
    rows = [chat("a", "b"), chat("long question", "d e f"), chat("a", "b", "c", "d")]
    with pytest.raises(DataError, match=problem):
        proven(tmp_path, bases["qwen3"], rows, change)


def test_text_is_proven_with_the_tokenizers_beginning_and_end(bases: dict[str, Base], tmp_path: Path) -> None:
    segments = [{"text": "1 + 1 =", "train": False}, {"text": " 2", "train": True}]
    row = {"id": "a", "kind": "text", "messages": [], "segments": segments}
    assert proven(tmp_path, bases["smollm"], [row])["trained_turns"] == 1

    def cut(found: list[tuple[str, Encoded]]) -> list[tuple[str, Encoded]]:
        return [(name, Encoded(one.ids[:-1], one.labels[:-1])) for name, one in found]

    with pytest.raises(DataError, match="Q-PREPROCESS-011"):
        proven(tmp_path, bases["smollm"], [row], cut)


def test_spaces_that_a_tokenizer_adds_or_drops_are_no_difference() -> None:
    """As Llama 2's and Gemma's: words begin with ▁, and a text's first space goes when it is decoded."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    letters = {letter: number for number, letter in enumerate("▁abc")}
    plain = Tokenizer(models.BPE(letters, []))
    plain.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    plain.decoder = decoders.Sequence(parts)
    base = Base(tokenizer=None, plain=plain, embeddings=4, control=None)  # type: ignore[arg-type]
    assert same("a b", "a b", base)
    assert same("a", " a", base)
    assert not same("ab", "a b", base)
    assert not same("a", "b", base)


@pytest.mark.parametrize(
    ("decoded", "expected"),
    [("  4 and more", True), (" 4 and more", False), ("4 and more", False), ("  4 and more ", False)],
)
def test_a_tokenizer_that_gives_text_back_must_give_its_spaces_back(
    tiny_qwen2: Path, decoded: str, expected: bool
) -> None:
    from tokenizers import Tokenizer

    base: Any = SimpleNamespace(plain=Tokenizer.from_file(str(tiny_qwen2 / "tokenizer.json")))
    assert same(decoded, "  4 and more", base) is expected


STEPS = "DECOMPOSE: first | second\nRECURSE_STEP 1: first\n  RECURSE_STEP 1.1: so\nANSWER: 4"


@pytest.mark.parametrize("name", ["smollm", "qwen3"])
def test_markers_of_reasoning_are_learned_as_the_text_that_they_are(
    name: str, bases: dict[str, Base], tmp_path: Path
) -> None:
    thought = "<think>\n2 and 2\n</think>\n\n"
    answer = STEPS if name == "qwen3" else thought + STEPS  # to Qwen3 <think> is a token, not text
    row = chat("2 + 2?", answer)
    if name == "qwen3":
        row["messages"][1]["reasoning_content"] = "2 and 2"
    assert proven(tmp_path, bases[name], [row])["rows"] == 1
    (_, encoded), *_ = encode(bases[name].tokenizer, [row])
    assert not isinstance(encoded, Unrenderable)
    learned = [label for label in encoded[0].labels if label != IGNORED]
    shown = bases[name].tokenizer.decode(learned)
    assert shown == thought + STEPS + bases[name].tokenizer.eos_token


@pytest.mark.parametrize(
    ("name", "change", "id"),
    [
        ("generation_config.json", {"eos_token_id": [1, 3]}, "Q-PREPROCESS-004"),
        ("config.json", {"vocab_size": None}, "Q-PREPROCESS-005"),
    ],
)
def test_a_base_that_ends_elsewhere_or_says_no_size_is_refused(
    name: str, change: dict[str, Any], id: str, tmp_path: Path
) -> None:
    folder = with_config(smollm_folder(tmp_path / "base"))
    tokenizer = load_tokenizer(folder)
    change_json(folder / name, **change)
    with pytest.raises(DataError, match=id):
        load_base(folder, tokenizer)


@pytest.mark.parametrize("stated", [True, False])
def test_the_generation_settings_go_before_the_models(stated: bool, tmp_path: Path) -> None:
    """Gemma's and many others' config.json names the end of a text beside them."""
    folder = with_config(smollm_folder(tmp_path / "base"))
    tokenizer = load_tokenizer(folder)
    change_json(folder / "config.json", eos_token_id=3)
    if stated:
        assert load_base(folder, tokenizer).tokenizer is tokenizer
        return
    change_json(folder / "generation_config.json", eos_token_id=None)
    with pytest.raises(DataError, match="Q-PREPROCESS-004"):
        load_base(folder, tokenizer)
