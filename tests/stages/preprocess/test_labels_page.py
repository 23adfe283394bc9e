"""labels_page: the page shows what is trained, escapes what is said, and loads nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from curating import chat
from html_page import Page, assert_accessible

from pipeline.core.jsonl import write_rows
from pipeline.stages.preprocess.page import render_labels_page
from pipeline.stages.preprocess.stage import preprocess

Made = tuple[dict[str, Any], list[dict[str, Any]]]


def made_of(rows: Path, base: Path, folder: Path) -> Made:
    return preprocess(rows_folder=rows, base=base, tokens_folder=folder, max_length=160, packing=True)


@pytest.fixture(scope="module")
def made(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("tokens") / "tokens"
    return made_of(prepared / "data/final", prepared / "models/base", folder)


def test_the_page_is_whole_and_loads_nothing(made: Made) -> None:
    html = render_labels_page(*made)
    page = Page(html)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in page.tags}
    links = [attributes.get(key) or "" for _, attributes in page.tags for key in ("href", "src")]
    assert not [link for link in links if "//" in link]
    assert_accessible(page)
    train = made[0]["splits"]["train"]
    for words in (
        f"{train['rows']} training rows",
        f"{train['trained_tokens']:,}",
        "You are Qwen, created by Alibaba Cloud",
        "One exchange",
        "None: every row",
    ):
        assert words in page.text
    assert render_labels_page(*made) == html


def test_what_stage_preprocess_wrote_is_that_page(prepared: Path, made: Made) -> None:
    assert (prepared / "reports/labels.html").read_text(encoding="utf-8") == render_labels_page(*made)
    assert json.loads((prepared / "reports/labels.json").read_text(encoding="utf-8")) == made[0]


def test_rejects_and_little_to_learn_are_told(made: Made) -> None:
    stats, samples = json.loads(json.dumps(made))
    train = stats["splits"]["train"]
    train |= {
        "rejected": {"too_long": 90},
        "rejects": {"too_long": [{"row": "<b>x", "why": "9,000 tokens"}]},
        "rows_read": train["rows"] + 90,
    }
    stats |= {"trained_share": 0.01, "template_system_prompt": None, "packing": False}
    page = Page(render_labels_page(stats, samples))
    for words in (
        "of the training rows were left out",
        "hardly anything",
        "90 rows were left out",
        "<b>x in train: 9,000 tokens",
        "The template adds none",
    ):
        assert words in page.text
    assert "packed rows of up to" not in page.text


def test_tokens_are_escaped_marked_and_their_white_space_is_seen(made: Made) -> None:
    def piece(text: str, trained: bool = False, special: bool = False, tokens: int = 1) -> dict[str, Any]:
        return {"text": text, "trained": trained, "special": special, "tokens": tokens}

    trained = piece("🙂", trained=True, tokens=3), piece("<|im_end|>", trained=True, special=True)
    stats, (sample, *_) = made
    shown = sample | {"pieces": [piece("<b> &"), piece("\n\t"), *trained]}
    assert (
        "<i>&lt;b&gt;<u>·</u>&amp;</i><i><u>↵</u>\n<u>→</u>\t</i>"
        '<mark><i title="3 tokens">🙂</i><b>&lt;|im_end|&gt;</b></mark></pre>'
    ) in render_labels_page(stats, [shown])


def test_tokens_that_are_half_a_character_are_shown_together(prepared: Path, tmp_path: Path) -> None:
    rows = Path(shutil.copytree(prepared / "data/final", tmp_path / "final"))
    turns = [{"role": "system", "content": ""}, *chat("👩‍💻 naïve ½", "½ 東")["messages"]]
    write_rows(rows / "train.jsonl", [{"id": "a", "kind": "chat", "messages": turns}])
    _, (sample, *_) = made_of(rows, prepared / "models/base", tmp_path / "tokens")
    found = sample["pieces"]
    turn = "<|im_start|>{}\n{}<|im_end|>\n".format
    shown = turn("system", "") + turn("user", "👩‍💻 naïve ½") + turn("assistant", "½ 東")
    assert "".join(piece["text"] for piece in found) == shown
    assert sum(piece["tokens"] for piece in found) == sample["tokens"]
    assert [piece["text"] for piece in found if piece["special"]] == ["<|im_start|>", "<|im_end|>"] * 3
    assert any(piece["tokens"] > 1 for piece in found)
