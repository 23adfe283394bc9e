"""Bases whose template or tokenizer would lose every row, or train the wrong text: stage `base` says so in a
sentence before any data is curated. Sound ones pass.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny import CHATML, WORDS, tiny_params
from tokenizer_folders import gemma_folder, llama2_folder, qwen_folder, smollm_folder, with_config, with_zeros
from tokenizers import AddedToken, Tokenizer

from pipeline.__main__ import main
from pipeline.chat.rendering import Unrenderable, render
from pipeline.chat.tokens import IGNORED, encode, load_tokenizer, probes, save_tokenizer
from pipeline.chat.trial import ANSWER, CHATS, QUESTION, TOOL
from pipeline.config.sections.adapters import DEFAULT_TARGETS
from pipeline.core.errors import DataError
from pipeline.llamacpp.ends import beginning_fields
from pipeline.llamacpp.tools import Toolchain, run_converter
from pipeline.models.text_config import read_text_config
from pipeline.stages.base.hf_folder import examine
from pipeline.stages.base.model_trial import need_assumed_settings, trained_by_default, tried_model
from pipeline.stages.curate.rules.template import ChatTemplate
from pipeline.stages.parity.special_tokens import added as added_tokens
from pipeline.stages.parity.tokens import open_vocabulary
from pipeline.stages.preprocess.proof import load_base

Bend = Callable[[Path], None]
HIDDEN, LAYERS = 64, 2  # of `with_config`
TEMPLATE = "chat_template.jinja"
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
END = "<|im_end|>"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def loop(turn: str, prompt: str = "") -> Bend:
    """Return what gives a folder a template: `turn` for each message `m`, then `prompt`."""
    return added(template="{% for m in messages %}" + turn + "{% endfor %}" + prompt)


def added(*words: str, eos: str | None = None, template: str | None = None) -> Bend:
    """Return what gives a folder more control tokens, another end of turn and another template."""

    def bend(folder: Path) -> None:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words])
        tokenizer.save(str(folder / "tokenizer.json"))
        if eos:
            settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
            (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": eos}))
        if template:
            (folder / TEMPLATE).write_text(template, encoding="utf-8")

    return bend


GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA_TOKENS = ("<eos>", "<start_of_turn>", "<end_of_turn>")
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
# as Qwen3.5 writes it: the prompt ends in a line break, and an answer without reasoning goes on with one
THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n"
    "{% if m.reasoning_content %}{{ m.reasoning_content }}\n{% endif %}"
    "{{ '\n' if not m.reasoning_content }}</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
CHAT = {"messages": [QUESTION, {"role": "assistant", "content": "The Nile."}]}
PROSE = "It flows to the north, through a desert, and is longer than all others. " * 12
REFUSED: dict[str, tuple[Bend, str, tuple[str, ...]]] = {
    # the header would be trained, and served as "assistant\n…"
    "no generation prompt": (loop(TURN), "Q-BASE-038", ("assistant", "add_generation_prompt")),
    "half a generation prompt": (
        loop(TURN, "{% if add_generation_prompt %}<|im_start|>{% endif %}"),
        "Q-BASE-038",
        ("assistant",),
    ),
    "headers of words and no prompt": (
        loop("{{ '### Question' if m.role == 'user' else '### Response' }}:\n{{ m.content }}<|im_end|>\n"),
        "Q-BASE-038",
        ("### Response",),
    ),
    # nothing that an answer could learn to end with
    "no end of an answer": (
        loop("<|im_start|>{{ m.role }}\n{{ m.content }}\n", PROMPT),
        "Q-BASE-039",
        ("writes nothing after an answer",),
    ),
    "an end that is no token": (
        loop("<|im_start|>{{ m.role }}\n{{ m.content }}</turn>\n", PROMPT),
        "Q-BASE-039",
        ("</turn>", "no control token"),
    ),
    # tokens lie across the border of question and answer
    "two line breaks in one token": (
        loop(
            "<|im_start|>{{ m.role }}\n{{ '\n' if m.role == 'assistant' }}{{ m.content }}<|im_end|>\n", PROMPT
        ),
        "Q-BASE-040",
        ("\\n",),
    ),
    "half a word in the prompt": (
        loop(
            "<|im_start|>{{ m.role }}\n{{ 'Answer' if m.role == 'assistant' }}{{ m.content }}<|im_end|>\n",
            "{% if add_generation_prompt %}<|im_start|>assistant\nAns{% endif %}",
        ),
        "Q-BASE-040",
        ("Ans",),
    ),
    # the date is asked for in a way that can't be fixed
    "a date in a computed format": (
        loop(TURN, "{% set form = '%Y' %}{{ strftime_now(form) }}" + PROMPT),
        "Q-BASE-042",
        ("strftime_now",),
    ),
    # the template takes no chat at all
    "another prompt than answers have": (
        loop(
            TURN,
            "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '<th' }}{{ 'ink>' }}\n{% endif %}",
        ),
        "Q-BASE-041",
        ("<think>",),
    ),
    "the last turn only": (loop("", "{{ messages[-1].content }}<|im_end|>"), "Q-BASE-041", ()),
    "refuses all": (loop("{{ raise_exception('use the processor') }}"), "Q-BASE-041", ("processor",)),
}
SOUND: dict[str, tuple[Bend, str]] = {
    "SmolLM2": (lambda folder: None, ""),
    "ChatML with a system prompt": (added(template=CHATML), ""),
    "Gemma with its end of turn": (added(*GEMMA_TOKENS, eos="<end_of_turn>", template=GEMMA), ""),
    "Gemma as published": (added(*GEMMA_TOKENS, eos="<eos>", template=GEMMA), "ends in <end_of_turn>"),
    "an end of text for an end of turn": (
        added(eos="<|endoftext|>", template=CHATML),
        "ends in <|im_end|>",
    ),
    "Mistral, which has no header": (added(template=MISTRAL), ""),
    "a date in the template": (
        added(template="{{ strftime_now('%d %b %Y') }}" + CHATML),
        "always 2024-07-26",
    ),
    "two turns refused": (
        loop("{% if messages | length > 3 %}{{ raise_exception('one') }}{% endif %}" + TURN, PROMPT),
        "chats of several turns",
    ),
    "a prompt that opens reasoning": (
        added("<think>", "</think>", template=THOUGHTS),
        "does not end in '<think>",
    ),
}


def with_weights(folder: Path, **config: Any) -> Path:
    """Return the folder with a config and the weights of its model; of a Llama if it describes no model."""
    stated = {"architectures": ["LlamaForCausalLM"]} | config
    try:
        return with_zeros(with_config(folder, **stated))
    except (KeyError, ValueError):
        with_zeros(with_config(folder))
        return with_config(folder, **stated)


def run(folder: Path, root: Path, **keys: str | None) -> int:
    """Return the exit code of stage `base` of a project in `root` whose base is `folder`."""
    params = tiny_params(folder)
    params["base"] = {"model": str(folder), **keys}
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    return main(["base", "--root", str(root), "--params", str(root / "params.yaml")])


@pytest.mark.base_refused("A template without a generation prompt", "Q-BASE-038")
@pytest.mark.base_refused("A template that ends an answer with no control token", "Q-BASE-039")
@pytest.mark.base_refused("A template with a token across the border of prompt and answer", "Q-BASE-040")
@pytest.mark.parametrize("name", REFUSED)
def test_a_base_that_can_train_no_chat_is_refused_with_the_first_chat(
    name: str, tools: Toolchain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bend, id, words = REFUSED[name]
    source = tmp_path / "source"
    folder = qwen_folder(source, tools, WORDS) if id == "Q-BASE-040" else smollm_folder(source)
    bend(folder)
    project = tmp_path / "project"
    project.mkdir()
    if id == "Q-BASE-042":  # a date that can't be fixed is the base's fault, whatever is trained
        assert run(with_weights(folder), project) == 3
        assert not (project / "models/base").exists()
        refusal = capsys.readouterr().err
        assert id in refusal
    else:
        assert run(with_weights(folder), project) == 0, capsys.readouterr().err
        raw = project / "data/raw"
        raw.mkdir(parents=True)
        (raw / "book.txt").write_text("\n\n".join(f"{n} {PROSE}" for n in range(4)), encoding="utf-8")
        (raw / "chats.jsonl").write_text(json.dumps(CHAT) + "\n", encoding="utf-8")
        assert main(["curate", "--root", str(project), "--params", str(project / "params.yaml")]) == 3
        refusal = capsys.readouterr().err
        assert "Q-CURATE-026" in refusal and "chats.jsonl:1" in refusal
    for word in words:
        assert word in refusal


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_base_passes_and_what_it_leaves_out_is_said(
    name: str, tools: Toolchain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bend, said = SOUND[name]
    folder = smollm_folder(tmp_path / "source")
    bend(folder)
    (tmp_path / "project").mkdir()
    assert run(with_weights(folder), tmp_path / "project") == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert said in printed
    assert ("will be left out" in printed) == said.startswith("chats")


DATED = "Today Date: {{ date_string | default(strftime_now('%d %b %Y')) }}\n" + CHATML


@pytest.mark.parametrize("place", [TEMPLATE, "tokenizer_config.json", "a list of them"])
def test_the_date_of_the_settings_is_in_every_template_of_the_folder(place: str, tmp_path: Path) -> None:
    folder = smollm_folder(tmp_path / "source")
    if place == TEMPLATE:
        (folder / TEMPLATE).write_text(DATED, encoding="utf-8")
    else:
        (folder / TEMPLATE).unlink()
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        named: Any = DATED
        if place == "a list of them":
            named = [{"name": name, "template": DATED} for name in ("default", "tool_use")]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": named}))
    (tmp_path / "project").mkdir()
    assert run(with_weights(folder), tmp_path / "project", template_date="2025-03-04") == 0
    base = tmp_path / "project/models/base"
    tokenizer = load_tokenizer(base)
    for tools in (None, [TOOL]):
        text = render(tokenizer, [QUESTION], tools)
        assert text.startswith("Today Date: 04 Mar 2025\n<|im_start|>system")
    assert ChatTemplate(base).render([QUESTION]) == render(tokenizer, [QUESTION])
    facts = json.loads((tmp_path / "project/models/base.json").read_text(encoding="utf-8"))
    assert facts["template_date"] == "2025-03-04"
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        if (folder / name).is_file():
            assert "04 Mar" not in (folder / name).read_text(encoding="utf-8")


def made(project: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the tokenizer, the generation settings and the record of a project's base."""
    base = project / "models/base"
    settings = json.loads((base / "generation_config.json").read_text(encoding="utf-8"))
    return load_tokenizer(base), settings, json.loads((project / "models/base.json").read_text())


