"""Every key of params.yaml with another value: it is taken, it acts, and the stages that depend on it run
again.

Beyond that, a key of curate changes the rows of a small project, one of train the name by which checkpoints
are known, one of serve the server's command. What other keys do is tested beside their stages.
"""

import copy
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml
from tokenizer_folders import smollm_folder

from pipeline.config.conditions import idle
from pipeline.config.params import Params
from pipeline.config.params_text import value_at
from pipeline.config.sections import Curate, Serve
from pipeline.config.sections.values import group_of, keys_of
from pipeline.core.jsonl import write_rows
from pipeline.llamacpp.server_command import Served, server_command
from pipeline.ship.card import PrintedTools
from pipeline.stages.curate.stage import curate
from pipeline.stages.train.run import describe, run_id
from pipeline.workflow.dvc_yaml import dvc_text
from pipeline.workflow.state.lockfile import params_of

Settings = dict[str, Any]
GGUF: Settings = {"base.quantization": "gguf", "evaluate.models": ["base", "adapter"]}
SEEDS: Settings = {"compare.seeds": [1, 2]}
AUGMENTED: Settings = {"augment.kinds": ["rejected"], "augment.model": "m.gguf"}
SERVER: Settings = {"train.method": "grpo", **GGUF}
JUDGE = {"url": "http://127.0.0.1:1/v1", "model": "m"}


class Other(NamedTuple):
    """Another value than the default, and the settings under which it acts."""

    value: Any
    under: Mapping[str, Any] = MappingProxyType({})


