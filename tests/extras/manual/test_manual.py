"""The manual as a site: complete, built strictly, readable without a network, served on the loopback."""

import importlib.util
import re
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import needed
import pytest
from make import quench
from verbs import verb_names

from pipeline.config.params import Params
from pipeline.config.sections.values import keys_of
from pipeline.core.catalog import catalog
from pipeline.core.errors import ToolError
from pipeline.core.places import PROJECT
from pipeline.extras.manual import site
from pipeline.extras.manual.schema import figures, words_of
from pipeline.gate.records import Base
from pipeline.workflow.stages import table

GENERATOR = needed.need("zensical")
installed = pytest.mark.skipif(importlib.util.find_spec(site.GENERATOR) is None, reason=GENERATOR)


@pytest.fixture(scope="module")
def manual() -> site.Manual:
    return site.manual()


@pytest.fixture(scope="module")
def built() -> Path:
    """The site, built strictly: a link to a page or a heading that is missing would be an error."""
    return site.built_site().parent


def text(manual: site.Manual, page: str) -> str:
    return manual.pages[page].decode("utf-8")


def test_every_page_of_docs_is_in_the_navigation_once(manual: site.Manual) -> None:
    listed = [page for pages in manual.groups.values() for page in pages]
    assert sorted(["index.md", *listed]) == sorted(page for page in manual.pages if page.endswith(".md"))
    assert {file.name for file in (PROJECT / "docs").glob("*.md")} <= set(listed)


def test_every_setting_has_a_heading_with_its_default(manual: site.Manual) -> None:
    page = text(manual, "settings.md")
    headings = re.findall(r"^#+ ([\w.]+) \{ #([\w-]+) \}$", page, re.MULTILINE)
    assert [name for name, _ in headings] == [".".join(place) for place, _ in keys_of(Params)]
    assert len({anchor for _, anchor in headings}) == len(headings)
    assert "### train.r { #train-r }" in page and "Default: `16`" in page.partition("### train.r {")[2][:200]


def test_every_command_has_a_heading_and_its_example(manual: site.Manual) -> None:
    page = text(manual, "commands.md")
    headings = re.findall(r"^#+ quench (.*)$", page, re.MULTILINE)
    assert set(verb_names()) <= set(headings)
    section = page.partition("\n### quench doctor docs\n")[2].partition("\n#")[0]
    assert "quench doctor docs --open" in section and "| `--write DIR` |" in section


def test_every_error_can_be_linked_to(manual: site.Manual) -> None:
    page = text(manual, "troubleshooting.md")
    assert [id for id in catalog() if f'id="{id.lower()}"' not in page] == []


def test_every_stage_has_a_page_with_files_settings_checks_and_figures(manual: site.Manual) -> None:
    assert list(manual.groups["Stages"]) == [f"stages/{name}.md" for name in table().stages]
    train = text(manual, "stages/train.md")
    assert "| reads | `data/tokens` |  | [preprocess](preprocess.md) |" in train
    assert "| [`base.quantization`](../settings.md#base-quantization) | `nf4` |" in train
    assert "| `preferences.accuracy` | number from 0 to 1 |" in train
    raised = re.findall(r"\(../troubleshooting.md#(q-[\w-]+)\)", train)
    assert "q-train-001" in raised and set(raised) <= {id.lower() for id in catalog()}
    settings = re.findall(r"settings\.md#(compare-\w+)", text(manual, "stages/compare_train.md"))
    assert "compare-seeds" in settings
    assert "train-seed)" not in text(manual, "stages/compare_train.md")  # "train -seed" in its graph


def test_links_lead_to_the_places_of_the_manual(manual: site.Manual) -> None:
    assert "](index.md#what-comes-out)" in text(manual, "tutorial.md")
    assert "](recipes.md#the-demo)" in text(manual, "index.md")
    assert "](LICENSE.txt)" in text(manual, "index.md") and "LICENSE.txt" in manual.pages