@pytest.mark.parametrize("stated", [None, 0, [0, 5]], ids=["no settings", "one end", "a list"])
def test_the_end_of_turn_that_the_template_writes_is_trained_and_stopped_at(
    stated: object, tmp_path: Path
) -> None:
    """huggingface/transformers#38182: Gemma's tokenizer names <eos>, its template writes <end_of_turn>."""
    folder = smollm_folder(tmp_path / "source")
    added(*GEMMA_TOKENS, eos="<eos>", template=GEMMA)(folder)
    with_weights(folder, limit=[0.0, float("inf")])
    if stated is None:
        (folder / "generation_config.json").unlink()
    else:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stated}))
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 0
    tokenizer, settings, facts = made(tmp_path / "project")
    assert tokenizer.eos_token == facts["eos_token"] == GEMMA_TOKENS[-1]
    assert facts["named_end"] == "<eos>"
    ends = settings["eos_token_id"]
    ends = ends if isinstance(ends, list) else [ends]
    assert ends[0] == tokenizer.eos_token_id
    assert ends[1:] == ([] if stated is None else stated if isinstance(stated, list) else [stated])
    config = json.loads((tmp_path / "project/models/base/config.json").read_text(encoding="utf-8"))
    named = tokenizer.convert_tokens_to_ids("<eos>")
    assert config["eos_token_id"] == [tokenizer.eos_token_id, named]
    assert config["limit"] == [0.0, float("inf")]
    (_, encoded), *_ = encode(tokenizer, [CHAT])
    assert not isinstance(encoded, Unrenderable)
    assert [label for label in encoded[0].labels if label != IGNORED][-1] == tokenizer.eos_token_id


