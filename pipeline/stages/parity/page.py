"""Page of the parity checks: every hand-over with its figure, its limit and its verdict, as the chain from
training to serving, with a chart of the divergences, and as tables.

`render_parity_page` fills `templates/parity.html.jinja`; the figures come from `reports/parity.json` and
`reports/merge.json`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.checks import figure_text
from pipeline.core.text import percent
from pipeline.pages.formats import is_number
from pipeline.pages.parity_summary import (
    BASE,
    LORA,
    MARKS,
    MERGED,
    SERVED,
    SIXTEEN,
    TUNED,
    ParityChecks,
    code,
    counts,
    grouped,
    in_words,
    most_severe,
    place_of,
    served_unmerged,
)
from pipeline.pages.plots import BAD, GOOD, INK, WARM, axes_of, cut, svg_of
from pipeline.pages.templating import fill

Row = Mapping[str, Any]  # parity check with its key, group and verdict
Label = tuple[str, str]  # verdict, and what it is about
TRAINED = "trained"
AT_SERVER = "served"
COLORS = {"pass": GOOD, "warn": WARM, "fail": BAD, "not measured": WARM}
# base that a check compares the merged model with
SOURCES = {"outputs_sixteen": ", 16-bit base", "outputs_trained": ", NF4 base"}
# comparison that each group of parity checks makes
TELLS = {
    "Text": "What the template makes of a conversation, in training and in llama-server, byte for byte.",
    "Tokens": "What the tokenizer makes of text, in training and in each GGUF, id for id.",
    "Weights": "What is stored, tensor by tensor, without running a model.",
    "Outputs": "What the models say on the same held-out tokens. A figure is the mean KL divergence from "
    "the model before it on the chain, in nats.",
    "Behavior": "What each GGUF does in llama-server when it is asked.",
    "Other": "Further parity checks.",
}
SHARES = ("same_top",)  # figures that are a share of 1
NAMES = {
    "kld_max": "largest KLD",
    "kld_trained": "KLD from the trained model",
    "nmse": "NMSE",
    "same_top": "same top token",
    "rmse_mean": "mean relative RMSE",
    "rmse_worst": "worst relative RMSE",
}
UNMERGED_WORDS = {
    SERVED: "Nothing was merged: the base's own GGUF was trained on and is served as it is, with the "
    "adapter's GGUF on it.",
    TUNED: "Nothing was merged: the base's own GGUF was trained on, and what is served is that file with "
    "other scales in its blocks.",
}
MERGE_BASES = {
    "16-bit": "the base's 16-bit weights",
    "nf4": "the base as NF4 rounds it, which is what training saw",
}


@dataclass(frozen=True)
class HandOver:
    """Hand-over from `start` to `end`. Without `labels` no parity check judged it."""

    start: str
    end: str
    labels: Sequence[Label]

    @property
    def verdict(self) -> str:
        """Most severe of the labels' verdicts."""
        return most_severe(verdict for verdict, _ in self.labels)

    @property
    def marked(self) -> list[str]:
        """Labels as text, each after the mark of its verdict."""
        labels = self.labels or [(self.verdict, self.verdict)]
        return [f"{MARKS[verdict]} {words}" for verdict, words in labels]


def chain(checks: ParityChecks) -> list[HandOver]:
    """Return every hand-over in order: text and tokens, stored weights, outputs, llama-server's answers."""
    groups = grouped(checks)
    stored = [row for group in ("Weights", "Outputs") for row in groups.get(group, ())]
    texts = [_counted(groups.get(name, ()), name.lower()) for name in ("Text", "Tokens")]
    answers = [_counted(groups.get("Behavior", ()), "answers")]
    served = served_unmerged(checks)
    if served:
        return [
            HandOver(TRAINED, served, texts),
            HandOver("base in training", BASE, _judged(stored, BASE)),
            HandOver(TRAINED, served, _judged(stored, served)),
            HandOver(served, AT_SERVER, answers),
        ]
    places = [place for place in dict.fromkeys(map(place_of, stored)) if place not in ("", MERGED, SIXTEEN)]
    levels = [place for place in places if not place.endswith(LORA)]
    loras = [place for place in places if place.endswith(LORA)]
    with_lora = f"base's {SIXTEEN} with LoRA"
    return [
        HandOver(TRAINED, SIXTEEN, texts),
        HandOver(TRAINED, MERGED, _judged(stored, MERGED)),
        HandOver(MERGED, SIXTEEN, _judged(stored, SIXTEEN)),
        *(HandOver(SIXTEEN, level, _judged(stored, level)) for level in levels),
        *(HandOver(level, AT_SERVER, answers) for level in levels),
        *([HandOver(TRAINED, with_lora, _judged(stored, SIXTEEN + LORA))] if loras else []),
        *(
            HandOver(with_lora, f"the same at {place.removesuffix(LORA)}", _judged(stored, place))
            for place in loras
            if place != SIXTEEN + LORA
        ),
    ]


def _judged(rows: Sequence[Row], place: str) -> list[Label]:
    """Return a label for each parity check at a place: what it compares, and for outputs the divergence."""
    return [(row["verdict"], _words(row)) for row in rows if place_of(row) == place]


def _words(row: Row) -> str:
    words = row["group"].lower() + SOURCES.get(row["key"], "")
    nats = row["group"] == "Outputs" and is_number(row.get("figure"))
    return f"{words} {figure_text(row['figure'])}" if nats else words


