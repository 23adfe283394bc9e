"""The account of the data as a page: one HTML file that says what became of every row.

`render_data_page` fills `templates/data.html.jinja`, which escapes everything that it prints; the numbers come from
`reports/data.json`, the samples (redacted already) from stage `curate`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.reporting.differences import clipped, marked
from pipeline.reporting.drawings import Step, bars, flow

TEMPLATES = Path(__file__).parent / "templates"
SHOWN = 40  # lines of a table; what is beyond is in reports/data.json
SPLITS = ("train", "val", "test")
# rule → (its name, what it takes out: one, many)
RULES = {
    "read": ("Read", "line that can't be read", "lines that can't be read"),
    "format": ("Format", "row of no known format", "rows of no known format"),
    "normalise": ("Normalise", "row that can't be normalised", "rows that can't be normalised"),
    "turns": ("Turns", "row with turns out of order", "rows with turns out of order"),
    "refusals": ("Refusals", "boilerplate refusal", "boilerplate refusals"),
    "languages": ("Languages", "row in another language", "rows in other languages"),
    "garbage": ("Garbage", "garbled row", "garbled rows"),
    "control_tokens": ("Control tokens", "row with a control token", "rows with control tokens"),
    "secrets": ("Secrets", "row with a secret", "rows with secrets"),
    "personal": ("Personal data", "row with personal data", "rows with personal data"),
    "length": ("Length", "row over the token budget", "rows over the token budget"),
    "exact_duplicates": ("Exact duplicates", "exact duplicate", "exact duplicates"),
    "near_duplicates": ("Near duplicates", "near duplicate", "near duplicates"),
    "contamination": ("Contamination", "row that overlaps what is measured on", "rows that overlap what is measured on"),
    "balance": ("Balance", "row over its domain's share", "rows over their domain's share"),
}
# what an account lacks is empty, not an error
EMPTY: dict[str, Any] = {
    "rows_read": 0, "rows_accepted": 0, "rows_rejected": 0, "rows_kept": 0, "parts_added": 0, "rules": [], "rejected": {}, "files_rejected": {},
    "changed": {}, "redactions": {}, "splits": dict.fromkeys(SPLITS, 0), "kinds": {}, "domains": {}, "formats": {}, "files": {},
    "duplicates": {"exact_rows": 0, "near_rows": 0, "clusters": 0, "largest_cluster": 0, "threshold": None, "histogram": {}},
    "groups": {"groups": 0, "rows_in_groups": 0, "requests_with_several_answers": 0, "leaks_prevented": 0},
    "contamination": {"rows": 0, "sources": {}}, "turns": {}, "poison": {"suspects": 0}, "balance": {}, "not_measured": [],
    "tokens": {"rows_measured": 0, "histogram": [], "p50": None, "p95": None, "max": None, "estimated": False},
}  # fmt: skip
SAMPLES = ("rejects", "changes", "clusters", "answers", "contamination", "suspects", "rows")


def render_data_page(account: Mapping[str, Any], samples: Mapping[str, Any]) -> str:
    """The page as one string of HTML. Whatever `account` and `samples` lack is shown as none found."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        autoescape=True,
    )  # fmt: skip
    environment.filters.update(count=count, percent=percent, marked=marked, clipped=clipped, words=words, plural=plural, most=most)
    values = page_values(whole(account), {name: list(samples.get(name) or []) for name in SAMPLES})
    return environment.get_template("data.html.jinja").render(**values)


def whole(account: Mapping[str, Any]) -> dict[str, Any]:
    """The account with everything in it that the page asks for."""
    given = {key: value for key, value in account.items() if value is not None}
    nested = {key: {**EMPTY[key], **value} for key, value in given.items() if isinstance(EMPTY.get(key), dict)}
    return {**EMPTY, **given, **nested}


