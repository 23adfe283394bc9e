"""quench judge with servers that say what a test gives them: the verdict, what fits, whose answers are kept,
which rows are asked, the page.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from html_page import Page
from make import quench, score_all_but_unsure
from tiny import tiny_gguf

from pipeline.config.products import ModelFiles
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.hashing import json_hash
from pipeline.core.jsonl import read_rows, write_rows
from pipeline.metrics.answer_speed import OtherLoad

GB = 1 << 30
CTX = 200
RIGHT, WRONG = ["yes"] * 40, ["no"] * 40
REFUSED = {"Q-JUDGE-008": ConfigError, "Q-JUDGE-006": DataError, "Q-JUDGE-012": DataError}
Report = dict[str, Any]


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    turns = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return {"messages": turns} | more


@dataclass(frozen=True)
class Model:
    """A model as the server of its file shows it: the answer to each row, tokens per second turn by turn,
    bytes of memory (None: the system doesn't say), and whether others kept the machine busy.
    """

    answers: Sequence[str] = tuple(RIGHT)
    speeds: Sequence[float] = (9.0, 10.0, 11.0)
    memory: int | None = GB
    busy: bool = False


class Servers:
    """`serving` that starts nothing; `requests` are those for an answer, in their order."""

    def __init__(self, models: dict[str, Model]) -> None:
        self.models, self.requests, self.up = models, list[dict[str, Any]](), ""
        self.speeds = {name: list(model.speeds) for name, model in models.items()}

    @contextmanager
    def serving(self, llama: Any, files: ModelFiles, **options: Any) -> Iterator[Any]:
        self.up = files[0].stem
        process = SimpleNamespace(pid=self.up)
        yield SimpleNamespace(process=process, parallel=1, post=self.post, tokens=lambda text: list(range(9)))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        match path:
            case "/apply-template":
                return {"prompt": "asked"}
            case "/tokenize":
                return {"tokens": list(range(99))}
            case "/completion":
                speed = self.speeds[self.up].pop(0)
                return {"timings": {"prompt_per_second": 100.0, "predicted_per_second": speed}}
        self.requests.append(body)
        question = body["messages"][0]["content"]
        answer = self.models[self.up].answers[int(question) if question.isdigit() else 0]
        return {"choices": [{"message": {"content": answer}, "finish_reason": "stop"}]}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with 40 rows, whose reference is yes."""
    settings = {"evaluate": {"scorers": ["exact_match"], "max_new_tokens": 8}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(settings))
    ask_rows(tmp_path, [chat(str(place), "yes", id=place) for place in range(40)])
    build(monkeypatch, "1")
    return tmp_path


def build(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """The build of llama.cpp that is found."""
    tools = SimpleNamespace(version=version)
    monkeypatch.setattr("pipeline.extras.judge.command.find_toolchain", lambda _: tools)


def ask_rows(root: Path, rows: Sequence[dict[str, Any]]) -> None:
    write_rows(root / "data/final/test.jsonl", rows)


def gguf(root: Path, name: str, **fields: Any) -> Path:
    """A file of this name, and bytes of its own."""
    file = root / f"{name}.gguf"
    return file if file.exists() else tiny_gguf(file, **({"general__name": name} | fields))


@pytest.fixture
def drawn(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """`judge` in the project; templates are not tried, which starts a process for each file."""
    monkeypatch.setattr("pipeline.extras.judge.files.try_templates", lambda *_: None)
    return partial(judge, root, monkeypatch)


@pytest.fixture
def judged(drawn: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """The same without a page, most of whose time its picture takes."""
    monkeypatch.setattr("pipeline.extras.judge.command.render", lambda *_: "")
    return drawn


def judge(
    root: Path, patch: pytest.MonkeyPatch, models: dict[str, Model], *options: object, **refused: str
) -> Report:
    """Run `quench judge --json` on these models and return its report, with the requests as `asked`; or check
    that it refuses them by the id `refused`.
    """
    servers = Servers(models)
    here = "pipeline.extras.judge.measure"
    patch.setattr(f"{here}.serving", servers.serving)
    patch.setattr(f"{here}.peak_memory", lambda name: models[name].memory)
    loads = {name: OtherLoad(0.4 if model.busy else 0.0, 0.0) for name, model in models.items()}
    patch.setattr(f"{here}.other_load", lambda *_: loads[servers.up])
    files = [gguf(root, name) for name in models]
    options = ("--ctx-size", CTX, "--gpu-layers", 0, "--memory", "8 GB", *options)
    done = quench("judge", *files, *options, "--json", "--root", root)
    if id := refused.get("refused"):
        assert (done.exit_code, id in done.output) == (REFUSED[id].exit_code, True), done.output
        return {}
    assert done.exit_code == 0, done.output
    report: Report = json.loads(done.stdout)
    return report | {"asked": servers.requests}


HUGE = 9 * GB
ONE_MISSED = ["no", *RIGHT[1:]]


def rows_of(*parts: tuple[int, str]) -> list[str]:
    """So many rows with each answer."""
    return [answer for count, answer in parts for _ in range(count)]


# A is best; A and B can't be told apart, nor A and C, and B beats C
A = rows_of((8, "no"), (15, "yes"), (11, "no"), (6, "no"))
B = rows_of((8, "yes"), (15, "no"), (6, "yes"), (11, "no"))
C = rows_of((8, "no"), (15, "no"), (6, "yes"), (11, "no"))


@pytest.mark.parametrize(
    ("models", "best", "alike", "smallest", "fastest", "words"),
    [
        # the one that does not fit is no better
        ({"a": Model(WRONG), "b": Model(), "c": Model(memory=HUGE)}, "b", "b", "b", "b", ()),
        ({"a": Model(WRONG), "b": Model(memory=HUGE)}, "a", "a", "a", "a", ("b is better", "9.50 GB")),
        ({"a": Model(), "b": Model(ONE_MISSED, (20, 21, 22)), "c": Model(WRONG)}, "a", "a b", None, "b", ()),
        # speeds overlap; 40 rows without a difference leave room for one of 8 points
        ({"a": Model(), "b": Model(speeds=(9.0, 10.5, 11.0))}, "a", "a b", None, None, ("40 rows",)),
        ({"A": Model(A), "B": Model(B), "C": Model(C)}, "A", "A B", None, None, ("40 rows",)),
        ({"a": Model(memory=HUGE), "b": Model(WRONG, memory=9 * HUGE)}, None, "", None, None, ()),
        # whose speed other load spoilt decides nothing
        ({"a": Model(), "b": Model(speeds=[99.0] * 3, busy=True)}, "a", "a b", None, None, ("speeds of b,",)),
        ({"a": Model(busy=True), "b": Model(speeds=[99.0] * 3)}, "a", "a b", None, None, ("speeds of a,",)),
    ],
)  # fmt: skip
def test_the_verdict(
    judged: Callable[..., Report],
    models: dict[str, Model],
    best: str | None,
    alike: str,
    smallest: str | None,
    fastest: str | None,
    words: Sequence[str],
) -> None:
    found = judged(models)["verdict"]
    assert (found["best"], sorted(found["alike"])) == (best, alike.split())
    assert (found["smallest"], found["fastest"]) == (smallest, fastest)
    assert all(any(word in note for note in found["notes"]) for word in words)
    assert words or not found["notes"]
    assert best or "a needs" in found["sentence"]


def test_a_smaller_file_of_equals_is_named(judged: Callable[..., Report], root: Path) -> None:
    gguf(root, "large", general__description="x" * 9999)
    assert judged({"small": Model(), "large": Model()})["verdict"]["smallest"] == "small"


def test_what_needs_no_word_has_none(judged: Callable[..., Report], root: Path) -> None:
    """200 rows without a difference are enough, and nothing else kept the machine busy."""
    ask_rows(root, [chat(str(place), "yes", id=place) for place in range(200)])
    assert judged({"a": Model(RIGHT * 5), "b": Model(RIGHT * 5)})["verdict"]["notes"] == []


def test_only_rows_that_all_files_have_a_score_of_count(
    judged: Callable[..., Report], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.extras.judge.command.score_answers", score_all_but_unsure)
    ask_rows(root, [chat("0", "yes"), chat("1", "yes")])
    (pair,) = judged({"A": Model(["no", "?"]), "B": Model(["yes", "no"])})["pairs"]
    assert (pair["rows"], pair["points"]) == (1, 100)
    judged({"C": Model(["no", "?"]), "D": Model(["?", "no"])}, refused="Q-JUDGE-012")


def test_many_pairs_need_a_clearer_difference(judged: Callable[..., Report], root: Path) -> None:
    """Six of six rows decide between two files, and no more between any two of five."""
    ask_rows(root, [chat(str(place), "yes") for place in range(6)])
    six = {"a": Model(), "b": Model(WRONG)}
    assert judged(six)["pairs"][0]["measurable"]
    five = judged(six | {name: Model() for name in "cde"})
    assert not any(pair["measurable"] for pair in five["pairs"])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8 GB", 8 * GB),
        ("8", 8 * GB),
        ("7.5gb", 15 * GB // 2),
        (" 512 MB ", 512 << 20),
        ("2." + "0" * 400, 2 * GB),
    ],
)
def test_memory_is_read(judged: Callable[..., Report], root: Path, text: str, size: int) -> None:
    ask_rows(root, [chat("0", "yes")])
    assert judged({"a": Model(), "b": Model()}, "--memory", text)["room_bytes"] == size


@pytest.mark.parametrize("text", ["", "much", "8 TB", "-1 GB", "0", "8 GB 3", "9" * 400, "9" * 5000])
def test_no_amount_of_memory(judged: Callable[..., Report], text: str) -> None:
    judged({}, "none.gguf", f"--memory={text}", refused="Q-JUDGE-008")


def test_memory_is_predicted_and_measured(judged: Callable[..., Report], root: Path) -> None:
    """The prompt cache of 0.5 GB comes on top of the peak, and of the file with its cache."""
    ask_rows(root, [chat("0", "yes")])
    for name, field in (("window", "attention.sliding_window"), ("state", "wkv.head_size")):
        gguf(root, name, **{f"llama.{field}": 64})
    unknown = {"window": Model(memory=5 * GB), "state": Model(memory=None)}
    found = judged({"plain": Model(memory=5 * GB)} | unknown, "--memory", "5 GB")["files"]
    cache = 2 * 2 * 32 * CTX  # keys and values of 32 in two bytes
    plain, window, state = (found[name]["memory"] for name in ("plain", "window", "state"))
    assert (plain["kv_cache_bytes"], plain["prompt_cache_bytes"]) == (cache, GB // 2)
    assert plain["predicted_bytes"] == round((found["plain"]["bytes"] + cache) * 1.1) + GB // 2
    assert plain["total_bytes"] == 5 * GB + GB // 2
    assert (window["predicted_bytes"], state["predicted_bytes"]) == (None, None)
    assert window["total_bytes"] == plain["total_bytes"]
    assert [one["fits"] for one in (plain, window, state)] == [False, False, None]
    larger = judged({"plain": Model(memory=5 * GB)} | unknown, "--memory", "6 GB")
    assert [one["memory"]["fits"] for one in larger["files"].values()] == [True, True, None]
    assert any("whether state fits" in note for note in larger["verdict"]["notes"])


def test_vocabularies_are_compared_by_their_tokens(judged: Callable[..., Report], root: Path) -> None:
    ask_rows(root, [chat("0", "yes")])
    reference = gguf(root, "reference", tokenizer__ggml__tokens=["a", "bc"])
    for name in "ab":
        gguf(root, name, tokenizer__ggml__tokens=["ab", "c"])
    found = judged(dict.fromkeys("ab", Model()), "--reference", reference)["files"]
    assert all("vocabulary" in one["divergence"]["not_measured"] for one in found.values())


def test_answers_are_kept_by_bytes_and_settings(
    judged: Callable[..., Report], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_rows(root, [chat("0", "yes")])

    def asked(*names: str, options: Sequence[object] = ()) -> int:
        return len(judged(dict.fromkeys(names, Model()), *options)["asked"])

    assert asked("a", "b") == 2
    assert asked("a", "b") == 0
    (root / "a.gguf").rename(root / "renamed.gguf")
    assert asked("renamed", "b") == 0
    assert asked("other", "b") == 1
    assert asked("b", "renamed", options=("--ctx-size", CTX - 1)) == 2
    build(monkeypatch, "2")
    assert asked("renamed", "b") == 2
    settings = {"evaluate": {"scorers": ["exact_match"], "max_new_tokens": 9}}
    (root / "params.yaml").write_text(yaml.safe_dump(settings))
    assert asked("renamed", "b") == 2


# ---- the rows


def kept(root: Path, key: str) -> list[set[str]]:
    """Return the values that each file's answers have for a key: "id", or "row", the hash of the row."""
    return [{row[key] for row in read_rows(file)} for file in (root / "reports/judge").glob("*.jsonl")]


def test_rows_are_those_of_any_chat_file(judged: Callable[..., Report], root: Path) -> None:
    rows = [chat("a", "b"), chat("only asked", "x", "y"), chat("c", "d", id="mine"), {"kind": "text"}]
    ask_rows(root, rows)
    judged({"a": Model(), "b": Model()})
    assert kept(root, "id") == [{"line-1", "mine"}] * 2


def called(**call: Any) -> dict[str, Any]:
    """A chat in which a tool is called, and answers."""
    ask, answer = chat("Weather?", "Rain.")["messages"]
    turn = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", **call}]}
    return {"messages": [ask, turn, {"role": "tool", "content": "rain"}, answer]}


def test_tools_as_the_text_of_an_empty_list_and_an_id_of_null_are_none(
    judged: Callable[..., Report], root: Path
) -> None:
    """As tables that were exported have them."""
    ask_rows(root, [chat("Hi", "Hello", id=None, tools="[]")])
    asked = judged({"a": Model(), "b": Model()})["asked"]
    assert kept(root, "row") == [{json_hash(chat("Hi", "Hello", id="line-1"))}] * 2
    assert asked[0]["messages"] == [{"role": "user", "content": "Hi"}]
    assert "tools" not in asked[0]


@pytest.mark.parametrize("arguments", ['{"city": "Paris"}', {"city": "Paris"}])
def test_calls_of_tools_are_read_as_curate_reads_them(
    judged: Callable[..., Report], root: Path, arguments: Any
) -> None:
    """OpenAI's form has the arguments as text, which a request has too; a row is known by the object."""
    row = called(id="c1", function={"name": "weather", "arguments": arguments})
    ask_rows(root, [row | {"tools": [{"name": "weather"}]}])
    asked = judged({"a": Model(), "b": Model()})["asked"][0]
    assert asked["messages"][1]["content"] == ""
    (call,) = asked["messages"][1]["tool_calls"]
    assert (call["id"], call["function"]) == ("c1", {"name": "weather", "arguments": '{"city": "Paris"}'})
    assert asked["tools"] == [{"type": "function", "function": {"name": "weather"}}]


def test_rows_of_data_final_stay_as_they_are(judged: Callable[..., Report], root: Path) -> None:
    """Answers are kept by the hash of their row."""
    function = {"name": "weather", "arguments": {"city": "Paris"}}
    row = {"id": "a", "kind": "chat", "domain": "d", **called(function=function, id="c1")}
    row["messages"][1] |= {"content": "", "train": False, "reasoning_content": "Hm."}
    row["messages"][2] |= {"tool_call_id": "c1", "name": "weather"}
    row |= {"tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}]}
    ask_rows(root, [row])
    judged({"a": Model(), "b": Model()})
    assert kept(root, "row") == [{json_hash(row)}] * 2


@pytest.mark.parametrize(
    "row",
    [
        {"text": "no chat"},
        {"messages": []},
        {"messages": [{"role": "user"}, 3]},
        {"messages": [{"role": "user", "content": None}, {"role": "assistant", "content": "x"}]},
        chat("asked", "x", "y"),
        called(),
        called(function={"arguments": {}}),
        called(function={"name": "f", "arguments": "{no JSON"}),
        called(function={"name": "f", "arguments": [1]}),
        chat("asked", "x", tools=[3]),
    ],
)
def test_a_line_that_is_no_chat_is_named(
    judged: Callable[..., Report], root: Path, row: dict[str, Any]
) -> None:
    ask_rows(root, [row])
    judged({"a": Model(), "b": Model()}, refused="Q-JUDGE-006")


def test_whatever_curate_reads_can_be_asked_and_the_rest_is_counted(
    judged: Callable[..., Report], root: Path
) -> None:
    """By the mappings of params.yaml, which do not hold for data/final."""
    mine = root / "mine.csv.gz"
    mine.write_bytes(gzip.compress(b"Question,Command\nList.,ls\nNothing.,\nWhere?,pwd\n"))
    (root / "data/guard").mkdir(parents=True, exist_ok=True)
    (root / "data/guard/mine.py").write_text(
        "def f(row):\n    return row | {'question': row['question'] + '!'}\n"
    )
    params = yaml.safe_load((root / "params.yaml").read_text())
    mapped = {"fields": {"mine*": {"user": "Question", "assistant": "Command"}}}
    params["curate"] = params.get("curate", {}) | mapped | {"transform": "python:mine.py:f"}
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    found = judged({"a": Model(), "b": Model()}, "--data", mine)
    assert found["rows"] == 2
    assert [request["messages"][0]["content"] for request in found["asked"][:2]] in (
        ["List.!", "Where?!"],
        ["Where?!", "List.!"],
    )
    ask_rows(root, [chat("0", "yes"), {"text": "no chat"}])
    assert judged({"a": Model(), "b": Model()})["rows"] == 1


# ---- the page


@pytest.mark.parametrize(
    ("third", "order"),
    [
        ({}, [1, 2]),
        ({"c": Model(["no", "no", "no"])}, [0, 1, 2]),
        # of those that fit, which can't be told apart, the first row says nothing
        ({"c": Model(["no", "no", "no"], memory=HUGE)}, [1, 2, 0]),
    ],
)
def test_rows_that_lie_furthest_apart_come_first(
    drawn: Callable[..., Report], root: Path, third: dict[str, Model], order: list[int]
) -> None:
    ask_rows(root, [chat(str(place), "yes yes", id=f"r{place}") for place in range(3)])
    two = {"a": Model(["yes yes", "yes yes", "yes yes"]), "b": Model(["yes yes", "no", "yes x x x"])}
    drawn(two | third, "--scorer", "rouge_l")
    text = Page((root / "reports/judge.html").read_text()).text
    places = {number: text.find(f"Row r{number}") for number in range(3)}
    assert sorted((at for at in places if places[at] >= 0), key=places.__getitem__) == order


def test_the_page_is_whole_and_escapes_what_models_say(drawn: Callable[..., Report], root: Path) -> None:
    report = drawn({"a": Model(), "b": Model(["<script>x", *WRONG[1:]])})
    page = Page((root / "reports/judge.html").read_text())
    assert report["verdict"]["sentence"] in page.text
    assert "<script>x" in page.text  # as text
    assert all(tag != "script" for tag, _ in page.tags)
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert ids >= {"files", "pairs", "answers"}