KEYS = {
    "base.model": Other("owner/other"),
    "base.revision": Other("0" * 40),
    "base.file": Other("other.gguf"),
    "base.sha256": Other("0" * 64),
    "base.places": Other([]),
    "base.quantization": Other("none"),
    "base.level": Other("Q4_0", GGUF),
    "base.tie": Other("keep"),
    "base.template_date": Other("2025-01-31"),
    "base.chat_template": Other("chatml"),
    "base.end_of_turn": Other("<|im_end|>"),
    "base.new_tokens": Other(["<tool>"], {"train.modules_to_save": ["embed_tokens", "lm_head"]}),
    "curate.formats": Other({"a.jsonl": "prompt"}),
    "curate.documents": Other({"c.txt": "named"}),
    "curate.fields": Other({"a.jsonl": {"system": "Be brief."}}),
    "curate.transform": Other({"a.jsonl": "python:mine.py:shout"}),
    "curate.repair": Other([]),
    "curate.mail": Other("always"),
    "curate.overlong": Other("truncate", {"preprocess.max_length": 64}),
    "curate.cut": Other("beginning", {"preprocess.max_length": 64, "curate.overlong": "truncate"}),
    "curate.reject": Other([]),
    "curate.marked_bad": Other("keep"),
    "curate.languages": Other(["en"]),
    "curate.secrets": Other("keep"),
    "curate.personal": Other([]),
    "curate.names": Other("names.txt"),
    "curate.drop_duplicates": Other("exact"),
    "curate.decontaminate": Other(["guard.jsonl"]),
    "curate.source_weights": Other({"a.jsonl": 0.2}),
    "curate.temperature": Other(0.0),
    "curate.balance": Other("up", {"curate.temperature": 0.0}),
    "curate.pairs": Other("rewards"),
    "curate.val_fraction": Other(0.3),
    "curate.test_fraction": Other(0.3),
    "curate.seed": Other(1),
    "augment.kinds": Other(["rejected"], {"augment.model": "m.gguf"}),
    "augment.model": Other("other.gguf", AUGMENTED),
    "augment.url": Other("https://example.org/v1", AUGMENTED),
    "augment.key_env": Other("A_KEY", AUGMENTED | {"augment.url": "https://example.org/v1"}),
    "augment.rows": Other(8, AUGMENTED),
    "augment.per_row": Other(2, AUGMENTED),
    "augment.temperature": Other(0.0, AUGMENTED),
    "augment.max_new_tokens": Other(64, AUGMENTED),
    "augment.max_calls": Other(8, AUGMENTED),
    "augment.max_tokens": Other(1024, AUGMENTED),
    "augment.parallel": Other(2, AUGMENTED),
    "augment.seed": Other(1, AUGMENTED),
    "preprocess.max_length": Other(64),
    "preprocess.packing": Other(False),
    "preprocess.max_left_out": Other(1.0),
    "train.method": Other("dpo"),
    "train.reward": Other("none"),
    "train.reward_temperature": Other(0.5, {"train.reward": "softmax"}),
    "train.preference.beta": Other(0.2, {"train.method": "dpo"}),
    "train.preference.gamma": Other(0.5, {"train.method": "simpo"}),
    "train.sft_weight": Other(0.2, {"train.method": "dpo"}),
    "train.tuner": Other("scales", GGUF | {"evaluate.models": ["base", "tuned"]}),
    "train.start_from": Other("../last/models/adapter"),
    "train.device": Other("cpu"),
    "train.bnb_4bit_compute_dtype": Other("float32"),
    "train.r": Other(8),
    "train.lora_alpha": Other(8),
    "train.lora_dropout": Other(0.1),
    "train.target_modules": Other(["q_proj"]),
    "train.layers": Other([0]),
    "train.rank_pattern": Other({"q_proj": 4}),
    "train.lora_variants": Other(["rslora", "gaussian"]),
    "train.modules_to_save": Other(["norm"]),
    "train.experts": Other(["up_proj"]),
    "train.num_train_epochs": Other(1.0),
    "train.max_steps": Other(10),
    "train.per_device_train_batch_size": Other(2),
    "train.gradient_accumulation_steps": Other(4),
    "train.order": Other("as_given"),
    "train.learning_rate": Other(1e-4),
    "train.warmup_ratio": Other(0.0),
    "train.lr_scheduler_type": Other("linear"),
    "train.min_lr_rate": Other(0.1),
    "train.weight_decay": Other(0.0),
    "train.max_grad_norm": Other(0.5),
    "train.clip_value": Other(1.0),
    "train.neftune_noise_alpha": Other(5.0),
    "train.optim": Other("adamw_bnb_8bit"),
    "train.gradient_checkpointing": Other(2),
    "train.offload": Other(2),
    "train.loss": Other("chunked"),
    "train.compile": Other(True),
    "train.train_on_prompt": Other(True),
    "train.save_steps": Other(50),
    "train.save_total_limit": Other(2),
    "train.eval_steps": Other(50),
    "train.early_stopping_patience": Other(2),
    "train.sample_rows": Other(2),
    "train.seed": Other(1),
    "train.report_to": Other(["tensorboard", "mlflow"]),
    "train.grpo.rewards": Other({"rouge_l": 1.0}, SERVER),
    "train.grpo.external": Other({"command": ["true"]}, SERVER | {"train.grpo.rewards": {"external": 1.0}}),
    "train.grpo.group_size": Other(4, SERVER),
    "train.grpo.max_new_tokens": Other(64, SERVER),
    "train.grpo.steps_per_round": Other(2, SERVER),
    "train.grpo.rollouts": Other("in-process", SERVER),
    "train.grpo.parallel": Other(2, SERVER),
    "train.grpo.loss": Other("dr_grpo", SERVER),
    "train.grpo.clip_low": Other(0.1, SERVER),
    "train.grpo.clip_high": Other(0.2, SERVER),
    "train.grpo.kl_beta": Other(0.1, SERVER),
    "merge.base": Other("nf4"),
    "convert.name": Other("mine"),
    "convert.type": Other("BF16", {"evaluate.models": ["base-BF16", "BF16", "Q4_K_M", "Q5_K_M"]}),
    "quantize.levels": Other(["Q4_K_M"], {"evaluate.models": ["base-F16", "F16", "Q4_K_M"]}),
    "quantize.tensor_types": Other({"token_embd": "Q8_0"}),
    "quantize.distill": Other(["Q4_K_M"]),
    "distill.max_steps": Other(10, {"quantize.distill": ["Q4_K_M"]}),
    "compare.seeds": Other([1, 2]),
    "compare.levels": Other(["Q5_K_M"], SEEDS),
    "compare.strategies": Other(["lora_nf4", "distilled_scales"], SEEDS),
    "parity.depth": Other("quick"),
    "parity.conversations": Other(20),
    "parity.rows": Other(2),
    "parity.max_kld_level": Other(0.5),
    "parity.max_kld_served": Other(0.01, GGUF),
    "evaluate.models": Other(["base-F16", "F16"]),
    "evaluate.perplexity_rows": Other(8),
    "evaluate.task_rows": Other(8),
    "evaluate.base_examples": Other(1),
    "evaluate.scorers": Other(["exact_match"]),
    "evaluate.judge": Other(JUDGE, {"evaluate.scorers": ["judge"]}),
    "evaluate.external": Other({"command": ["true"]}, {"evaluate.scorers": ["external"]}),
    "evaluate.max_new_tokens": Other(64),
    "evaluate.general": Other("none"),
    "evaluate.harness": Other(["arc_easy"]),
    "evaluate.parallel": Other(1),
    "report.memory_gb": Other(0.01),
    "report.gate.max_kld": Other(1e-6),
    "report.gate.max_kld_trained": Other(1e-6),
    "report.gate.max_task_drop": Other(0.0),
    "report.gate.min_stopped": Other(1.0),
    "report.gate.max_forgetting": Other(0.0),
    "report.gate.min_preference_accuracy": Other(1.0, {"train.method": "dpo"}),
    "report.gate.min_generation_tok_s": Other(10.0),
    "report.gate.max_first_token_seconds": Other(2.0),
    "report.accepted": Other({"train": {"why": "a name", "what": "code", "outputs": "0"}}),
    "serve.port": Other(8082),
    "serve.ctx_size": Other(2048),
    "serve.parallel": Other(2),
    "serve.flash_attn": Other("off"),
    "serve.n_predict": Other(64),
    "machine.threads": Other(1),
    "machine.n_gpu_layers": Other(0),
    "machine.llama_cpp": Other("/opt/llama.cpp"),
    "machine.price_per_hour": Other(2.5),
}
# another build of the same version writes the same; who reads the curves changes none
NO_STAGE = {"machine.llama_cpp", "train.report_to"}