def test_a_right_end_of_turn_at_which_generation_did_not_stop_is_added(tmp_path: Path) -> None:
    folder = with_weights(smollm_folder(tmp_path / "source"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 0
    tokenizer, settings, facts = made(tmp_path / "project")
    assert settings["eos_token_id"] == [tokenizer.eos_token_id, 0]
    assert "named_end" not in facts


def test_beginning_of_text_and_padding_are_the_tokenizers(tmp_path: Path) -> None:
    """deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B: config.json names Qwen's beginning of text, not its own."""
    folder = with_weights(smollm_folder(tmp_path / "source"), bos_token_id=0, limit=[0.0, float("inf")])
    (folder / "generation_config.json").write_text(json.dumps({"pad_token_id": 0, "eos_token_id": 2}))
    named = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(named | {"pad_token": "<|im_end|>"}))
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 0
    tokenizer, settings, _ = made(tmp_path / "project")
    config = json.loads((tmp_path / "project/models/base/config.json").read_text(encoding="utf-8"))
    assert config["bos_token_id"] == tokenizer.bos_token_id == 1
    assert settings["pad_token_id"] == tokenizer.pad_token_id == 2
    assert config["limit"] == [0.0, float("inf")] and "pad_token_id" not in config


@pytest.mark.parametrize("ending", [None, 0], ids=["null", "a number"])
def test_a_base_for_texts_keeps_the_end_that_it_names(ending: int | None, tmp_path: Path) -> None:
    """Base models that come with ChatML and no generation prompt train texts only."""
    folder = smollm_folder(tmp_path / "source")
    added(eos="<|endoftext|>")(folder)
    loop(TURN)(folder)
    with_weights(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ending}))
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 0
    tokenizer, _, facts = made(tmp_path / "project")
    assert (tokenizer.eos_token, facts["eos_token"]) == ("<|endoftext|>", "<|endoftext|>")
    assert "named_end" not in facts and "Q-BASE" not in facts["no_chats"]
    assert "add_generation_prompt" in facts["no_chats"]


