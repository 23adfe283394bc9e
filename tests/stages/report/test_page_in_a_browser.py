"""reports/index.html in a real Chromium, as a reader uses it: by mouse, by keyboard, narrow, dark, on paper,
without JavaScript.
"""

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import adapter_inputs
import pytest
from html_page import Page, assert_accessible
from needed import need
from parity_inputs import check, parity_report
from report_inputs import answers, demo_params, evaluation, put, write_inputs

from pipeline.stages.report import stage

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=need("chromium"))
PAPER = {"width": 1032, "height": 720}  # A4 landscape inside its margins, in CSS pixels
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `report_inputs`."""
    root = write_inputs(tmp_path_factory.mktemp("page"))
    stage.main(demo_params(), root)
    return root / "reports" / "index.html"


@pytest.fixture
def page(browser: Any, file: Path) -> Iterator[Any]:
    yield from opened(browser, file)


@pytest.fixture
def unfolded(page: Any) -> Any:
    """The page with all of its sections unfolded."""
    unfold(page)
    return page


def unfold(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def opened(browser: Any, file: Path, place: str = "", **options: Any) -> Iterator[Any]:
    """The page, scrolled to a place, in a separate context; any console message or network request fails the
    test.
    """
    context = browser.new_context(viewport=WIDE, **options)
    page = context.new_page()
    output: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: output.append(message.text))
    page.on("pageerror", lambda error: output.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{file.as_uri()}{place}")
    yield page
    context.close()
    assert output == []
    assert asked == [file.as_uri()]


def column(page: Any, number: int) -> list[str]:
    """The models' names in the table of levels, or another of its columns, from top to bottom."""
    return list(
        page.eval_on_selector_all(
            "table.levels tbody tr", "(rows, n) => rows.map((row) => row.cells[n].dataset.value)", number
        )
    )


SIZE = 2  # the column of the file's size


def test_the_table_sorts_by_mouse(unfolded: Any) -> None:
    page = unfolded
    measured = column(page, 0)
    head = page.locator("table.levels thead th", has_text="size")
    for order in ("ascending", "descending"):
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == order
        sizes = [int(size) for size in column(page, SIZE)]
        assert sizes == sorted(sizes, reverse=order == "descending")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") is None
    assert column(page, 0) == measured


def test_the_table_sorts_by_keyboard(unfolded: Any) -> None:
    page = unfolded
    button = page.locator("table.levels thead th", has_text="Model").get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    assert column(page, 0) == ["base-F16", "base-Q4_K_M", "base-Q5_K_M", "F16", "Q4_K_M", "Q5_K_M"]
    page.keyboard.press("Space")
    assert column(page, 0)[0] == "Q5_K_M"
    for _ in range(2):  # what the gate does not judge is last, either way
        page.locator("table.levels thead th", has_text="gate").get_by_role("button").click()
        assert column(page, 1) == ["pass", "pass", "pass", "", "", ""]


def status(page: Any) -> str:
    return str(page.locator("#browser-status").text_content())


def test_the_answers_are_filtered_and_turned(unfolded: Any) -> None:
    page = unfolded
    assert status(page) == "Row 1 of 3: pydoc-0000 · text"
    page.locator("#browser-which").select_option("all")
    assert status(page).startswith("Row 1 of 64")
    page.locator("#browser-domain").select_option("files")
    assert status(page) == "Row 1 of 24: pydoc-0005 · files"
    page.locator("#browser-domain").select_option("")
    page.locator("#browser-which").select_option("apart")
    page.locator("#browser-first").select_option("F16")
    page.locator("#browser-second").select_option("Q5_K_M")
    assert status(page) == "Row 1 of 1: pydoc-0002 · text"
    heads = page.locator("#browser-row .answer h4").all_text_contents()
    assert heads == ["Reference", "F16✓ 100.0", "Q5_K_M60.0"]
    assert "Escape" in "".join(page.locator("#browser-row mark").all_text_contents())
    assert "<script>alert('y')</script>" in page.locator("#browser-row").text_content()
    page.locator("#browser-first").select_option("Q4_K_M")
    page.locator("#browser-second").select_option("Q4_K_M")
    assert status(page).startswith("No row is like this")


