"""`quench data check` on rows with other key names: the guess, what it says, and what --write does."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from curating import ALL_TRAINED, lines
from draws import draws
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.commands.data.columns import columns_of
from pipeline.commands.data.proposal import propose
from pipeline.commands.data.series import doubt
from pipeline.config.params import load_params
from pipeline.config.sections import Curate
from pipeline.stages.curate.stage import curate

ASKED = ["List the harbour's files.", "Count all of the boats", "Show the end of the log", "Who is here?"]
SAID = ["ls harbour", "ls boats | wc -l", "tail -n 5 log", "who"]
WORSE = ["ls", "wc boats", "cat log", "w"]


def columns(*names: str, **more: Any) -> list[dict[str, Any]]:
    """Rows of a question and an answer below these names."""
    return [dict(zip(names, texts, strict=True), **more) for texts in zip(ASKED, SAID, strict=True)]


def turns(role: str, content: str, *sides: str) -> list[list[dict[str, Any]]]:
    return [
        [{role: side, content: words} for side, words in zip(sides, texts, strict=True)]
        for texts in zip(ASKED, SAID, strict=True)
    ]


@pytest.mark.parametrize(
    ("names", "fields"),
    [
        (("nl", "bash"), {"user": "nl", "assistant": "bash"}),
        (("Question", "Command"), {"user": "Question", "assistant": "Command"}),
        (("q", "a"), {"user": "q", "assistant": "a"}),
        (("user_message", "bot_reply"), {"user": "user_message", "assistant": "bot_reply"}),
        (("input_text", "target_text"), {"user": "input_text", "assistant": "target_text"}),
        (("human", "gpt"), {"user": "human", "assistant": "gpt"}),
        (("instruction_zh", "output_zh"), {"user": "instruction_zh", "assistant": "output_zh"}),
    ],
)
def test_usual_names_are_guessed_in_any_order(names: tuple[str, str], fields: dict[str, str]) -> None:
    rows = columns(*names)
    for sample in (rows, [dict(reversed(row.items())) for row in rows], rows[:1]):
        found = propose(sample, "a.jsonl")
        assert found and found.is_sure and found.guesses[0].fields == fields
        assert found.guesses[0].rows[0]["messages"][1]["content"] == SAID[0]


def test_other_columns_are_no_texts() -> None:
    rows = [
        {
            "id": f"{number:032x}",
            "created": f"2024-01-0{number + 1}",
            "stars": number,
            "site": "https://example.org/a",
            "source": "web",
            "nl": asked,
            "bash": said,
            "label": number % 2,
        }
        for number, (asked, said) in enumerate(zip(ASKED, SAID, strict=True))
    ]
    found = propose(rows, "a.jsonl")
    assert found and found.is_sure
    assert found.guesses[0].fields == {"user": "nl", "assistant": "bash", "label": None}


@pytest.mark.parametrize(
    ("rows", "fields"),
    [
        (
            [{"dialog": one} for one in turns("speaker", "utterance", "Customer", "Agent")],
            {
                "messages": "dialog",
                "role": "speaker",
                "content": "utterance",
                "roles": {"Customer": "user", "Agent": "assistant"},
            },
        ),
        (
            [{"chat": {"log": one}} for one in turns("from", "value", "human", "gpt")],
            {"messages": "chat.log"},
        ),
        (
            [
                {"conversation": [{"from": turn["from"], "text": {"value": turn["value"]}} for turn in one]}
                for one in turns("from", "value", "human", "gpt")
            ],
            {"content": "text.value"},
        ),
        (
            [{"conversation": [row]} for row in columns("human", "assistant")],
            {"messages": "conversation", "user": "human", "assistant": "assistant"},
        ),
        (
            [
                {"ask": asked, "best": {"text": said}, "worst": {"text": worse}}
                for asked, said, worse in zip(ASKED, SAID, WORSE, strict=True)
            ],
            {"prompt": "ask", "chosen": "best.text", "rejected": "worst.text"},
        ),
        (
            [
                {"context": "You are a harbour master.", "messages": one}
                for one in turns("author", "content", "user", "bot")
            ],
            {"role": "author", "system": "context"},  # as PaLM's tuning files have it
        ),
        (
            [{"system": "Be brief.", "log": one} for one in turns("from", "value", "human", "gpt")],
            {"messages": "log"},
        ),
        (
            [{"messages": one} for one in turns("role", "content", "User", "Sage")],
            {"roles": {"Sage": "assistant"}},
        ),
        (
            columns("nl", "cmd", system_message="You are a shell"),
            {"user": "nl", "assistant": "cmd", "system": "system_message"},
        ),
        (
            [
                row | {"Context": f"{row['Query_text']} Really."}
                for row in columns("Query_text", "Reply_text")
            ],
            {"user": "{Query_text}\n\n{Context}", "assistant": "Reply_text"},
        ),
        (
            [row | {"cot": f"I think of {row['problem']}"} for row in columns("problem", "solution")],
            {"user": "problem", "assistant": "solution", "reasoning_content": "cot"},
        ),
        ([{"body": f"{number} " + "A long page. " * 30} for number in range(4)], {"text": "body"}),
    ],
)
def test_other_shapes_are_guessed(rows: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    found = propose(rows, "a.jsonl")
    assert found and found.guesses[0].fields == fields


@pytest.mark.parametrize(
    "rows",
    [
        [{"n": number, "m": number * 2} for number in range(9)],
        [{"instruction": "do it"}, {"instruction": "and that"}],
        [{"id": f"a{number}", "when": "2024-01-01"} for number in range(9)],
        [{}],
    ],
)
def test_no_guess_is_made_of_nothing(rows: list[dict[str, Any]]) -> None:
    assert propose(rows, "a.jsonl") is None


@pytest.mark.parametrize(
    "rows", [columns("foo", "bar"), [{"log": one} for one in turns("by", "msg", "Bob", "Ann")]]
)
def test_a_guess_by_order_alone_is_not_sure(rows: list[dict[str, Any]]) -> None:
    found = propose(rows, "a.jsonl")
    assert found and not found.is_sure
    first, second = (guess.rows[0]["messages"] for guess in found.guesses)
    assert first[0]["content"] in (ASKED[0], second[1]["content"]) and first != second


def with_choices(names: str, answer: str, *right: Any) -> list[dict[str, Any]]:
    """Rows of a question, choices below these names, the right one, and an explanation."""
    return [
        {"question": asked}
        | {name: f"{name} of {asked}" for name in names.split()}
        | {answer: one, "exp": f"It is so because the harbour master says it about: {asked} And he knows."}
        for asked, one in zip(ASKED, right, strict=True)
    ]


@pytest.mark.parametrize(
    ("names", "answer", "right", "labels"),
    [
        ("opa opb opc opd", "cop", (0, 2, 1, 3), "0123"),  # MedMCQA on the hub
        ("opa opb opc opd", "cop", (1, 2, 1, 4), "1234"),  # as its authors publish it
        ("A B C D", "gold", ("B", "A", "C", "B"), "ABCD"),
        ("option_1 option_2 option_3", "right", ("c", "a", "b", "a"), "abc"),
    ],
)
def test_choices_are_put_below_their_question(
    names: str, answer: str, right: tuple[Any, ...], labels: str
) -> None:
    found = propose(with_choices(names, answer, *right), "a.jsonl")
    lines = [f"{label}) {{{name}}}" for label, name in zip(labels, names.split(), strict=True)]
    assert found and found.is_sure
    assert found.guesses[0].fields == {"user": "\n".join(["{question}", *lines]), "assistant": answer}
    assert found.guesses[0].rows[1]["messages"][1]["content"] == str(right[1])


def test_choices_beside_a_question_and_its_answer_are_mapped_too(project: Path) -> None:
    rows = with_choices("A B C D", "answer", "B", "A", "D", "C")
    (project / "data/raw/exam.jsonl").write_bytes(lines(*rows))
    assert check("data/raw/exam.jsonl", "--write").exit_code == 0
    fields = load_params(project / "params.yaml").curate.fields["exam.jsonl"]
    assert fields["user"].startswith("{question}\nA) {A}") and fields["assistant"] == "answer"


def test_a_right_choice_that_is_written_out_is_found() -> None:
    rows = with_choices("ending0 ending1 ending2", "id", 7, 8, 9, 10)
    rows = [row | {"right": row[f"ending{number % 3}"]} for number, row in enumerate(rows)]
    found = propose(rows, "a.jsonl")
    assert found and found.is_sure and found.guesses[0].fields["assistant"] == "right"
    assert "\nB) {ending1}\n" in found.guesses[0].fields["user"]


@pytest.mark.parametrize("right", [(1, 2, 1, 3), (0, 4, 1, 2), (-1, -1, -1, -1), (True, False, True, True)])
def test_of_choices_nothing_is_guessed_if_it_is_not_sure_which_is_right(right: tuple[Any, ...]) -> None:
    rows = with_choices("opa opb opc opd", "cop", *right)
    assert propose(rows, "a.jsonl") is None
    assert "opa, opb, opc" in doubt(rows, columns_of(rows))


def in_numbered_turns(count: int) -> list[dict[str, Any]]:
    """Rows as MOSS has them."""
    return [
        {
            "meta_instruction": "You are MOSS.",
            "chat": {
                f"turn_{turn}": {"Human": f"{row['nl']} {turn}", "MOSS": f"{row['bash']} {turn}"}
                for turn in range(1, count + 1)
            },
        }
        for row in columns("nl", "bash")
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_turns_below_numbered_keys_are_named_and_not_guessed(project: Path, count: int) -> None:
    (project / "data/raw/moss.jsonl").write_bytes(lines(*in_numbered_turns(count)))
    shown = check("data/raw/moss.jsonl", "--write")
    assert shown.exit_code == 3
    assert "turn_1" in shown.stdout and "as it would be read" not in shown.stdout
    assert not load_params(project / "params.yaml").curate.fields


def test_a_column_of_rendered_chats_is_a_text_that_is_read_as_chats(project: Path) -> None:
    """Baize's rows, of which the topic was taken for the answer."""
    begin = "The conversation between human and AI assistant."
    rows = [
        {
            "topic": f"{asked} This is what the talk is about.",
            "input": f"{begin}\n[|Human|] {asked}\n[|AI|] {said}",
        }
        for asked, said in zip(ASKED, SAID, strict=True)
    ]
    found = propose(rows, "a.jsonl")
    assert found and found.is_sure and found.guesses[0].fields == {"text": "input"}
    (project / "data/raw/baize.jsonl").write_bytes(lines(*rows))
    shown = check("data/raw/baize.jsonl", "--write")
    assert shown.exit_code == 0 and f"assistant: {SAID[0]}" in shown.stdout
    assert "4 chat" in shown.stdout


