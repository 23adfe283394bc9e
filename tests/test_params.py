"""params.yaml: everything that is wrong is named at once, by key path, in words that help."""

import copy

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.llamacpp.levels import LEVELS, NEEDS_IMATRIX
from pipeline.llamacpp.tools import PROJECT
from pipeline.params import Params, load_params

DEMO = yaml.safe_load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
COMMIT = "a" * 40


def changed(**sections):
    """The demo's values with `section={key: value}` put in; `...` removes a key."""
    values = copy.deepcopy(DEMO)
    for section, keys in sections.items():
        for key, value in keys.items():
            values[section].pop(key, None)
            if value is not ...:
                values[section][key] = value
    return values


@pytest.fixture
def load(tmp_path):
    """Write a value (or a text as it is) to params.yaml and load it."""

    def write_and_load(value):
        path = tmp_path / "params.yaml"
        path.write_text(value if isinstance(value, str) else yaml.safe_dump(value, allow_unicode=True), encoding="utf-8")
        return load_params(path)

    return write_and_load


def test_wrong_key_wrong_type_and_bad_value_are_one_message_with_three_paths(load):
    with pytest.raises(ConfigError) as raised:
        load(changed(train={"learning_rte": 1.0}, curate={"seed": "42"}, serve={"port": 80}))
    lines = str(raised.value).splitlines()
    assert raised.value.exit_code == 2
    assert "3 errors" in lines[0]
    assert sorted(line.split(":")[0].strip() for line in lines[1:]) == ["curate.seed", "serve.port", "train.learning_rte"]
    assert all(value in str(raised.value) for value in ("unknown key", "'42'", "80"))


@pytest.mark.parametrize(
    ("sections", "path", "words"),
    [
        ({"train": {"learning_rate": "2e-4"}}, "train.learning_rate", "write 2.0e-4"),
        ({"train": {"learning_rate": ...}}, "train.learning_rate", "missing"),
        ({"train": {"max_steps": 0}}, "train.max_steps", "0 steps train nothing"),
        ({"train": {"r": True}}, "train.r", "is True"),
        ({"train": {"target_modules": []}}, "train.target_modules", "at least 1"),
        ({"train": {"lora_dropout": float("nan")}}, "train.lora_dropout", "nan"),
        ({"convert": {"base": False}}, "params", "convert.base is false, .*but base-F16 is named.*set it to true"),
        ({"base": {"trust_remote_code": True}}, "base", "trust_remote_code is never on"),
        ({"base": {"trust_remote_code": False}}, "base", "remove the key"),
        ({"base": {"source": "hub", "model": "a/b", "revision": "main", "file": None}}, "base", "'main'.*needs a commit, 40 hexadecimal digits"),
        ({"base": {"source": "hub", "model": "a/b", "revision": COMMIT[1:], "file": None}}, "base", "needs a commit"),
        ({"base": {"source": "hub", "model": "a/b", "revision": None, "file": None}}, "base", "needs a commit"),
        ({"base": {"revision": COMMIT}}, "base", "only source hub has one"),
        ({"base": {"file": None}}, "base", "file is missing"),
        ({"base": {"source": "path"}}, "base", "only source package, and a hub repository of GGUF files, have one"),
        ({"base": {"source": "pickle"}}, "base.source", "'pickle'"),
        ({"quantize": {"levels": ["Q4_K_M", "Q9_Z"]}}, "quantize.levels", "unknown level Q9_Z: llama.cpp has"),
        ({"quantize": {"levels": ["Q4_K_M", "q4_k_m"]}}, "quantize.levels", "twice"),
        ({"quantize": {"levels": ["IQ1_S"]}, "evaluate": {"models": ["F16"]}}, "quantize.levels", "IQ1_S can't be made without an importance matrix"),
        ({"quantize": {"levels": ["Q4_K_M-imatrix"]}, "evaluate": {"models": ["F16"]}}, "params", "Q4_K_M-imatrix and imatrix.tokens is 0: set it"),
        ({"quantize": {"levels": ["base-Q4_K_M"]}, "evaluate": {"models": ["F16"]}}, "quantize.levels", "only levels of the untuned base"),
        ({"quantize": {"levels": ["Q4_K_M", "base-IQ2_M-imatrix"]}}, "quantize.levels", "the importance matrix is the tuned model's"),
        ({"quantize": {"levels": ["Q4_K_M", "base-Q9_Z"]}}, "quantize.levels", "unknown level Q9_Z"),
        ({"merge": {"levels": ["Q4_K_M-imatrix"]}}, "merge.levels", "before an importance matrix is there"),
        ({"merge": {"levels": ["Q8_0"]}}, "params", "names Q8_0, which quantize.levels doesn't make .*set merge.base to w16 or nf4"),
        ({"merge": {"method": "peft"}}, "merge", "method is peft and base is auto.*set base to w16"),
        ({"convert": {"type": "BF16"}, "evaluate": {"models": ["BF16"]}}, "params", "would round the weights twice"),
        ({"convert": {"type": "BF16"}}, "params", "names base-F16, F16: it can name base-BF16, BF16"),
        ({"convert": {"name": "../escape"}}, "convert.name", "pattern"),
        ({"evaluate": {"models": ["base-F16", "Q4_K_M"]}}, "params", "lacks F16"),
        ({"evaluate": {"models": ["F16", "Q8_0"]}}, "params", "names Q8_0.*can name base-F16, F16, Q4_K_M, Q5_K_M"),
        ({"evaluate": {"ctx_size": 512}}, "params", "512, less than preprocess.max_length 1024"),
        ({"serve": {"flash_attn": True}}, "serve.flash_attn", "is True"),
    ],
)
def test_one_mistake_is_one_line_with_its_path_and_the_reason(load, sections, path, words):
    with pytest.raises(ConfigError, match=rf"(?s)has 1 error:\n  {path}: .*{words}") as raised:
        load(changed(**sections))
    assert len(str(raised.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base:\n  source: hub\nbase:\n  source: path\n", "key base is written twice"),
        ("train:\n  r: 8\n  r: 16\n", "key r is written twice.*line 2"),
        ("train: [1, 2\n", "not valid YAML"),
        ("base: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("just text\n", "params: is 'just text'"),
        ("", "params: is None"),
    ],
)
def test_a_file_that_is_no_configuration_is_a_config_error(load, text, words):
    with pytest.raises(ConfigError, match=rf"(?s){words}"):
        load(text)


def test_a_missing_file_and_one_that_is_not_utf8_say_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="--params"):
        load_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match="byte 5"):
        load_params(tmp_path / "params.yaml")


@given(st.sampled_from(sorted(LEVELS)), st.booleans(), st.data())
def test_a_level_may_be_spelt_in_any_case_and_is_kept_as_spelt(level, imatrix, data):
    name = f"{level}-imatrix" if imatrix or level in NEEDS_IMATRIX else level
    spelt = "".join(data.draw(st.sampled_from([letter.lower(), letter.upper()])) for letter in name)
    params = Params.model_validate(
        changed(quantize={"levels": [spelt]}, evaluate={"models": ["F16", spelt]}, imatrix={"tokens": 1000}, merge={"base": "w16"})
    )
    assert params.quantize.levels == [spelt]


def test_loaded_params_are_frozen(load):
    params = load(DEMO)
    with pytest.raises(ValueError, match="frozen"):
        params.train.r = 8