def test_a_prompt_that_opens_reasoning_is_changed_in_the_bases_files(tmp_path: Path) -> None:
    folder = smollm_folder(tmp_path / "source")
    added("<think>", "</think>", template=THOUGHTS)(folder)
    with_weights(folder)
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 0
    tokenizer, _, facts = made(tmp_path / "project")
    assert facts["prompt_ended_in"] == "<think>\n"
    assert render(tokenizer, [QUESTION], add_generation_prompt=True).endswith("<|im_start|>assistant\n")
    for (_, encoded), opening in zip(
        encode(tokenizer, [CHAT, CHATS["reasoning"]]), ("<think>\n\n", "<think>\nIt flows"), strict=True
    ):
        assert not isinstance(encoded, Unrenderable)
        trained = [label for label in encoded[0].labels if label != IGNORED]
        assert tokenizer.decode(trained).startswith(opening)
    assert (folder / TEMPLATE).read_text(encoding="utf-8") == THOUGHTS


def test_an_end_of_turn_that_the_template_does_not_write_is_said(tmp_path: Path) -> None:
    folder = with_weights(smollm_folder(tmp_path / "source"))
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project", end_of_turn="<|endoftext|>") == 0
    reason = made(tmp_path / "project")[2]["no_chats"]
    assert "<|im_end|>" in reason and "base.end_of_turn" in reason and "no control token" not in reason


def test_chatml_needs_its_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """google/gemma: no <|im_start|> in the vocabulary."""
    folder = smollm_folder(tmp_path / "source")
    added(*GEMMA_TOKENS, eos="<eos>", template=GEMMA)(folder)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8").replace("<|im_start|>", "<|unused|>"), encoding="utf-8")
    file = folder / "tokenizer_config.json"
    file.write_text(file.read_text(encoding="utf-8").replace("<|im_start|>", "<|unused|>"), encoding="utf-8")
    (tmp_path / "project").mkdir()
    assert run(with_weights(folder), tmp_path / "project", chat_template="chatml") == 3
    said = capsys.readouterr().err
    assert "Q-BASE-046" in said and "<|im_start|>" in said and ".base" not in said
    assert not (tmp_path / "project/models/base").exists()


@pytest.mark.parametrize("own", [True, False], ids=["in place of another", "where there is none"])
@pytest.mark.parametrize("chosen", ["chatml", "mine.jinja"])
def test_a_chosen_template_is_the_bases(chosen: str, own: bool, tmp_path: Path) -> None:
    folder = with_weights(smollm_folder(tmp_path / "source"))
    if own:
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": GEMMA}))
    else:
        (folder / TEMPLATE).unlink()
    project = tmp_path / "project"
    project.mkdir()
    template = "{{ strftime_now('%Y') }}" + CHATML
    (project / "mine.jinja").write_text(template, encoding="utf-8-sig")
    assert run(folder, project, chat_template=chosen) == 0
    tokenizer, _, facts = made(project)
    assert "no_chats" not in facts and facts["eos_token"] == END
    text = render(tokenizer, [QUESTION], add_generation_prompt=True)
    asked = f"<|im_start|>user\n{QUESTION['content']}<|im_end|>\n<|im_start|>assistant\n"
    assert text.endswith(asked)
    assert text.startswith("2024<|im_start|>system" if chosen != "chatml" else "<|im_start|>user")
    assert ChatTemplate(project / "models/base").render([QUESTION]) == render(tokenizer, [QUESTION])


