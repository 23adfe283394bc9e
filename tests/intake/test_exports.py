"""Exports as files: large ones, what lies beside them, archives of any kind, and rows that are no export."""

import io
import json
import tarfile
import tracemalloc
import zipfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from curating import Project, chat, lines

from pipeline.core.errors import DataError
from pipeline.core.jsonl import BadLine
from pipeline.intake.exports.export import Head
from pipeline.intake.exports.markdown import markdown_of
from pipeline.intake.exports.registry import export_of
from pipeline.intake.files.containers import raw_lines

MAX_BYTES = 10_000
ROWS = Path(__file__).parents[1] / "world/rows"


def conversation(number: int, turns: int = 1) -> dict[str, Any]:
    """Return a conversation as ChatGPT exports it."""
    nodes: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None, "children": []}}
    last = "root"
    for turn in range(turns):
        for role in ("user", "assistant"):
            place = f"{role} {number} {turn}"
            content = {"content_type": "text", "parts": [f"What {role} says in {number}, {turn}."]}
            message = {"id": place, "author": {"role": role}, "content": content, "recipient": "all"}
            nodes[place] = {"id": place, "message": message, "parent": last, "children": []}
            last = place
    return {"title": "T", "create_time": 1.0, "update_time": 1.0, "mapping": nodes, "current_node": last}


def read(path: Path, max_bytes: int = MAX_BYTES) -> tuple[list[Any], Counter[str]]:
    """Return the rows, reasons as their codes, and the notes."""
    notes = Counter[str]()
    raw = raw_lines(path, path.name, max_line_bytes=max_bytes, notes=notes)
    rows = [line.data.code if isinstance(line.data, BadLine) else json.loads(line.data) for line in raw]
    return rows, notes


def write(path: Path, value: Any, indent: int | None = None) -> Path:
    path.write_text(json.dumps(value, indent=indent))
    return path


def discord(messages: int) -> dict[str, Any]:
    """Return a channel in which a question and its answer come every twelve hours."""
    told = []
    for number in range(messages):
        author = {"id": str(number % 2), "name": ("kim", "bot")[number % 2], "isBot": number % 2 == 1}
        time = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=number // 2 * 12, minutes=number % 2)
        told.append(
            {
                "id": str(number),
                "type": "Default",
                "timestamp": time.isoformat(),
                "author": author,
                "content": "x" * 90,
            }
        )
    return {"guild": {"id": "1"}, "channel": {"id": "1", "name": "help"}, "messages": told}


@pytest.mark.parametrize("indent", [None, 1])
def test_one_object_may_be_longer_than_a_row(indent: int | None, tmp_path: Path) -> None:
    path = write(tmp_path / "help.json", discord(400), indent)
    assert path.stat().st_size > 4 * MAX_BYTES
    rows, notes = read(path)
    assert notes["export_discord"] == 1
    assert [len(row["messages"]) for row in rows] == [2] * 200


@pytest.mark.parametrize("indent", [None, 1])
def test_all_questions_of_squad_are_one_object_that_is_longer_than_a_row(
    indent: int | None, tmp_path: Path
) -> None:
    """Since 2.0 a paragraph's questions stand in front of it."""
    questions = [
        {"question": f"Who is {number}?", "answers": [{"text": f"It is {number}."}]} for number in range(9)
    ]
    paragraphs = [{"qas": questions, "context": f"About {number}. " + "x" * 90} for number in range(99)]
    value = {"version": "v2.0", "data": [{"title": "T", "paragraphs": paragraphs}]}
    path = write(tmp_path / "train-v2.0.json", value, indent)
    assert path.stat().st_size > 4 * MAX_BYTES
    rows, notes = read(path)
    assert notes["export_squad"] == 1
    assert len(rows) == 9 * 99
    assert rows[-1]["completion"] == ["It is 8."]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_conversation_of_an_array_may_be_longer_than_a_row_too(indent: int | None, tmp_path: Path) -> None:
    long = conversation(1, 10)
    long["mapping"]["unused"] = {"id": "unused", "message": None, "parent": "gone", "blob": "x" * MAX_BYTES}
    rows, notes = read(write(tmp_path / "conversations.json", [long, conversation(2)], indent))
    assert [len(row["messages"]) for row in rows] == [20, 2]
    assert notes["export_chatgpt"] == 1


