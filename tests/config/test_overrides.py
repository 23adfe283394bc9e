"""Settings from a command line end in params.yaml, whose other text stays."""

import re
from pathlib import Path

import pytest
from make import full_params

from pipeline.config.overrides import from_sections, from_words, override
from pipeline.config.params import load_params
from pipeline.core.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(
        "# mine\ntrain:\n  # small\n  learning_rate: 2.0e-4  # peak\n  target_modules: [q_proj, v_proj]\n"
        'convert:\n  name: "demo"\n'
    )
    return path


@pytest.mark.parametrize(
    ("word", "place", "value"),
    [
        ("train.learning_rate=1e-4", ("train", "learning_rate"), 1e-4),
        ("train.target_modules=[q_proj]", ("train", "target_modules"), ["q_proj"]),
        ("train.rank_pattern={down_proj: 4}", ("train", "rank_pattern"), {"down_proj": 4}),
        ("train.train_on_prompt=true", ("train", "train_on_prompt"), True),
        ("train.neftune_noise_alpha=null", ("train", "neftune_noise_alpha"), None),
        ("train.preference.beta=0.2", ("train", "preference", "beta"), 0.2),
        ("convert.name=a=b", ("convert", "name"), "a=b"),
    ],
)
def test_a_word_is_a_key_and_a_yaml_value(word: str, place: tuple[str, ...], value: object) -> None:
    assert from_words([word]) == {place: value}


def test_snakemakes_texts_are_read_as_yaml() -> None:
    given = {"train": {"r": "8", "preference": {"beta": "0.5"}, "rank_pattern": {"v_proj": "2"}}}
    assert from_sections(given) == {
        ("train", "r"): 8,
        ("train", "preference", "beta"): 0.5,
        ("train", "rank_pattern"): {"v_proj": 2},
    }
    assert from_sections({"train": {"preference": {}}}) == {}


def test_the_file_has_it_and_keeps_its_text(file: Path) -> None:
    words = [
        "train.learning_rate=1e-4",
        "train.r=8",
        "train.target_modules=[q_proj]",
        "report.gate.max_kld=0.1",
    ]
    (first, *_) = override(file, from_words(words))
    assert re.findall(r"[\d.]+e-4", first) == ["2.0e-4", "1.0e-4"]
    params, text = load_params(file), file.read_text()
    assert (params.train.learning_rate, params.train.r, params.train.target_modules) == (1e-4, 8, ["q_proj"])
    assert params.report.gate.max_kld == 0.1
    assert "  # small\n  learning_rate: 1.0e-4  # peak\n" in text and 'convert:\n  name: "demo"\n' in text


@pytest.mark.parametrize(
    ("text", "word", "gone", "new"),
    [
        ("train:\n    r: 8     # rank\n", "train.r=9", ["    r: 8     # rank"], "    r: 9     # rank"),
        (
            "train:\n    r: 8\n\n# next\nserve:\n    port: 8082\n",
            "train.loss=chunked",
            [],
            "    loss: chunked",
        ),
        ("train:\r\n  r: 8  # rank\r\n", "train.r=9", ["  r: 8  # rank\r"], "  r: 9  # rank\r"),
        ("# a\r\ntrain:\n  method: sft\n  r: 8\n", "train.r=9", ["  r: 8"], "  r: 9\r"),
        ("# a\r\ntrain: {r: 8}\r\n", "train.r=9", ["train: {r: 8}\r"], "train: {r: 9}\r"),
        (
            "quantize:\n    levels:\n        - Q5_K_M\n        - Q4_K_M\n# next\n",
            "quantize.levels=[Q4_K_M, Q5_K_M]",
            ["    levels:", "        - Q5_K_M", "        - Q4_K_M"],
            "    levels: [Q4_K_M, Q5_K_M]",
        ),
    ],
)
def test_other_lines_stay_as_they_were(
    text: str, word: str, gone: list[str], new: str, tmp_path: Path
) -> None:
    file = tmp_path / "params.yaml"
    file.write_bytes(text.encode())
    override(file, from_words([word]))
    before, now = text.split("\n"), file.read_bytes().decode().split("\n")
    assert [line for line in before if line not in now] == gone and new in now
    stay = [line for line in before if line not in gone]
    assert [line for line in now if line in stay] == stay
    if "# next" in stay:
        assert now.index(new) < now.index("# next")


def test_a_whole_file_changes_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(full_params())
    before = path.read_text().splitlines()
    override(path, {("curate", "temperature"): 0.86})
    after = path.read_text().splitlines()
    assert [new for old, new in zip(before, after, strict=True) if old != new] == ["  temperature: 0.86"]


def test_what_is_so_already_leaves_the_file_alone(file: Path) -> None:
    before = file.read_bytes(), file.stat().st_mtime_ns
    assert override(file, from_words(["train.learning_rate=0.0002"])) == []
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("word", "id", "words"),
    [
        ("train.learning_rte=1", "Q-CONFIG-005", "did you mean train.learning_rate?"),
        ("learning_rate=1", "Q-CONFIG-005", "did you mean train.learning_rate?"),
        ("train=8", "Q-CONFIG-005", "train is a section"),
        ("train.use_dora=true", "Q-CONFIG-005", "did you mean train.lora_variants?"),
        ("train.r=on", "Q-CONFIG-002", "train.r=on"),
        ("train.r=[1", "Q-CONFIG-002", "train.r"),
        ("train.r=0", "Q-CONFIG-003", "train.r"),
    ],
)
def test_what_is_wrong_is_refused_and_the_file_stays(file: Path, word: str, id: str, words: str) -> None:
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=id) as error:
        override(file, from_words([word]))
    assert words in str(error.value)
    assert file.read_bytes() == before


@pytest.mark.parametrize("wrong", [{"trian": {}}, {"trian": {"r": "8"}}, {"train": {"rr": {}}}])
def test_a_wrong_key_of_snakemakes_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="Q-CONFIG-005"):
        from_sections(wrong)
