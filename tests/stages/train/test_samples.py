"""pipeline.stages.train.monitoring.samples: greedy answers; a training step can't tell if any were taken."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
from transformers import PretrainedConfig

from pipeline.chat.tokens import IGNORED, load_tokenizer
from pipeline.config.params import load_params
from pipeline.config.sections import Training
from pipeline.core.places import PROJECT
from pipeline.stages.train.monitoring import samples
from pipeline.stages.train.monitoring.samples import sample

PARTS = (  # text, is it trained?
    ("<|im_start|>user\nWhat is 2 plus 3?<|im_end|>\n<|im_start|>assistant\n", False),
    ("It is 5.<|im_end|>", True),
    ("\n<|im_start|>user\nAnd 4?<|im_end|>\n<|im_start|>assistant\n", False),
    ("That is 9.<|im_end|>", True),
    ("\n", False),
)


def encoded(tokenizer: Any, parts: Sequence[tuple[str, bool]] = PARTS) -> tuple[list[int], list[int]]:
    """Ids and labels of a conversation."""
    pieces = [(tokenizer(text)["input_ids"], trained) for text, trained in parts]
    return [token for piece, _ in pieces for token in piece], [
        token if trained else IGNORED for piece, trained in pieces for token in piece
    ]


@pytest.fixture(scope="module")
def settings() -> Training:
    return load_params(PROJECT / "recipes" / "demo.yaml").training.model_copy(
        update={"r": 4, "lora_alpha": 8, "lora_dropout": 0.1}
    )


@pytest.fixture
def make(tiny_qwen2: Path, settings: Training) -> Callable[[], Any]:
    """Makes the same NF4 model with an adapter as training has it, each time again."""

    def made() -> Any:
        import torch
        from peft import get_peft_model

        from pipeline.models.qlora import load_quantized
        from pipeline.models.tuners.lora import lora_config

        model = load_quantized(tiny_qwen2, settings)
        torch.manual_seed(0)
        model = get_peft_model(model, lora_config(settings))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data = torch.randn(parameter.shape) * 0.05
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
        model.train()
        model.base_model.model.model.embed_tokens.eval()  # a module whose mode differs from the model's
        return model

    return made


@pytest.fixture(scope="module")
def tokenizer(tiny_qwen2: Path) -> Any:
    return load_tokenizer(tiny_qwen2)


def training_step(model: Any, ids: list[int], labels: list[int]) -> list[Any]:
    """Gradients of one step with dropout, as the run's random numbers are now."""
    import torch

    model.zero_grad()
    model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels]), use_cache=False).loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.requires_grad] + [
        torch.rand(3)
    ]


def state(model: Any) -> Any:
    modes = [module.training for module in model.modules()]
    return modes, model.config.use_cache, model.is_gradient_checkpointing


def test_the_next_training_step_is_bit_equal(make: Callable[[], Any], tokenizer: Any) -> None:
    import torch

    ids, labels = encoded(tokenizer)
    steps = []
    for watched in (False, True):
        model = make()
        torch.manual_seed(7)
        training_step(model, ids, labels)
        before, random = state(model), torch.get_rng_state()
        if watched:
            assert len(sample(model, tokenizer, [(ids, labels)] * 2, max_new_tokens=4)) == 2
        assert state(model) == before
        assert torch.equal(torch.get_rng_state(), random)
        steps.append(training_step(model, ids, labels))
    assert len(steps[0]) > 10
    assert all(torch.equal(plain, watched) for plain, watched in zip(*steps, strict=True))


def test_an_error_inside_leaves_the_model_as_it_was(make: Callable[[], Any], tokenizer: Any) -> None:
    import torch

    def fail(*_: Any) -> None:
        assert not torch.is_grad_enabled()
        assert not any(module.training for module in model.modules())
        raise RuntimeError("inside")

    model = make()
    model.register_forward_pre_hook(fail)
    before = state(model)
    with pytest.raises(RuntimeError, match="inside"):
        sample(model, tokenizer, [encoded(tokenizer)], max_new_tokens=4)
    assert state(model) == before and torch.is_grad_enabled()