def test_without_a_template_only_texts_are_trained(tmp_path: Path) -> None:
    folder = with_weights(smollm_folder(tmp_path / "source"))
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project", chat_template=None) == 0
    tokenizer, _, facts = made(tmp_path / "project")
    assert not tokenizer.chat_template and "no chat template" in facts["no_chats"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"end_of_turn": "<end_of_turn>"}, ("Q-BASE-044", "<end_of_turn>", "<|im_end|>")),
        ({"chat_template": "none.jinja"}, ("Q-BASE-045", "none.jinja")),
        ({"chat_template": "empty.jinja"}, ("Q-BASE-045", "empty.jinja")),
        ({"chat_template": "broken.jinja"}, ("Q-BASE-037",)),
    ],
)
def test_what_is_chosen_wrongly_is_a_sentence(
    keys: dict[str, str], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_weights(smollm_folder(tmp_path / "source"))
    project = tmp_path / "project"
    project.mkdir()
    (project / "empty.jinja").write_text("\n")
    (project / "broken.jinja").write_text("{{ messages")
    assert run(folder, project, **keys) == 3
    refusal = capsys.readouterr().err
    for word in words:
        assert word in refusal
    assert not (project / "models/base").exists()


def test_a_chosen_end_of_turn_is_trained_though_the_template_writes_another_first(tmp_path: Path) -> None:
    template = CHATML.replace("<|im_end|>\\n'", "<|im_end|><|endoftext|>\\n'")
    folder = smollm_folder(tmp_path / "source")
    added(eos="<|im_start|>", template=template)(folder)
    (tmp_path / "project").mkdir()
    assert run(with_weights(folder), tmp_path / "project", end_of_turn="<|endoftext|>") == 0
    tokenizer, _, facts = made(tmp_path / "project")
    assert (tokenizer.eos_token, facts["named_end"]) == ("<|endoftext|>", "<|im_start|>")


# as Phi-3.5's: <|end|> after every turn, and eos_token at the end of the conversation
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)


def name_end(folder: Path, token: str | None) -> None:
    """Let the tokenizer's settings name `token` as its end."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        if file.is_file():
            settings = json.loads(file.read_text(encoding="utf-8"))
            file.write_text(json.dumps(settings | {"eos_token": token}), encoding="utf-8")


@pytest.mark.parametrize("named", ["<|endoftext|>", None], ids=["an end of texts", "none"])
def test_a_chosen_end_of_turn_is_trained_once(named: str | None, tmp_path: Path) -> None:
    folder = smollm_folder(tmp_path / "source")
    added("<|end|>", "<|user|>", "<|assistant|>", template=PHI)(folder)
    name_end(with_weights(folder), named)
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project", end_of_turn="<|end|>") == 0
    tokenizer, settings, facts = made(tmp_path / "project")
    assert (tokenizer.eos_token, facts["named_end"]) == ("<|end|>", named or "")
    assert tokenizer.eos_token_id in settings["eos_token_id"]
    whole = render(tokenizer, CHAT["messages"])
    assert whole == f"<|user|>\n{QUESTION['content']}<|end|>\n<|assistant|>\nThe Nile.<|end|>\n{named or ''}"
    (_, encoded), *_ = encode(tokenizer, [CHAT])
    trained = [label for label in encoded[0].labels if label != IGNORED]
    assert tokenizer.decode(trained) == "The Nile.<|end|>"


@pytest.mark.parametrize(("window", "is_said"), [(64, True), (2048, False), (None, False)])
def test_a_window_that_llama_cpp_leaves_out_is_said(
    window: int | None, is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Mistral 7B v0.1's and Phi-3-mini-4k's."""
    folder = smollm_folder(tmp_path / "source")
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    with_weights(folder, **mistral, sliding_window=window, max_position_embeddings=2048)
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 0
    assert ("reaches 64 tokens back" in capsys.readouterr().out) == is_said
    assert made(tmp_path / "project")[2].get("window_in_training") == (window if is_said else None)


def test_no_end_of_turn_at_all_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = with_weights(smollm_folder(tmp_path / "source"))
    loop("<|im_start|>{{ m.role }}\n{{ m.content }}</turn>\n", PROMPT)(folder)
    name_end(folder, None)
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 3
    assert "Q-CHAT-002" in capsys.readouterr().err


def test_an_end_that_only_the_generation_settings_name_is_trained(tmp_path: Path) -> None:
    """config.json of many models names the end of a text (Qwen3.5's text_config does), and
    generation_config.json, which wins, the end of a turn. Parity wants it in both.
    """
    folder = with_weights(smollm_folder(tmp_path / "source"), eos_token_id=0)
    project = tmp_path / "project"
    project.mkdir()
    assert run(folder, project) == 0
    tokenizer, settings, _ = made(project)
    assert settings["eos_token_id"] == [tokenizer.eos_token_id] == [2]
    load_base(project / "models/base", tokenizer)  # as stage preprocess does, which refuses ends that differ
    config = json.loads((project / "models/base/config.json").read_text(encoding="utf-8"))
    assert config["eos_token_id"] == [2, 0]


