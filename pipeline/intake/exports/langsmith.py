"""Runs of LangSmith, as its API and `list_runs` of its SDK return them: a run a line, an array of runs, or an
object with `runs`.

After <https://docs.langchain.com/langsmith/run-data-format> (2024 to 2026): `run_type`, `inputs`, `outputs`,
`parent_run_id`, `error`, `status`, `extra`. In a run of type llm the inputs contain `messages` (LangChain's,
in a list of lists, or OpenAI's) or `prompts`, the outputs `generations`, or the answer of the API.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import HEAD_RECORDS, Conversation, Export, Notes, Record, any_record
from pipeline.intake.exports.langchain import CUT_OFF, is_message, turns_of
from pipeline.intake.exports.view import View
from pipeline.intake.wire.draft import Turn, settled
from pipeline.intake.wire.requests import answered, request_row

LLM = "llm"  # type of a model's run


def _has_runs(value: View) -> bool:
    return any(map(_is_run, _runs(value)))


def _is_run(value: View) -> bool:
    return "run_type" in value and "inputs" in value


def _runs(value: View) -> list[View]:
    """Return the runs in the list of a record, or the record, which is a run itself."""
    return value.elements("runs") if value.has("runs", list) else [value]


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row for each run of a model. If the first runs are not of models, yield one for each run
    without a parent.
    """
    rest = iter(records)
    first = list(islice(rest, HEAD_RECORDS))
    runs = [run for record in first for run in _runs(View(record.value))]
    of_models = any(_is_run(run) and run["run_type"] == LLM for run in runs)
    for record in chain(first, rest):
        for row in _rows(record, of_models=of_models, notes=notes):
            yield Conversation(record.number, record.offset, row)


def _rows(record: Record, *, of_models: bool, notes: Notes) -> Iterator[dict[str, Any] | BadLine]:
    """Yield a row for each run of a record that is read, or the reason why it gives none."""
    if isinstance(record.value, BadLine):
        yield record.value
        return
    for run in _runs(record.view()):
        try:
            yield from _row(run, of_models=of_models, notes=notes)
        except BadLine as why:
            yield why


def _row(run: View, *, of_models: bool, notes: Notes) -> Iterator[dict[str, Any]]:
    """Yield the row of a run, unless it is left out. Raises `BadLine` for a run that failed."""
    if not _is_run(run):
        raise BadLine("bad_shape", "a run of LangSmith has run_type and inputs")
    is_read = run["run_type"] == LLM if of_models else not run.get("parent_run_id")
    if not is_read:
        notes[f"runs_{run['run_type']}"] += 1
        return
    if run.get("error") or run.get("status") == "error" or not run.has("outputs", dict):
        raise BadLine("no_assistant", "the run failed, or has no outputs")
    if not run.has("inputs", dict):
        raise BadLine("bad_shape", "the run's inputs are no object")
    row = _prompt_row(run.object("inputs"), notes)
    asked_turns = row["messages"]
    replied = _answered(run.object("outputs"), notes)
    if replied[: len(asked_turns)] == asked_turns:  # The state of a graph, which contains the question too.
        replied = replied[len(asked_turns) :]
    tools = run.object("extra").object("invocation_params").array("tools")
    yield row | {"messages": settled([*asked_turns, *replied], notes)} | ({"tools": tools} if tools else {})


def _turns(listed: list[Any], where: str, notes: Notes) -> list[Turn]:
    """Return the turns of messages in LangChain's form or in OpenAI's."""
    turns: list[Turn] = []
    for number, message in enumerate(map(View, listed), start=1):
        if is_message(message):
            turns += turns_of(message, f"{where} {number}", notes)
        elif message.has("role", str):
            turns.append(_plain(message, f"{where} {number}"))
        else:
            raise BadLine("bad_shape", f"{where} {number} is no message")
    return turns


def _plain(message: View, where: str) -> Turn:
    parts = message.objects("content")
    if message.has("content", str | None):
        words = message.text("content")
    elif message.has("content", list) and all(part.has("text", str) for part in parts):
        words = "\n".join(part["text"] for part in parts)
    else:
        raise BadLine("content_not_text", f"{where}: the content is not text")
    if "reasoning_content" in message and not message.has("reasoning_content", str):
        raise BadLine("content_not_text", f"{where}: the reasoning is not text")
    return {**message, "content": words}


def _prompt_row(inputs: View, notes: Notes) -> dict[str, Any]:
    if inputs.has("messages", list):
        listed = _without_batch(inputs["messages"])
        return {"messages": _turns(listed, "inputs.messages", notes)}
    prompts = inputs.array("prompts")
    if len(prompts) == 1 and isinstance(prompts[0], str):
        return {"messages": [{"role": "user", "content": prompts[0]}]}
    words = inputs.texts("input", "question", "query")  # keys of a chain that is asked in words
    if words:
        return {"messages": [{"role": "user", "content": words}]}
    row = request_row(inputs)
    return row | {"messages": _turns(row["messages"], "inputs", notes)}


def _without_batch(listed: list[Any]) -> list[Any]:
    """Return the messages of a batch of one, or the messages."""
    return listed[0] if len(listed) == 1 and isinstance(listed[0], list) else listed


def _answered(outputs: View, notes: Notes) -> list[Turn]:
    if outputs.has("generations", list):
        return _generated(outputs["generations"], notes)
    if outputs.has("messages", list):
        return _turns(outputs["messages"], "outputs.messages", notes)
    reply = next(filter(None, map(outputs.get, ("output", "answer", "response", "text"))), None)
    if isinstance(reply, str):
        return [{"role": "assistant", "content": reply}]
    if is_message(View(reply)):
        return turns_of(View(reply), "outputs", notes)
    return _turns(answered(reply if isinstance(reply, dict) else outputs), "outputs", notes)


def _generated(generations: list[Any], notes: Notes) -> list[Turn]:
    """Return the answer of a model. Raises `BadLine` for several, and for one that was cut off."""
    flat: list[Any] = []
    for generation in generations:
        flat += generation if isinstance(generation, list) else [generation]
    if len(flat) != 1 or not isinstance(flat[0], dict):
        raise BadLine("unsupported_field", f"outputs hold {len(flat)} answers: write a row for the right one")
    answer = View(flat[0])
    reason = answer.object("generation_info").get("finish_reason")
    if reason in CUT_OFF:
        raise BadLine("unsupported_field", f"the answer did not end by itself ({reason})")
    if answer.get("message") is not None:
        return _turns([answer["message"]], "outputs.generations", notes)
    return [{"role": "assistant", "content": answer.texts("text")}]


EXPORT = Export("langsmith", any_record(_has_runs), read)
