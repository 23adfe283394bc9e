"""params.yaml: everything that is wrong is named at once, by key path, in words that help."""

import contextlib
import copy
import os
from pathlib import Path

import pytest
import ruamel.yaml
import yaml
from draws import draws
from dvc.utils.serialize import dumps_yaml, loads_yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make import full_params
from pydantic import ValidationError

from pipeline.config.ggml_types import LEVELS
from pipeline.config.params import Params, load_params
from pipeline.config.sections import Base
from pipeline.config.sections.values import group_of, keys_of
from pipeline.core.errors import ConfigError
from pipeline.core.places import PROJECT
from pipeline.core.yaml_readers import read_fast, read_strict
from pipeline.stages.train.run import describe

DEMO = yaml.safe_load(full_params())
COMMIT = "a" * 40
SHA256 = "ab" * 32


def changed(**sections):
    """The demo's values with `section={key: value}` put in."""
    values = copy.deepcopy(DEMO)
    for section, keys in sections.items():
        values[section] |= keys
    return values


@pytest.fixture
def load(tmp_path):
    """Write a value (or a text as it is) to params.yaml and load it."""

    def write_and_load(value):
        path = tmp_path / "params.yaml"
        path.write_text(
            value if isinstance(value, str) else yaml.safe_dump(value, allow_unicode=True), encoding="utf-8"
        )
        return load_params(path)

    return write_and_load


