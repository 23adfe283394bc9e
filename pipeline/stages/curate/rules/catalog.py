"""All rules of curation in the order in which they are applied: what each is called, and how it is made.

The account, the data page and the list of what was not measured follow from this list. A rule without `make`
is a step of `Cleaner`, or compares rows with each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pipeline.chat.rows import Row
from pipeline.config.sections import Curate
from pipeline.core.text import words
from pipeline.stages.curate.rules.calls import ReadCalls
from pipeline.stages.curate.rules.changes import Rule
from pipeline.stages.curate.rules.control_tokens import ControlTokens
from pipeline.stages.curate.rules.heuristics import garbage, languages, refusals
from pipeline.stages.curate.rules.nulls import drop_nulls
from pipeline.stages.curate.rules.only_texts import OnlyTexts
from pipeline.stages.curate.rules.rendered import Markup
from pipeline.stages.curate.rules.shape import normalize, reasoning, turns
from pipeline.stages.curate.rules.tags import Tags
from pipeline.stages.curate.rules.template import ChatTemplate


@dataclass(frozen=True)
class Means:
    """Parts of which rules are made: the settings, the base's added tokens (None if they are not known yet),
    its template (None without a base), the rules that keep counts, and why the base takes no chats.
    """

    settings: Curate
    added_tokens: tuple[str, ...] | None
    template: Callable[[], ChatTemplate] | None
    is_shown: Callable[[Row], bool]
    redact: Rule
    mail: Rule | None
    no_chats: str | None


@dataclass(frozen=True)
class RuleRecord:
    """One rule. `name` is its id in every report, `removed` and `many` say what it takes out: one, and many.

    `make` returns the rule for a process, or None where it has nothing to do. `is_off` returns True if the
    settings, and whether there is a base, switch it off, which is reported as not measured.
    """

    name: str
    label: str
    removed: str
    many: str
    make: Callable[[Means], Rule | None] | None = None
    is_off: Callable[[Curate, bool], bool] | None = None
    works_if_off: bool = False  # because it has another task
    compares_rows: bool = False
    is_mentioned_idle: bool = True  # also if it did nothing


def _markup(means: Means) -> Rule:
    takes_ends = "control_tokens" in means.settings.repair
    return Markup(means.added_tokens or (), takes_ends=takes_ends)


def _only_texts(means: Means) -> Rule | None:
    return None if means.no_chats is None else OnlyTexts(means.no_chats)


def _turns(means: Means) -> Rule:
    mode: Literal["repair", "reject"] = "repair" if "turns" in means.settings.repair else "reject"
    return turns(mode, means.is_shown)


def _control_tokens(means: Means) -> Rule | None:
    if means.added_tokens is None:
        return None
    is_repaired = "control_tokens" in means.settings.repair
    return ControlTokens(means.added_tokens, "neutralize" if is_repaired else "reject")


RULES = (
    RuleRecord("read", "Read", "line that can't be read", "lines that can't be read"),
    RuleRecord(
        "transform",
        "Transform",
        "row that your function rejected",
        "rows that your function rejected",
        is_mentioned_idle=False,
    ),
    RuleRecord("format", "Format", "row of no known format", "rows of no known format"),
    RuleRecord(
        "verdicts",
        "Verdicts",
        "row that is marked bad",
        "rows that are marked bad",
        is_mentioned_idle=False,
    ),
    RuleRecord(
        "markup",
        "Markup",
        "rendered chat that is not understood",
        "rendered chats that are not understood",
        make=_markup,
    ),
    # Runs after the rule that makes chats of rendered ones, and before those that need the template.
    RuleRecord("base", "Base", "chat", "chats", make=_only_texts, is_mentioned_idle=False),
    RuleRecord(
        "calls",
        "Calls",
        "row with a broken call",
        "rows with broken calls",
        make=lambda means: ReadCalls(means.template),
    ),
    RuleRecord("nulls", "Nulls", "row with nulls", "rows with nulls", make=lambda means: drop_nulls),
    RuleRecord(
        "normalize",
        "Normalize",
        "row that can't be normalized",
        "rows that can't be normalized",
        make=lambda means: normalize,
    ),
    # Early, so that no later rule's excerpt contains half a secret. It redacts personal data too.
    RuleRecord(
        "secrets",
        "Secrets",
        "row with a secret",
        "rows with secrets",
        make=lambda means: means.redact,
        is_off=lambda settings, has_base: settings.secrets == "keep",
        works_if_off=True,
    ),
    RuleRecord(
        "personal",
        "Personal data",
        "row with personal data",
        "rows with personal data",
        is_off=lambda settings, has_base: not (settings.personal or settings.names),
    ),
    RuleRecord(
        "mail",
        "Mail",
        "row of mails",
        "rows of mails",
        make=lambda means: means.mail,
        is_mentioned_idle=False,
    ),
    RuleRecord(
        "reasoning",
        "Reasoning",
        "row with reasoning inside",
        "rows with reasoning inside",
        make=lambda means: reasoning(means.added_tokens or ()),
    ),
    RuleRecord(
        "turns",
        "Turns",
        "row whose turns can't be used (empty, out of order)",
        "rows whose turns can't be used (empty, out of order)",
        make=_turns,
    ),
    RuleRecord(
        "tags",
        "Tags",
        "answer with half a pair of tags",
        "answers with half a pair of tags",
        make=lambda means: None if means.added_tokens is None else Tags(means.added_tokens),
    ),
    RuleRecord(
        "refusals",
        "Refusals",
        "boilerplate refusal",
        "boilerplate refusals",
        make=lambda means: refusals,
        is_off=lambda settings, has_base: "refusals" not in settings.reject,
    ),
    RuleRecord(
        "languages",
        "Languages",
        "row in another language",
        "rows in other languages",
        make=lambda means: languages(tuple(means.settings.languages)),
        is_off=lambda settings, has_base: not settings.languages,
    ),
    RuleRecord(
        "garbage",
        "Garbage",
        "garbled row",
        "garbled rows",
        make=lambda means: garbage,
        is_off=lambda settings, has_base: "garbage" not in settings.reject,
    ),
    RuleRecord(
        "control_tokens",
        "Control tokens",
        "row with a control token",
        "rows with control tokens",
        make=_control_tokens,
    ),
    RuleRecord(
        "length",
        "Length",
        "row over the token budget",
        "rows over the token budget",
        is_off=lambda settings, has_base: not has_base,
    ),
    RuleRecord(
        "exact_duplicates",
        "Exact duplicates",
        "exact duplicate",
        "exact duplicates",
        is_off=lambda settings, has_base: settings.drop_duplicates == "none",
        compares_rows=True,
    ),
    RuleRecord(
        "near_duplicates",
        "Near duplicates",
        "near duplicate",
        "near duplicates",
        is_off=lambda settings, has_base: settings.drop_duplicates != "near",
        compares_rows=True,
    ),
    RuleRecord(
        "contamination",
        "Contamination",
        "row that overlaps what is measured on",
        "rows that overlap what is measured on",
        compares_rows=True,
    ),
    RuleRecord(
        "balance",
        "Balance",
        "row over its domain's share",
        "rows over their domain's share",
        compares_rows=True,
    ),
    RuleRecord("pairs", "Pairs", "pair", "pairs", compares_rows=True, is_mentioned_idle=False),
)
BY_NAME = {record.name: record for record in RULES}


def rules_of(means: Means) -> list[tuple[str, Rule]]:
    """Return the rules that look at one row, by name, as far as the settings want them."""
    off = switched_off(means.settings, has_base=means.template is not None)
    rules = []
    for record in RULES:
        if record.make is None or (record.name in off and not record.works_if_off):
            continue
        rule = record.make(means)
        if rule is not None:
            rules.append((record.name, rule))
    return rules


def switched_off(settings: Curate, *, has_base: bool) -> list[str]:
    """Return the names of the rules that are switched off, or that lack something they need."""
    return [record.name for record in RULES if record.is_off and record.is_off(settings, has_base)]


def label_of(name: str) -> str:
    """Return the label of a rule; its name in words if it is a rule of another version."""
    return BY_NAME[name].label if name in BY_NAME else words(name)
