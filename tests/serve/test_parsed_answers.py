"""Reasoning and a tool call in what a model says, as llama-server parses it: what the smoke test, evaluation,
`pairs`, parity and the chat read of it. The models are rigged to say one text, word by word.
"""

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import yaml
from make import quench

from pipeline.chat.selection import answerable_rows
from pipeline.commands import chat as chatting
from pipeline.config.params import Params
from pipeline.config.products import ModelFiles
from pipeline.core.jsonl import write_rows
from pipeline.extras.pairs.answering import Sampling, sampled_answers
from pipeline.llamacpp.server import Server, Unparsed, connect, serving
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.metrics.asking import answer_row, answers_of, score_answers
from pipeline.serve.smoke import judge, smoke
from pipeline.stages.parity.behavior import Answer, answer

HIDDEN, NEWLINE, END, TOKENS = 32, "Ċ", 260, 261  # of tiny.tiny_gguf's vocabulary
CALL = {"name": "weather", "arguments": {"place": "Ulm"}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}},
                "required": ["place"],
            },
        },
    }
]
SAID = {
    "reasons": ["<think>", "Ċhm", "</think>", "Ċyes"],
    "calls": [
        *("<think>", "Ċhm", "</think>"),
        *("<tool_call>", f"Ċ{json.dumps(CALL).replace(' ', 'Ġ')}Ċ", "</tool_call>"),
    ],
}
QUESTION = [{"role": "user", "content": "Is it warm in Ulm?"}]
EXPECTING = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": CALL}]}
ROW = {
    "id": "r1",
    "messages": [*QUESTION, {"role": "assistant", "content": "yes"}],
    "tools": TOOLS,
}
PARAMS = Params.model_validate({"evaluate": {"max_new_tokens": 32}, "preprocess": {"max_length": 2048}})


def says(file: Path, words: list[str], template: str) -> Path:
    """A model that says `words` after the newline at which its turn begins, and ends its turn.

    Its block adds nothing, each word has a dimension of its own, and the next one's row of the head has it.
    """
    vocabulary = tiny.read_header(tiny.tiny_gguf(file)).fields["tokenizer.ggml.tokens"]
    free = [number for number in range(TOKENS) if vocabulary[number].isascii()][: len(words)]
    for number, word in zip(free, words, strict=True):
        vocabulary[number] = word
    chain = [vocabulary.index(NEWLINE), *free, END]
    embedding, head = np.zeros((TOKENS, HIDDEN), np.float16), np.zeros((TOKENS, HIDDEN), np.float16)
    embedding[:, -1] = 1
    for place, (word, following) in enumerate(itertools.pairwise(chain)):
        embedding[word] = np.eye(HIDDEN)[place]
        head[following, place] = 10
    nothing = {
        "blk.0.attn_output.weight": np.zeros((HIDDEN, HIDDEN), np.float16),
        "blk.0.ffn_down.weight": np.zeros((HIDDEN, 64), np.float16),
    }
    tensors = {"token_embd.weight": embedding, "output.weight": head, **nothing}
    changed: dict[str, Any] = {
        "tokenizer__ggml__tokens": vocabulary,
        "tokenizer__chat_template": template,
        "llama__context_length": 2048,
    }
    return tiny.tiny_gguf(file, tensors=tensors, **changed)


