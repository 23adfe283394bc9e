"""The results in benchmarks/peers/results as the tables of docs/comparison.md.

    python benchmarks/peers/table.py

A figure is the median over the seeds that were run, with lowest and highest where there are several. Speeds
and times that other work disturbed are marked †, and left out where an undisturbed run is there.
"""

import json
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from benchmarks.peers.run import TOOLS
from benchmarks.peers.shared import HERE

Result = dict[str, Any]
NOT_MEASURED = "not measured"
DISTURBED = " †"


def over_seeds(results: Iterable[Result], figure: Callable[[Result], float | None], digits: int) -> str:
    """The median of a figure, and its range."""
    values = sorted(value for value in map(figure, results) if value is not None)
    if not values:
        return NOT_MEASURED
    spread = f" ({values[0]:,.{digits}f}–{values[-1]:,.{digits}f})" if len(values) > 1 else ""
    return f"{median(values):,.{digits}f}{spread}"


def timed(results: list[Result], figure: Callable[[Result], float | None]) -> str:
    """The same of undisturbed runs; where there is none, of all, marked."""
    alone = [one for one in results if not any(ran["load"]["disturbed"] for ran in one["commands"])]
    marked = "" if alone else DISTURBED
    cell = over_seeds(alone or results, figure, 0)
    return cell if cell == NOT_MEASURED else cell + marked


def speed(key: str) -> Callable[[Result], float | None]:
    """Tokens per second while training."""
    return lambda result: (result["training"] or {}).get(key)


def judged(key: str) -> Callable[[Result], float | None]:
    """A figure of the judge, in percent."""
    return lambda result: result["judged"][key] * 100 if result.get("judged") else None


def tool_line(name: str) -> str:
    """A tool's line of the first table."""
    files = sorted((HERE / "results").glob(f"{name}-[0-9]*.json"))
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    cells = [
        name,
        str(len(results)),
        timed(results, speed("tokens_per_second")),
        timed(results, speed("tokens_per_second_with_padding")),
        over_seeds(results, lambda result: result["peak_bytes"] / 1e9 if speed("steps")(result) else None, 1),
        timed(results, lambda result: result.get("seconds_to_level")),
        over_seeds(results, judged("score"), 1),
        over_seeds(results, judged("perfect"), 1),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the tables."""
    print(
        "| tool | seeds | real tokens/s | with padding | peak, GB | rows → Q4_K_M, s | fields | all right |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in TOOLS:
        print(tool_line(name))
    print("\n| environment | GB | s |\n| --- | --- | --- |")
    for file in sorted((HERE / "results").glob("environment-*.json")):
        values = json.loads(file.read_text(encoding="utf-8"))
        print(f"| {file.stem[12:]} | {values['bytes'] / 1e9:.1f} | {values['seconds']} |")
    print("\n| file | MB | KLD from F16 | same top, % | fields | all right | s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for file in sorted((HERE / "results").glob("quantizers-*.json")):
        for name, values in json.loads(file.read_text(encoding="utf-8")).items():
            if isinstance(values, dict) and "kld" in values:
                score = [f"{values['judged'][key]:.1%}" for key in ("score", "perfect")]
                figures = [f"{values['bytes'] / 1e6:.1f}", f"{values['kld']:.4f} ± {values['kld_error']:.4f}"]
                rest = [f"{values['same_top']:.1f}", *score, f"{values['seconds']:.0f}"]
                print(f"| {' | '.join([name, *figures, *rest])} |")


if __name__ == "__main__":
    main()
