"""The live page: what the server gives to whom, and in a real Chromium how curves grow without a reload."""

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from html_page import Page, assert_accessible
from make import until
from needed import need
from training_logs import eval_row, step_row
from watched_runs import ODD, SAMPLE, append, at_work, demo_run, rewarded, sampled, watched, write_run

from pipeline.extras.watch.live import LivePage

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REPORT = """<!doctype html><html lang="en"><head><title>Report</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'sha256-abc='">
</head><body><header><h1>Ship nothing</h1></header><main><section><h2 id="levels">Levels</h2></section></main>
</body></html>"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_run(tmp_path / ODD, sampled(demo_run()[:26]))


@pytest.fixture
def page(root: Path) -> Iterator[LivePage]:
    page = LivePage(watched(root))
    page.serve_aside()
    yield page
    page.close()


def got(url: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer."""
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, "", {}


def news(page: LivePage, begun: int = -1, step: int = -1, evaluated: int = -1) -> dict[str, Any]:
    return json.loads(got(f"{page.url}news.json?begun={begun}&step={step}&evaluated={evaluated}")[1])


def points(found: dict[str, Any], key: str, kind: str = "trained") -> list[list[float]]:
    return next(curve[kind] for curve in found["curves"] if curve["key"] == key)


def test_only_what_is_new_is_sent(page: LivePage, root: Path) -> None:
    first = news(page)
    assert len(points(first, "loss")) == 25 and points(first, "loss", "held_out") == [[25, 0.094]]
    assert first["evaluations"][0]["samples"][0]["answer"] == SAMPLE["answer"]
    append(root, step_row(26, 0.5), eval_row(26, 0.25))
    second = news(page, first["begun"], first["step"], first["evaluated"])
    assert points(second, "loss") == [[26, 0.5]] and points(second, "loss", "held_out") == [[26, 0.25]]
    assert len(points(news(page, first["begun"] - 1, 26, 26), "loss")) == 26


def test_nobody_else_is_answered(page: LivePage) -> None:
    assert got(page.url)[0] == 200
    assert got(f"http://127.0.0.1:{page.port}/")[0] == 404
    assert got(f"http://127.0.0.1:{page.port}/guess/news.json")[0] == 404
    assert got(page.url, Host="attacker.example:80")[0] == 404
    assert got(f"{page.url}news.json?begun=x")[0] == 400
    assert got(f"{page.url}../steps.jsonl")[0] == 404
    assert page.server.server_address[0] == "127.0.0.1"


def test_without_a_report_the_page_is_the_training_alone(page: LivePage) -> None:
    _, html, headers = got(page.url)
    assert "There is no report yet" in html and 'id="live-plots"' in html
    assert "my #1 [bold]project" in html
    assert_accessible(Page(html))
    assert "connect-src 'self'" in headers["Content-Security-Policy"]


def test_the_report_is_served_with_the_training_before_it(page: LivePage, root: Path) -> None:
    (root / "reports").mkdir()
    (root / "reports/index.html").write_text(REPORT)
    _, html, headers = got(page.url)
    assert html.index("Ship nothing") < html.index('id="live-plots"') < html.index("Levels")
    assert "<meta http-equiv" not in html and "'sha256-abc='" in headers["Content-Security-Policy"]
    assert news(page)["page"]


# --- in a browser -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip(need("chromium"))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desktop", "phone"])
def test_curves_grow_without_a_reload(
    browser: Any, page: LivePage, root: Path, width: int, height: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height})
    tab = context.new_page()
    said: list[str] = []
    loads: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("load", lambda: loads.append(tab.url))
    with at_work(root):
        tab.goto(page.url)
        tab.wait_for_selector("#live-plots figure polyline.trained")
        assert "training · step 25" in tab.locator("#live-headline").inner_text()
        before = tab.locator("polyline.trained").first.get_attribute("points")
        append(root, step_row(26, 0.5), eval_row(26, 0.25) | {"samples": [SAMPLE]})
        until(lambda: "step 26" in tab.locator("#live-headline").inner_text())
        assert tab.locator("polyline.trained").first.get_attribute("points") != before
        assert tab.locator("#live-answers article").count() == 2
        assert tab.locator("#live-answers b").count() == 0  # A model's markup is text.
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.locator("#live-plots svg[role=img]").count() == 5
        write_run(root, rewarded(4), method="grpo")  # Another run has taken the folder.
        until(lambda: "step 4" in tab.locator("#live-headline").inner_text())
        assert tab.locator("#live-plots figcaption strong").first.inner_text() == "Reward"
        write_run(root, demo_run()[:5])
        until(lambda: "step 5" in tab.locator("#live-headline").inner_text())
        assert tab.locator("#live-plots svg[role=img]").count() == 5
        assert tab.locator("#live-answers article").count() == 0
    (root / "reports").mkdir()
    (root / "reports/index.html").write_text(REPORT)
    until(lambda: tab.locator("#live-report").is_visible())
    assert (said, len(loads)) == ([], 1)
    context.close()