def test_wrong_key_wrong_type_and_bad_value_are_one_message_with_three_paths(load):
    with pytest.raises(ConfigError) as raised:
        load(changed(train={"learning_rte": 1.0}, curate={"seed": "42"}, serve={"port": 80}))
    lines = str(raised.value).splitlines()
    assert raised.value.exit_code == 2
    assert "3 errors" in lines[0]
    assert sorted(line.split(":")[0].strip() for line in lines[1:]) == [
        "curate.seed",
        "serve.port",
        "train.learning_rte",
    ]
    assert all(value in str(raised.value) for value in ("unknown key", "'42'", "80"))


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("train: {learning_rte: 1.0}", "train.learning_rte", "did you mean train.learning_rate"),
        ("train: {max_length: 512}", "train.max_length", "did you mean preprocess.max_length"),
        ("train: {lora_rank: 8}", "train.lora_rank", "did you mean train.r?"),
        ("train: {epochs: 2}", "train.epochs", "did you mean train.num_train_epochs?"),
        ("train: {lr: 1.0e-4}", "train.lr", "did you mean train.learning_rate?"),
        ("train: {max_seq_length: 9}", "train.max_seq_length", "did you mean preprocess.max_length?"),
        (
            "evaluate: {judge: {url: 'http://x'}}",
            "evaluate.judge.model",
            "missing: add it, as the comment of evaluate.judge shows",
        ),
        ("train: {max_steps: 0}", "train.max_steps", "0 steps train nothing"),
        ("train: {r: true}", "train.r", "is True"),
        ("train: {target_modules: []}", "train.target_modules", "at least 1"),
        ("train: {lora_dropout: .nan}", "train.lora_dropout", "nan"),
        ("base: {trust_remote_code: true}", "base", "trust_remote_code is never on"),
        ("base: {trust_remote_code: false}", "base", "remove the key"),
        ("base: {revision: main}", "base.revision", "'main'.*a commit: write its 40 hexadecimal"),
        (f"base: {{revision: {COMMIT[1:]}}}", "base.revision", "a commit"),
        ("base: {revision: null}", "base", "is not the name of one: give the hub's commit"),
        ("base: {revision: null, model: x.gguf}", "base", "or set file to null"),
        ("base: {source: hub}", "base.source", "did you mean base.model"),
        ("base: {sha256: null}", "base", "places are named and sha256 is null"),
        ("base: {sha256: SHA256, places: [{path: x, url: 'https://x'}]}", "base.places.0", "exactly one"),
        (
            "base: {sha256: SHA256, places: [{url: 'ftp://x'}]}",
            "base.places.0.url.url",
            "begin it with https://",
        ),
        (
            "base: {sha256: SHA256, places: [{hub: a/b, revision: COMMIT}]}",
            "base.places.0.hub.file",
            "missing",
        ),
        (
            "base: {sha256: SHA256, places: [{packages: 'a==1', count: 2, part: 'b{n}'}]}",
            "base.places.0.packages",
            "where the number stands",
        ),
        (
            "base: {sha256: SHA256, places: [{packages: 'a{n}==1', part: 'b{n.real}'}]}",
            "base.places.0.packages",
            "all that can stand in braces",
        ),
        (
            "base: {sha256: SHA256, places: [{packages: '-r{n}==1', part: b}]}",
            "base.places.0.packages.packages",
            "write NAME==VERSION",
        ),
        (f"base: {{sha256: {SHA256.upper()}}}", "base.sha256", "64 hexadecimal digits"),
        ("base: {file: null}", "base", "of several files"),
        (
            "base: {sha256: SHA256, revision: COMMIT, file: a-00001-of-00002.gguf}",
            "base",
            "one of several parts",
        ),
        ("base: {revision: COMMIT, file: config.json}", "base", "names one GGUF file"),
        ("quantize: {levels: [Q4_K_M, Q9_Z]}", "quantize.levels", "unknown level Q9_Z: llama.cpp has"),
        ("quantize: {levels: [F16]}", "quantize.levels", "unknown level F16"),
        ("quantize: {levels: [Q4_K_M, q4_k_m]}", "quantize.levels", "twice"),
        (
            "quantize: {levels: [IQ1_S]}\nevaluate: {models: [F16]}",
            "quantize.levels",
            "IQ1_S can't be made without an importance matrix",
        ),
        (
            "quantize: {levels: [base-Q4_K_M]}\nevaluate: {models: [F16]}",
            "quantize.levels",
            "only levels of the untuned base",
        ),
        (
            "quantize: {levels: [Q4_K_M, base-IQ2_M-imatrix]}",
            "quantize.levels",
            "the importance matrix is the tuned model's",
        ),
        ("quantize: {levels: [Q4_K_M, base-Q9_Z]}", "quantize.levels", "unknown level Q9_Z"),
        ("convert: {type: BF16}", "params", "names base-F16, F16: it can name base-BF16, BF16"),
        (f"convert: {{name: {'n' * 300}}}", "convert.name", "1 to 64 letters"),
        ("train: {r: 1000000000}", "train.r", "less than or equal to"),
        ("curate: {languages: [english]}", "curate.languages.0", "ISO 639"),
        (
            "evaluate: {judge: {url: 'file:///x', model: m, key_file: null}}",
            "evaluate.judge.url",
            "begins with http",
        ),
        (
            f"evaluate: {{scorers: ['regex:{'(' * 400}']}}",
            "evaluate",
            "can't be read as a regular expression",
        ),
        ("evaluate: {scorers: ['regex:((a{1000}){1000}){1000}']}", "evaluate", "repeats more than"),
        (
            "quantize: {tensor_types: {attn_v: q9_9}}",
            "quantize.tensor_types",
            "no type that llama-quantize makes",
        ),
        ("quantize: {tensor_types: {'(': q8_0}}", "quantize.tensor_types", "not a regular expression"),
        (
            "quantize: {tensor_types: {'a=b': q8_0}}",
            "quantize.tensor_types",
            "not a pattern that llama-quantize takes",
        ),
        (
            "quantize: {tensor_types: {'(?i)attn': q8_0}}",
            "quantize.tensor_types",
            "not a pattern that llama-quantize takes",
        ),
        ("evaluate: {models: [base-F16, Q4_K_M]}", "params", "lacks F16"),
        (
            "base: {quantization: gguf}\nevaluate: {models: [base, adapter]}\nquantize: {distill: [Q4_K_M]}",
            "params",
            "quantize.distill",
        ),
        (
            "curate: {val_fraction: 0}\ntrain: {early_stopping_patience: 1, save_steps: 5, eval_steps: 5}",
            "params",
            "no rows are held out to stop by",
        ),
        ("evaluate: {models: [F16, Q8_0]}", "params", "names Q8_0.*can name base-F16, F16, Q4_K_M, Q5_K_M"),
        ("serve: {parallel: true}", "serve.parallel", "is True"),
    ],
)
def test_one_mistake_is_one_line_with_its_path_and_the_reason(load, text, path, words):
    sections = yaml.safe_load(text.replace("SHA256", SHA256).replace("COMMIT", COMMIT))
    with pytest.raises(
        ConfigError, match=rf"(?s)^Q-CONFIG-003: .* has 1 error:\n  {path}: .*{words}"
    ) as raised:
        load(changed(**sections))
    assert len(str(raised.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "base:\n  tie: auto\nbase:\n  tie: keep\n",
            "line 3, column 1: key 'base' is written twice, in line 1 too",
        ),
        ("train:\n  r: 8\n  s: 1\n  r: 16\n", "line 4, column 3: key 'r' is written twice, in line 2"),
        ('"": 1\n"": 2\n', "line 2, column 1: key '' is written twice, in line 1 too"),
        ("train: [1, 2\n", "line 2, column 1: not valid YAML"),
        ("base: !!python/object/apply:os.system ['true']\n", "line 1, column 7: tags"),
        ("a: &x [1]\nb: *x\n", "line 1, column 4: anchors and aliases"),
        ("just text\n", "the file: holds 'just text', and keys with values are needed"),
        ("", "is empty: `quench config use demo`"),
        ("# nothing\n", "is empty: `quench config use demo`"),
        ("a: 1\n---\nb: 2\n", "line 2, .*a second document"),
        ("%YAML 1.1\n---\na: 1\n", "directives"),
        ("1: 2\n", "line 1, .*a key has to be text, and this is 1"),
        ("? [a]\n: 1\n", "line 1, .*a key has to be text"),
        ("[" * 60_000, "nested more than 10 deep"),
        ("{a: " * 15_000, "nested more than 10 deep"),
        ("- " * 30_000, "nested more than 10 deep"),
        ("".join(f"{' ' * depth}a:\n" for depth in range(300)), "line 10, .*nested more than 10 deep"),
        ("a: [" + "1," * 30_000 + "]", "more than 4,000 values"),
        ("a: " + "x" * 2_000_000, "more than 65,536 bytes"),
        ("a: " + "x" * 60_000, "line 1, column 4: a text of 60,000 characters"),
        ("a: " + "9" * 5_000, "line 1, column 4: a text of 5,000 characters"),
        ("a: " + "9" * 500, "line 1, column 4: a number of 500 characters"),
        ('curate:\n  names: "a\\0b"\n', r"line 2, column 10: the text holds the control character '\\x00'"),
        ('a: "\\ud800"', "line 1, .*control character"),
        ('a: "\\UFFFFFFFF"', "line 1, .*not valid YAML"),
        ("a: x\nb: \x1b[31m\n", r"line 2: the control character '\\x1b'"),
    ],
)
def test_a_file_that_is_no_configuration_is_a_config_error(load, text, words):
    with pytest.raises(ConfigError, match=rf"(?s)^Q-CONFIG-00[123]: .*{words}"):
        load(text)


