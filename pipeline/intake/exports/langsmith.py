"""Runs of LangSmith, as its API and `list_runs` of its SDK return them: a run a line, an array of runs, or an
object with `runs`.

After <https://docs.langchain.com/langsmith/run-data-format> (2024 to 2026): `run_type`, `inputs`, `outputs`,
`parent_run_id`, `error`, `status`, `extra`. In a run of type llm the inputs contain `messages` (LangChain's,
in a list of lists, or OpenAI's) or `prompts`, the outputs `generations`, or the answer of the API.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import HEAD_RECORDS, Conversation, Export, Head, Notes, Record
from pipeline.intake.exports.langchain import CUT_OFF, is_message, turns_of
from pipeline.intake.exports.view import objects, texts
from pipeline.intake.wire.draft import Turn, settled
from pipeline.intake.wire.requests import answered, request_row

LLM = "llm"
ANSWERS = ("choices", "candidates", "message", "content", "role", "tool_calls")  # keys of an API's answer
QUESTIONS = ("input", "question", "query")  # input keys of a chain that is asked in words
REPLIES = ("output", "answer", "response", "text")


def is_head(head: Head) -> bool:
    """Return True if a record is a run, or contains a list of runs."""
    return any(map(_is_run, _runs(head.objects())))


def _is_run(value: Any) -> bool:
    return isinstance(value, dict) and "run_type" in value and "inputs" in value


def _runs(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the runs that are records, or are in a list in one."""
    for value in values:
        listed = value.get("runs") if isinstance(value, dict) else None
        yield from listed if isinstance(listed, list) else [value]


def read(records: Iterable[Record], notes: Notes) -> Iterator[Conversation]:
    """Yield a row for each run of a model. If the first runs are not of models, yield one for each run
    without a parent.
    """
    rest = iter(records)
    first = list(islice(rest, HEAD_RECORDS))
    runs = _runs(record.value for record in first)
    of_models = any(_is_run(run) and run["run_type"] == LLM for run in runs)
    for number, offset, value in chain(first, rest):
        for run in _runs([value]):
            try:
                row = _row(run, of_models=of_models, notes=notes)
            except BadLine as why:
                yield Conversation(number, offset, why)
            else:
                if row is not None:
                    yield Conversation(number, offset, row)


def _row(run: Any, *, of_models: bool, notes: Notes) -> dict[str, Any] | None:
    """Return the row of a run, None for one that is left out."""
    if isinstance(run, BadLine):
        raise run
    if not _is_run(run):
        raise BadLine("bad_shape", "a run of LangSmith has run_type and inputs")
    is_read = run["run_type"] == LLM if of_models else not run.get("parent_run_id")
    if not is_read:
        notes[f"runs_{run['run_type']}"] += 1
        return None
    inputs = run["inputs"]
    outputs = run.get("outputs")
    if run.get("error") or run.get("status") == "error" or not isinstance(outputs, dict):
        raise BadLine("no_assistant", "the run failed, or has no outputs")
    if not isinstance(inputs, dict):
        raise BadLine("bad_shape", "the run's inputs are no object")
    row = _prompt_row(inputs, notes)
    asked_turns = row["messages"]
    replied = _answered(outputs, notes)
    if replied[: len(asked_turns)] == asked_turns:  # The state of a graph, which contains the question too.
        replied = replied[len(asked_turns) :]
    tools = _tools(run)
    return row | {"messages": settled([*asked_turns, *replied], notes)} | ({"tools": tools} if tools else {})


def _tools(run: Mapping[str, Any]) -> list[Any]:
    """Return the tools that the model was given."""
    extra = run.get("extra")
    given = extra.get("invocation_params") if isinstance(extra, dict) else None
    tools = given.get("tools") if isinstance(given, dict) else None
    return tools if isinstance(tools, list) else []


def _turns(listed: list[Any], where: str, notes: Notes) -> list[Turn]:
    """Return the turns of messages in LangChain's form or in OpenAI's."""
    turns: list[Turn] = []
    for number, message in enumerate(listed, start=1):
        if is_message(message):
            turns += turns_of(message, f"{where} {number}", notes)
        elif isinstance(message, dict) and isinstance(message.get("role"), str):
            turns.append(_plain(message, f"{where} {number}"))
        else:
            raise BadLine("bad_shape", f"{where} {number} is no message")
    return turns


def _plain(message: Mapping[str, Any], where: str) -> Turn:
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part.get("text"), str) for part in objects(content)):
        content = "\n".join(part["text"] for part in objects(content))
    if not isinstance(content, str | None):
        raise BadLine("content_not_text", f"{where}: the content is not text")
    return {**message, "content": content or ""}


def _prompt_row(inputs: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    listed = inputs.get("messages")
    if isinstance(listed, list):
        if len(listed) == 1 and isinstance(listed[0], list):  # a batch of one
            listed = listed[0]
        return {"messages": _turns(listed, "inputs.messages", notes)}
    prompts = inputs.get("prompts")
    if isinstance(prompts, list) and len(prompts) == 1 and isinstance(prompts[0], str):
        return {"messages": [{"role": "user", "content": prompts[0]}]}
    words = texts(*(inputs.get(key) for key in QUESTIONS))
    if words:
        return {"messages": [{"role": "user", "content": words}]}
    return request_row(inputs)


def _answered(outputs: Mapping[str, Any], notes: Notes) -> list[Turn]:
    generations = outputs.get("generations")
    if isinstance(generations, list):
        flat: list[Any] = []
        for generation in generations:
            flat += generation if isinstance(generation, list) else [generation]
        if len(flat) != 1 or not isinstance(flat[0], dict):
            raise BadLine(
                "unsupported_field", f"outputs hold {len(flat)} answers: write a row for the right one"
            )
        ending = flat[0].get("generation_info")
        reason = ending.get("finish_reason") if isinstance(ending, dict) else None
        if reason in CUT_OFF:
            raise BadLine("unsupported_field", f"the answer did not end by itself ({reason})")
        message = flat[0].get("message")
        if message is not None:
            return _turns([message], "outputs.generations", notes)
        return [{"role": "assistant", "content": texts(flat[0].get("text"))}]
    if isinstance(outputs.get("messages"), list):
        return _turns(outputs["messages"], "outputs.messages", notes)
    reply = next((outputs[key] for key in REPLIES if outputs.get(key)), None)
    if isinstance(reply, str):
        return [{"role": "assistant", "content": reply}]
    if is_message(reply):
        return turns_of(reply, "outputs", notes)
    return answered(reply if isinstance(reply, dict) else dict(outputs))


EXPORT = Export("langsmith", is_head, read)
