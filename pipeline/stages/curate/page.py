"""The statistics of the data as a page: one HTML file that shows the outcome of every row.

`render_data_page` fills `templates/data.html.jinja`, which escapes everything that it prints. The numbers
come from `reports/data.json`. The samples are redacted already.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.methods import kinds_sentences
from pipeline.core.text import most, plural, words
from pipeline.pages.drawings import Step, bars, flow, histogram
from pipeline.pages.templating import fill
from pipeline.stages.curate.account import CurationReport
from pipeline.stages.curate.answers import written
from pipeline.stages.curate.called_tools import calls_sentences
from pipeline.stages.curate.comparing.decide import SPLITS
from pipeline.stages.curate.page_words import (
    answers_sentences,
    length_sentences,
    taken_out,
    title,
    verdict,
    warnings,
)
from pipeline.stages.curate.rules.catalog import RULES, label_of

# Rule → label of the rows that it adds.
ADDED = {
    "transform": ": by your function",
    "length": ": parts of long ones",
    "balance": ": repeated ones",
    "pairs": ": of scored ones",
}
SHOWN = 40  # lines of a table; the rest is in reports/data.json


def render_data_page(stats: CurationReport, samples: Mapping[str, Any]) -> str:
    """Return the page as one string of HTML."""
    tokens = {"histogram": [], "p50": None, "p95": None, "max": None} | stats.tokens
    drawings = {
        "flow": _flow(stats, samples["rejects"]),
        "tokens": _tokens(tokens),
        "turns": _turns(stats.turns),
        "clusters": _clusters(stats.duplicates["histogram"]),
    }
    return fill(
        "data.html.jinja",
        shown=SHOWN,
        stats=stats,
        samples=samples,
        tokens=tokens,
        splits=stats.splits,
        rules={rule["rule"]: rule for rule in stats.rules},
        long_rows=length_sentences(stats.length),
        few_answers={written(entry["answer"]): entry["rows"] for entry in stats.answers or ()},
        near_equals=answers_sentences(stats),
        calls=calls_sentences(stats.calls or {}),
        names={record.name: record.label for record in RULES},
        off=set(stats.not_measured),
        title=title(stats),
        verdict=verdict(stats),
        warnings=[*warnings(stats), *kinds_sentences(stats.untrained, stats.scored)],
        drawings=drawings,
        quiet=[
            rule["rule"]
            for rule in stats.rules
            if not _worked(rule) and rule["rule"] not in stats.not_measured
        ],
        changes=_grouped(samples["changes"], "rule"),
        rejects=_by_reason(stats, samples["rejects"]),
        domains=_domains(stats),
        balanced=any(domain["before"] != domain["after"] for domain in stats.balance.values()),
        files=sorted(stats.files.items(), key=lambda item: (-item[1]["rows"], item[0])),
    )


def _worked(rule: Mapping[str, Any]) -> bool:
    return bool(rule["rejected"] or rule["changed"] or rule["rows_in"] != rule["rows_out"])


def _flow(stats: CurationReport, rejects: Sequence[Mapping[str, Any]]) -> str:
    """Return a diagram of the rules that did something."""
    rule_of = {line["reason"]: line["rule"] for line in rejects}
    steps: list[Step] = []
    for rule in filter(_worked, stats.rules):
        name = rule["rule"]
        rows_in = rule["rows_in"]
        lost = rule["rejected"]
        changed = rule["changed"]
        added = rule["rows_out"] - rows_in + lost
        shown = label_of(name)
        reasons = [
            f"{words(reason)} {rows:,}"
            for reason, rows in most(stats.rejected)
            if rule_of.get(reason) == name
        ]
        also = f"{plural(changed, 'row')} changed" if changed else ""
        if lost:
            more = [", ".join(reasons) if len(reasons) > 1 else "", also]
            steps.append(
                Step(
                    shown,
                    rows_in,
                    lost=lost,
                    words=f"− {taken_out(name, lost)}",
                    more="; ".join(filter(None, more)),
                )
            )
        if added > 0:
            source = ADDED.get(name, "")
            steps.append(
                Step(
                    "" if lost else shown,
                    rows_in - lost,
                    added=added,
                    words=f"+ {plural(added, 'row')}{source}",
                )
            )
        if not lost and added <= 0:
            steps.append(Step(shown, rows_in, words=also))
    summary = "; ".join(f"{step.name}: {step.words}, {step.rows_out:,} left" for step in steps)
    left = ", ".join(f"{split} {rows:,}" for split, rows in stats.splits.items())
    description = f"{plural(stats.rows_read, 'row')} read. {summary}. {stats.rows_kept:,} kept: {left}."
    return flow(description, (f"{stats.rows_read:,} read", f"{stats.rows_kept:,} kept"), steps, stats.splits)


def _tokens(tokens: Mapping[str, Any]) -> str:
    bins = tokens["histogram"]
    marks = []
    for label, value in (("half of the rows", tokens["p50"]), ("19 of 20 rows", tokens["p95"])):
        at = next((i for i, bar in enumerate(bins) if bar["from"] <= (value or 0) < bar["to"]), None)
        if value is not None and at is not None:
            marks.append(
                (f"{label}: {value:,}", at + (value - bins[at]["from"]) / (bins[at]["to"] - bins[at]["from"]))
            )
    return histogram("tokens", "Rows by length in tokens", bins, marks=marks)


def _turns(turns: Mapping[str, int], longest: int = 12) -> str:
    by_number = sorted((int(number), rows) for number, rows in turns.items())
    beyond = sum(rows for number, rows in by_number if number > longest)
    items = [(str(number), rows) for number, rows in by_number if number <= longest]
    if beyond:
        items.append((f"{longest + 1}+", beyond))
    summary = "; ".join(f"{label} {'turn' if label == '1' else 'turns'}: {rows:,}" for label, rows in items)
    return bars("turns", "Rows by number of turns", summary, items)


def _clusters(histogram: Mapping[str, int]) -> str:
    if any(histogram.values()):
        items = [(size.replace("-", "–"), clusters) for size, clusters in histogram.items()]
    else:
        items = []
    return bars(
        "clusters",
        "Clusters by size",
        "; ".join(f"{size} rows: {clusters:,}" for size, clusters in items),
        items,
    )


def _grouped(entries: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[Mapping[str, Any]]]:
    """Return the entries grouped by their value of this key."""
    return {
        name: [entry for entry in entries if entry[key] == name]
        for name in dict.fromkeys(entry[key] for entry in entries)
    }


def _by_reason(stats: CurationReport, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the reasons, commonest first, each with its count and samples."""
    samples = _grouped(lines, "reason")
    rule_of = {reason: entries[0]["rule"] for reason, entries in samples.items()}
    return [
        {"reason": reason, "rows": rows, "rule": rule_of.get(reason), "samples": samples.get(reason, [])}
        for reason, rows in most(stats.rejected)
    ]


def _domains(stats: CurationReport) -> list[dict[str, Any]]:
    """Return the domains, largest share of the training rows first.

    "Before" and "after" refer to balancing.
    """
    train = max(1, stats.splits["train"])
    rows = [
        {
            "name": name,
            **{key: counts[key] for key in ("read", *SPLITS)},
            "share": counts["train"] / train,
            **{key: stats.balance.get(name, {}).get(key) for key in ("before", "after")},
        }
        for name, counts in stats.domains.items()
    ]
    return sorted(rows, key=lambda row: (-row["share"], row["name"]))