DATES = ["2020-99-99", "2020-01-01 00:00:00 +99:99", "2020-01-01"]
READERS_DISAGREE = [*DATES, "0x_", "0b_", "0b1", "010", "1:30", "1_000", "on", "No", "YES", "<<", "=", "._"]


@pytest.mark.parametrize("text", READERS_DISAGREE)
def test_what_readers_of_yaml_disagree_on_has_to_be_quoted(tmp_path, text):
    file = tmp_path / "params.yaml"
    file.write_text(f"a: {text}\n")
    with pytest.raises(ConfigError, match=r"Q-CONFIG-002: .* line 1, column 4: "):
        read_strict(file)
    file.write_text(f"a: '{text}'\n'{text}': 1\n")
    assert read_strict(file)[0] == {"a": text, text: 1}


def test_numbers_are_those_of_yaml_1_2(tmp_path):
    file = tmp_path / "params.yaml"
    commit = "7ae557604adf67be50417f59c2c2f167def9a775"
    file.write_text(f"[2e-4, 1.0e-3, .5, 0o17, 0x1F, -3, ~, null, true, 1.0, {commit}, a_b]")
    wanted = [2e-4, 1e-3, 0.5, 15, 31, -3, None, None, True, 1.0, commit, "a_b"]
    for _ in range(2):  # what becomes of the values is nothing to the next one who reads the file
        values = read_strict(file)[0]
        assert values == wanted
        values.clear()


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "params.yaml")
    for path in (tmp_path / "params.yaml", Path("/dev/zero"), tmp_path):
        with pytest.raises(ConfigError, match=r"Q-CONFIG-001: .*it is not a regular file"):
            load_params(path)