def page_values(account: Mapping[str, Any], samples: Mapping[str, list[Any]]) -> dict[str, Any]:
    """What the template needs."""
    from markupsafe import Markup

    splits = {split: account["splits"].get(split, 0) for split in (*SPLITS, *(name for name in account["splits"] if name not in SPLITS))}
    drawings = {"flow": _flow(account, samples["rejects"], splits), "tokens": _tokens(account["tokens"]), "turns": _turns(account["turns"]),
                "clusters": _clusters(account["duplicates"]["histogram"])}  # fmt: skip
    rules = {rule["rule"]: rule for rule in account["rules"]}
    changes: dict[str, list[Any]] = {}
    for change in samples["changes"]:
        changes.setdefault(change["rule"], []).append(change)
    return {
        "shown": SHOWN, "account": account, "samples": samples, "splits": splits, "rules": rules, "names": {rule: name for rule, (name, _, _) in RULES.items()},
        "off": set(account["not_measured"]), "title": title(account), "verdict": verdict(account), "warnings": warnings(account),
        "drawings": {name: Markup(drawing) for name, drawing in drawings.items()},  # noqa: S704 (our own; drawings escapes its texts)
        "quiet": [rule["rule"] for rule in account["rules"] if not _worked(rule) and rule["rule"] not in account["not_measured"]],
        "changes": changes, "rejects": _by_reason(account, samples["rejects"]),
        "domains": _domains(account), "files": sorted(account["files"].items(), key=lambda item: (-item[1].get("rows", 0), item[0])),
    }  # fmt: skip


def title(account: Mapping[str, Any]) -> str:
    """How many rows are left, in a few words."""
    kept, read = account["rows_kept"], account["rows_read"]
    if not read:
        return "No rows were read"
    return f"{count(kept)} of {plural(read, 'row', 'rows')} kept" if kept <= read else f"{plural(kept, 'row', 'rows')} from {count(read)} lines"


def verdict(account: Mapping[str, Any]) -> str:
    """What was left out, by the largest causes, and where the rest went."""
    lost = sorted(((rule["rejected"], rule["rule"]) for rule in account["rules"] if rule.get("rejected")), key=lambda item: -item[0])
    named = [_lost_words(rule, rows) for rows, rule in lost[:3]]
    others = sum(rows for rows, _ in lost[3:])
    named += [f"{count(others)} for other reasons"] if others else []
    total = sum(rows for rows, _ in lost)
    sentences = [f"Left out: {_listed(named)}." if total else "Nothing was left out." if account["rows_read"] else ""]
    if account["parts_added"]:
        sentences.append(f"Splitting long conversations added {plural(account['parts_added'], 'row', 'rows')}.")
    train, val, test = (account["splits"].get(split, 0) for split in SPLITS)
    sentences.append(f"{count(train)} are for training, {count(val)} for watching it and {count(test)} are held out for measuring.")
    return " ".join(filter(None, sentences))


def warnings(account: Mapping[str, Any]) -> list[str]:
    """What the user should look at before training."""
    found = []
    read, rejected, splits = account["rows_read"], account["rows_rejected"], account["splits"]
    if read and rejected * 5 > read:
        found.append(f"{percent(rejected / read)} of the lines were rejected: look at the largest branch below before you train on what is left.")
    if account["rows_kept"] and not splits.get("test"):
        found.append("no row is held out for measuring: raise curate.test_fraction, or nothing can be said of the finished model.")
    if suspects := account["poison"]["suspects"]:
        found.append(f"{plural(suspects, 'phrase', 'phrases')} nearly always come with one and the same answer: see whether someone planted them.")
    if files := sum(account["files_rejected"].values()):
        found.append(f"{plural(files, 'whole file was', 'whole files were')} rejected: see the table of files.")
    if account["tokens"]["estimated"]:
        found.append("lengths are estimated from characters, for the base's tokenizer was not there: run `python -m pipeline base` first.")
    return found


def count(value: Any) -> str:
    """A whole number with thousands marked: 1,770; a dash where there is none."""
    return f"{value:,.0f}" if isinstance(value, int | float) and not isinstance(value, bool) else "–"


def percent(value: Any) -> str:
    """A share of 1 as 97.9 %; never 0 for something, nor 100 for less than all."""
    if not isinstance(value, int | float):
        return "–"
    shown = f"{value * 100:.1f}"
    return "< 0.1 %" if shown == "0.0" and value > 0 else "> 99.9 %" if shown == "100.0" and value < 1 else f"{shown} %"


def plural(number: int, one: str, many: str) -> str:
    """1 row, 2 rows."""
    return f"{count(number)} {one if number == 1 else many}"


def words(identifier: Any) -> str:
    """A snake_case id as words."""
    return str(identifier).replace("_", " ")


def most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The entries of a counter, largest first, as many as a table shows."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]


def _worked(rule: Mapping[str, Any]) -> bool:
    return bool(rule.get("rejected") or rule.get("changed") or rule["rows_in"] != rule["rows_out"])