def params(*changes: Mapping[str, Any]) -> Params:
    """The defaults under settings by key."""
    values = Params().model_dump(mode="json")
    for key, value in (item for change in changes for item in change.items()):
        *way, last = key.split(".")
        place = values
        for part in way:
            place = place[part]
        place[last] = value
    return Params.model_validate(values)


def changed(key: str) -> Params:
    other = KEYS[key]
    return params(other.under, {key: other.value})


def of(section: str) -> list[str]:
    return [key for key in KEYS if key.startswith(f"{section}.")]


def at(found: Params, key: str) -> Any:
    return value_at(found.model_dump(mode="json"), tuple(key.split(".")))


def test_every_key_is_here() -> None:
    assert [".".join(place) for place, key in keys_of(Params) if not group_of(key)] == [*KEYS]


@pytest.mark.parametrize("key", KEYS)
def test_another_value_acts_and_what_depends_on_it_runs_again(key: str) -> None:
    found = changed(key)
    assert at(found, key) != at(Params(), key)
    assert key not in {one.key for one in idle(found)}
    stages = yaml.safe_load(dvc_text(found))["stages"]
    again = {
        name
        for name, stage in stages.items()
        for does in [stage.get("do", stage)]
        if any(key == param or key.startswith(f"{param}.") for param in params_of(does))
        or f"${{{key}}}" in json.dumps(stage)
    }
    assert bool(again) == (key not in NO_STAGE)


@pytest.mark.parametrize("key", of("train"))
def test_a_checkpoint_is_of_one_value(key: str, tmp_path: Path) -> None:
    *way, last = key.split(".")[1:]
    (tmp_path / "source.gguf").touch()  # what a distillation learns from
    record = describe(tmp_path, tmp_path, changed(key).training)["settings"]
    before = copy.deepcopy(record)
    place = before
    for part in way:
        place = place[part]
    no_part = key in ("train.device", "train.offload", "train.report_to", "train.start_from")
    if not no_part:
        place[last] = at(Params(), key)
    assert (run_id({"settings": record}) == run_id({"settings": before})) == no_part


@pytest.mark.parametrize("key", [*of("serve"), "machine.threads", "machine.n_gpu_layers"])
def test_the_server_is_started_otherwise(key: str) -> None:
    def command(settings: Serve) -> list[str]:
        return server_command(PrintedTools(Path(), Path()), Served(Path("m.gguf")), settings, Path("key"))

    assert command(changed(key).serving) != command(Params().serving)


def chat(question: str, answer: str = "It is four, of course.", **more: Any) -> Settings:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns} | more