def test_an_error_names_its_line_and_a_long_value_is_cut(load):
    text = full_params().replace("  packing: true", f"  packing: '\u202e{'x' * 500}'")
    number = next(number for number, line in enumerate(text.splitlines(), 1) if "packing:" in line)
    with pytest.raises(
        ConfigError, match=rf"preprocess.packing: is '.u202exxx.*….*\(line {number}\)"
    ) as raised:
        load(text)
    assert len(str(raised.value).splitlines()[1]) < 200


SCRAPS = [
    *b"[ { ] *a ! ' \" | > # 0x_ 1:30 on 2020-99-99 train: null 1e999 .nan = \\x \\U00110000".split(),
    *(b"- ", b"? ", b": ", b"\n", b"\n  ", b"&a ", b"!!int ", b"  r: ", b"<<: "),
    *(b"%YAML 1.1\n", b"---\n", b"...\n", b"base: {model: x}\n"),
    *(b"\t", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xc2\x85", b"\xe2\x80\xa8"),
    *(b"9" * 5000, b"[" * 5000, b"- " * 5000, b"x" * 2000),
]
PIECES = st.lists(st.one_of(st.sampled_from(SCRAPS), st.binary(max_size=4)), max_size=30).map(b"".join)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.sampled_from([*READERS_DISAGREE, "2e-4", "0o17", "~", "null", "true", "1.5e3"]),
)


