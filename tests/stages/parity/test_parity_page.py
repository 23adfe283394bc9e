"""parity_page, its words and its drawings: every parity check is shown with its verdict, none as better than
it is, and the page loads nothing.
"""

import re
from typing import Any

import pytest
from html_page import Page
from parity_inputs import check, failed_report, merge_report, outputs, parity_report

from pipeline.pages.parity_summary import code, counts, first_failed, grouped, sentence, title
from pipeline.stages.parity.chain import chain, divergences
from pipeline.stages.parity.page import render_parity_page


def page_of(report: dict[str, Any], merge: dict[str, Any] | None = None) -> Page:
    return Page(render_parity_page(report, merge))


@pytest.mark.parametrize(
    "report",
    [parity_report("full"), parity_report("quick"), failed_report(), {"verdict": "pass", "checks": {}}],
)
def test_the_page_is_whole_accessible_and_loads_nothing(report: dict[str, Any]) -> None:
    html = render_parity_page(report, merge_report())
    page = Page(html)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in page.tags}
    assert not re.findall(r"https?:|@import|src=|url\((?!#)", html)
    assert "default-src 'none'" in html
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    named = [
        name for _, attributes in page.tags for name in (attributes.get("aria-labelledby") or "").split()
    ]
    inside = [(attributes["href"] or "")[1:] for tag, attributes in page.tags if tag == "a"]
    assert len(ids) == len(set(ids))
    assert set(named + inside) <= set(ids)
    assert all(attributes["role"] == "img" for tag, attributes in page.tags if tag == "svg")
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")
    tags = [tag for tag, _ in page.tags]
    assert tags.count("caption") == tags.count("table")
    assert "None" not in page.text.replace("None: every", "").replace("None of 0", "")
    assert render_parity_page(report, merge_report()) == html


def test_every_check_is_a_row_with_all_that_is_known_of_it() -> None:
    report = parity_report("full")
    text = page_of(report, merge_report()).text
    for one in report["checks"].values():
        assert one["title"] in text
        assert one["detail"] in text
    for words in (
        "Every parity check holds",
        "21of 21 checks",
        "ulp",
        "largest KLD 1.4e-08",
        "mean relative RMSE 0.0607",
        "same top token 100.0 %",
        "merged into the base as NF4 rounds it",
        "0.2911 to 0.3480 nats, 32 rows.",
        "None: every parity check",
    ):
        assert words in text, words
    assert text.index("Template text") < text.index("Token ids") < text.index("Answers end")


def test_what_was_not_measured_is_not_passed_and_how_to_measure_it_is_said() -> None:
    text = page_of(parity_report("quick")).text
    assert "No parity check failed, but not all were measured" in text
    assert "11 of 19 parity checks hold; 8 were not measured" in text
    assert "quench parity --depth full" in text
    assert "parity.depth is quick" in text
    assert text.count("✓ pass") == 11 + 1  # and the legend's
    full = parity_report("full")
    full["checks"]["text_template"]["verdict"] = "PASS"
    text = page_of(full).text
    assert "20 of 21 parity checks hold; 1 was not measured" in text
    assert "--depth full" not in text  # it was that deep


def test_a_failed_check_heads_the_page_with_its_cause() -> None:
    html = render_parity_page(failed_report(), merge_report())
    text = Page(html).text
    assert (
        text.index("Something was lost: 2 of 19 parity checks failed")
        < text.index("“Weights of the merged model → demo-F16”: do not serve")
        < text.index("✓ pass")
    )
    assert "1 (limit 0 tensors); blk.3.attn_q.weight differs from row 17 on" in text
    assert "<code>snakemake --force convert</code>" in html
    assert "<b>1</b>" in text  # a detail, as text
    assert "Every parity check holds" not in text


def test_a_warning_is_shown_as_what_it_is() -> None:
    report = parity_report("full")
    report["checks"]["outputs_q4_k_m"] |= {"verdict": "warn", "figure": 1.09}
    text = page_of(report).text
    assert text.count("▲ warn") == 3  # the legend's, the check's, the model's
    assert "16-bit GGUF✓ weights, ▲ outputs 1.09Q4_K_M" in text
    assert counts(report["checks"]) == {"fail": 0, "warn": 1, "not measured": 0, "pass": 20}
    assert "Every parity check holds" not in text and "Something was lost" not in text
    assert "report.gate" in sentence(report)