@pytest.mark.parametrize("writes", [False, True], ids=["without it", "with it"])
def test_a_beginning_of_text_that_the_tokenizer_adds_is_in_every_chat(writes: bool, tmp_path: Path) -> None:
    """teknium/OpenHermes-2.5-Mistral-7B has such a template. llama-server puts the token before every prompt,
    so parity found other ids in every conversation, after training.
    """
    folder = with_weights(gemma_folder(tmp_path))
    (folder / TEMPLATE).write_text("{{ bos_token }}" * writes + GEMMA, encoding="utf-8")
    facts, note = examine(folder)
    loaded = load_tokenizer(folder)
    text = render(loaded, [QUESTION])
    assert text.startswith("<bos><start_of_turn>user") and text.count("<bos>") == 1
    assert ChatTemplate(folder).render([QUESTION]) == text
    assert facts.get("template_begun", False) is not writes
    assert note is None and "no_chats" not in facts


@pytest.mark.parametrize("says", [True, None, False], ids=["said", "not said", "denied"])
def test_what_a_sentencepiece_folder_says_of_the_beginning_of_text_is_trained_and_converted(
    says: bool | None, tools: Toolchain, tmp_path: Path
) -> None:
    """Its tokenizer.json adds nothing, tokenizer_config.json may say that something is: transformers and
    llama.cpp go by one each.
    """
    folder = with_weights(llama2_folder(tmp_path))
    file = folder / "tokenizer_config.json"
    named = json.loads(file.read_text(encoding="utf-8")) | {"add_bos_token": says}
    file.write_text(json.dumps({key: value for key, value in named.items() if value is not None}))
    examine(folder)
    tokenizer = load_tokenizer(folder)
    added_ids = [] if says is False else [tokenizer.bos_token_id]
    trained = tmp_path / "trained"
    trained.mkdir()
    save_tokenizer(tokenizer, trained)
    for name in ("config.json", "tokenizer.model"):
        shutil.copyfile(folder / name, trained / name)
    vocabulary_file = tmp_path / "vocabulary.gguf"
    arguments = [trained, "--vocab-only", "--outfile", vocabulary_file]
    run_converter(tools, "convert_hf_to_gguf.py", arguments, None, beginning_fields(trained))
    with open_vocabulary(tools, vocabulary_file) as vocabulary:
        assert list(added_tokens(tokenizer, vocabulary_file, vocabulary)) == [""]
        assert vocabulary.ids("", add_special=True) == added_ids


@pytest.mark.parametrize("stop", ["<|eom|>", "<|eot|>"])
def test_of_several_tokens_behind_an_answer_the_end_is_the_one_that_generation_stops_at(
    stop: str, tmp_path: Path
) -> None:
    folder = smollm_folder(tmp_path / "source")
    turn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|eom|><|eot|>\n"
    loop(turn, PROMPT)(folder)
    added("<|eom|>", "<|eot|>", eos="<|endoftext|>")(folder)
    with_weights(folder)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, ids.token_to_id(stop)]}))
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 0
    assert made(tmp_path / "project")[0].eos_token == stop


def test_a_tokenizer_that_the_converter_cannot_take_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gemma 4's part of the converter wants a tokenizer with bytes as tokens, whatever cuts the text."""
    folder = with_weights(smollm_folder(tmp_path / "source"))
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    gemma = {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"]}
    sizes = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 64}
    (folder / "config.json").write_text(json.dumps(settings | gemma | sizes), encoding="utf-8")
    with_zeros(folder)
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 3
    said = capsys.readouterr().err
    assert "Q-BASE-053" in said and "Traceback" not in said
    assert not (tmp_path / "project/models/base").exists()


def test_an_adapter_is_no_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """unslothai/unsloth#421: the folder that training wrote has no config.json."""
    folder = with_weights(smollm_folder(tmp_path / "source"))
    (folder / "config.json").rename(folder / "adapter_config.json")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 3
    said = capsys.readouterr().err
    assert "Q-BASE-007" in said and "LoRA adapter" in said


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0123abcd' * 8}\nsize 271234567\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", TEMPLATE])
def test_a_base_of_pointers_is_refused_with_what_fetches_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """huggingface/transformers#27923: a clone without Git LFS has such texts in the place of large files."""
    folder = with_weights(smollm_folder(tmp_path / "source"))
    (folder / name).write_text(POINTER)
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 3
    said = capsys.readouterr().err
    assert "Q-BASE-043" in said and name in said and "git lfs pull" in said
    assert not (tmp_path / "project/models/base").exists()