@settings(deadline=2000, max_examples=draws(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_params_or_one_readable_refusal(tmp_path, data):
    """Random bytes, YAML scraps, the demo's file with scraps put in; what is accepted, DVC reads the same."""
    demo = full_params().encode()
    scraps = data.draw(st.one_of(st.binary(max_size=200), PIECES))
    place = data.draw(st.integers(0, len(demo)))
    kept = data.draw(st.sampled_from([b"", demo[place:]]))
    file = tmp_path / "params.yaml"
    file.write_bytes((demo[:place] if kept else b"") + scraps + kept)
    try:
        values, _ = read_strict(file)
        read_as_text = file.read_text(encoding="utf-8")
        assert repr(values or {}) == repr(loads_yaml(read_as_text) or {})
        load_params(file)
    except ConfigError as error:
        message = str(error)
        assert len(message) < 2000 + len(str(file)) and all(
            line.isprintable() for line in message.split("\n")
        )


@settings(max_examples=draws(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.one_of(
        SCALARS, st.lists(SCALARS, max_size=5), st.dictionaries(st.text(max_size=10), SCALARS, max_size=3)
    )
)
def test_what_dvc_writes_is_read_back_fast_and_the_same(tmp_path, value):
    file = tmp_path / "dvc.lock"
    try:
        file.write_text(dumps_yaml({"a": value}), encoding="utf-8")
        wanted = loads_yaml(file.read_text(encoding="utf-8"))
    except (ruamel.yaml.YAMLError, ValueError):  # DVC's own limits
        return
    assert read_fast(file) == wanted


def leaves(value, place=()):
    """The place and the value of every key that is no section, and of every list's items."""
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*place, key))
    else:
        yield place, value


def put(place, value):
    """The demo's values with `value` at `place`."""
    values = copy.deepcopy(DEMO)
    *sections, last = place
    inside = values
    for key in sections:
        inside = inside[key]
    inside[last] = value
    return values


NUMBERS = [
    place for place, value in leaves(DEMO) if isinstance(value, int | float) and not isinstance(value, bool)
]


@pytest.mark.parametrize("place", NUMBERS, ids=lambda place: ".".join(map(str, place)))
def test_every_number_has_a_bound(place):
    with pytest.raises(ValidationError, match=r"less than|give a number"):
        Params.model_validate(put(place, 10**12 if isinstance(dict(leaves(DEMO))[place], int) else 1e12))


@pytest.mark.parametrize("name", ["../x", "a/../x", "/etc/passwd", "a\\b", "x" * 600])
@pytest.mark.parametrize(
    "key",
    [
        "base.file",
        "curate.names",
        "curate.decontaminate",
        "convert.name",
        "evaluate.general",
        "evaluate.harness",
        "evaluate.judge.key_file",
    ],
)
def test_no_name_of_a_file_leads_out_of_its_folder(key, name):
    place = tuple(key.split("."))[:2]
    value = [name] if isinstance(DEMO[place[0]][place[1]], list) else name
    if place[1] == "judge":
        value = {"url": "http://x", "model": "m", "key_file": name}
    with pytest.raises(ValidationError, match=r"is not (a|the) "):
        Params.model_validate(put(place, value))


@settings(max_examples=draws(150))
@given(
    place=st.sampled_from([place for place, _ in leaves(DEMO)]),
    value=st.one_of(
        SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(max_size=5), SCALARS, max_size=2)
    ),
)
def test_any_value_at_any_key_is_taken_or_refused_and_never_a_traceback(place, value):
    with contextlib.suppress(ValidationError):
        Params.model_validate(put(place, value))


def without(*places):
    """The demo's values without what stands at `places`."""
    values = copy.deepcopy(DEMO)
    for *above, last in places:
        inside = values
        for name in above:
            inside = inside[name]
        del inside[last]
    return values


def test_every_key_has_a_default_and_a_comment():
    assert Params() == Params.model_validate({name: {} for name in DEMO})
    assert [
        place for place, field in keys_of(Params) if group_of(field) is None and not field.description
    ] == []


def test_what_a_file_leaves_out_has_its_default_be_it_a_key_a_group_or_a_section(load):
    left_out = [("train", "r"), ("report", "gate"), ("serve",)]
    params, defaults = load(without(*left_out)), Params()
    assert params == load(DEMO).model_copy(
        update={
            "train": load(DEMO).train.model_copy(update={"r": defaults.train.r}),
            "report": load(DEMO).report.model_copy(update={"gate": defaults.report.gate}),
            "serve": defaults.serve,
        }
    )
    assert load("serve:\n") == defaults


def test_the_default_model_has_its_file_and_another_has_none(load):
    assert load("base: {quantization: nf4}").base.file == DEMO["base"]["file"]
    other = load(f"base: {{model: a/b, revision: {COMMIT}}}").base
    assert (other.file, other.sha256, other.places) == (None, None, [])
    older = load(f"base: {{revision: {COMMIT}}}").base
    assert (older.file, older.sha256) == (None, None)


