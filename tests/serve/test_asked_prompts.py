"""Rows with tools reach the model as training rendered them: llama-server makes of what evaluation asks the
tokens that stand before the same turn in training.
"""

from pathlib import Path
from typing import Any

import pytest
import tiny
from families import byte_folder

from pipeline.chat.rendering import renderings, trained_turns
from pipeline.chat.selection import questions
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Evaluate
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.asking import answer_row
from pipeline.stages.parity.check import CTX_SIZE
from pipeline.stages.parity.probe_inputs import SCHEMAS, assistant, call, system, tool, user

TOOLS = [tool("tool_0", SCHEMAS[2]), tool("tool_1", SCHEMAS[1])]
RESULT = {"role": "tool", "content": '{"t": 22}', "tool_call_id": "call00000", "name": "tool_1"}
CALL = assistant("", tool_calls=[call("tool_1", {"city": "Zürich"})])
TWO = assistant("I look.", tool_calls=[call("tool_1", {"city": "A"}), call("tool_1", {"city": "B"}, 1)])
THOUGHT = CALL | {"reasoning_content": "They ask for the weather."}
CONVERSATIONS = {
    "one call": [user("Is it warm?"), CALL],
    "a call, its result, an answer": [
        system("Be brief."),
        user("Is it warm?"),
        CALL,
        RESULT,
        assistant("Yes."),
    ],
    "several turns": [user("A?"), CALL, RESULT, assistant("Yes."), user("B?"), TWO, RESULT, RESULT, CALL],
    "reasoning": [user("A?"), THOUGHT, RESULT, assistant("Yes.", reasoning_content="22 is warm.")],
    "reasoning in an earlier exchange": [
        *(user("A?"), THOUGHT, RESULT, assistant("Yes.", reasoning_content="22 is warm.")),
        *(user("B?"), THOUGHT),
    ],
}


class Recorder:
    """A server that keeps what it is asked and answers nothing."""

    parallel = 1

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/v1/chat/completions"
        self.asked = body
        return {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}


def trained_prompts(tokenizer: Any, messages: list[dict[str, Any]]) -> dict[int, str]:
    """The text before each trained turn, by the number of turns before it."""
    found = {}
    trained = iter(trained_turns(messages))
    for rendered in renderings(tokenizer, messages, TOOLS):
        for start, _ in rendered.spans:
            found[next(trained)] = rendered.text[:start]
    return found


@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B"])
def test_the_tokens_that_are_asked_are_those_of_training(name: str, tools: Toolchain, tmp_path: Path) -> None:
    template = (tools.source / "models" / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    changed: dict[str, Any] = {"tokenizer__chat_template": template, "llama__context_length": CTX_SIZE}
    gguf = tiny.tiny_gguf(tmp_path / "model-F16.gguf", **changed)
    tokenizer = load_tokenizer(byte_folder(tmp_path / "folder", template))
    reasons = "Qwen3" in name
    asked = []
    with serving(Llama(tools), ModelFiles(gguf), ctx_size=CTX_SIZE) as server:
        for title, messages in CONVERSATIONS.items():
            if title.startswith("reasoning") and not reasons:
                continue
            prompts = trained_prompts(tokenizer, messages)
            row = {"id": title, "kind": "chat", "messages": messages, "tools": TOOLS}
            for question in questions([row], ["tool_calls", "exact_match"]):
                recorder = Recorder()
                answer_row(recorder, question, Evaluate())  # type: ignore[arg-type]
                request = {key: recorder.asked[key] for key in ("messages", "tools")}
                text = server.post("/apply-template", request)["prompt"]
                expected = prompts[len(question["messages"]) - 1]
                ids = tokenizer(expected, add_special_tokens=False)["input_ids"]
                assert (text, server.tokens(text)) == (expected, ids), question["id"]
                asked.append(question["id"])
    plain = ["one call", "a call, its result, an answer", "a call, its result, an answer#3", "several turns"]
    thoughts = ["reasoning", "reasoning#2", "reasoning in an earlier exchange"]
    assert asked == plain + (thoughts if reasons else [])
