"""Sentences of stage `base` about the model."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.text import listed, plural


def summary(facts: Mapping[str, Any], end_of_turn: str | None) -> Iterator[str]:
    """Yield a sentence for each fact on a base that its user may not expect.

    `end_of_turn` is that of the settings.
    """
    yield from _changes(facts, end_of_turn)
    yield from _limits(facts)


def _changes(facts: Mapping[str, Any], end_of_turn: str | None) -> Iterator[str]:
    """Yield a sentence for each difference from the source."""
    if facts["template_date"]:
        yield f"its chat template prints the date: always {facts['template_date']} (base.template_date)"
    if "named_end" in facts:
        reason = "base.end_of_turn says" if end_of_turn else "the chat template writes it"
        named = facts["named_end"] or "none"
        yield (
            f"an answer ends in {facts['eos_token']}, as {reason}; the model named {named} (base.end_of_turn)"
        )
    if "text_part_of" in facts:
        wrapper = facts["text_part_of"]
        yield (
            f"{facts['model']} is a {wrapper['model_type']}, which reads images or sound too: its text part "
            f"is trained, {plural(wrapper['tensors_left_out'], 'tensor')} left out"
        )
    if "head_untied" in facts:
        yield (
            "config.json ties the head to the embeddings, and the files hold a head of other values: this is "
            "the one that is used, tie_word_embeddings is false from now on"
        )
    if "template_begun" in facts:
        yield (
            f"the chat template writes {facts['bos_token']} first from now on: the tokenizer puts it before "
            "every text, and llama-server before every chat"
        )
    if "template_end_kept" in facts:
        yield (
            f"the chat template writes {facts['eos_token']} itself, and {facts['named_end'] or 'nothing'} "
            "where it asks for eos_token, as before"
        )
    if "prompt_ended_in" in facts:
        removed = facts["prompt_ended_in"]
        now = f"does not end in {removed!r}" if removed else "is the same whatever enable_thinking says"
        yield (
            f"the chat template's generation prompt is changed, it {now}: so every answer follows the prompt "
            "that is served, and the model itself writes where it begins to reason"
        )
    if "rowless_tokens" in facts:
        tokens = facts["rowless_tokens"]
        yield (
            f"{plural(len(tokens), 'token')} without a row of embeddings left out of the tokenizer: "
            f"{listed(tokens)}"
        )
    if "new_tokens" in facts:
        ids = facts["new_tokens"].values()
        yield (
            f"{plural(len(ids), 'new token')}, from id {min(ids)} on: each has the mean of the other tokens' "
            "rows (base.new_tokens)"
        )


def _limits(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each thing that training can't do with this model, but with most others."""
    if "no_chats" in facts:
        yield f"only plain text can be trained on it, no chats: {facts['no_chats']}"
    if "never_packed" in facts:
        yield (
            f"rows are trained one by one, for {facts['never_packed']}: preprocess.packing changes nothing, "
            "train.per_device_train_batch_size has to be 1, and train.method can't be one that compares "
            "answers"
        )
    if "window_in_training" in facts:
        window = facts["window_in_training"]
        yield (
            f"its attention reaches {window:,} tokens back, and llama.cpp computes this family without a "
            f"window: texts of more tokens are trained in one way and served in another. Keep "
            f"preprocess.max_length and serve.ctx_size to {window:,}"
        )
    if "graph_not_proven" in facts:
        yield (
            "it is not proven that llama.cpp computes this model as training does "
            f"({facts['graph_not_proven']}): stage parity measures it after the training"
        )
    if "default_targets" in facts:
        named = facts["default_targets"]
        yield (
            "its layers have not all linears that train.target_modules names by default, which stands for "
            f"all that they have: {named if isinstance(named, str) else listed(named)}"
        )