@pytest.mark.parametrize(
    ("model", "revision", "file", "source", "gguf"),
    [
        ("a/b", COMMIT, None, "hub", None),
        ("a/b.gguf", COMMIT, "x.gguf", "hub", "x.gguf"),
        ("a-package", None, "x.gguf", "package", "x.gguf"),
        ("a/b.gguf", None, None, "gguf", "a/b.gguf"),
        ("a/B.GGUF", None, None, "gguf", "a/B.GGUF"),
        ("a/b", None, None, "path", None),
    ],
)
def test_what_a_model_is_follows_from_the_keys_beside_it(model, revision, file, source, gguf):
    base = Base(model=model, revision=revision, file=file)
    assert (base.source, base.gguf_name) == (source, gguf)


def test_what_follows_from_a_faulty_key_is_no_fault_of_its_own(load):
    with pytest.raises(ConfigError, match=r"1 error:\n  base\.revision: 'main' is not a commit"):
        load("base: {model: a/b, revision: main}")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        *(("curate.repair", "turns"), ("curate.reject", "garbage"), ("curate.languages", "en")),
        *(("curate.personal", "ip"), ("curate.decontaminate", "a.jsonl"), ("train.lora_variants", "dora")),
        *(("train.modules_to_save", "norm"), ("train.experts", "router")),
        *(("quantize.distill", "Q4_0"), ("compare.seeds", 1), ("compare.strategies", "lora_level")),
        *(("evaluate.models", "F16"), ("evaluate.scorers", "rouge_l"), ("evaluate.harness", "arithmetic")),
    ],
)
def test_a_list_has_nothing_twice(load, key, name):
    section, _, last = key.partition(".")
    with pytest.raises(ConfigError, match=rf"{key}: .*names {name} twice"):
        load(f"{section}: {{{last}: [{name}, {name}]}}")


def test_a_missing_file_and_one_that_is_not_utf8_say_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="Q-CONFIG-001"):
        load_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"Q-CONFIG-002: .*byte 5"):
        load_params(tmp_path / "params.yaml")


@given(st.sampled_from(sorted(LEVELS)), st.booleans(), st.data())
def test_a_level_may_be_spelled_in_any_case_and_is_kept_as_spelled(level, imatrix, data):
    name = f"{level}-imatrix" if imatrix or LEVELS[level].needs_imatrix else level
    spelled = "".join(data.draw(st.sampled_from([letter.lower(), letter.upper()])) for letter in name)
    params = Params.model_validate(
        changed(
            quantize={"levels": [spelled]}, evaluate={"models": ["F16", spelled]}, merge={"base": "16-bit"}
        )
    )
    assert params.quantize.levels == [spelled]


@pytest.mark.parametrize(
    ("sections", "made"),
    [
        ({}, False),
        ({"evaluate": {"models": ["base-F16", "F16"]}}, True),
        ({"quantize": {"levels": ["Q4_K_M", "base-Q4_K_M"]}}, True),
        ({"compare": {"seeds": [1]}}, True),
        ({"parity": {"depth": "full"}}, True),
    ],
)
def test_the_untuned_bases_gguf_is_made_if_something_needs_it(sections, made):
    assert Params.model_validate({"evaluate": {"models": ["F16"]}} | sections).base_gguf is made


@pytest.mark.parametrize(("rollouts", "kind"), [("llama-server", "BF16"), ("in-process", None)])
def test_only_a_server_draws_rollouts_with_a_file(tmp_path, rollouts, kind):
    sections = {"train": {"method": "grpo", "grpo": {"rollouts": rollouts}}, "convert": {"type": "BF16"}}
    params = Params.model_validate(sections | {"evaluate": {"models": ["BF16"]}})
    assert params.derived["rollout_type"] == kind
    assert describe(tmp_path, tmp_path, params.training)["settings"]["rollout_type"] == kind


def test_loaded_params_are_frozen(load):
    params = load(DEMO)
    with pytest.raises(ValueError, match="frozen"):
        params.train.r = 8


