"""Choose the scorer that decides, over all models together.

Stage `evaluate` lets the first scorer of `evaluate.scorers` that can score the references decide, model by
model. If that scorer gives every answer of every model 0 points, or every one all points, it distinguishes
nothing and would hide what a later scorer sees. Then the next scorer that does distinguish answers decides.
"""

from collections.abc import Iterable, Sequence

from pipeline.gate.evaluations import Answer, Answers, Evaluation, Evaluations, Task


def with_deciding_scorer(evaluations: Evaluations, answers: Answers) -> tuple[Evaluations, Answers]:
    """Return evaluations and answers with the scores of the scorer that decides over all models.

    They are returned unchanged if the present scorer distinguishes answers, if models were scored by
    different scorers, or if no other scorer distinguishes more. `Task.passed_over` names the scorers that
    were left.
    """
    tasks = {model: evaluation.task for model, evaluation in evaluations.items() if evaluation.task}
    present = {task.scorer for task in tasks.values()}
    if len(present) != 1 or not _is_silent(present.pop(), answers):
        return evaluations, answers
    first = next(iter(tasks.values()))
    # A row has the order of evaluate.scorers; an evaluation is JSON with sorted keys.
    names = list(next((row.scores for rows in answers.values() for row in rows), {}))
    later = names[names.index(first.scorer) + 1 :] if first.scorer in names else []
    telling = next((name for name in later if _tells_apart(name, tasks.values(), answers)), None)
    if telling is None:
        return evaluations, answers
    passed_over = names[: names.index(telling)]
    rescored = {
        model: [row.model_copy(update={"score": row.scores.get(telling)}) for row in rows]
        for model, rows in answers.items()
    }
    decided = {
        model: _decided(evaluation, telling, passed_over, rescored.get(model, []))
        for model, evaluation in evaluations.items()
    }
    return decided, rescored


def passed_over_sentence(evaluations: Evaluations) -> str | None:
    """Return the warning about scorers that were passed over; None if there are none."""
    task = next((evaluation.task for evaluation in evaluations.values() if evaluation.task), None)
    if task is None or not task.passed_over:
        return None
    silent = " and ".join(task.passed_over)
    verb = "gives" if len(task.passed_over) == 1 else "give"
    return (
        f"{silent} {verb} all answers of all models the same points and can't tell models apart, so "
        f"{task.scorer} decides: put it first in evaluate.scorers."
    )


def _points(name: str, answers: Answers) -> set[float]:
    """Return the different points that this scorer gave to any answer of any model."""
    points = (row.scores.get(name) for rows in answers.values() for row in rows)
    return {value for value in points if value is not None}


def _is_silent(name: str, answers: Answers) -> bool:
    """Return True if every answer has 0 points by this scorer, or every one all points."""
    return _points(name, answers) in ({0.0}, {1.0})


def _tells_apart(name: str, tasks: Iterable[Task], answers: Answers) -> bool:
    """Return True if this scorer scored every model's answers and not all of them alike."""
    scored = all(
        task.scores and name in task.scores and task.scores[name].score is not None for task in tasks
    )
    return scored and len(_points(name, answers)) > 1


def _decided(evaluation: Evaluation, name: str, passed_over: list[str], rows: Sequence[Answer]) -> Evaluation:
    """Return the evaluation with the task's figures by another scorer."""
    # Imported here because it loads numpy, and `quench config plan` reads this module.
    from pipeline.metrics.asking import domain_means

    task = evaluation.task
    if task is None or task.scores is None:
        return evaluation
    figures = task.scores[name]
    points = [row.score for row in rows]
    measured = [value for value in points if value is not None]
    changed = {
        "scorer": name,
        "passed_over": passed_over,
        "score": figures.score,
        "score_low": figures.score_low,
        "score_high": figures.score_high,
        "valid": figures.valid,
        "perfect": round(sum(value == 1.0 for value in measured) / len(measured), 4),
        "domains": domain_means([row.domain for row in rows], points),
    }
    return evaluation.model_copy(update={"task": task.model_copy(update=changed)})