def test_a_report_that_failed_without_a_failed_check_does_not_hold() -> None:
    report = parity_report("full") | {"verdict": "fail"}
    assert title(report) == "Parity did not pass"
    assert "snakemake --force parity" in sentence(report)
    empty: dict[str, Any] = {"verdict": "pass", "checks": {}}
    assert title(empty) == "Parity did not pass"
    assert "None of 0 parity checks failed, 0 hold" in sentence(empty)


def test_the_first_to_fail_is_the_first_on_the_way() -> None:
    report = failed_report()
    report["checks"] = dict(reversed(report["checks"].items()))
    assert (first_failed(report["checks"]) or {})["title"] == "Weights of the merged model → demo-F16"
    assert counts(report["checks"]) == {"fail": 2, "warn": 0, "not measured": 1, "pass": 16}
    assert list(grouped(report["checks"])) == ["Text", "Tokens", "Weights", "Outputs", "Behavior"]
    assert list(grouped({"odd": check("Odd", "", 1.0, 2.0, "", "pass", "")})) == ["Other"]


def ways(checks: dict[str, Any]) -> dict[str, str]:
    """Every hand-over of stored weights, outputs and answers with its marks."""
    return {f"{step.start} → {step.end}": ", ".join(step.marked) for step in chain(checks)[1:]}


def test_the_chain_has_every_hand_over_marked() -> None:
    checks = parity_report("full")["checks"]
    assert ", ".join(chain(checks)[0].marked) == "✓ text 2 of 2, ✓ tokens 4 of 4"
    assert ways(checks) == {
        "trained → merged": "✓ weights, ✓ outputs, 16-bit base 9.42e-09, ✓ outputs, NF4 base 0.00179",
        "merged → 16-bit GGUF": "✓ weights, ✓ outputs 9.7e-09",
        "16-bit GGUF → Q4_K_M": "✓ weights, ✓ outputs 0.000888",
        "16-bit GGUF → Q5_K_M": "✓ weights, ✓ outputs 0.000234",
        "Q4_K_M → served": "✓ answers 2 of 2",
        "Q5_K_M → served": "✓ answers 2 of 2",
        "trained → base's 16-bit GGUF with LoRA": "✓ outputs 5.1e-06",
        "base's 16-bit GGUF with LoRA → the same at Q4_K_M": "✓ outputs 0.0871",
        "base's 16-bit GGUF with LoRA → the same at Q5_K_M": "✓ outputs 0.0871",
    }


def test_the_chain_names_what_failed_and_what_is_open() -> None:
    found = ways(failed_report()["checks"])
    assert found["merged → 16-bit GGUF"] == "✕ weights, ✕ outputs 2.31"
    assert [step for step, marks in found.items() if "✕" in marks] == ["merged → 16-bit GGUF"]
    html = render_parity_page(failed_report(), merge_report())
    assert html.count('<li class="fail">') == 1
    assert html.count('<li class="not-measured">') == 1  # the adapter's own GGUF is open
    alone = ways({"weights_merged": parity_report()["checks"]["weights_merged"]})
    assert alone["merged → 16-bit GGUF"] == "○ not measured"


def test_divergences_are_drawn_on_a_logarithmic_scale_with_their_limits() -> None:
    checks = {
        key: outputs(key, kld, 1e-3)
        for key, kld in (("outputs_a", 1e-6), ("outputs_b", 1e-4), ("outputs_c", 1e-2), ("outputs_d", 0.0))
    }
    drawing = divergences(checks)
    dots = [float(x) for x in re.findall(r'id="divergences-figure-\d".*?<use [^>]*x="(\S+)"', drawing)]
    assert dots[1] - dots[0] == pytest.approx(dots[2] - dots[1], abs=0.2)
    assert dots[3] < dots[0]
    (limit,) = set(re.findall(r'id="divergences-tip-\d"><title>limit 0.001.*?<use [^>]*x="(\S+)"', drawing))
    assert dots[1] < float(limit) < dots[2]
    assert divergences(parity_report("quick")["checks"]) == ""


def test_code_between_backticks_and_everything_escaped() -> None:
    assert code("run `a <b>` & `c`.") == "run <code>a &lt;b&gt;</code> &amp; <code>c</code>."
    assert code("an odd ` <i>") == "an odd ` &lt;i&gt;"