def test_trained_scales_need_blocks_and_name_the_tuned_file(load):
    scales = {"tuner": "scales"}
    base = {"quantization": "gguf", "level": "Q4_0"}
    found = load(changed(base=base, train=scales, evaluate={"models": ["source", "base", "tuned"]}))
    assert found.graph == "tuned"
    for models, words in (
        (["base", "adapter"], "names adapter: it can name base, tuned, source"),
        (["base"], "lacks tuned, which is what is served"),
    ):
        with pytest.raises(ConfigError, match=f"Q-CONFIG-003(.|\n)*evaluate.models {words}"):
            load(changed(base=base, train=scales, evaluate={"models": models}))
    with pytest.raises(ConfigError, match=r"lacks adapter|names tuned"):
        load(changed(base=base, evaluate={"models": ["base", "tuned"]}))
    with pytest.raises(ConfigError, match=r"train\.tuner is scales and base\.quantization is nf4"):
        load(changed(train=scales))


DORA, RSLORA = {"lora_variants": ["dora"]}, {"lora_variants": ["rslora"]}
TABLES = {"modules_to_save": ["embed_tokens", "lm_head"]}


@pytest.mark.parametrize(
    ("train", "more", "words"),
    [
        ({"layers": "-20"}, {}, "the first to train: 20-"),
        ({"offload": 2} | DORA, {}, "names dora"),
        ({"offload": "shared"} | DORA, {}, "train.offload is shared"),
        ({"offload": "shared", "method": "grpo", "lora_dropout": 0.0}, {}, "train.offload is shared"),
        (
            {"offload": "shared", "method": "dpo", "per_device_train_batch_size": 2},
            {},
            "train.offload is shared",
        ),
        (DORA, {}, "parity.depth full"),
        (DORA, {"parity": {"depth": "standard"}, "compare": {"seeds": [1]}}, "lora_nf4"),
        ({"start_from": "last"}, {"compare": {"seeds": [1]}}, "compare.seeds is set"),
        ({"target_modules": "(q_proj"}, {}, "not a regular expression"),
        ({"rank_pattern": {"q_proj": 0}}, {}, "from 1 to 4096"),
        ({"layers": []}, {}, "at least 1"),
        ({"lora_variants": ["pissa_niter_4"]}, {}, "a base that was changed"),
        ({"lora_variants": ["orthogonal"]}, {}, "B is not 0"),
        ({"lora_variants": ["kaiming"]}, {}, "'gaussian' or 'lora_plus'"),
        ({"modules_to_save": ["norm"]}, {}, "parity.depth full"),
        ({"modules_to_save": ["embed_tokens"], "offload": "embeddings"}, {}, "names embed_tokens"),
        ({}, {"base": {"new_tokens": ["<tool>"]}}, "embed_tokens and lm_head"),
        (TABLES, {"base": {"new_tokens": ["a", "a"]}}, "twice"),
        (TABLES, {"base": {"new_tokens": [" a"]}}, "no space at its ends"),
        ({"modules_to_save": ["q_proj"]}, {}, "'input_layernorm'"),
        ({"modules_to_save": ["norm"], "lora_variants": ["lora_plus"]}, {}, "as fast as B"),
        ({"modules_to_save": ["norm"], "loss": "liger"}, {}, "replace norms"),
        ({"method": "dpo", "train_on_prompt": True}, {}, "compares answers"),
        ({"compile": True, "method": "dpo"}, {}, "compares answers"),
        (
            {"compile": True},
            {"base": {"quantization": "gguf"}, "evaluate": {"models": ["base", "adapter"]}},
            "kernels of their own",
        ),
        ({"compile": True, "offload": "shared"}, {}, "puts weights in place"),
        ({"compile": True, "offload": 2}, {}, "puts weights in place"),
    ],
)
def test_settings_of_training_that_can_not_act_are_refused(load, train, more, words):
    with pytest.raises(ConfigError, match=words):
        load(changed(train=train, **more))


