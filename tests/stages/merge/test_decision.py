"""decision: the task decides where it separates, else the divergence, else the 16-bit weights."""

import pytest

from pipeline.stages.merge.choose import Measured, decide

ROWS = 40
SAME = [0.1 + 0.001 * (row % 7) for row in range(ROWS)]
FAR = [value + 0.2 for value in SAME]
HALF = [float(row % 2) for row in range(ROWS)]
FULL = [1.0] * ROWS


@pytest.mark.parametrize(
    ("sixteen_bit", "nf4", "winner", "words"),
    [
        ((SAME, HALF), (FAR, FULL), "nf4", "does the task better by"),
        ((FAR, FULL), (SAME, HALF), "16-bit", "does the task better by"),
        (
            (SAME, HALF),
            (FAR, HALF[::-1]),
            "16-bit",
            "closer to the trained model by 0.2000 to 0.2000 nats, 40 rows, and the task's scores do not",
        ),
        (
            (FAR, None),
            (SAME, None),
            "nf4",
            "merge into the NF4 base is closer to the trained model by 0.2000 to 0.2000 nats, 40 rows",
        ),
        ((SAME, None), (SAME, None), "16-bit", "40 rows can't tell the two merges apart"),
        ((SAME, FULL), (SAME, FULL), "16-bit", "can't tell the two merges apart"),
        (
            ([0.1, 9.0, 0.1, 0.2], None),
            ([0.2, 0.1, 0.3, 0.3], None),
            "16-bit",
            "4 rows can't tell",
        ),  # one row is no evidence
    ],
)
def test_the_rule(sixteen_bit, nf4, winner, words) -> None:
    merge_base, reason = decide(
        Measured(sixteen_bit[0], 1.0, sixteen_bit[1]), Measured(nf4[0], 1.0, nf4[1]), "Q4_K_M"
    )
    assert merge_base == winner
    assert words in reason
    assert reason.startswith("At Q4_K_M ")


def test_rows_that_were_not_measured_are_left_out_of_both() -> None:
    unsure: list[float | None] = [None if row % 3 == 0 else value for row, value in enumerate(HALF)]
    merge_base, reason = decide(Measured(SAME, 1.0, unsure), Measured(FAR, 1.0, FULL), "Q4_K_M")
    assert (merge_base, "points, 26 rows" in reason) == ("nf4", True)
    assert decide(Measured(SAME, 1.0, [None] * ROWS), Measured(FAR, 1.0, FULL), "Q4_K_M")[0] == "16-bit"


def test_rows_must_be_the_same_ones() -> None:
    with pytest.raises(ValueError, match="zip"):
        decide(Measured(SAME, 1.0, None), Measured(SAME[1:], 1.0, None), "Q4_K_M")
