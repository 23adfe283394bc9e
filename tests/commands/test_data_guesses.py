"""`quench data check`: guesses for labels, messages of a chat and files of one row, and how sure it is."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from curating import lines
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.commands.data.proposal import Proposal, propose
from pipeline.config.params import load_params

Rows = list[dict[str, Any]]
PLACES = ("north pier", "old mole", "west quay", "inner dock", "fish market")
LABELS = ("technical", "billing", "technical", "shipping", "Technical", "technical ")
NAMES = ("technical", "billing", "shipping")


def messages(count: int) -> list[str]:
    """Return this many different texts, as people write them."""
    return [f"The crane {number} at the {PLACES[number % 5]} does not turn." for number in range(count)]


def rows_of(count: int, **columns: Any) -> Rows:
    """Return rows with these columns. A tuple is repeated; None stands for a text."""
    values = {name: messages(count) if column is None else cycle(column) for name, column in columns.items()}
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=False)][:count]


def proposed(rows: Rows) -> Proposal:
    proposal = propose(rows, "a.jsonl")
    assert proposal is not None
    return proposal


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "params.yaml").write_text("curate: {seed: 3}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(name: str, content: Any, *options: str) -> Any:
    """Check a file of these rows, or of this JSON value, in the current project."""
    path = Path("data/raw", name)
    path.write_bytes(lines(*content) if isinstance(content, list) else json.dumps(content).encode())
    return CliRunner().invoke(app, ["data", "check", str(path), *options])


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("ticket", "label"),
        ("message", "category"),
        ("review", "sentiment"),
        ("Nachricht", "Kategorie"),
        ("text", "label"),
        ("utterance", "intent"),
        ("ticket", "intent"),
        ("sentence", "class"),
    ],
)
def test_a_label_is_the_answer_to_its_text_whatever_the_order(text: str, label: str) -> None:
    for columns in ({text: None, label: LABELS}, {label: LABELS, text: None}):
        for count, sure in ((60, True), (6, False)):
            proposal = proposed(rows_of(count, **columns))
            assert proposal.guesses[0].fields == {"user": text, "assistant": label}
            assert proposal.is_sure == sure


def test_a_label_of_unknown_name_is_proposed_and_not_sure() -> None:
    proposal = proposed(rows_of(60, v1=("ham", "ham", "spam"), v2=None))
    (guess,) = proposal.guesses
    assert guess.fields == {"user": "v2", "assistant": "v1"} and not proposal.is_sure
    assert guess.candidate.labels == {"ham": 40, "spam": 20}


def test_labels_are_printed_with_their_counts_as_they_are_written(project: Path) -> None:
    shown = check("a.jsonl", rows_of(60, text=None, label=LABELS), "--write")
    assert shown.exit_code == 0
    assert 'technical 20, billing 10, shipping 10, Technical 10, "technical " 10' in shown.stdout
    assert load_params(project / "params.yaml").curate.fields == {
        "a.jsonl": {"user": "text", "assistant": "label"}
    }


@pytest.mark.parametrize("values", [(0, 1), (False, True, True), ("0", "1", "2")])
def test_labels_that_are_numbers_are_proposed_and_said_to_be_written_so(
    project: Path, values: tuple[Any, ...]
) -> None:
    shown = check("a.jsonl", rows_of(40, review=None, label=values), "--json")
    proposal = json.loads(shown.stdout.splitlines()[-1])["proposal"]
    assert proposal["fields"] == {"user": "review", "assistant": "label"}
    assert sorted(proposal["labels"]) == sorted({json.dumps(value).strip('"') for value in values})
    assert "curate.transform" in check("a.jsonl", rows_of(40, review=None, label=values)).stdout


def test_a_text_that_is_read_as_such_gets_a_guess_for_its_class(project: Path) -> None:
    shown = check("a.jsonl", rows_of(30, text=None, Kategorie=NAMES), "--write", "--guess", "1")
    assert "60 text" not in shown.stdout and "30 chat" in shown.stdout
    for other in ({"source": ("web", "book")}, {"lang": ("de", "en")}, {"votes": (1, 2, 3)}):
        assert "guess" not in check("b.jsonl", rows_of(30, text=None, **other)).stdout


def test_a_row_without_its_text_hides_no_guess_for_the_others(project: Path) -> None:
    rows = [*rows_of(30, text=None, category=NAMES), {"text": "", "category": "technical"}]
    shown = check("a.jsonl", rows, "--write", "--guess", "1")
    assert "30 chat" in shown.stdout


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        (
            {"Customer Message": None, "Agent Reply": None, "Category": NAMES},
            ("Customer Message", "Agent Reply"),
        ),
        ({"nl": None, "bash": None, "tag": NAMES}, ("nl", "bash")),
        (
            {"task": ("Shorten:", "Translate:"), "passage": None, "summary": None},
            ("{task}\n\n{passage}", "summary"),
        ),
    ],
)
def test_a_class_beside_question_and_answer_changes_nothing(
    columns: dict[str, Any], fields: tuple[str, str]
) -> None:
    rows = rows_of(40, **columns)
    proposal = proposed([row | {fields[1]: f"{row[fields[1]]} Yes."} for row in rows])
    assert proposal.is_sure
    assert proposal.guesses[0].fields == dict(zip(("user", "assistant"), fields, strict=True))


def test_rows_with_an_author_and_a_chat_are_no_messages() -> None:
    talk = {"author": ("ann", "bo"), "title": None}
    turns = [{"speaker": "Guest", "text": "Where is it?"}, {"speaker": "Agent", "text": "At the bow."}]
    rows = [row | {"log": turns} for row in rows_of(6, **talk)]
    assert proposed(rows).guesses[0].fields["messages"] == "log"
    rows = [row | {"title": f"USER: {row['title']}\n\nASSISTANT: Yes."} for row in rows_of(6, **talk)]
    assert proposed(rows).guesses[0].fields == {"text": "title"}


def test_rows_with_an_author_and_a_label_are_no_messages() -> None:
    proposal = proposed(rows_of(40, username=("ann", "bo", "ann"), tweet=None, sentiment=NAMES))
    assert proposal.is_sure and proposal.guesses[0].fields == {"user": "tweet", "assistant": "sentiment"}


def test_a_system_text_and_the_reasoning_beside_a_label_are_mapped() -> None:
    rows = rows_of(30, persona=("You sort the mail of a harbour.",), ticket=None, label=NAMES)
    proposal = proposed([row | {"rationale": f"Because {row['ticket']}"} for row in rows])
    beside = {"system": "persona", "reasoning_content": "rationale"}
    assert proposal.guesses[0].fields == {"user": "ticket", "assistant": "label"} | beside


def test_texts_that_may_be_messages_are_told_and_get_no_guess(project: Path) -> None:
    shown = check("a.jsonl", rows_of(30, Absender=("Kunde", "Desk"), Text=None))
    assert shown.exit_code == 0 and "guess" not in shown.stdout
    assert "into one row of messages" in shown.stdout
    (project / "params.yaml").write_text("curate: {formats: {'*': text}}\n")
    assert (
        "one row of messages"
        not in check("a.jsonl", rows_of(30, Absender=("Kunde", "Desk"), Text=None)).stdout
    )


def test_several_texts_are_labelled_together_and_that_is_not_sure() -> None:
    proposal = proposed(rows_of(40, premise=None, hypothesis=None, label=(0, 1, 2)))
    assert proposal.guesses[0].fields == {"user": "{premise}\n\n{hypothesis}", "assistant": "label"}
    assert not proposal.is_sure


@pytest.mark.parametrize(
    "rows",
    [
        rows_of(2, nick=("ann", "bo"), msg=None),
        rows_of(40, nick=("ann", "bo", "bo"), msg=None),
        rows_of(3, name=("Mate", "Pilot"), is_user=(False, True), words=None),
        rows_of(2, author=("ann", "bo"), body=None, created_utc=(1700000000, 1700000100)),
        rows_of(6, fromMe=(True, False), body=None),
        rows_of(50, username=("ann", "bo", "cy", "ann"), message=None, time=("10:01", "10:02")),
        rows_of(10, wer=("Kunde", "Desk"), was=None),
        rows_of(6, seite=("user", "assistant"), was=None),
    ],
)
def test_a_message_in_each_row_is_told_to_be_put_together(project: Path, rows: Rows) -> None:
    shown = check("a.jsonl", rows)
    assert shown.exit_code == 3
    assert "into one row of messages" in shown.stdout and "as it would be read" not in shown.stdout


def test_a_name_is_neither_question_nor_answer() -> None:
    people = tuple(f"Person {number}" for number in range(30))
    assert propose(rows_of(30, quote=None, author=people), "a.jsonl") is None
    pages = [row | {"body": row["body"] * 8} for row in rows_of(30, author=("ann", "bo"), body=None)]
    proposal = proposed(pages)
    assert [guess.fields for guess in proposal.guesses] == [{"text": "body"}] and not proposal.is_sure


@pytest.mark.parametrize(
    ("speakers", "roles", "is_sure"),
    [
        (("Contact", "User"), {"Contact": "user", "User": "assistant"}, True),
        (("Visitor", "Berta"), {"Visitor": "user", "Berta": "assistant"}, True),
        (("Berta", "user"), {"Berta": "assistant"}, False),
        (("user", "Berta"), {"Berta": "assistant"}, True),
    ],
)
def test_a_customer_is_the_user_and_who_opens_is_no_sure_assistant(
    speakers: tuple[str, str], roles: dict[str, str], is_sure: bool
) -> None:
    turns = [[{"by": by, "text": f"{by} says {n} so."} for by in speakers * 2] for n in range(4)]
    proposal = proposed([{"messages": talk} for talk in turns])
    assert proposal.guesses[0].fields["roles"] == roles and proposal.is_sure == is_sure


RECORD = {"instruction": "Name the pilot.", "output": "Aksel."}
TALK = [{"role": "user", "content": "Good morning."}, {"role": "assistant", "content": "Good morning, mate."}]


@pytest.mark.parametrize(
    "value",
    [
        {"id01": RECORD, "id02": RECORD},
        {"anna": RECORD, "bo": RECORD},
        {"c-1": TALK, "c-2": TALK},
        {"c-1": {"messages": TALK}, "c-2": {"messages": TALK}},
    ],
)
def test_rows_below_their_ids_are_read_without_a_guess(project: Path, value: Any) -> None:
    shown = check("a.json", value)
    assert shown.exit_code == 0
    assert "as it would be read" not in shown.stdout


@pytest.mark.parametrize(
    "value",
    [
        {"anna": RECORD},
        {"train": [RECORD, RECORD], "test": [RECORD]},
        {"Where is the anchor?": "At the bow.", "Who mends nets?": "Emil."},
    ],
)
def test_rows_inside_an_only_row_are_told_to_be_lines(project: Path, value: Any) -> None:
    shown = check("a.json", value)
    assert shown.exit_code == 3
    assert "lines (`jq" in shown.stdout or "line (`jq" in shown.stdout
    assert "as it would be read" not in shown.stdout


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_bad_row_among_others_and_a_table_of_one_row_are_no_single_object(project: Path, name: str) -> None:
    table = Path("data/raw/a.csv")
    table.write_text("Where is the anchor?,Who mends nets?\nAt the bow.,Emil.\n")
    odd = {"Where is the anchor?": "At the bow.", "Who mends nets?": "Emil."}
    rows = [{"question": f"Who is {number}?", "answer": "Emil."} for number in range(4)]
    shown = (
        check(name, [*rows, odd])
        if name == "a.jsonl"
        else CliRunner().invoke(app, ["data", "check", str(table)])
    )
    assert shown.exit_code == 3
    assert "one object" not in shown.stdout


def test_two_texts_below_their_names_are_not_two_rows(project: Path) -> None:
    shown = check("a.json", {"frage": {"text": "Where is the anchor?"}, "antwort": {"text": "At the bow."}})
    assert shown.exit_code == 3


def test_a_chat_below_the_name_of_an_answer_is_proposed() -> None:
    assert proposed([{"n": number, "response": TALK} for number in range(3)]).guesses[0].fields == {
        "messages": "response"
    }


def test_nothing_is_proposed_from_inside_an_only_row_but_one_known_conversation(project: Path) -> None:
    answered = {
        "features": [{"name": "question", "type": {"dtype": "string"}}, {"name": "answer", "type": {}}],
        "rows": [{"row_idx": 0, "row": RECORD}, {"row_idx": 1, "row": RECORD}],
    }
    shown = check("a.json", answered, "--write")
    assert "rows holds 2 objects" in shown.stdout and "as it would be read" not in shown.stdout
    assert "as it would be read" not in check("b.json", {"id": 1, "data": RECORD}).stdout
    assert proposed([{"thread": TALK, "source": "desk"}]).guesses[0].fields == {"messages": "thread"}


def test_a_tree_of_replies_is_no_exchange() -> None:
    replies = [{"text": "The harbour is closed.", "role": "assistant", "replies": []}] * 2
    trees = [
        {
            "message_tree_id": f"t{number}",
            "tree_state": ("ready_for_export", "growing")[number % 2],
            "prompt": {
                "text": text,
                "role": "prompter",
                "lang": ("en", "de")[number // 2],
                "replies": replies,
            },
        }
        for number, text in enumerate(messages(4))
    ]
    assert propose(trees, "a.jsonl") is None
    assert propose(trees[:1], "a.jsonl") is None


def test_an_answer_that_is_an_object_is_looked_into_and_never_dropped() -> None:
    rows = rows_of(
        3, question=None, answer=({"text": "In locker one."}, {"text": "In two."}), machine_answer=None
    )
    assert proposed(rows).guesses[0].fields == {"user": "question", "assistant": "answer.text"}
    said = ([{"value": "Six metres.", "user_id": "u1"}], [{"value": "Nine.", "user_id": "u2"}])
    rows = rows_of(4, instruction=None, response=said)
    rows = [row | {"response-suggestion": f"Perhaps {row['instruction']}"} for row in rows]
    assert proposed(rows).guesses[0].fields == {"user": "instruction", "assistant": "response.0.value"}
    assert propose([row | {"response": row["response"] * 2} for row in rows], "a.jsonl") is None


@pytest.mark.parametrize("beside", [{"system": "You are the mate."}, {"tools": '[{"name": "tow"}]'}])
def test_system_and_tools_beside_a_rendered_chat_are_kept(beside: dict[str, str]) -> None:
    rows = [{"dialog": f"USER: {text}\n\nASSISTANT: At the bow."} | beside for text in messages(3)]
    proposal = proposed(rows)
    assert proposal.is_sure and proposal.guesses[0].fields == {"text": "dialog"}


def test_a_mapping_that_drops_images_or_tools_is_not_sure() -> None:
    for beside in ({"image": "a.png"}, {"tools": "hammer and saw"}):
        rows = [{"nl": text, "bash": f"ls {text}"} | beside for text in messages(5)]
        assert not proposed(rows).is_sure


def test_a_single_guess_without_evidence_is_written_only_if_chosen(project: Path) -> None:
    rows = rows_of(60, v1=("ham", "spam", "spam"), v2=None)
    before = (project / "params.yaml").read_text()
    for choice in ((), ("--guess", "2")):
        shown = check("a.jsonl", rows, "--write", *choice)
        assert shown.exit_code == 3 and "--guess 1" in shown.stdout and "--guess 2" not in shown.stdout
        assert (project / "params.yaml").read_text() == before
    shown = check("a.jsonl", rows, "--write", "--guess", "1")
    assert shown.exit_code == 0
    assert shown.stdout.count("as it would be read") == 4  # both rows, and again after the choice


def test_a_help_desks_columns_of_few_values_are_no_side_and_its_subject_is_told(project: Path) -> None:
    replies = tuple(f"Please send crane {number} back to the {PLACES[number % 5]}." for number in range(59))
    rows = rows_of(
        60,
        Subject=tuple(f"The crane {number} at work" for number in range(60)),
        Description=None,
        Source=("Email", "Portal", "Email"),
        Agent=("Una Mills", "Rob Hale", "Ole Berg"),
        **{"Last agent reply": replies},
    )
    proposal = proposed(rows)
    assert [guess.fields for guess in proposal.guesses] == [
        {"user": "Description", "assistant": "Last agent reply"}
    ]
    assert proposal.guesses[0].unread == ("Subject",)
    assert 'not read: Subject; user: "{Subject}\\n\\n{Description}"' in check("a.jsonl", rows).stdout