@pytest.mark.parametrize(
    ("config", "id", "word"),
    [
        ({"model_type": "gpt_neox"}, "Q-BASE-048", "gpt_neox"),  # its layers are gpt_neox.layers
        ({"hidden_act": "none"}, "Q-BASE-047", "none"),
        ({"rope_parameters": {"rope_type": "none"}}, "Q-BASE-047", "none"),
    ],
)
def test_a_model_that_cannot_be_trained_here_is_refused_by_a_small_one(
    config: dict[str, Any], id: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_weights(smollm_folder(tmp_path / "source"), **config)
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 3
    said = capsys.readouterr().err
    assert id in said and word in said and str(folder) in said and "Traceback" not in said


LOCAL, ALL = "sliding_attention", "full_attention"
SCALED = {"head_dim": 16, "query_pre_attn_scalar": 16}
GEMMA3 = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}


@pytest.mark.base_refused("A Gemma 2 or 3 whose attention llama.cpp computes otherwise", "Q-BASE-055")
def test_a_gemma_with_another_scale_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers takes 256 by default, llama.cpp the width of a head."""
    gemma2 = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 16}
    folder = with_weights(smollm_folder(tmp_path / "source"), **gemma2)
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 3
    said = capsys.readouterr().err
    assert "Q-BASE-055" in said and str(folder) in said
    assert "query_pre_attn_scalar 256, and llama.cpp" in said and "with 16" in said


def test_a_tied_falcon_h1_with_a_factor_of_its_own_for_the_head_is_refused(tmp_path: Path) -> None:
    """As tiiuae's Falcon-H1-Tiny-90M. llama.cpp's converter multiplies the only table by the embeddings'."""
    factors = {"embedding_multiplier": 0.25, "lm_head_multiplier": 0.125}
    kind = {"model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"], **factors}
    folder = with_config(smollm_folder(tmp_path), **kind, tie_word_embeddings=True)
    with pytest.raises(DataError, match=r"Q-BASE-055.*lm_head_multiplier 0\.125, .* with 0\.25"):
        need_assumed_settings(read_text_config(folder), folder)
    with_config(folder, **kind, tie_word_embeddings=False)
    need_assumed_settings(read_text_config(folder), folder)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (SCALED, None),
        ({"head_dim": 16}, "query_pre_attn_scalar 256, .* with 16"),
        (SCALED | {"layer_types": [LOCAL, ALL]}, rf"layer_types\[1\] '{ALL}', .* with '{LOCAL}'"),
    ],
)
def test_every_sixth_layer_of_a_gemma_3_has_no_window(
    changed: dict[str, Any], words: str | None, tmp_path: Path
) -> None:
    """So llama.cpp takes it, whatever config.json says."""
    folder = with_config(smollm_folder(tmp_path), **GEMMA3, **changed)
    with pytest.raises(DataError, match=f"Q-BASE-055.*{words}") if words else nullcontext():
        need_assumed_settings(read_text_config(folder), folder)


YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 1e6}
OLMO3: dict[str, Any] = {
    "model_type": "olmo3",
    "architectures": ["Olmo3ForCausalLM"],
    "layer_types": [LOCAL, ALL],
    "rope_parameters": {LOCAL: {"rope_type": "default", "rope_theta": 1e6}, ALL: YARN},
}
LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"]}
MINISTRAL3: dict[str, Any] = {
    "model_type": "ministral3",
    "architectures": ["Ministral3ForCausalLM"],
    "rope_parameters": YARN
    | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "beta_fast": 16.0},
}


def olmo(part: str, **changed: Any) -> dict[str, Any]:
    """An OLMo 3's config with other rotary settings of one kind of layers."""
    kinds = OLMO3["rope_parameters"]
    return OLMO3 | {"rope_parameters": kinds | {part: kinds[part] | changed}}


