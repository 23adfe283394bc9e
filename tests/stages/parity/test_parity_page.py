"""parity_page, its words and its drawings: every parity check is shown with its verdict, none as better than
it is, and the page loads nothing.
"""

import re
from collections.abc import Callable
from typing import Any

import adapter_inputs
import pytest
import tuned_inputs
from golden import Golden, changed_lines
from html_page import Page, assert_accessible, lines_of
from parity_inputs import check, failed_report, merge_report, outputs, parity_report

from pipeline.pages.parity_summary import code, counts, grouped
from pipeline.stages.parity.page import render_parity_page

FULL = parity_report("full")
EMPTY: dict[str, Any] = {"verdict": "pass", "checks": {}}


def lines(report: dict[str, Any], merge: dict[str, Any] | None = None) -> str:
    return lines_of(render_parity_page(report, merge))


@pytest.mark.parametrize("report", [FULL, parity_report("quick"), failed_report(), EMPTY])
def test_the_page_is_whole_accessible_and_loads_nothing(report: dict[str, Any]) -> None:
    html = render_parity_page(report, merge_report())
    page = Page(html)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert not re.findall(r"https?:|@import|src=|url\((?!#)", html)
    assert "default-src 'none'" in html
    assert_accessible(page)
    assert "None" not in page.text.replace("None: every", "").replace("None of 0", "")
    assert render_parity_page(report, merge_report()) == html


PAGES = {
    "merged": lambda: lines(FULL, merge_report()),
    "adapter": lambda: lines(adapter_inputs.parity()),
    "tuned": lambda: lines(tuned_inputs.parity()),
}


@pytest.mark.parametrize("name", PAGES)
def test_every_check_with_all_that_is_known_of_it(name: str, snapshot: Any) -> None:
    assert PAGES[name]() == snapshot(extension_class=Golden)


def with_check(report: dict[str, Any], key: str, **changed: Any) -> dict[str, Any]:
    """The report with other values of one check."""
    return report | {"checks": report["checks"] | {key: report["checks"][key] | changed}}


CAUSE = "The adapter's GGUF is of another run."
SERVED = with_check(adapter_inputs.parity(), "outputs_served", verdict="fail", cause=CAUSE)
CHANGED: dict[str, Callable[[], str]] = {
    "quick": lambda: changed_lines(lines(FULL), lines(parity_report("quick"))),
    "failed": lambda: changed_lines(lines(FULL), lines(failed_report())),
    "warned": lambda: changed_lines(
        lines(FULL), lines(with_check(FULL, "outputs_q4_k_m", verdict="warn", figure=1.09))
    ),
    "failed without a check": lambda: changed_lines(lines(FULL), lines(FULL | {"verdict": "fail"})),
    "empty": lambda: lines(EMPTY),
    "one check": lambda: lines(
        {"verdict": "pass", "checks": {"weights_merged": FULL["checks"]["weights_merged"]}}
    ),
    "adapter failed": lambda: changed_lines(
        lines(adapter_inputs.parity()), lines(SERVED | {"verdict": "fail"})
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_said_otherwise(name: str, snapshot: Any) -> None:
    assert CHANGED[name]() == snapshot(extension_class=Golden)


def test_the_first_to_fail_is_the_first_on_the_way() -> None:
    report = failed_report()
    report["checks"] = dict(reversed(report["checks"].items()))
    assert f"first that failed is “{report['checks']['weights_gguf']['title']}”" in lines(report)
    assert counts(report["checks"]) == {"fail": 2, "warn": 0, "not measured": 1, "pass": 16}
    assert list(grouped(report["checks"])) == ["Text", "Tokens", "Weights", "Outputs", "Behavior"]
    assert list(grouped({"odd": check("Odd", "", 1.0, 2.0, "", "pass", "")})) == ["Other"]


def test_the_chain_marks_what_failed_and_what_is_open() -> None:
    html = render_parity_page(failed_report(), merge_report())
    steps = [attributes.get("class") for tag, attributes in Page(html).tags if tag == "li"]
    assert (steps.count("fail"), steps.count("not-measured")) == (1, 1)  # the adapter's own GGUF is open


def test_divergences_are_drawn_on_a_logarithmic_scale_with_their_limits() -> None:
    klds = {"outputs_a": 1e-6, "outputs_b": 1e-4, "outputs_c": 1e-2, "outputs_d": 0.0}
    report = {"verdict": "pass", "checks": {key: outputs(key, kld, 1e-3) for key, kld in klds.items()}}
    drawing = render_parity_page(report, None)
    dots = [float(x) for x in re.findall(r'id="divergences-figure-\d".*?<use [^>]*x="(\S+)"', drawing)]
    assert dots[1] - dots[0] == pytest.approx(dots[2] - dots[1], abs=0.2)
    assert dots[3] < dots[0]
    (limit,) = set(re.findall(r'id="divergences-tip-\d"><title>limit 0.001.*?<use [^>]*x="(\S+)"', drawing))
    assert dots[1] < float(limit) < dots[2]
    assert "divergences-figure" not in render_parity_page(parity_report("quick"), None)


def test_code_between_backticks_and_everything_escaped() -> None:
    assert code("run `<b>` & `c`") == "run <code>&lt;b&gt;</code> &amp; <code>c</code>"
    assert code("odd ` <i>") == "odd ` &lt;i&gt;"
