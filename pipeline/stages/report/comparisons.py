"""Comparisons of models on the same rows or questions, for the task and for general ability: the difference,
its 95 % interval, p, and a drawing of them all.

The test is `pipeline.metrics.statistics.compare_scores`. It is paired, so that a row's difficulty, which is
the same for both models, cancels out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.config.levels import UNTUNED
from pipeline.config.products import is_base, product_of
from pipeline.config.sections import BASE, ORIGINAL
from pipeline.gate.evaluations import Answers, Evaluations
from pipeline.pages.formats import p_value, signed

if TYPE_CHECKING:
    from pipeline.metrics.statistics import Difference

Scores = Mapping[str, Sequence[float | None]]  # scores from 0 to 1 by model, row by row


@dataclass(frozen=True)
class Comparison:
    """`second` minus `first` in points of 100, on `rows` that both have a score for."""

    first: str
    second: str
    rows: int
    difference: "Difference"

    @property
    def verdict(self) -> str:
        """Verdict: better, worse, or noise if the test's p is not below `CHANCE`."""
        from pipeline.metrics.statistics import CHANCE

        if self.difference.p_value >= CHANCE:
            return "noise"
        return "better" if self.difference.points > 0 else "worse"

    @property
    def interval(self) -> str:
        """The 95 % interval in points: −7.5 to +2.8."""
        return f"{signed(self.difference.low)} to {signed(self.difference.high)}"

    @property
    def words(self) -> str:
        """Verdict in a few words, with the test's p if the interval suggests otherwise."""
        words = {
            "better": "better, more than noise",
            "worse": "worse, more than noise",
            "noise": "within the noise",
        }[self.verdict]
        excludes_zero = self.difference.low > 0 or self.difference.high < 0
        if excludes_zero == (self.verdict != "noise"):
            return words
        return f"{words} by the test, {p_value(self.difference.p_value)}"


def compare(first: str, second: str, scores: Scores) -> Comparison | None:
    """Compare both models' scores (0 to 1) row by row. Return None if no row has both."""
    from pipeline.metrics.statistics import compare_scores

    if first not in scores or second not in scores or len(scores[first]) != len(scores[second]):
        return None
    pairs = [
        (before, after)
        for before, after in zip(scores[first], scores[second], strict=True)
        if before is not None and after is not None
    ]
    if not pairs:
        return None
    before, after = zip(*pairs, strict=True)
    return Comparison(first, second, len(pairs), compare_scores(before, after))


def task_scores(answers: Answers) -> dict[str, list[float | None]]:
    """Return each model's score of each row, None if the row has none. Models without any score
    are left out.
    """
    scores = {model: [row.score for row in rows] for model, rows in answers.items()}
    return {model: points for model, points in scores.items() if any(score is not None for score in points)}


def against_reference(scores: Scores, reference: str) -> list[Comparison]:
    """Compare each level with the 16-bit model that it is made from: tuned with tuned, base with base.

    If nothing is merged (`reference` is the base's file), compare that file, untuned and tuned, with the one
    that it was made from.
    """
    return _each([(_made_from(model, reference), model) for model in scores], scores)


def _made_from(model: str, reference: str) -> str:
    """Return the model that a level, or without a merge the base's file, is made from."""
    if reference == BASE:
        return ORIGINAL
    return UNTUNED + reference if is_base(model) else reference


def against_base(scores: Scores) -> list[Comparison]:
    """Compare each tuned model with the untuned base at the same level if both were measured. If nothing is
    merged, compare the adapter or the tuned file with the base's file.
    """
    alone = product_of(scores).served is not None
    tuned = [model for model in scores if not is_base(model)]
    return _each([(BASE if alone else UNTUNED + model, model) for model in tuned], scores)


def _each(pairs: Sequence[tuple[str, str]], scores: Scores) -> list[Comparison]:
    """Return the comparisons of these pairs, without those that share no scored row."""
    compared = (compare(first, second, scores) for first, second in pairs if first != second)
    return [comparison for comparison in compared if comparison]