class Fixed:
    """A model that says `says`, a token a call, by its cache; `calls` has the numbers of ids it was shown."""

    device = "cpu"
    config = PretrainedConfig()

    def __init__(self, says: list[int]) -> None:
        self.says, self.calls = says, []

    def modules(self) -> list[Any]:
        return []

    def eval(self) -> None: ...

    def __call__(self, input_ids: Any, past_key_values: Any, use_cache: bool, **_: Any) -> Any:
        import torch
        from transformers.modeling_outputs import CausalLMOutputWithPast

        assert torch.get_num_threads() == 1
        torch.rand(1)  # as a model that draws random numbers
        output = past_key_values or 0
        self.calls.append(input_ids.shape[1])
        logits = torch.nn.functional.one_hot(torch.tensor([[self.says[output]]]), tiny.ROWS).float()
        return CausalLMOutputWithPast(logits=logits, past_key_values=output + 1 if use_cache else None)


def test_it_answers_the_first_turn_and_stops_at_the_end_of_turn(tokenizer: Any) -> None:
    import torch

    torch.set_num_threads(2)
    ids, labels = encoded(tokenizer)
    model = Fixed([*tokenizer("It is 6.")["input_ids"], tokenizer.eos_token_id, 0, 0])
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    found, just_ended = (sample(model, tokenizer, [(ids, labels)], most)[0] for most in (20, 6))
    assert found == just_ended
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert found["prompt"].endswith("<|im_start|>user\nWhat is 2 plus 3?<|im_end|>\n<|im_start|>assistant\n")
    assert (found["answer"], found["reference"]) == ("It is 6.", "It is 5.")
    first = next(place for place, label in enumerate(labels) if label != IGNORED)
    assert model.calls == [first, 1, 1, 1, 1, 1] * 2


def test_questions_that_are_answered_together_get_the_answers_of_each(
    make: Callable[[], Any], tokenizer: Any
) -> None:
    short = encoded(tokenizer)
    long = encoded(tokenizer, [("x " * 20, False), *PARTS])
    model = make().float()
    together = sample(model, tokenizer, [long, short, long], max_new_tokens=6)
    assert together == [sample(model, tokenizer, [one], max_new_tokens=6)[0] for one in (long, short, long)]
    assert together[0]["answer"] != together[1]["answer"]


def test_many_questions_are_answered_a_few_at_a_time(
    make: Callable[[], Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, labels = encoded(tokenizer)
    first = next(place for place, label in enumerate(labels) if label != IGNORED)
    monkeypatch.setattr(samples, "TOGETHER", 3 * (first + 4))
    model = make()
    asked: list[int] = []
    model.register_forward_pre_hook(
        lambda module, arguments, more: asked.append(len(more["input_ids"])), with_kwargs=True
    )
    assert len(sample(model, tokenizer, [(ids, labels)] * 5, max_new_tokens=4)) == 5
    assert set(asked) == {3, 2}


def test_layers_with_a_state_answer_one_question_after_the_other(tokenizer: Any) -> None:
    ids, labels = encoded(tokenizer)
    first = next(place for place, label in enumerate(labels) if label != IGNORED)
    model = Fixed(tokenizer("What is a time")["input_ids"])
    model.config = PretrainedConfig(layer_types=["linear_attention", "full_attention"])
    assert len(sample(model, tokenizer, [(ids, labels)] * 2, max_new_tokens=3)) == 2
    assert model.calls == [first, 1, 1] * 2


def test_what_was_cut_shows_it(tokenizer: Any) -> None:
    asked = "x " * 900 + "why?<|im_end|>\n<|im_start|>assistant\n"
    ids, labels = encoded(tokenizer, [(asked, False), ("What is a time upon<|im_end|>", True)])
    model = Fixed(tokenizer("On a time is plus")["input_ids"])
    (found,) = sample(model, tokenizer, [(ids, labels)], max_new_tokens=3)
    assert (found["answer"], found["reference"]) == ("On a time…", "What is a…")
    assert found["prompt"].startswith("…")
    assert len(found["prompt"]) == 600 + 1
    assert "why?" in found["prompt"]
    fitting = tokenizer(tokenizer.decode(ids)[:600])["input_ids"]
    (found,) = sample(model, tokenizer, [([*fitting, 0], [IGNORED] * len(fitting) + [0])], max_new_tokens=3)
    assert found["prompt"] == tokenizer.decode(fitting)


def test_a_text_without_a_question_is_continued_from_its_first_token(tokenizer: Any) -> None:
    ids = tokenizer("What is a time")["input_ids"]
    (found,) = sample(Fixed(ids[1:]), tokenizer, [(ids, ids)], max_new_tokens=3)
    assert found["prompt"] == "What"
    assert found["answer"] == found["reference"] == " is a time…"
