"""Texts of the data page: the labels of the rules, and its sentences."""

from collections.abc import Mapping
from typing import Any

from pipeline.chat.template_probe import SHOWING_TOOLS
from pipeline.core.text import count, listed, most, percent, plural, words
from pipeline.stages.curate.account import CurationReport
from pipeline.stages.curate.answers import near_equals_sentences, several_answers
from pipeline.stages.curate.called_tools import NOT_SHOWN, calls_sentences
from pipeline.stages.curate.comparing.decide import SPLITS
from pipeline.stages.curate.places import places
from pipeline.stages.curate.rules.catalog import BY_NAME

# Text that is trained more often than this teaches hardly anything more (arXiv:2305.16264).
MOST_COPIES = 4
COLUMNS_SHOWN = 8  # column names of a file


def title(stats: CurationReport) -> str:
    """Return the number of remaining rows in a few words."""
    kept, read = stats.rows_kept, stats.rows_read
    if kept <= read:
        return f"{count(kept)} of {plural(read, 'row')} kept"
    return f"{plural(kept, 'row')} from {count(read)} lines"


def verdict(stats: CurationReport) -> str:
    """Return a sentence on the rows that were left out, by the largest causes, and on where the rest went."""
    lost = sorted(
        ((rule["rejected"], rule["rule"]) for rule in stats.rules if rule["rejected"]),
        key=lambda item: -item[0],
    )
    named = [taken_out(rule, rows) for rows, rule in lost[:3]]
    others = sum(rows for rows, _ in lost[3:])
    named += [f"{count(others)} for other reasons"] if others else []
    total = sum(rows for rows, _ in lost)
    sentences = [f"Left out: {listed(named)}." if total else "Nothing was left out."]
    rows_added = (stats.transform or {}).get("rows_added")
    if rows_added:
        sentences.append(f"Your function made {plural(rows_added, 'more row')} of them.")
    if stats.parts_added:
        sentences.append(f"Splitting long rows added {plural(stats.parts_added, 'row')}.")
    if stats.rows_repeated:
        sentences.append(f"Repeating rows for training added {plural(stats.rows_repeated, 'row')}.")
    pairs = (stats.pairs or {}).get("made")
    if pairs:
        sentences.append(f"Scored rows made {plural(pairs, 'pair')}.")
    train, val, test = (stats.splits[split] for split in SPLITS)
    sentences.append(
        f"{plural(train, 'is', 'are')} for training, {count(val)} for monitoring it and "
        f"{plural(test, 'is', 'are')} held out for measuring."
    )
    return " ".join(filter(None, sentences))


def redaction_sentences(stats: CurationReport) -> list[str]:
    """Return a warning if training sees placeholders where people write a value; none if it sees all."""
    values = sum(stats.redactions.values())
    if not values:
        return []
    commonest = max(stats.redactions, key=lambda kind: stats.redactions[kind])
    return [
        f"{plural(values, 'value was', 'values were')} replaced by placeholders such as "
        f"[{commonest.upper()}_1]. Those that rows keep are all that the model is shown and measured by, and "
        "people who ask it write the real thing. Replace it in what is asked, too, or keep the kinds that "
        "answers depend on (curate.personal, curate.secrets)."
    ]


def warnings(stats: CurationReport) -> list[str]:
    """Return warnings that the user should read before training."""
    sentences = []
    read = stats.rows_read
    rejected = stats.rows_rejected
    splits = stats.splits
    if rejected * 5 > read:
        sentences.append(
            f"{percent(rejected / read)} of the lines were rejected: look at the largest branch below "
            "before you train on what is left."
        )
    if not splits["test"]:
        sentences.append(
            "no row is held out for measuring: raise curate.test_fraction, or nothing is known of the "
            "finished model."
        )
    if stats.pairs and not stats.pairs["made"]:
        sentences.append(pairs_sentence(stats.pairs))
    sentences += redaction_sentences(stats) + not_shown_sentences(stats) + answers_sentences(stats)
    sentences += calls_sentences(stats.calls or {})
    sentences += map(_repeats, filter(_is_often_repeated, stats.balance.items()))
    if stats.length["split"] and stats.length["exchanges_left_out"]:
        sentences.append(
            f"{plural(stats.length['exchanges_left_out'], 'exchange')} of long conversations did not fit "
            "preprocess.max_length and is not trained: raise that, or set curate.overlong: truncate."
        )
    for name, file in stats.files.items():
        targets = file.get("fields_lacking")
        if targets:
            sentences.append(f"{name}: no row has what curate.fields maps to {listed(targets)}.")
        columns = file.get("left_out_of_texts")
        if columns:
            sentences.append(f"{name}: texts are read without {listed(list(columns)[:COLUMNS_SHOWN])}.")
    if stats.files_without_row:
        number = plural(len(stats.files_without_row), "file gives", "files give")
        sentences.append(f"{number} no row: see the table of files.")
    files = sum(stats.files_rejected.values())
    if files:
        sentences.append(
            f"{plural(files, 'whole file was', 'whole files were')} rejected: see the table of files."
        )
    return sentences