def _counted(rows: Sequence[Row], name: str) -> Label:
    """Return one label for a group of parity checks: how many of them passed."""
    passed = sum(row["verdict"] == "pass" for row in rows)
    counted = f"{passed} of {len(rows)}" if rows else "not measured"
    return most_severe(row["verdict"] for row in rows), f"{name} {counted}"


def divergences(checks: ParityChecks) -> str:
    """Return a chart (SVG) of the mean KL divergence at each hand-over and its limit, on a log scale; "" if
    all are 0.
    """
    rows = [row for row in grouped(checks).get("Outputs", ()) if is_number(row.get("figure"))]
    figures = [(float(row["figure"]), float(row.get("limit") or 0)) for row in rows]
    positive = [value for pair in figures for value in pair if value > 0]
    if not positive:
        return ""
    low = 10.0 ** math.floor(math.log10(min(positive)) - 0.2)
    high = 10.0 ** math.ceil(math.log10(max(positive)) + 0.1)
    figure, axes = axes_of("nats", "", (9.6, 0.6 + 0.3 * len(rows)), grid="x")
    axes.set(xscale="log", xlim=(low, high), ylim=(len(rows) - 0.4, -0.6))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for place, (row, (value, limit)) in enumerate(zip(rows, figures, strict=True)):
        color = COLORS[row["verdict"]]
        failed = row["verdict"] == "fail"
        end = max(value, low)  # 0 is drawn at the left edge
        axes.plot([low, end], [place, place], color=color, linewidth=2, clip_on=False)
        axes.plot(end, place, "o", color=color, markersize=8, clip_on=False, gid=f"figure-{place}")
        if limit > 0:
            axes.plot(limit, place, "|", color=INK, markersize=16, markeredgewidth=2, gid=f"tip-{place}")
        looks = {"color": color, "fontweight": "bold" if failed else "normal", "va": "center"}
        figure_at_right = f"{MARKS[row['verdict']]} {figure_text(row['figure'])}"
        axes.text(1.02, place, figure_at_right, transform=axes.get_yaxis_transform(), **looks)
    axes.set_yticks(range(len(rows)), [cut(row["title"], 56) for row in rows])
    axes.tick_params(axis="y", colors=INK)
    limits = [f"limit {figure_text(row.get('limit'))}" for row in rows]
    words = "; ".join(
        f"{row['title']} {figure_text(row['figure'])}, {limit}, {row['verdict']}"
        for row, limit in zip(rows, limits, strict=True)
    )
    return svg_of(figure, "divergences", "Mean KL divergence at each hand-over", f"{words}.", limits)


def render_parity_page(report: Mapping[str, Any], merge: Mapping[str, Any] | None) -> str:
    """Return the page as HTML. `merge` is reports/merge.json, None if there is none."""
    checks = report["checks"]
    groups = {name: [_shown(row) for row in rows] for name, rows in grouped(checks).items()}
    title, sentence = in_words(report)
    return fill(
        "parity.html.jinja",
        title=title,
        verdict=code(sentence),
        counts=counts(checks),
        depth=report.get("depth"),
        code=code,
        groups=groups,
        tells=TELLS,
        open_checks=[row for rows in groups.values() for row in rows if row["verdict"] == "not measured"],
        models=_models(groups),
        merged=UNMERGED_WORDS.get(served_unmerged(checks)) or _merged(merge),
        failed=[row for rows in groups.values() for row in rows if row["verdict"] == "fail"],
        chain=chain(checks),
        divergences=divergences(checks),
    )


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a check with its further figures as text."""
    figures = (row.get("figures") or {}).items()
    return {
        **row,
        "further": [
            f"{NAMES.get(name, name.replace('_', ' '))} {_figure(name, value)}" for name, value in figures
        ],
        "title": row.get("title") or row["key"],
    }


def _figure(name: str, value: Any) -> str:
    return percent(value) if name in SHARES else figure_text(value)


def _models(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each model that was made: what its tensors and its outputs lost, and the verdicts."""
    by_place: dict[str, dict[str, Any]] = {}
    for group in ("Weights", "Outputs", "Behavior"):
        for row in groups.get(group, ()):
            place = place_of(row)
            if place not in ("", MERGED):
                by_place.setdefault(place, {})[group] = row
    models = []
    for place, rows in by_place.items():
        weights = rows.get("Weights", {})
        outputs = rows.get("Outputs", {})
        figures = {**(weights.get("figures") or {}), **(outputs.get("figures") or {})}
        models.append(
            {
                "name": f"{place.removesuffix(LORA)} of the base with the LoRA GGUF"
                if place.endswith(LORA)
                else place,
                "kld": figure_text(outputs.get("figure")),
                "verdict": most_severe(row["verdict"] for row in rows.values()),
                **{key: _figure(key, figures.get(key)) for key in NAMES},
            }
        )
    return models


def _merged(merge: Mapping[str, Any] | None) -> str:
    """Describe in a sentence how the merge was made; "" if that is not known."""
    if merge is None:
        return ""
    why = f" {merge['reason'].rstrip('.')}." if merge.get("reason") else ""
    return f"The adapter was merged into {MERGE_BASES[merge['merge_base']]} ({merge['dtype']}).{why}"