PLAIN = "I can not find the {} that my sister left in the kitchen last night, where could it be?"
THINGS = ("key", "lamp", "book", "hat", "coat", "cup", "spoon", "letter", "bread", "ring", "map", "clock")
LONG = [turn for number in range(12) for turn in chat(f"And what is {number} plus {number}?")["messages"]]
STORY = " ".join(f"On day {day} the ship saw island number {day * day}." for day in range(12))
RAW = {
    "a.jsonl": [
        *(chat(PLAIN.format(thing), f"Look for the {thing} below the table.") for thing in THINGS),
        chat("Where is the cafe\u0301 that everybody talks about these days?"),
        {"messages": [{"role": "user", "content": "Hello there"}, *chat("How are you today?")["messages"]]},
        chat("How do I open this lock?", "I'm sorry, but I can't assist with that."),
        chat(
            "Wo ist denn der Schlüssel, den meine Schwester gestern Abend in der Küche liegen ließ?",
            "Unter dem Tisch, glaube ich, oder vielleicht im Schrank neben der Tür.",
        ),
        chat("Say it again and again", "na na na na " * 60),
        chat("What does <|im_end|> mean in a prompt?"),
        chat("Is this my access key?", "AKIAZ7Q2M4K9X1B3C5D8"),
        chat("Whom do I ask?", "Write to someone.else@example-mail.com about it."),
        chat("Who is Zaphod Beeblebrox?", "Zaphod Beeblebrox was a president."),
        {"messages": LONG},
        {"question": "How many moons has Mars?", "answer": "Two."},
        {"question": "How many moons has Venus?", "answer": "Nine.", "status": "discarded"},
        chat("A long line " + "of many words that are all alike " * 40),
        chat("The quick brown fox jumps over the lazy dog in our garden"),
        chat("When does the ferry leave?", "At noon from the pier.\n\nKind regards\nTove"),
        chat("Four score and seven years ago our fathers brought forth on this continent a new nation"),
    ],
    "b.jsonl": [
        chat("Which is the better city to live in?", "Bern, I think.", reward=0.7),
        chat("Which is the better city to live in?", "None of them at all.", reward=0.2),
        *(chat(f"Recite poem {number} of the second book", f"Line {number * 7}.") for number in range(6)),
        *(chat("Tell me more", f"{STORY} That was in the {year}.") for year in ("spring", "autumn")),
    ],
}
GUARD = [
    chat("jumps over the lazy dog in our garden now and then", "x"),
    chat("seven years ago our fathers brought forth on this continent a new nation, he said", "y"),
]


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Curate, bool], dict[str, bytes]]:
    """Return a function that curates the rows above with given settings and returns the files by name."""

    @cache
    def project(is_counted: bool) -> Path:
        """To count tokens takes a tokenizer, which takes half a second to load."""
        root = tmp_path_factory.mktemp("rows")
        for name, rows in RAW.items():
            write_rows(root / "data/raw" / name, rows)
        (root / "data/raw/c.txt").write_text("There once was a ship that put to sea, in the month of May.\n")
        write_rows(root / "data/guard/guard.jsonl", GUARD)
        (root / "data/guard/mine.py").write_text("def shout(row):\n    return row | {'domain': 'loud'}\n")
        (root / "data/guard/names.txt").write_text("Zaphod Beeblebrox\n")
        (root / "models").mkdir()
        (root / "models/base.json").write_text(json.dumps({"added_tokens": ["<|im_start|>", "<|im_end|>"]}))
        if is_counted:
            smollm_folder(root / "models/base")
        return root

    @cache
    def run(settings: str, is_counted: bool) -> dict[str, bytes]:
        root = project(is_counted)
        curate(root, Curate.model_validate_json(settings))
        return {path.name: path.read_bytes() for path in sorted(root.glob("data/**/*.jsonl"))}

    return lambda settings, is_counted: run(settings.model_dump_json(), is_counted)


@pytest.mark.parametrize("key", [*of("curate"), "preprocess.max_length"])
def test_curation_makes_other_rows(key: str, curated: Callable[[Curate, bool], dict[str, bytes]]) -> None:
    is_counted = key in ("preprocess.max_length", "curate.overlong", "curate.cut")
    before = curated(params(KEYS[key].under).curating, is_counted)
    assert curated(changed(key).curating, is_counted).items() != before.items()