def _is_often_repeated(domain: tuple[str, Mapping[str, int]]) -> bool:
    _, rows = domain
    return rows["after"] > MOST_COPIES * rows["before"]


def _repeats(domain: tuple[str, Mapping[str, int]]) -> str:
    name, rows = domain
    return (
        f"each pass of the training takes the {plural(rows['before'], 'row')} of domain {name} "
        f"{rows['after'] / max(rows['before'], 1):.0f} times: add rows, or lower their weight, for rows that "
        f"come more than {MOST_COPIES} times teach little more."
    )


def length_sentences(length: Mapping[str, int]) -> list[str]:
    """Return sentences on the rows above the token budget, and on what they lost."""
    sentences = []
    left_out = length["exchanges_left_out"]
    texts = length["texts_cut"]
    rows = length["split"]
    if rows:
        lost = ""
        if left_out:
            lost = f"; {plural(left_out, 'exchange')} that did not fit, or trained nothing, left out"
        sentences.append(
            f"{plural(rows, 'row was', 'rows were')} longer than preprocess.max_length and "
            f"{'is' if rows == 1 else 'are'} split{lost}."
        )
    rows = length["truncated"]
    if rows:
        lost = listed(
            [
                *([plural(left_out, "old exchange")] if left_out else []),
                *([f"a part of {plural(texts, 'text')}"] if texts else []),
            ]
        )
        sentences.append(
            f"{plural(rows, 'row was', 'rows were')} longer than preprocess.max_length and lost {lost}."
        )
    return sentences


def answers_sentences(stats: CurationReport) -> list[str]:
    """Return sentences on rows with several answers, on few answers of which the same question has several,
    and on each group of them that seem to be spellings of one.
    """
    changed = {rule["rule"]: rule["changed"] for rule in stats.rules}
    sentences = [several_answers(changed["format"])] if changed.get("format") else []
    contradictory = stats.groups["requests_with_several_answers"]
    if contradictory and stats.answers:
        where = [places(sources, len(sources)) for sources in stats.answered_differently or ()]
        if contradictory > len(where):
            where.append(plural(contradictory - len(where), "more question"))
        sentences.append(
            f"{plural(contradictory, 'question is', 'questions are')} answered differently by several rows "
            f"({'; '.join(where)}), and none is chosen: the data page shows the first. Decide for one "
            "answer, or take the rows out."
        )
    return sentences + near_equals_sentences(stats.answers or ())


def not_shown_sentences(stats: CurationReport) -> list[str]:
    """Return a sentence on the rows that can't be trained, since the base's template does not show their
    tools.
    """
    rows = (stats.calls or {}).get(NOT_SHOWN, 0)
    if not rows:
        return []
    return [
        f"{plural(rows, 'row has', 'rows have')} tools or calls that the base's chat template does not show, "
        "so this base can't learn from them, and stage preprocess leaves them out (template_drops): choose a "
        f"base whose template shows tools ({SHOWING_TOOLS})."
    ]


def pairs_sentence(pairs: Mapping[str, Any]) -> str:
    """Return a sentence on the pairs that `curate.pairs` made of rows with a reward, and on why other rows
    are in none.
    """
    others = [f"{count(rows)} {words(why)}" for why, rows in most(pairs["rows"]) if why != "paired"]
    pairs_made, scored = plural(pairs["made"], "pair"), plural(pairs["scored_rows"], "row")
    why = f"; rows in none: {listed(others)}" if others else ""
    return f"{pairs_made} made of {scored} with a reward{why}."


def taken_out(rule: str, rows: int) -> str:
    """Return a label of what a rule removed, such as "512 near duplicates"."""
    record = BY_NAME.get(rule)
    if record is None:
        return plural(rows, f"row by {words(rule)}", f"rows by {words(rule)}")
    return plural(rows, record.removed, record.many)