def test_the_answers_are_turned_by_keyboard(unfolded: Any) -> None:
    page = unfolded
    page.locator("#browser-which").select_option("all")
    page.locator("#browser-row").focus()
    right = "ArrowRight"
    for key, row in ((right, 2), (right, 3), ("ArrowLeft", 2), ("End", 64), (right, 64), ("Home", 1)):
        page.keyboard.press(key)
        assert status(page).startswith(f"Row {row} of 64"), key
    assert page.locator("#browser-back").is_disabled()


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "unfolded"])
def test_tab_reaches_every_control_and_every_scrolling_region(page: Any, folded: bool) -> None:
    if not folded:
        unfold(page)
    wanted = page.evaluate("""() => {
        const all = [...document.querySelectorAll("a[href], button, select, summary, [tabindex='0']")]
            .filter((one) => one.checkVisibility() && !one.disabled);
        all.forEach((one, number) => { one.dataset.stop = number; });
        return all.length;
    }""")
    reached = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.stop"))
    assert reached - {None} == {str(number) for number in range(wanted)}
    overflowing = """[...document.querySelectorAll('body *')].filter((one) =>
        ['auto', 'scroll'].includes(getComputedStyle(one).overflowX) && one.checkVisibility() && one.tabIndex < 0).length"""  # noqa: E501
    assert page.evaluate(overflowing) == 0


