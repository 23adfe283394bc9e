"""What each folded section of the page says, in a few words next to its heading: figures of the section, so
that a reader knows whether to unfold it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.core.text import plural
from pipeline.pages.formats import duration, number, points, signed, size

Values = Mapping[str, Any]  # of the page's templates


def gist(section: str, values: Values) -> str:
    """Return the words for a section; "" if it has none."""
    words = GISTS.get(section)
    return words(values) if words else ""


def _gate(values: Values) -> str:
    verdicts = values["verdicts"]
    counts = Counter(verdict.verdict for verdict in verdicts.values())
    undecided = f", {counts['not decided']} not decided" if counts["not decided"] else ""
    return f"{counts['pass']} of {plural(len(verdicts), 'model')} pass{undecided}"


def _task(values: Values) -> str:
    gained = values["gained"].get(values["advice"].model)
    if gained:
        return f"{signed(gained.difference.points)} points against {gained.first}, {gained.words}"
    return "paired tests, rates, scorers, domains"


def _quantizing(values: Values) -> str:
    rows = [row for row in values["quantizing"]["rows"] if row.tuned.kld_mean is not None]
    return ", ".join(f"{row.level} {number(row.tuned.kld_mean, 4)} nats" for row in rows)


def _general(values: Values) -> str:
    forgetting = values["forgetting"]
    if not forgetting:
        return "not measured"
    compared = forgetting["against"].get(values["advice"].model)
    if not compared:
        return f"{forgetting['rows']} questions"
    return f"{signed(compared.difference.points)} points against {compared.first}, {compared.words}"


def _answers(values: Values) -> str:
    browser = values["browser"]
    return f"{plural(browser['rows'], 'row')}, models score differently on {browser['apart']:,}"


def _speed(values: Values) -> str:
    chosen = values["chosen"]
    if values["disturbed"]:
        return f"disturbed: {', '.join(values['disturbed'])}"
    if not chosen or chosen.generation_tok_s is None:
        return ""
    peak = chosen.serving.peak_memory_bytes if chosen.serving else None
    memory = f", {size(peak)} of memory" if peak else ""
    return f"{chosen.model} {number(chosen.generation_tok_s, 1)} tokens/s{memory}"


def _training(values: Values) -> str:
    train = values["inputs"].train
    rules = [rule["level"] for rule in train.model_extra.get("monitoring") or ()]
    failed, warned = rules.count("fail"), rules.count("warn")
    checks = f"; {failed} checks failed, {warned} warned" if failed or warned else ""
    return f"{plural(train.steps, 'step')}, {duration(values['cost'].training)}{checks}"


def _checks(values: Values) -> str:
    counts = values["check_counts"]
    return (
        f"{counts['pass']} pass, {counts['fail']} failed, {counts['warn']} warned, "
        f"{counts['not measured']} not measured"
    )


def _data(values: Values) -> str:
    data = values["inputs"].data
    return f"{plural(data.rows_read, 'row')} read, {data.rows_kept:,} kept"


def _strategies(values: Values) -> str:
    strategies = values["strategies"]
    return f"over {plural(len(strategies['seeds']), 'seed')}" if strategies else "not measured"


def _distillation(values: Values) -> str:
    found = values["distillation"]
    return found[0].words if found else "not measured"


def _harness(values: Values) -> str:
    tasks = {task for one in values["inputs"].evaluations.values() for task in one.harness or ()}
    return plural(len(tasks), "task")


def _calls(values: Values) -> str:
    chosen = values["chosen"]
    score = (chosen.task.scores or {}).get("tool_calls") if chosen and chosen.task else None
    return f"{points(score.score)} points" if score else ""


GISTS: Mapping[str, Callable[[Values], str]] = {
    "levels": lambda values: "divergence, perplexity, tensors, memory; quality against size",
    "gate": _gate,
    "task": _task,
    "calls": _calls,
    "quantizing": _quantizing,
    "distillation": _distillation,
    "general": _general,
    "harness": _harness,
    "answers": _answers,
    "speed": _speed,
    "training": _training,
    "checks": _checks,
    "data": _data,
    "strategies": _strategies,
    "merge": lambda values: f"{values['inputs'].merge.adapted:,} tensors",
    "adapter": lambda values: plural(values["adapter"]["tensors"], "tensor"),
    "serve": lambda values: "by hand, with Ollama",
    "lineage": lambda values: f"{values['inputs'].base.model}; hashes of every file",
    "resources": lambda values: (
        f"{duration(values['cost'].total)} in all stages" if values["resources"] else ""
    ),
    "commands": lambda values: f"{plural(len(values['commands']), 'command')} behind these figures",
}
