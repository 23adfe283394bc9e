"""The closer merge wins where rows tell the two apart, else the 16-bit weights."""

import pytest

from pipeline.stages.merge.choose import decide

ROWS = 40
SAME = [0.1 + 0.001 * (row % 7) for row in range(ROWS)]
FAR = [value + 0.2 for value in SAME]


@pytest.mark.parametrize(
    ("sixteen_bit", "nf4", "winner", "words"),
    [
        (SAME, FAR, "16-bit", "16-bit base is closer to the trained model by 0.2000 to 0.2000 nats, 40 rows"),
        (FAR, SAME, "nf4", "NF4 base is closer to the trained model by 0.2000 to 0.2000 nats, 40 rows"),
        (SAME, SAME, "16-bit", "40 rows can't tell the two merges apart"),
        (FAR, [value + row % 2 - 0.5 for row, value in enumerate(FAR)], "16-bit", "can't tell"),
        (FAR[:8], SAME[:8], "nf4", "8 rows"),
        (FAR[:7], SAME[:7], "16-bit", "7 rows can't tell"),  # too few are no evidence
        ([float("nan"), *FAR], [0.1, *SAME], "16-bit", "can't tell"),
    ],
)
def test_the_rule(sixteen_bit: list[float], nf4: list[float], winner: str, words: str) -> None:
    merge_base, reason = decide(sixteen_bit, nf4, "Q4_K_M")
    assert merge_base == winner and reason.startswith("At Q4_K_M ") and words in reason