def test_what_a_row_is_about_is_not_surely_its_answer() -> None:
    rows = [
        {"input": f"{row['nl']} {row['nl']}", "topic": f"The harbour and {row['nl']} or so"}
        for row in columns("nl", "bash")
    ]
    found = propose(rows, "a.jsonl")
    assert found and not found.is_sure


NAMES = st.sampled_from(
    ["nl", "bash", "{x}", "a.b", " ", "role", "from", "messages", "text", "system", "Q.", "chosen"]
)
TEXTS = st.sampled_from(["ls", "Who is it?", "[{", '{"role": "x"}', ""])
VALUES = st.recursive(
    st.none() | st.integers() | st.booleans() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), min_size=1, max_size=3))
@settings(max_examples=draws(400), deadline=None)
def test_whatever_the_rows_a_guess_can_be_written_and_reads_them(rows: list[dict[str, Any]]) -> None:
    for guess in proposal.guesses if (proposal := propose(rows, "a.csv")) else ():
        Curate(fields={"*": guess.fields})
        assert guess.rows


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with two files of other names, beside each a row that is read."""
    raw = tmp_path / "data/raw"
    raw.mkdir(parents=True)
    (tmp_path / "params.yaml").write_text("# mine\ncurate:\n  seed: 3  # lucky\n")
    (raw / "my.jsonl").write_bytes(lines(*columns("nl", "bash")))
    cells = [f"{row['nl']} please,{row['bash']}\n" for row in columns("nl", "bash")]
    (raw / "my.csv").write_text("Question,Command\n" + "".join(cells))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*words: str) -> Any:
    return CliRunner().invoke(app, ["data", "check", *words])


def test_a_file_gets_one_line_and_the_mapping_to_paste(project: Path) -> None:
    shown = check("data/raw/my.jsonl")
    assert shown.exit_code == 3
    table, *_ = check("data/raw/my.csv").stdout.splitlines()
    assert table == "data/raw/my.csv: none of 4 rows can be read; they have the keys question and Command"
    first, *rest = shown.stdout.splitlines()
    assert first == "data/raw/my.jsonl: none of 4 rows can be read; they have the keys nl and bash"
    block = shown.stdout.partition("  curate:\n")[2].partition("  a row")[0]
    assert yaml.safe_load(block)["fields"] == {"my.jsonl": {"user": "nl", "assistant": "bash"}}
    assert [line for line in rest if "ls harbour" in line and "assistant" in line]
    assert "curate.fields" not in (project / "params.yaml").read_text()


def test_written_it_is_read_by_check_and_by_curate(project: Path) -> None:
    for file in ("my.jsonl", "my.csv"):
        shown = check(f"data/raw/{file}", "--write")
        assert shown.exit_code == 0, shown.output
    text = (project / "params.yaml").read_text()
    assert "# mine" in text and "# lucky" in text
    shown = check("data/raw")
    assert shown.exit_code == 0
    assert "8 usable, 0 rejected" in shown.stdout
    (project / "models").mkdir()
    (project / "models/base.json").write_text('{"added_tokens": []}')
    curating = load_params(project / "params.yaml").curating.model_copy(
        update={"drop_duplicates": "none", **ALL_TRAINED}
    )
    report = curate(project, curating)
    assert report.rows_kept == 8 and not report.rejected


def test_what_is_not_sure_is_written_only_if_it_is_chosen(project: Path) -> None:
    (project / "data/raw/x.jsonl").write_bytes(lines(*columns("foo", "bar")))
    before = (project / "params.yaml").read_text()
    shown = check("data/raw/x.jsonl", "--write")
    assert shown.exit_code == 3 and "--guess 1" in shown.stdout
    assert (project / "params.yaml").read_text() == before
    shown = check("data/raw/x.jsonl", "--write", "--guess", "2")
    assert shown.exit_code == 0
    fields = load_params(project / "params.yaml").curate.fields
    assert fields == {"x.jsonl": {"user": "bar", "assistant": "foo"}}


def test_a_new_mapping_comes_before_a_wider_one(project: Path) -> None:
    (project / "params.yaml").write_text("curate:\n  fields: {'my.*': {prompt: nope}}\n")
    shown = check("data/raw/my.csv", "--write")
    assert shown.exit_code == 0, shown.output
    assert list(load_params(project / "params.yaml").curate.fields) == ["my.csv", "my.*"]


def test_rows_in_a_mixed_file_are_named_with_their_keys(project: Path) -> None:
    path = project / "data/raw/my.jsonl"
    path.write_text('{"prompt": "a b", "completion": "c"}\n' + path.read_text())
    shown = check("data/raw/my.jsonl")
    first, *rest = shown.stdout.splitlines()
    assert first.startswith("data/raw/my.jsonl:2: unknown_format: 4 of 5 rows") and "nl and bash" in first
    assert "check: data/raw/my.jsonl: 1 row usable, read as prompt_completion: 1 chat" in rest
    assert check("data/raw/my.jsonl", "--write").exit_code == 0


def test_files_with_the_same_keys_are_shown_once(project: Path) -> None:
    text = (project / "data/raw/my.jsonl").read_text()
    for name in ("a", "b"):
        (project / f"data/raw/{name}.jsonl").write_text(text)
    shown = check("data/raw")
    assert shown.stdout.count("as it would be read") == 4  # two rows of each kind of file
    assert check("data/raw", "--write").exit_code == 0
    assert len(load_params(project / "params.yaml").curate.fields) == 4


def test_the_proposal_as_json_holds_no_secret(project: Path) -> None:
    key = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    rows = [{"nl": f"Log in by {key}", "bash": f"login {key}"}]
    (project / "data/raw/k.jsonl").write_bytes(lines(*rows))
    for flags in (("--json",), ()):
        shown = check("data/raw/k.jsonl", *flags)
        assert shown.exit_code == 3 and key not in shown.output
    reject, proposed = map(json.loads, check("data/raw/k.jsonl", "--json").stdout.splitlines())
    assert reject["reason"] == "unknown_format"
    proposal = proposed["proposal"]
    assert (proposal["fields"], proposal["sure"]) == ({"user": "nl", "assistant": "bash"}, True)
    assert [said["role"] for said in proposal["examples"][0]] == ["user", "assistant"]


def test_outside_of_a_project_nothing_is_written(project: Path) -> None:
    (project / "params.yaml").unlink()
    shown = check("data/raw/my.jsonl", "--write")
    assert shown.exit_code == 2 and "my.jsonl: {user: nl, assistant: bash}" in shown.stdout
    assert not (project / "params.yaml").exists()


def test_a_file_elsewhere_is_to_be_put_below_data_raw(project: Path) -> None:
    (project / "data/raw/my.jsonl").rename(project / "own.jsonl")
    shown = check("own.jsonl", "--write")
    assert shown.exit_code == 0
    assert "put own.jsonl there" in shown.stdout
    assert "own.jsonl" in load_params(project / "params.yaml").curate.fields


def test_a_mapping_that_does_nothing_is_named(project: Path) -> None:
    (project / "params.yaml").write_text("curate:\n  fields: {'*': {prompt: x, completion: y}}\n")
    (project / "data/raw/ok.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    shown = check("data/raw/ok.jsonl")
    assert shown.exit_code == 3
    assert "no row has x for prompt" in shown.stdout and "prompt, completion" in shown.stdout


def test_of_a_table_without_names_nothing_is_guessed(project: Path) -> None:
    (project / "data/raw/n.csv").write_text(
        "How do I moor?,Use two lines.\nWhich knot do I tie?,A bowline.\n"
    )
    shown = check("data/raw/n.csv", "--write")
    assert shown.exit_code == 3
    assert "write a line of names above it" in shown.stdout and "as it would be read" not in shown.stdout
    assert "n.csv" not in load_params(project / "params.yaml").curate.fields


def test_rows_inside_of_an_only_row_are_not_guessed_to_be_one_conversation(project: Path) -> None:
    (project / "data/raw/w.json").write_text(json.dumps({"data": columns("question", "answer")}))
    shown = check("data/raw/w.json", "--write")
    assert shown.exit_code == 3
    assert "data holds 4 objects" in shown.stdout and "as it would be read" not in shown.stdout


def test_a_context_that_is_no_text_is_not_dropped_by_a_guess() -> None:
    rows = [row | {"context": {"titles": ["Harbour"]}} for row in columns("question", "answer")]
    assert propose(rows, "a.jsonl") is None


def test_a_key_that_says_the_same_in_all_turns_is_not_what_is_said() -> None:
    rows = [
        {
            "messages": [
                {"role": side, "content": {"content_type": "text", "parts": [words]}}
                for side, words in zip(("user", "assistant"), texts, strict=True)
            ]
        }
        for texts in zip(ASKED, SAID, strict=True)
    ]
    found = propose(rows, "a.jsonl")
    assert found and found.guesses[0].fields == {"content": "content.parts"}


def test_an_empty_answer_is_named(project: Path) -> None:
    (project / "data/raw/e.csv").write_text("instruction,output\nName the pier.,\nName the mole.,The mole.\n")
    shown = check("data/raw/e.csv")
    assert "output or response is missing or empty" in shown.stdout
