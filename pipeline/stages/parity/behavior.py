"""Behavior of each GGUF in llama-server: it ends its answers, and writes no control tokens."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipeline.chat.tokens import Row, chat_request
from pipeline.config.products import ModelFiles
from pipeline.core.checks import Check
from pipeline.llamacpp.server import Server, Unparsed, serving
from pipeline.stages.parity.check import CTX_SIZE, Measure, ParityChecks, count_check, exact

ENDS = "Answers end"  # title of the first check
MARKERS = "No markers in answers"  # title of the second check
TOGETHER = 4  # questions answered at the same time; weights are read once for all of them
ROOM = 64  # tokens that an answer may have in addition to twice the longest reference


@dataclass(frozen=True)
class Answer:
    """One greedy answer: whether it ended by itself, its text and its token ids."""

    stopped: bool
    text: str
    ids: list[int]


Answers = dict[str, list[Answer]]  # answers by the GGUF's name, the 16-bit one first


def behavior_checks(models: Sequence[ModelFiles], tokenizer: Any, measure: Measure) -> ParityChecks:
    """Return two parity checks over all of `models`, the 16-bit one first. Each model is served and answers
    the first `parity.rows` held-out questions.
    """
    requests, budget = questions(measure.rows, tokenizer, measure.limits.rows, CTX_SIZE)
    answers: Answers = {}
    for model in models:
        with (
            serving(measure.llama, model, ctx_size=CTX_SIZE, parallel=TOGETHER) as server,
            ThreadPoolExecutor(TOGETHER) as pool,
        ):
            answers[model.gguf.name] = list(pool.map(partial(answer, server, budget=budget), requests))
    return {
        "behavior_answers_end": answers_end(answers, budget),
        "behavior_no_markers": no_markers(answers, tokenizer),
    }


def questions(
    rows: Iterable[Row], tokenizer: Any, count: int, ctx_size: int
) -> tuple[list[dict[str, Any]], int]:
    """Return requests with a chat's turns up to its last answer, and the token limit of an answer: twice the
    longest reference and `ROOM`, but at most half of `ctx_size`.

    Chats that don't end in an answer are skipped. So are those whose question doesn't fit into the other half
    of the context.
    """
    requests: list[dict[str, Any]] = []
    longest = 0
    for row in rows:
        *turns, last = row["messages"]
        if len(requests) == count or last["role"] != "assistant" or not turns:
            continue
        text = "\n".join(message["content"] for message in turns)
        if len(tokenizer(text)["input_ids"]) + 16 * len(turns) > ctx_size // 2:
            continue
        requests.append(chat_request(turns, row.get("tools")))
        longest = max(longest, len(tokenizer(last["content"], add_special_tokens=False)["input_ids"]))
    return requests, min(2 * longest + ROOM, ctx_size // 2)


def answer(server: Server, request: dict[str, Any], budget: int) -> Answer:
    """Return one greedy answer of at most `budget` tokens through the OpenAI protocol. If llama-server can't
    parse the model's output, return an empty answer that did not end.
    """
    options = {"temperature": 0, "max_tokens": budget, "logprobs": True, "top_logprobs": 1}
    try:
        reply = server.post("/v1/chat/completions", request | options)
    except Unparsed:
        return Answer(False, "", [])
    choice = reply["choices"][0]
    tokens = (choice.get("logprobs") or {}).get("content") or []
    parts = (choice["message"].get(key) or "" for key in ("reasoning_content", "content"))
    return Answer(
        choice["finish_reason"] != "length",
        "\n".join(parts).strip("\n"),
        [token["id"] for token in tokens],
    )


def answers_end(answers: Answers, budget: int) -> Check:
    """Return the check for models that end no answer although the 16-bit model ends some.

    A single answer may run on by chance, and a model that was trained for a few steps never ends one. So
    levels are compared with the 16-bit file of the same weights, and that file is judged by the parity checks
    before this one. If none of its answers end, nothing can be concluded.
    """
    ended = {name: sum(answer.stopped for answer in of_model) for name, of_model in answers.items()}
    first, *levels = answers
    count = len(answers[first])
    what = f"models of which no answer ends within {budget} tokens"
    if levels:
        what += ", where the 16-bit model's do"
    detail = "; ".join(f"{name}: {number} of {count} ended by themselves" for name, number in ended.items())
    figures = {f"{name} ended": float(number) for name, number in ended.items()}
    if not ended[first]:
        why = "no question was asked"
        if count:
            why = f"{first} ends none of its answers, so it was trained too little"
            if levels:
                why += " to compare levels by it"
        return Check(ENDS, "not measured", f"{detail}; {why}", what=what, figures=figures)
    silent = [name for name, number in ended.items() if not number]
    why = (
        f"{', '.join(silent)} never ends an answer: the level is too coarse for this model, so take a finer "
        "one in quantize.levels."
    )
    return replace(exact(ENDS, len(silent), "models", detail, why, what), figures=figures)


def no_markers(answers: Answers, tokenizer: Any) -> Check:
    """Return the check for answers with a control token before their end or its spelling in their text."""
    control = {
        number: token.content
        for number, token in tokenizer.added_tokens_decoder.items()
        if token.special and len(token.content) > 1
    }
    wrong = []
    for name, of_model in answers.items():
        for stated in of_model:
            inside = stated.ids[:-1] if stated.stopped else stated.ids
            marks = [
                *(control[number] for number in inside if number in control),
                *(token for token in control.values() if token in stated.text),
            ]
            if marks:
                wrong.append(f"{name} writes {marks[0]} in {stated.text[:40]!a}")
    return count_check(
        MARKERS,
        what="answers that hold a control token of the template",
        different=len(wrong),
        compared=sum(map(len, answers.values())),
        first="; ".join(wrong[:2]),
        cause=f"{wrong[0] if wrong else ''}: look at reports/labels.html whether ends of turn are trained, "
        "then at the parity check of special tokens.",
    )