def _lost_words(rule: str, rows: int) -> str:
    _, one, many = RULES.get(rule, ("", f"row by {words(rule)}", f"rows by {words(rule)}"))
    return plural(rows, one, many)


def _listed(items: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def _flow(account: Mapping[str, Any], rejects: Sequence[Mapping[str, Any]], splits: Mapping[str, int]) -> str:
    """The rules that did something, as a stream; "" where nothing was read."""
    if not account["rows_read"]:
        return ""
    rule_of = {line["reason"]: line.get("rule") for line in rejects}
    steps = []
    for rule in filter(_worked, account["rules"]):
        name, lost, changed = rule["rule"], rule.get("rejected", 0), rule.get("changed", 0)
        added = rule["rows_out"] - rule["rows_in"] + lost
        reasons = ", ".join(f"{words(reason)} {rows:,}" for reason, rows in most(account["rejected"]) if rule_of.get(reason) == name and reason != name)
        did = [f"− {_lost_words(name, lost)}"] if lost else []
        did += [f"+ {plural(added, 'row', 'rows')} by splitting long ones" if name == "length" else f"+ {plural(added, 'row', 'rows')}"] * (added > 0)
        also = [f"{plural(changed, 'row', 'rows')} changed"] if changed else []
        steps.append(
            Step(RULES.get(name, (words(name),))[0], rule["rows_in"], rule["rows_out"], lost, max(added, 0),
                 "; ".join(did or also), "; ".join(filter(None, [reasons, *(also if did else [])])))
        )  # fmt: skip
    told = "; ".join(f"{step.name}: {step.words}, {step.rows_out:,} left" for step in steps)
    description = f"{account['rows_read']:,} rows read. {told}. {account['rows_kept']:,} kept: {', '.join(f'{k} {v:,}' for k, v in splits.items())}."
    return flow(description, f"{account['rows_read']:,} read", f"{account['rows_kept']:,} kept", steps, splits)


def _tokens(tokens: Mapping[str, Any]) -> str:
    bins = tokens["histogram"]
    marks = []
    for label, value in (("half of the rows", tokens["p50"]), ("19 of 20 rows", tokens["p95"])):
        at = next((i for i, one in enumerate(bins) if one["from"] <= (value or 0) < one["to"]), None)
        if value is not None and at is not None:
            marks.append((f"{label}: {value:,}", at + (value - bins[at]["from"]) / (bins[at]["to"] - bins[at]["from"])))
    told = "; ".join(f"{one['from']:,} to {one['to']:,}: {one['rows']:,}" for one in bins if one["rows"])
    return bars("tokens", "Rows by length in tokens", told, [(f"{one['from']:,}", one["rows"]) for one in bins], edges=True, marks=marks)


def _turns(turns: Mapping[str, int], longest: int = 12) -> str:
    by_number = sorted((int(number), rows) for number, rows in turns.items())
    beyond = sum(rows for number, rows in by_number if number > longest)
    items = [(str(number), rows) for number, rows in by_number if number <= longest] + ([(f"{longest + 1}+", beyond)] if beyond else [])
    return bars("turns", "Rows by number of turns", "; ".join(f"{label} turns: {rows:,}" for label, rows in items), items)


def _clusters(histogram: Mapping[str, int]) -> str:
    items = list(histogram.items()) if any(histogram.values()) else []
    return bars("clusters", "Clusters by size", "; ".join(f"{size} rows: {rows:,}" for size, rows in items), items)


def _by_reason(account: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Reasons, commonest first, each with its count and samples."""
    samples: dict[str, list[Any]] = {}
    for line in lines:
        samples.setdefault(line["reason"], []).append(line)
    rule_of = {reason: found[0].get("rule") for reason, found in samples.items()}
    return [{"reason": reason, "rows": rows, "rule": rule_of.get(reason), "samples": samples.get(reason, [])}
            for reason, rows in sorted(account["rejected"].items(), key=lambda item: (-item[1], item[0]))]  # fmt: skip


def _domains(account: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Domains, largest share of the training rows first; before and after are the balance's."""
    train = max(1, account["splits"].get("train", 0))
    rows = []
    for name, found in account["domains"].items():
        weighed = account["balance"].get(name, {})
        rows.append({"name": name, **{key: found.get(key, 0) for key in ("read", *SPLITS)}, "share": found.get("train", 0) / train,
                     "before": weighed.get("before"), "after": weighed.get("after")})  # fmt: skip
    return sorted(rows, key=lambda row: (-row["share"], row["name"]))