@pytest.mark.base_refused(
    "An OLMo 3 or another model with YaRN's settings that llama.cpp ignores", "Q-BASE-055"
)
@pytest.mark.parametrize(
    ("config", "words"),
    [
        (OLMO3, None),
        (olmo(ALL, attention_factor=1.2079441541679836, beta_fast=32, beta_slow=1), None),
        (olmo(ALL, beta_fast=16.0), "yarn_beta_fast is 32 in llama.cpp, by config.json 16"),
        (olmo(ALL, attention_factor=1.0), "yarn_attn_factor is 1.20794 in llama.cpp, by config.json 1"),
        (olmo(LOCAL, rope_theta=1e4), r"rope\.freq_base_swa is 1e\+06 in llama.cpp, by config.json 10000"),
        (MINISTRAL3, None),
        (
            MINISTRAL3 | {"rope_parameters": MINISTRAL3["rope_parameters"] | {"mscale": 2.0}},
            "yarn_attn_factor is 1 in llama.cpp, by config.json 1.17",
        ),
        (LLAMA | {"rope_parameters": YARN}, None),
        (LLAMA | {"rope_parameters": YARN | {"rope_type": "linear"}}, None),
        (LLAMA | {"rope_parameters": YARN | {"beta_slow": 2.0}}, "llama.rope.scaling.yarn_beta_slow is 1 "),
    ],
)
def test_positions_that_llama_cpp_would_stretch_otherwise_are_refused(
    config: dict[str, Any], words: str | None, tmp_path: Path
) -> None:
    folder = with_config(smollm_folder(tmp_path), **config)
    with pytest.raises(DataError, match=f"Q-BASE-055.*{words}") if words else nullcontext():
        need_assumed_settings(read_text_config(folder), folder)


def test_a_base_that_cannot_keep_rows_apart_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = {"layer_types": ["conv", "full_attention"]}
    hybrid = {"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], **layers}
    folder = with_weights(smollm_folder(tmp_path / "source"), **hybrid)
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 0
    assert "rows are trained one by one, for lfm2 can't" in capsys.readouterr().out
    facts = made(tmp_path / "project")[2]
    assert "lfm2" in facts["never_packed"]
    assert r"conv\.in_proj" in facts["default_targets"]


def test_head_sizes_that_differ_by_layer_are_read(tmp_path: Path) -> None:
    folder = with_weights(smollm_folder(tmp_path / "source"), model_type="gemma4_text", head_dim=16)
    assert tried_model(folder) is None
    assert trained_by_default(folder) == DEFAULT_TARGETS


@pytest.mark.parametrize("has_model", [True, False], ids=["with tokenizer.model", "without it"])
def test_a_sentencepiece_tokenizer_is_read_as_llama_cpp_will_or_refused(
    has_model: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Llama 2: of the file the converter takes scores and kinds of tokens, which tokenizer.json has not."""
    folder = llama2_folder(tmp_path / "source")
    with_weights(folder)
    if not has_model:
        (folder / "tokenizer.model").unlink()
    (tmp_path / "project").mkdir()
    code = run(folder, tmp_path / "project")
    said = capsys.readouterr().err
    if has_model:
        assert code == 0, said
    else:
        assert code == 3 and ("Q-BASE-053" in said or "Q-BASE-054" in said), said
        assert "tokenizer.model" in said and str(folder) in said


def test_a_tokenizer_that_llama_cpp_reads_with_more_spaces_is_refused_for_its_gguf(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mistral 7B v0.3: its tokenizer.json puts a space before the first word only, llama.cpp behind each
    control token too, and nothing is missing in the folder.
    """
    folder = with_weights(llama2_folder(tmp_path / "source", ("[INST]", "[/INST]")))
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    spaces = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    file.write_text(json.dumps(content | {"normalizer": None, "pre_tokenizer": spaces}), encoding="utf-8")
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 3
    said = capsys.readouterr().err
    assert "Q-BASE-054" in said and "take a GGUF of the model" in said, said


def test_a_control_token_that_llama_cpp_would_spell_out_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No template writes it, so parity would find it after training, by a corpus that holds every token."""
    folder = with_weights(llama2_folder(tmp_path / "source"))
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    tokenizer = load_tokenizer(folder)
    seen = " ".join((*probes(tokenizer), render(tokenizer, [QUESTION, ANSWER])))
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    word = next(word for word in reversed(vocab) if len(word) > 3 and word.strip("\u2581") not in seen)
    vocab["<extra>"] = vocab.pop(word)  # in tokenizer.model it stays that word
    content["model"]["merges"] = [pair for pair in merges if word not in (*pair, "".join(pair))]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"].append({"id": vocab["<extra>"], "content": "<extra>", **flags, "special": True})
    file.write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "project").mkdir()
    assert run(folder, tmp_path / "project") == 3
    said = capsys.readouterr().err
    assert "Q-BASE-054" in said and "'<extra>'" in said, said