def test_kinds_of_values_in_words() -> None:
    schema = Base.model_json_schema()
    assert ("architecture.model_type", "text") in [*figures(schema, schema["$defs"])]
    assert words_of({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, {}) == "`a`, `b` or null"
    assert words_of({"type": "array", "items": {"type": "integer", "minimum": 1}}, {}) == (
        "list of whole number from 1"
    )
    assert words_of({"anyOf": [{}, {"type": "null"}]}, {}) == ""


@installed
def test_the_site_is_whole_and_fetches_nothing(built: Path) -> None:
    pages = sorted(built.rglob("*.html"))
    assert {"index.html", "settings.html", "stages/train.html", "tutorial.html"} <= {
        str(page.relative_to(built)) for page in pages
    }
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(?:https?:)?//[^\s>]*")
    assert [found for page in pages for found in loads.findall(page.read_text(encoding="utf-8"))] == []
    styles = [file.read_text(encoding="utf-8") for file in built.rglob("*.css")]
    assert [found for style in styles for found in re.findall(r"url\(['\"]?(?:https?:)?//[^)]*", style)] == []
    assert "lora_alpha" in (built / "search.json").read_text(encoding="utf-8")
    assert 'data-md-color-scheme="slate"' in (built / "index.html").read_text(encoding="utf-8")


@installed
def test_tables_lists_and_headings_are_those_of_github(built: Path) -> None:
    page = (built / "workflow.html").read_text(encoding="utf-8")
    assert 'id="when-does-a-stage-run"' in page and "<table>" in page and 'href="recipes.html' in page
    assert '<span id="q-core-001">' in (built / "troubleshooting.html").read_text(encoding="utf-8")
    assert not re.search(r"<p>\s*(\||- |\d\. )", page)


@installed
def test_a_broken_link_is_refused_with_its_place(tmp_path: Path) -> None:
    pages = {"index.md": b"# Home\n\n## Here\n", "serving.md": b"# Serving\n\n[gone](index.md#gone)\n"}
    bent = site.Manual(pages, {"All": ["serving.md"]})
    with pytest.raises(ToolError) as error:
        site.build(tmp_path, bent)
    assert error.value.id == "Q-MANUAL-002" and "serving.md:3" in error.value.sentence


@installed
def test_it_is_served_until_it_is_stopped_and_built_once(built: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline.cli", "doctor", "docs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as process:
        try:
            assert process.stdout
            address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
            assert address
            with urllib.request.urlopen(f"{address[0]}stages/train.html") as answer:  # noqa: S310
                assert b"Stage train" in answer.read()
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    done = quench("doctor", "docs", "--write", tmp_path / "my site")
    assert done.exit_code == 0 and (tmp_path / "my site/stages/train.html").is_file()
    assert [path for path in site.KEPT.iterdir() if path.is_dir()] == [built.parent]


@installed
def test_two_that_build_at_once_build_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[Path] = []

    def build(folder: Path, made: site.Manual) -> None:
        builds.append(folder)
        (folder / "site").mkdir(parents=True)
        time.sleep(0.2)

    made = site.manual()  # Python 3.11 can't parse in two threads at once.
    monkeypatch.setattr(site, "manual", lambda: made)
    monkeypatch.setattr(site, "KEPT", tmp_path / "manual")
    monkeypatch.setattr(site, "build", build)
    with ThreadPoolExecutor(2) as both:
        first, second = (both.submit(site.built_site) for _ in range(2))
    assert first.result() == second.result() and len(builds) == 1


def test_a_folder_with_content_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for target in (tmp_path, tmp_path / "mine.txt"):
        done = quench("doctor", "docs", "--write", target)
        assert done.exit_code == 2 and "Q-MANUAL-003" in done.output
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_without_the_generator_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.extras.manual.site.find_spec", lambda name: None)
    done = quench("doctor", "docs")
    assert done.exit_code == 4 and "Q-MANUAL-001" in done.output and "zensical<" in done.output
    assert str(PROJECT / "docs") in done.output