@pytest.fixture(scope="module")
def models(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for each of what is said, with Qwen3's template, which has both reasoning and tools."""
    folder = tmp_path_factory.mktemp("parsed")
    template = (tools.source / "models/templates/Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
    return {name: says(folder / f"{name}.gguf", words, template) for name, words in SAID.items()}


@pytest.fixture(scope="module")
def servers(tools: Toolchain, models: dict[str, Path]) -> Iterator[dict[str, Server]]:
    with ExitStack() as running:
        yield {
            name: running.enter_context(serving(Llama(tools), ModelFiles(model), ctx_size=2048, parallel=1))
            for name, model in models.items()
        }


def test_the_smoke_test_takes_a_call_for_an_answer(servers: dict[str, Server]) -> None:
    (called,) = smoke(servers["calls"], [{"messages": QUESTION, "tools": TOOLS}])
    (only,) = json.loads(called.text)
    assert only["function"]["name"] == CALL["name"]
    assert json.loads(only["function"]["arguments"]) == CALL["arguments"]
    assert (called.finish_reason, called.tokens) == ("tool_calls", len(SAID["calls"]) + 1)
    (reasoned,) = smoke(servers["reasons"], [{"messages": QUESTION}])
    assert (reasoned.text, reasoned.finish_reason) == ("yes", "stop")
    assert judge([called, reasoned], 1.0)


def test_evaluation_scores_the_answer_without_its_reasoning(servers: dict[str, Server]) -> None:
    found = {name: answer_row(server, ROW, PARAMS.evaluating) for name, server in servers.items()}
    assert {name: (one["answer"], one["stopped"]) for name, one in found.items()} == {
        "reasons": ("yes", True),
        "calls": ("", True),
    }


def test_evaluation_compares_the_calls_that_llama_server_reads(servers: dict[str, Server]) -> None:
    """The row expects a call after a tool's result; its tools go with the request."""
    result = {"role": "tool", "content": "22 °C"}
    row = {**ROW, "messages": [*QUESTION, EXPECTING, result, EXPECTING]}
    found = {name: answer_row(server, row, PARAMS.evaluating) for name, server in servers.items()}
    assert {name: (one["expected_calls"], one.get("calls")) for name, one in found.items()} == {
        "reasons": ([CALL], None),
        "calls": ([CALL], [CALL]),
    }
    assert {name: score_answers([one], ["tool_calls"])["score"] for name, one in found.items()} == {
        "reasons": 0.0,
        "calls": 1.0,
    }


def test_a_call_that_is_cut_off_is_read_as_far_as_it_goes(servers: dict[str, Server]) -> None:
    """The limit of new tokens ends the answer within the call's tag."""
    settings = PARAMS.evaluating.model_copy(update={"max_new_tokens": len(SAID["calls"]) - 1})
    row = {**ROW, "messages": [*QUESTION, EXPECTING]}
    found = answer_row(servers["calls"], row, settings)
    assert (found["calls"], found["stopped"]) == ([CALL], False)


def test_what_llama_server_cannot_read_has_no_points_and_ends_nothing(servers: dict[str, Server]) -> None:
    """It answers with an error; evaluation goes on with the next row."""
    after_a_call = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
    turns = [*QUESTION, {"role": "assistant", "content": after_a_call}]
    body = {"messages": turns, "tools": TOOLS, "max_tokens": 1}
    with pytest.raises(Unparsed, match="Q-LLAMACPP-013"):
        servers["reasons"].post("/v1/chat/completions", body)

    class Asked:
        """The server, asked that whatever the row is."""

        parallel = 1

        def post(self, path: str, _: Any) -> Any:
            return servers["reasons"].post(path, body)

    row = {**ROW, "messages": [*QUESTION, EXPECTING]}
    found = answer_row(Asked(), row, PARAMS.evaluating)  # type: ignore[arg-type]
    assert (found["answer"], found["unparsed"], found["stopped"]) == ("", True, False)
    assert score_answers([found], ["tool_calls"])["calls"]["unparsed"] == 1
    assert answer(Asked(), body, 1) == Answer(False, "", [])  # type: ignore[arg-type]


def test_the_stage_asks_chats_at_their_last_call_and_at_their_end(
    servers: dict[str, Server], tmp_path: Path
) -> None:
    result, end = {"role": "tool", "content": "22 °C"}, {"role": "assistant", "content": "yes"}
    rows = tmp_path / "test.jsonl"
    write_rows(rows, [{**ROW, "messages": [*QUESTION, EXPECTING, result, end]}])
    settings = PARAMS.evaluating.model_copy(update={"scorers": ["tool_calls", "exact_match"]})
    asked = answerable_rows(rows, settings.task_rows, settings.scorers)
    answers = {name: answers_of(server, asked, settings, name) for name, server in servers.items()}
    figures = {name: score_answers(rows, settings.scorers) for name, rows in answers.items()}
    assert {name: {row["id"]: row["scores"] for row in rows} for name, rows in answers.items()} == {
        "reasons": {
            "r1": {"tool_calls": None, "exact_match": 1.0},
            "r1#2": {"tool_calls": 0.0, "exact_match": None},
        },
        "calls": {
            "r1": {"tool_calls": None, "exact_match": 0.0},
            "r1#2": {"tool_calls": 1.0, "exact_match": None},
        },
    }
    counted = {key: figures["calls"]["calls"][key] for key in ("rows", "equal", "others", "unexpected")}
    assert counted == {"rows": 1, "equal": 1, "others": 1, "unexpected": 1}


def test_judge_compares_files_by_their_calls(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.extras.judge.measure.TURNS", 2)
    rows = [
        {
            "messages": [{"role": "user", "content": f"Is it warm in Ulm, {number}?"}, EXPECTING],
            "tools": TOOLS,
        }
        for number in range(3)
    ]
    write_rows(
        tmp_path / "mine.jsonl", [*rows, {"messages": [*QUESTION, {"role": "assistant", "content": "y"}]}]
    )
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(PARAMS.model_dump(mode="json")))
    options = (
        "--data",
        tmp_path / "mine.jsonl",
        "--scorer",
        "tool_calls",
        "--ctx-size",
        2048,
        "--threads",
        1,
    )
    done = quench("judge", *models.values(), *options, "--json", "--root", tmp_path)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    found = {name: (file["task"]["score"], file["task"]["rows"]) for name, file in report["files"].items()}
    assert found == {"reasons": (0.0, 3), "calls": (1.0, 3)}
    page = (tmp_path / "reports/judge.html").read_text(encoding="utf-8")
    assert page.count("weather {&#34;place&#34;: &#34;Ulm&#34;}") >= 2  # the row's and one file's


def test_pairs_keep_the_reasoning_and_know_a_call(
    models: dict[str, Path], tools: Toolchain, tmp_path: Path
) -> None:
    sampling = Sampling(answers=1, temperature=1.0, seed=1)
    found = {
        name: sampled_answers(ModelFiles(model), [ROW], sampling, PARAMS.evaluating, tools, tmp_path)[0]
        for name, model in models.items()
    }
    yes = {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    assert found == {
        "reasons": [{"turn": yes, "stopped": True, "calls": False}],
        "calls": [{"turn": yes | {"content": ""}, "stopped": True, "calls": True}],
    }


def test_parity_reads_reasoning_and_answer(servers: dict[str, Server]) -> None:
    found = answer(servers["reasons"], {"messages": QUESTION}, 32)
    assert (found.text, found.stopped, len(found.ids)) == ("hm\nyes", True, len(SAID["reasons"]) + 1)


def test_the_chat_shows_reasoning_and_remembers_the_answer_alone(servers: dict[str, Server]) -> None:
    asked: list[Any] = []
    key = servers["reasons"].client.headers["Authorization"].removeprefix("Bearer ")
    with connect(servers["reasons"].url, key) as client:
        client.event_hooks = {"request": [lambda request: asked.append(json.loads(request.read()))]}
        shown: list[str] = []
        lines = iter(["Is it warm?", "And now?", "/quit"])
        chatting.converse(client, lambda: next(lines), shown.append)
    said = "\033[2mhm\033[0m\nyes\n[5"
    assert "".join(shown).count(said) == 2
    assert [turn["content"] for turn in asked[1]["messages"]] == ["Is it warm?", "yes", "And now?"]
