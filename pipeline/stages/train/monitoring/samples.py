"""Sample a model's greedy answers to held-out questions in mid-training, without a trace in the run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.chat.tokens import IGNORED
from pipeline.models.runtime import one_thread

PROMPT_LETTERS = 600  # characters shown of a prompt's end, which contains the question
# Padded tokens of prompts and answers that are computed together, at most, unless one prompt is longer. They
# take less memory than a training step of so many tokens, and nothing plans memory for them.
TOGETHER = 1024


def sample(
    model: Any, tokenizer: Any, sequences: Sequence[tuple[list[int], list[int]]], max_new_tokens: int
) -> list[dict[str, str]]:
    """Return greedy answers of at most `max_new_tokens` to the first trained turn of each sequence (ids,
    labels; both of length T).

    Each is {"prompt", "answer", "reference"}: the text before that turn (only its end if it is long), the
    model's output and what was to be learned, both without the end-of-turn token. "…" at the end of one means
    that it goes on. The model and the random numbers are left as they were (`undisturbed`).
    """
    turns = [_first_turn(labels) for _, labels in sequences]
    prompts = [ids[:start] for (ids, _), (start, _) in zip(sequences, turns, strict=True)]
    samples = []
    # The work of a single token is too small to be shared: threads would wait longer than it takes.
    with undisturbed(model), one_thread():
        answers = _answers(model, prompts, tokenizer.eos_token_id, max_new_tokens)
    for (ids, _), (start, end), answer in zip(sequences, turns, answers, strict=True):
        prompt = tokenizer.decode(ids[:start])
        samples.append(
            {
                "prompt": prompt if len(prompt) <= PROMPT_LETTERS else "…" + prompt[-PROMPT_LETTERS:],
                "answer": _text(tokenizer, answer, max_new_tokens),
                "reference": _text(tokenizer, ids[start:end], max_new_tokens),
            }
        )
    return samples


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Run the body in evaluation mode, without gradients. Afterwards every module's mode and all random
    states are what they were.

    The weights stay as they are because `load_quantized` keeps bitsandbytes from re-packing them in
    evaluation mode.
    """
    import torch

    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        for module, training in modes.items():
            # train() would also switch on modules that were off inside.
            module.training = training


def _answers(model: Any, prompts: list[list[int]], eos: int, max_new_tokens: int) -> list[list[int]]:
    """Return the most probable tokens after each prompt, up to and including `eos`.

    Prompts are continued together, because a token of one takes as long as one of each: the weights are
    dequantized for it. Layers with a state would take the padding before a shorter prompt for text, so a
    model that has some continues one prompt after the other.
    """
    most_tokens = TOGETHER if _only_attends(model) else 0
    answers = []
    for group in _groups(prompts, most_tokens, max_new_tokens):
        answers += _greedy(model, group, eos, max_new_tokens)
    return answers


def _groups(prompts: list[list[int]], most_tokens: int, max_new_tokens: int) -> Iterator[list[list[int]]]:
    """Yield the prompts in order, in groups that are at most `most_tokens` when they are padded to one length
    and answered, or a prompt by itself.
    """
    group: list[list[int]] = []
    for prompt in prompts:
        longest = max(map(len, [*group, prompt])) + max_new_tokens
        if group and longest * (len(group) + 1) > most_tokens:
            yield group
            group = []
        group.append(prompt)
    if group:
        yield group


def _only_attends(model: Any) -> bool:
    """Return True if all layers that look at other tokens are attention."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    return all(kind.endswith("attention") and "linear" not in kind for kind in kinds)


def _greedy(model: Any, prompts: list[list[int]], eos: int, max_new_tokens: int) -> list[list[int]]:
    """Return the continuations of prompts that are padded on the left to one length.

    `generate` is not used because it mixes in the published generation settings, such as Qwen2.5's repetition
    penalty of 1.05.
    """
    import torch

    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    rows = [[eos] * count + prompt for count, prompt in zip(padding, prompts, strict=True)]
    ids = torch.tensor(rows, device=model.device)  # (B, T)
    mask = torch.tensor([[0] * count + [1] * (longest - count) for count in padding], device=model.device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    answers: list[list[int]] = [[] for _ in prompts]
    cache = None
    for _ in range(max_new_tokens):
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        ids = output.logits[:, -1:].argmax(-1)
        for answer, (token,) in zip(answers, ids.tolist(), strict=True):
            if answer[-1:] != [eos]:
                answer.append(token)
        if all(answer[-1:] == [eos] for answer in answers):
            break
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=1)
        positions = positions[:, -1:] + 1
    return answers


def _first_turn(labels: Sequence[int]) -> tuple[int, int]:
    """Return the range of the first trained tokens. It starts at 1 or later, because there must be a token
    to continue from.
    """
    first = next(place for place, label in enumerate(labels) if label != IGNORED)
    start = max(1, first)
    masked = (place for place in range(start, len(labels)) if labels[place] == IGNORED)
    end = next(masked, len(labels))
    return start, end


def _text(tokenizer: Any, ids: list[int], longest: int) -> str:
    stopped = len(ids) <= longest and ids[-1:] == [tokenizer.eos_token_id]
    if stopped:
        return str(tokenizer.decode(ids[:-1]))
    return str(tokenizer.decode(ids[:longest])) + "…"