def forgetting_values(evaluations: Evaluations) -> dict[str, Any] | None:
    """Return the values of the section's template: every tuned model's general ability compared with the
    untuned base's (at 16 bit, or the file that was trained on), and by subject. Return None if no model was
    asked.
    """
    general_of = {
        model: evaluation.general for model, evaluation in evaluations.items() if evaluation.general
    }
    if not general_of:
        return None
    scores: Scores = {model: general.right for model, general in general_of.items()}
    base = product_of(evaluations).untuned(evaluations)
    against = {model: compare(base, model, scores) for model in general_of if not is_base(model)}
    subjects = dict.fromkeys(subject for general in general_of.values() for subject in general.subjects or {})
    return {
        "asked": general_of,
        "base": base,
        "against": against,
        "measured": base in general_of,
        "subjects": [
            (subject, {model: (general.subjects or {}).get(subject) for model, general in general_of.items()})
            for subject in subjects
        ],
        "warnings": {
            model: _lost(comparison)
            for model, comparison in against.items()
            if comparison and comparison.verdict == "worse"
        },
        "file": next(iter(general_of.values())).file,
        "rows": max(general.rows or 0 for general in general_of.values()),
    }


def _lost(comparison: Comparison) -> str:
    """Return a sentence on a loss of general ability that is more than noise."""
    lost = f"{signed(comparison.difference.points)} points of general ability against {comparison.first}"
    interval = f"95 % interval {comparison.interval}, {comparison.rows} questions"
    return f"{comparison.second} forgot: {lost} ({interval})."


def differences_plot(comparisons: Sequence[Comparison], name: str, title: str) -> str:
    """Return a drawing (SVG) of the comparisons below each other as intervals about 0; "" if
    there are none.
    """
    from pipeline.pages.plots import ACCENT, INK, WARM, axes_of, name_rows, put_interval, svg_of

    if not comparisons:
        return ""
    figure, axes = axes_of("difference, points", "", (6.4, 0.75 + 0.34 * len(comparisons)), grid="x")
    axes.axvline(0, color=INK, linewidth=1)
    looks = {"better": (ACCENT, "^"), "worse": (WARM, "v"), "noise": (INK, "o")}
    for place, comparison in enumerate(comparisons):
        difference = comparison.difference
        color, marker = looks[comparison.verdict]
        put_interval(axes, place, difference.points, (difference.low, difference.high), color, marker)
    name_rows(axes, [f"{comparison.second} − {comparison.first}" for comparison in comparisons])
    description = "; ".join(
        f"{comparison.second} minus {comparison.first} {signed(comparison.difference.points)} "
        f"({comparison.interval}), {comparison.words}"
        for comparison in comparisons
    )
    return svg_of(figure, name, title, f"Differences in points with 95 % intervals: {description}.")


def domain_rows(evaluations: Evaluations, answers: Answers) -> list[tuple[str, dict[str, Any]]]:
    """Return (domain, its scores by model, with the number of scored rows), largest domain first; empty if
    there are no domains.
    """
    scored = {
        model: Counter(row.domain for row in rows if row.score is not None) for model, rows in answers.items()
    }
    by_model = {
        model: {
            domain: scores | {"measured": scored[model][domain]}
            for domain, scores in ((evaluation.task and evaluation.task.domains) or {}).items()
        }
        for model, evaluation in evaluations.items()
    }
    rows = {domain: scores["rows"] for domains in by_model.values() for domain, scores in domains.items()}
    return [
        (domain, {model: domains.get(domain) for model, domains in by_model.items() if domains})
        for domain in sorted(rows, key=lambda domain: (-rows[domain], domain))
    ]


def compared_values(
    evaluations: Evaluations,
    chosen: str | None,
    scores: Scores,
    reference: str,
) -> dict[str, Any]:
    """Return the template values for models compared with each other: each level with its reference, each
    tuned model with its base. `chosen` is the recommended model.
    """
    from pipeline.stages.report.quality_plot import quality_plot

    product = product_of(evaluations)
    served = product.served
    levels = against_reference(scores, reference)
    gains = against_base(scores)
    return {
        "against": {comparison.second: comparison for comparison in levels},
        "gained": {comparison.second: comparison for comparison in gains},
        "quality": quality_plot(evaluations, chosen),
        "levels_drawn": differences_plot(
            levels if served else [comparison for comparison in levels if not is_base(comparison.second)],
            "levels-drawn",
            f"Against {ORIGINAL}" if served else "Levels against the 16-bit model",
        ),
        "gains_drawn": differences_plot(
            gains,
            "gains-drawn",
            f"{product.called.capitalize()} against the base alone"
            if served
            else "Tuned models against the untuned base at the same level",
        ),
    }