def test_the_focus_is_seen(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    section = page.evaluate("document.activeElement.closest('section').getAttribute('aria-labelledby')")
    assert section == "overview"


CONTRAST = """() => {
    const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = (color) => {
        const [r, g, b] = numbers(color).map((one) => one / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (one) => {
        for (; one; one = one.parentElement) {
            const color = getComputedStyle(one).backgroundColor;
            if (!/, 0\\)$/.test(color) && color !== "transparent") return color;
        }
        return "rgb(255, 255, 255)";
    };
    const found = [];
    for (const one of document.querySelectorAll("body *")) {
        if (![...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) || !one.checkVisibility()) continue;
        if (["SCRIPT", "STYLE", "TITLE", "DESC"].includes(one.tagName.toUpperCase()) || one.disabled) continue;
        const style = getComputedStyle(one);
        const [a, b] = [light(one.closest("svg") ? style.fill : style.color), light(behind(one))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) found.push(`${one.tagName} ${one.className} "${one.textContent.trim().slice(0, 30)}" ${ratio.toFixed(2)}`);
    }
    return found;
}"""  # noqa: E501


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_themes(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == (scheme == "dark")
    assert page.evaluate(CONTRAST) == []
    unfold(page)
    assert page.evaluate(CONTRAST) == []


def test_on_paper_nothing_is_cut_or_folded(page: Any) -> None:
    page.set_viewport_size(PAPER)
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
    cut = """[...document.querySelectorAll('body *')].filter((one) => one.checkVisibility() && getComputedStyle(one).overflowX !== 'visible'
        && (one.scrollHeight > one.clientHeight + 2 || one.scrollWidth > one.clientWidth + 2) && !one.matches('.screen-reader-only')
    ).map((one) => one.outerHTML.slice(0, 80))"""  # noqa: E501
    assert page.evaluate(cut) == []
    assert page.locator("#plain-rows").is_visible()
    assert not page.locator("#browser").is_visible()
    folded = (
        "[...document.querySelectorAll('details > :not(summary, script, #browser)')].filter((one) => "
        "!one.checkVisibility({contentVisibilityAuto: true})).length"
    )
    assert page.evaluate(folded) == 0
    assert page.evaluate(CONTRAST) == []
    assert page.pdf(format="A4", landscape=True)[:4] == b"%PDF"


def test_without_javascript_it_is_a_plain_page(browser: Any, file: Path) -> None:
    for page in opened(browser, file, java_script_enabled=False):
        page.locator("summary", has_text="Answers side by side").click()
        assert page.locator("#plain-rows article").count() == 3
        assert page.locator("#plain-rows").is_visible()
        assert not page.locator("#browser").is_visible()
        assert page.locator("button:visible").count() == 0
        page.locator("summary", has_text="All figures of every level").click()
        assert page.locator("table.levels tbody tr").count() == 6


def whole(page: Any) -> None:
    """Check what holds for any page: nothing sticks out, headings are in order, drawings have words."""
    for fold in (lambda _: None, unfold):
        fold(page)
        for size in (NARROW, PHONE, WIDE):
            page.set_viewport_size(size)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert_accessible(Page(page.content()))
    seen = "(all) => all.filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1]))"
    levels = page.eval_on_selector_all("h1, h2, h3, h4", seen)
    assert levels[0] == levels.count(1) == 1
    assert all(level <= before + 1 for before, level in pairwise(levels))
    words = (
        "(all) => all.map((one) => [one.children[0].textContent.trim(), one.children[1].textContent.trim()])"
    )
    drawings = page.eval_on_selector_all("svg[role=img]", words)
    assert len(drawings) == page.locator("svg").count()
    assert all(title and description for title, description in drawings)
    assert page.locator("main").count() == page.locator("h1").count() == 1
    assert page.locator("[role=region]:not([aria-label]):not([aria-labelledby])").count() == 0


def test_the_page_is_whole(page: Any) -> None:
    whole(page)


def height(page: Any, size: dict[str, int]) -> float:
    """The page's height in screens."""
    page.set_viewport_size(size)
    return float(page.evaluate("document.documentElement.scrollHeight")) / size["height"]


def test_what_is_wanted_first_is_on_the_first_two_screens(page: Any) -> None:
    assert height(page, DESKTOP) < 3.5
    parts = ("h1", "#before-after", "#loss-curve", "#overview", "#talk", "#next")
    tops = [page.locator(part).bounding_box()["y"] for part in parts]
    assert tops == sorted(tops)
    end = page.locator("section[aria-labelledby=next]").bounding_box()
    assert end["y"] + end["height"] <= 2 * DESKTOP["height"]
    assert page.locator(".example").count() == 3
    assert height(page, PHONE) < 5


def is_open(page: Any, place: str) -> bool:
    """Return True if what the place names, or heads, is unfolded and on the screen."""
    return bool(
        page.evaluate(
            """(place) => {
                const one = document.querySelector(place);
                const fold = one.closest("details");
                const inside = one.closest("summary") ? fold.lastElementChild : one;
                const top = one.getBoundingClientRect().top;
                // It scrolls by whole pixels.
                return inside.checkVisibility() && top > -1 && top < innerHeight;
            }""",
            place,
        )
    )


@pytest.mark.parametrize("scripts", [True, False], ids=["with JavaScript", "without"])
@pytest.mark.parametrize("place", ["#general", "#command-train"])
def test_a_link_from_elsewhere_unfolds_its_place(browser: Any, file: Path, place: str, scripts: bool) -> None:
    for page in opened(browser, file, place, java_script_enabled=scripts):
        assert is_open(page, place)
        assert not is_open(page, "#speed")


def test_a_link_on_the_page_unfolds_its_place_again_and_again(page: Any) -> None:
    link = page.locator("section[aria-labelledby=overview] a[href='#gate']").first
    for _ in range(2):
        link.click()
        assert is_open(page, "#gate")
        page.locator("summary", has_text="The gate").click()
        assert not is_open(page, "#gate")


# sections whose figures come from several `evaluate`s
EVALUATED = ("overview", "levels", "gate", "task", "quantizing", "general", "speed")
UNTRACED = """(sections) => {
    const traced = (one) => Boolean(one && one.querySelector("a[href^='#command-']"));
    const found = [...document.querySelectorAll("dl.tiles > div, .fold:not([aria-labelledby=commands]) > details, .front:has(svg, td.num, .example) > header")].filter((one) => !traced(one));
    for (const name of sections)
        for (const cell of document.querySelectorAll(`section[aria-labelledby=${name}] td.num`)) {
            const heads = [...cell.closest("table").tHead.rows].pop().cells;
            if (!traced(cell.parentElement.querySelector("th")) && ![...heads].some(traced)) found.push(cell);
        }
    return found.map((one) => one.textContent);
}"""  # noqa: E501


def test_every_figure_links_to_the_command_that_made_it(page: Any) -> None:
    assert page.evaluate(UNTRACED, list(EVALUATED)) == []


@pytest.mark.parametrize("distill", [False, True], ids=["tuned", "recovered"])
def test_the_page_of_an_adapter_that_is_not_merged_is_whole_too(
    browser: Any, tmp_path: Path, distill: bool
) -> None:
    adapter_inputs.write_reports(tmp_path, distill=distill)
    stage.main(adapter_inputs.params(distill=distill), tmp_path)
    for page in opened(browser, tmp_path / "reports" / "index.html"):
        whole(page)
        assert page.locator("h1").inner_text() == "Ship adapter"
        assert page.locator("table.levels tbody tr").count() == 3
        assert page.locator("#distillation").count() == distill
        assert page.evaluate(UNTRACED, [*EVALUATED, "distillation"]) == []
        assert page.evaluate(CONTRAST) == []


# ---- other projects than the demo


def project(root: Path, models: tuple[str, ...], *, task: bool = True, odd: bool = False) -> Path:
    """Inputs of these models, each with the figures of a level that `report_inputs` knows; gives the page."""
    write_inputs(root)
    for found in (root / "reports" / "eval").iterdir():
        found.unlink()
    checks = parity_report()
    for model in models:
        like = ("base-" if model.startswith("base-") else "") + ("F16" if model.endswith("F16") else "Q4_K_M")
        figures, rows = evaluation(like) | {"model": model}, answers(like)
        figures["bytes"] += 3_000_000 * models.index(model)
        if not task:
            kept = ("model", "reference", "file", "sha256", "bytes", "kld_mean", "same_top", "perplexity")
            kept += ("tensors", "fallback_tensors", "bits_per_weight", "all_tokens", "ctx_size")
            figures = {key: figures[key] for key in kept} | {"task": None}
        if odd:
            for row, text in zip(rows, ODD, strict=False):
                row |= {"answer": text + model, "domain": text[:40], "id": text[:60]}
                row |= {"reference": text, "prompt": text}
            del rows[len(ODD) :]
        put(root / "reports" / "eval" / f"{model}.json", figures)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (root / "reports" / "eval" / f"{model}.answers.jsonl").write_text("".join(lines), encoding="utf-8")
        checked = check(f"Weights of {model}", "", 0.0, 0.0, "", "pass", "")
        checks["checks"][f"weights_{model.lower().replace('-', '_')}"] = checked
    put(root / "reports" / "parity.json", checks)
    params = demo_params()
    evaluate = params.evaluate.model_copy(update={"models": list(models)})
    stage.main(params.model_copy(update={"evaluate": evaluate}), root)
    return root / "reports" / "index.html"


ODD = [
    "</script><script>document.title = 'taken over'</script><!-- <img src=x onerror=alert(1)>",
    "\u202eאבג שלום עולם مرحبا بالعالم",
    "😀👩‍👩‍👧‍👦🏳️‍🌈" * 40,
    "W" * 6000,
    "a\u2028b\u2029c\x00\x1b[31m </textarea></style>{{ 7 * 7 }}{% raw %}",
]
MANY = ("base-F16", "F16", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_K_S", "Q4_K_M", "Q5_0", "Q5_K_M")
MANY += ("Q6_K", "Q8_0", "Q4_K_M-imatrix")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "options"),
    [
        # older or sparse reports: all but the least is missing
        (("base-F16", "F16", "Q4_K_M"), {"task": False}),
        (("F16",), {}),
        (("F16", "Q4_K_M"), {}),  # no base
        (MANY, {}),
        (("base-F16", "F16", "Q4_K_M"), {"odd": True}),
    ],
    ids=["no-task", "one-level", "no-base", "twelve-levels", "odd-answers"],
)
def test_other_projects_have_whole_pages_too(
    browser: Any, tmp_path: Path, models: tuple[str, ...], options: dict[str, bool]
) -> None:
    file = project(tmp_path, models, **options)
    assert file.stat().st_size < 5_000_000
    for page in opened(browser, file):
        assert "taken over" not in page.title()
        whole(page)
        text = page.locator("main").inner_text()
        assert "None" not in text
        page.set_viewport_size(PAPER)
        page.emulate_media(media="print")
        assert page.evaluate("document.documentElement.scrollWidth") <= PAPER["width"]