@pytest.mark.parametrize(
    ("method", "train", "key"),
    [
        ("dpo", {"reward": "z_score"}, "reward"),
        ("sft", {"preference": {"beta": 0.2}}, "preference.beta"),
        ("kto", {"sft_weight": 0.2}, "sft_weight"),
        ("orpo", {"sft_weight": 0.2}, "sft_weight"),
        ("sft", {"sft_weight": 0.5}, "sft_weight"),
        ("sft", {"grpo": {"group_size": 4}}, "grpo.group_size"),
        ("grpo", {"grpo": {"rollouts": "in-process", "parallel": 4}}, "grpo.parallel"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused_but_for_its_default(load, method, train, key):
    own = {"method": method, "sample_rows": 0}
    load(changed(train=own))  # which has all keys
    with pytest.raises(ConfigError, match=rf"Q-CONFIG-003(.|\n)*train\.{key} is .* acts only if"):
        load(changed(train=own | train))


@pytest.mark.parametrize("quantization", ["nf4", "none"])
def test_a_method_brings_its_own_dropout_where_none_is_given(load, quantization):
    base = {"base": {"quantization": quantization}}
    assert load(base | {"train": {"method": "grpo"}}).train.dropout == 0
    assert load(base | {"train": {"method": "dpo"}}).train.dropout == Params().train.dropout > 0
    assert load(base | {"train": {"method": "dpo", "lora_dropout": 0.0}}).train.dropout == 0
    with pytest.raises(ConfigError, match=r"Q-CONFIG-003(.|\n)*lora_dropout is 0\.1"):
        load(base | {"train": {"method": "grpo", "lora_dropout": 0.1}})


def test_a_judge_gives_no_rewards_whether_it_has_an_address_or_not(load):
    judge = {"url": "http://127.0.0.1:1/v1", "model": "m"}
    train = {"method": "grpo", "grpo": {"rewards": {"judge": 1.0}}}
    for address in (None, judge):
        with pytest.raises(ConfigError, match="Q-CONFIG-003") as caught:
            load({"train": train, "evaluate": {"judge": address}})
        assert "train" in str(caught.value) and "evaluate.judge" not in str(caught.value)


def test_dora_is_for_merged_models_and_scales_have_no_adapter(load):
    gguf = {"quantization": "gguf", "model": "x.gguf", "level": None}
    for train, refused in (
        (DORA, "set that to nf4"),
        ({"modules_to_save": ["norm"]}, "set that to nf4"),
        (TABLES, "set that to nf4"),
        ({"tuner": "scales"} | RSLORA, "train.tuner is lora"),
        ({"tuner": "scales", "lora_variants": ["lora_plus"]}, "train.tuner is lora"),
        ({"tuner": "scales", "modules_to_save": ["norm"]}, "train.tuner is lora"),
    ):
        served = "tuned" if "tuner" in train else "adapter"
        with pytest.raises(ConfigError, match=refused):
            load({"base": gguf, "train": train, "evaluate": {"models": [served]}})
    with pytest.raises(ConfigError, match="keeps its vocabulary"):
        load({"base": gguf | {"new_tokens": ["<tool>"]}, "evaluate": {"models": ["adapter"]}})
    for train in (DORA, TABLES):
        load({"train": train, "parity": {"depth": "standard"}})
    load({"base": gguf, "train": RSLORA | {"layers": "1-"}, "evaluate": {"models": ["adapter"]}})


@pytest.mark.parametrize("name", ["quench.yaml", "quench_merge_16bit.yaml"])
def test_settings_of_the_comparison_with_other_tools_are_accepted(name: str, tmp_path: Path) -> None:
    text = (PROJECT / "benchmarks/peers/tools" / name).read_text(encoding="utf-8")
    (tmp_path / "params.yaml").write_text(text.replace("SEED", "42"), encoding="utf-8")
    assert load_params(tmp_path / "params.yaml").train.seed == 42