def test_a_conversation_that_is_longer_than_a_row_is_cut_and_the_others_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [conversation(1), conversation(2, 400), conversation(3)])
    first, *cut, last = (len(row["messages"]) for row in read(path)[0])
    assert (first, sum(cut), last) == (2, 800, 2)
    assert len(cut) > 1


def test_many_conversations_are_streamed(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    with path.open("w") as file:
        for number in range(3000):
            file.write("[" if number == 0 else ",\n")
            json.dump(conversation(number), file)
        file.write("]")
    read(write(tmp_path / "small.json", [conversation(1)]))  # what is imported on the way doesn't count
    tracemalloc.start()
    raw = raw_lines(path, path.name, max_line_bytes=MAX_BYTES, notes=Counter())
    assert sum(1 for _ in raw) == 3000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20 < path.stat().st_size


def test_thumbs_are_found_beside_an_unpacked_export(tmp_path: Path) -> None:
    value = conversation(1)
    answer = dict(value["mapping"]["assistant 1 0"], id="other")
    answer["message"] = {**answer["message"], "id": "other", "content": {"parts": ["Another answer."]}}
    answer["message"]["content"]["content_type"] = "text"
    value["mapping"]["other"] = answer
    thumbs = [
        {"id": "other", "conversation_id": "c", "user_id": "u", "rating": "thumbs_down"},
        {"id": "assistant 1 0", "conversation_id": "c", "user_id": "u", "rating": "thumbs_up"},
    ]
    write(tmp_path / "message_feedback.json", thumbs)
    rows, _ = read(write(tmp_path / "conversations.json", [value]))
    assert ["chosen" in row for row in rows] == [False, True]
    assert rows[1]["rejected"][0]["content"] == "Another answer."
    assert read(tmp_path / "message_feedback.json") == (
        [],
        Counter(export_account=1, records_of_the_account=2, bom=0, crlf=0),
    )


@pytest.mark.parametrize("parent", [["a"], {"a": 1}])
def test_a_parent_that_is_no_id_is_none(parent: Any, tmp_path: Path) -> None:
    said = [
        {"uuid": "a", "sender": "human", "text": "Which boat?", "parent_message_uuid": parent},
        {"uuid": "b", "sender": "assistant", "text": "Anna.", "parent_message_uuid": "a"},
    ]
    stored = {
        "a": {"role": "user", "content": "Which boat?", "parentId": parent},
        "b": {"role": "assistant", "content": "Anna.", "parentId": "a"},
    }
    claude = write(tmp_path / "claude.json", [{"uuid": "c", "chat_messages": said}])
    webui = write(tmp_path / "webui.json", [{"chat": {"history": {"currentId": "b", "messages": stored}}}])
    expected = chat("Which boat?", "Anna.")["messages"]
    assert [row["messages"] for path in (claude, webui) for row in read(path)[0]] == [expected, expected]


@pytest.mark.parametrize("person", [[11], {"id": 11}])
def test_a_person_of_zendesk_that_is_no_id_wrote_no_comment(person: Any, tmp_path: Path) -> None:
    comments = [{"author_id": 11, "body": "Which boat?"}, {"author_id": 21, "body": "Anna."}]
    ticket = {"requester_id": 11, "collaborator_ids": [person], "assignee_id": person, "comments": comments}
    rows, _ = read(write(tmp_path / "tickets.jsonl", ticket))
    roles = [(turn["role"], turn["content"]) for turn in rows[0]["messages"]]
    assert roles == [("user", "Which boat?"), ("assistant", "Anna.")]


def test_a_tar_of_an_export_is_read_as_well(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        for name, data in (
            ("conversations.json", json.dumps([conversation(1)]).encode()),
            ("mail/in.mbox", (ROWS / "exports-mbox/berths.mbox").read_bytes()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    rows, notes = read(tmp_path / "a.tgz")
    assert (notes["export_chatgpt"], notes["export_mbox"]) == (1, 1)
    assert len([row for row in rows if isinstance(row, dict)]) == 3


def test_mixed_exports_and_rows_in_one_folder_are_each_read(tmp_path: Path) -> None:
    files = {
        "rows.jsonl": lines(chat("2 + 2?")),
        "gpt.json": json.dumps([conversation(1)]).encode(),
        "claude.json": (ROWS / "exports-claude-ai/broken.json").read_bytes(),
        "gemini.json": (ROWS / "exports-gemini/MyActivity.json").read_bytes(),
    }
    project = Project(tmp_path, files)
    report = project.run()
    assert {row["source"].partition(":")[0] for row in project.rows()} == set(files)
    assert report["files"]["rows.jsonl"]["notes"] == {}


OWN_TURNS = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
CLAUDE_CHAT = {
    "uuid": "c",
    "name": "N",
    "chat_messages": [
        {"uuid": "a", "sender": "human", "text": "Which boat?"},
        {"uuid": "b", "sender": "assistant", "text": "Anna."},
    ],
}


@pytest.mark.parametrize("as_array", [False, True])
def test_rows_and_exports_in_one_file_are_each_read_by_what_they_are(as_array: bool, tmp_path: Path) -> None:
    own = {"prompt": "2 + 2?", "completion": "4"}
    values = [
        own,
        conversation(1),
        OWN_TURNS,
        "no object",
        conversation(2),
        CLAUDE_CHAT,
        own,
        conversation(3),
    ]
    text = json.dumps(values) if as_array else "".join(f"{json.dumps(value)}\n" for value in values)
    project = Project(tmp_path, {"mixed.json" if as_array else "mixed.jsonl": text.encode()})
    report = project.run(drop_duplicates="none")
    (file,) = report["files"].values()
    assert file["notes"] == {"export_chatgpt": 1, "export_claude_ai": 1}
    assert [int(row["source"].rpartition(":")[2]) for row in project.rows()] == [1, 2, 3, 5, 6, 7, 8]
    assert [row["messages"][-1]["content"] for row in project.rows()] == [
        *("4", "What assistant says in 1, 0.", "b", "What assistant says in 2, 0.", "Anna.", "4"),
        "What assistant says in 3, 0.",
    ]
    assert {entry["line"]: entry["reason"] for entry in project.rejects()} == {4: "not_object"}


def test_rows_in_a_session_do_not_end_it(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    event = {"sessionId": "s", "uuid": "1", "type": "user", "message": {"content": "Which boat?"}}
    answer = {"sessionId": "s", "uuid": "2", "type": "assistant", "message": {"content": "Anna."}}
    path.write_text("".join(f"{json.dumps(value)}\n" for value in (OWN_TURNS, event, answer, OWN_TURNS)))
    rows, _ = read(path)
    assert [row["messages"][-1]["content"] for row in rows] == ["b", "Anna.", "b"]


def test_a_long_row_beside_an_export_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    own = {"prompt": "x" * MAX_BYTES, "completion": "4"}
    path.write_text(f"{json.dumps(conversation(1))}\n{json.dumps(own)}\n")
    rows, _ = read(path)
    assert [row if isinstance(row, str) else len(row["messages"]) for row in rows] == [2, "too_long"]


def test_a_conversation_of_a_program_far_behind_rows_says_where_it_belongs(tmp_path: Path) -> None:
    own = [{"prompt": f"{number} + 2?", "completion": str(number + 2)} for number in range(30)]
    project = Project(tmp_path, {"mixed.jsonl": lines(*own, conversation(1))})
    project.run(drop_duplicates="none")
    (reject,) = project.rejects()
    assert (reject["line"], reject["reason"]) == (31, "unknown_format")
    assert "chatgpt" in reject["detail"] and "file of its own" in reject["detail"]


def test_a_file_of_another_kind_named_mbox_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.mbox").write_text("Dear Kim,\n\nFrom here on all is well.\n")
    assert read(tmp_path / "a.mbox")[0] == ["bad_shape"]
    (tmp_path / "a.mbox").write_text("")
    assert read(tmp_path / "a.mbox")[0] == []


def test_a_chat_without_an_assistant_says_who_speaks_and_what_to_write(tmp_path: Path) -> None:
    mailbox = (ROWS / "exports-mbox/berths.mbox").read_bytes()
    with pytest.raises(DataError, match=r"kim@example.org, desk@example.org.*roles: \{'desk@example.org'"):
        Project(tmp_path, {"berths.mbox": mailbox}).run()


@pytest.mark.parametrize(
    "row",
    [
        chat("2 + 2?"),
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]},
        {"title": "A", "text": "b", "time": "1", "mapping": "no"},
        {"channel": "a", "messages": []},
        {"name": "x", "messages": [{"role": "user", "content": "a"}]},
        {"ts": "1", "text": "a", "user": "b"},
    ],
)
def test_rows_of_ones_own_are_no_export(row: dict[str, Any]) -> None:
    assert export_of(Head("lines", (row,))) is None


def test_an_archive_beside_an_export_counts_what_it_leaves(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("conversations.json", json.dumps([conversation(1)]))
        archive.writestr("shopping.json", '{"list": []}')
        archive.writestr("chat.html", "<p>")
    rows, notes = read(tmp_path / "a.zip")
    assert len(rows) == 1
    assert notes["members_not_read"] == 2


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a</p><p>b &lt; c</p>", "a\n\nb < c"),
        ("a<br>b", "a\nb"),
        ("<h2>T</h2><ul><li>a</li><li><b>b</b></li></ul>", "## T\n\n- a\n- **b**"),
        ("<ol><li>a</li><li>b</li></ol>", "1. a\n2. b"),
        ("<pre><code>x\n  y</code></pre>", "```\nx\n  y\n```"),
        ("<style>p {}</style><script>x</script>a", "a"),
        ("a   \n b", "a b"),
        ("<p>unclosed <em>a", "unclosed *a"),
    ],
)
def test_html_becomes_markdown(html: str, text: str) -> None:
    assert markdown_of(html) == text


DEEP = "[" * 1000 + "]" * 1000  # JSON that is read, and too deep for Python to write again


def claude_ai(result: str) -> str:
    """Return an export of Claude.ai of two conversations, of which the second holds this result of a tool."""
    turns = (
        '[{"uuid": "a", "sender": "human", "text": "Which boat?"}, {"uuid": "b", "sender": "assistant", '
        '"text": "", "content": [%s{"type": "text", "text": "Anna."}]}]'
    )
    blocks = '{"type": "tool_use", "id": "t", "name": "look", "input": {}}, '
    blocks += f'{{"type": "tool_result", "tool_use_id": "t", "content": {result}}}, '
    chats = (turns % "", turns % blocks)
    inside = ", ".join(f'{{"uuid": "c", "name": "N", "chat_messages": {chat}}}' for chat in chats)
    return f"[{inside}]"


def codex(output: str) -> str:
    """Return a rollout of Codex with this result of a tool, and a question and its answer behind it."""
    items = [
        '{"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"}',
        f'{{"type": "function_call_output", "call_id": "c", "output": {output}}}',
        '{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Which boat?"}]}',
        '{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Anna."}]}',
    ]
    return "\n".join(f'{{"type": "response_item", "payload": {item}}}' for item in items)


def claude_code(result: str) -> str:
    """Return a session of Claude Code, and behind it a subagent's that holds this result of a tool."""
    call = '{"type": "tool_use", "id": "t", "name": "look", "input": {}}'
    result = f'{{"type": "tool_result", "tool_use_id": "t", "content": {{"a": {result}}}}}'
    events = [
        ("user", '"Which boat?"', "false"),
        ("assistant", '[{"type": "text", "text": "Anna."}]', "false"),
        ("user", '"Which boat?"', "true"),
        ("assistant", f"[{call}]", "true"),
        ("user", f"[{result}]", "true"),
        ("assistant", '[{"type": "text", "text": "Anna."}]', "true"),
    ]
    return "\n".join(
        f'{{"sessionId": "s", "uuid": "{number}", "agentId": "a", "isSidechain": {is_side}, '
        f'"type": "{kind}", '
        f'"message": {{"role": "{kind}", "content": {content}}}}}'
        for number, (kind, content, is_side) in enumerate(events)
    )


def batch(output: str) -> str:
    """Return a batch whose only answer holds this result of a tool."""
    asked = {"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": {"input": "Which boat?"}}
    result = f'{{"type": "function_call_output", "call_id": "c", "output": {output}}}'
    return f'{json.dumps(asked)}\n{{"custom_id": "1", "response": {{"body": {{"output": [{result}]}}}}}}'


@pytest.mark.parametrize(
    ("export", "rows"),
    [
        (claude_ai, [2, "too_deep"]),
        (claude_code, [2, "too_deep"]),
        (codex, ["too_deep", 2]),
        (batch, ["too_deep"]),
    ],
)
def test_a_result_that_is_nested_too_deep_costs_only_its_own(
    export: Any, rows: list[int | str], tmp_path: Path
) -> None:
    path = tmp_path / "export.jsonl"
    path.write_text(export(DEEP))
    given, _ = read(path)
    assert [row if isinstance(row, str) else len(row["messages"]) for row in given] == rows


def test_a_mark_of_an_entity_that_is_nested_too_deep_goes(tmp_path: Path) -> None:
    chat = conversation(1)
    content = chat["mapping"]["assistant 1 0"]["message"]["content"]
    content["parts"] = [f"In \ue200entity\ue202{'[' * 5000}{']' * 5000}\ue201Lund."]
    (row,), notes = read(write(tmp_path / "conversations.json", [chat]), max_bytes=1 << 20)
    assert row["messages"][1]["content"] == "In Lund."
    assert notes["citations"] == 1


def test_a_result_that_is_an_object_becomes_its_json(tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_text(claude_code('["x"]'))
    (_, row), _ = read(path)
    assert [turn["content"] for turn in row["messages"]] == ["Which boat?", "", '{"a": ["x"]}', "Anna."]


@pytest.mark.parametrize(
    "answer",
    [{"content": 1}, {"content": [{"type": "image_url"}]}, {"content": "Anna.", "reasoning_content": 1}],
)
def test_a_run_whose_answer_is_not_text_costs_only_its_own(answer: Any, tmp_path: Path) -> None:
    asked = {"messages": [{"role": "user", "content": "Which boat?"}]}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    answers = [answer, {"content": None, "tool_calls": [call]}]
    runs = [
        {
            "run_type": "llm",
            "inputs": asked,
            "outputs": {"choices": [{"message": {"role": "assistant", **said}}]},
        }
        for said in answers
    ]
    (rejected, row), _ = read(write(tmp_path / "runs.json", runs))
    assert rejected == "content_not_text"
    assert row["messages"][1] == {"role": "assistant", "content": "", "tool_calls": [call]}


def test_a_message_of_langchain_that_names_no_class_is_read_by_its_type(tmp_path: Path) -> None:
    said = [("human", "Which boat?"), ("ai", "Anna.")]
    messages = [{"lc": 1, "type": kind, "content": words, "additional_kwargs": {}} for kind, words in said]
    (row,), _ = read(write(tmp_path / "messages.json", messages))
    assert row["messages"] == chat("Which boat?", "Anna.")["messages"]


def test_calls_that_the_service_ran_are_left_out_of_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    told = [
        {"type": "server_tool_use", "id": "s", "name": "advisor", "input": {}},
        {"type": "advisor_tool_result", "tool_use_id": "s", "content": {"type": "advisor_redacted_result"}},
        {"type": "text", "text": "Anna."},
    ]
    said = [("user", "Which boat?"), ("assistant", told)]
    events = [
        {"sessionId": "s", "uuid": kind, "type": kind, "message": {"role": kind, "content": content}}
        for kind, content in said
    ]
    path.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (row,), notes = read(path)
    assert [turn["content"] for turn in row["messages"]] == ["Which boat?", "Anna."]
    assert notes["tools_of_the_service"] == 2


IMAGE = "a picture in place of words"
OF_VERCEL = [
    {"role": "user", "parts": [{"type": "text", "text": "Name a rope."}]},
    {"role": "assistant", "parts": [{"type": "text", "text": "Hemp."}]},
    {"role": "user", "parts": [{"type": "file", "mediaType": "image/png", "url": IMAGE}]},
    {"role": "assistant", "parts": [{"type": "text", "text": "That is a knot."}]},
]
OF_LANGCHAIN = [
    {"type": "human", "data": {"content": "Name a rope."}},
    {"type": "ai", "data": {"content": "Hemp."}},
    {"type": "human", "data": {"content": [{"type": "image_url", "image_url": {"url": IMAGE}}]}},
    {"type": "ai", "data": {"content": "That is a knot."}},
]


@pytest.mark.parametrize("messages", [OF_VERCEL, OF_LANGCHAIN], ids=["vercel", "langchain"])
def test_an_array_of_messages_is_not_read_without_one_of_them(messages: list[Any], tmp_path: Path) -> None:
    """Or an answer would be trained below another question."""
    rows, _ = read(write(tmp_path / "a.json", messages))
    assert rows == ["unsupported_field", "unsupported_field"]
    whole, _ = read(write(tmp_path / "b.json", messages[:2]))
    assert [len(row["messages"]) for row in whole] == [2]


def test_an_array_of_several_chats_messages_is_no_conversation(tmp_path: Path) -> None:
    """As a database's table of messages has them."""
    messages = [message | {"chatId": f"c{number // 2}"} for number, message in enumerate(OF_VERCEL)]
    rows, notes = read(write(tmp_path / "a.json", messages))
    assert len(rows) == 4 and not any("messages" in row for row in rows)
    assert not notes["export_vercel"]
