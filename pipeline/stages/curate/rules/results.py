"""The results of tools in the order of their calls: most chat templates show a result by its place alone, so
that a model would learn to read one as another's.

Calls and results are compared by their ids, where all of them have one.
"""

from collections.abc import Iterator
from typing import Any

from pipeline.chat.rows import BadRow
from pipeline.stages.curate.rules.changes import Change, Changes, excerpts

Turn = dict[str, Any]
Turns = list[Turn]


def check_results(turns: Turns, field: str) -> None:
    """Raise `BadRow` for a result of a call that the row lacks, a call whose result is missing while others
    have theirs, and results in another order than their calls.
    """
    for ids, places in _answered(turns):
        answered = [turns[place].get("tool_call_id") for place in places]
        for place, identity in zip(places, answered, strict=True):
            if identity is not None and identity not in ids:
                raise BadRow(
                    "bad_order", f"{field} {place + 1} is a result, and no call before it has its id"
                )
        if None in answered:
            continue
        if not set(answered).issuperset(ids):
            raise BadRow("bad_order", f"{field} {places[0] + 1}: a call before it has no result, others have")
        order = [ids.index(turns[place]["tool_call_id"]) for place in places]
        if order != sorted(order):
            raise BadRow(
                "bad_order", f"{field} {places[0] + 1}: the results are not in the order of the calls"
            )


def sort_results(turns: Turns, field: str, changes: Changes) -> Turns:
    """Return the turns with the results of each turn's calls in the order of these."""
    ordered = list(turns)
    for ids, places in _answered(turns):
        results = [turns[place] for place in places]
        if not all(result.get("tool_call_id") in ids for result in results):
            continue
        by_call = sorted(results, key=lambda result: ids.index(result["tool_call_id"]))
        for place, before, after in zip(places, results, by_call, strict=True):
            if before is not after:
                changes.append(
                    Change("turns", f"{field} {place + 1}", *excerpts(before["content"], after["content"]))
                )
            ordered[place] = after
    return ordered


def _answered(turns: Turns) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the ids of calls that follow each other, and the places of their results.

    Calls of which one has no id are left out.
    """
    calls: list[Turn] = []
    places: list[int] = []
    for place, turn in enumerate([*turns, {"role": "user"}]):  # The last turn ends the results before it.
        if turn["role"] == "tool":
            places.append(place)
            continue
        if places and turn["role"] != "system":
            ids = [call["id"] for call in calls if "id" in call]
            if calls and len(ids) == len(calls):
                yield ids, places
            calls = []
            places = []
        calls += turn.get("tool_calls", ())
