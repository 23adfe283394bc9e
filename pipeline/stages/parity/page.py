"""The parity checks as a page: every hand-over with its figure, its limit and its verdict, as a chain and as
tables.

`render_parity_page` fills `templates/parity.html.jinja`; the figures come from `reports/parity.json` and
`reports/merge.json`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.checks import figure_text
from pipeline.core.text import percent
from pipeline.pages.parity_summary import (
    LORA,
    MERGED,
    SERVED,
    TUNED,
    code,
    counts,
    grouped,
    most_severe,
    place_of,
    sentence,
    served_unmerged,
    title,
)
from pipeline.pages.templating import fill
from pipeline.stages.parity.chain import chain, divergences

# what a group of parity checks compares
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


def render_parity_page(report: Mapping[str, Any], merge: Mapping[str, Any] | None) -> str:
    """The page as one string of HTML; `merge` is reports/merge.json, None if there is none."""
    checks = report["checks"]
    groups = {name: [_shown(row) for row in rows] for name, rows in grouped(checks).items()}
    return fill(
        "parity.html.jinja",
        title=title(report),
        verdict=code(sentence(report)),
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
    """A check with its further figures as text."""
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
    """A row for each model that was made: what its tensors and its outputs lost, and the verdicts."""
    found: dict[str, dict[str, Any]] = {}
    for group in ("Weights", "Outputs", "Behavior"):
        for row in groups.get(group, ()):
            if (place := place_of(row)) not in ("", MERGED):
                found.setdefault(place, {})[group] = row
    models = []
    for place, rows in found.items():
        weights, outputs = (rows.get(group, {}) for group in ("Weights", "Outputs"))
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
    """How the merge was made, in a sentence; "" where that is not known."""
    if merge is None:
        return ""
    why = f" {merge['reason'].rstrip('.')}." if merge.get("reason") else ""
    return f"The adapter was merged into {MERGE_BASES[merge['merge_base']]} ({merge['dtype']}).{why}"
