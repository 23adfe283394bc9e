"""The steps before Snakemake plans are in the order that each states."""

from pipeline.workflow.prepare import STEPS


def test_each_step_comes_after_those_that_it_names_and_says_why() -> None:
    order = [step.do for step in STEPS]
    for number, step in enumerate(STEPS):
        assert {*step.after} <= {*order[:number]}, step.do.__name__
        assert bool(step.after) == bool(step.because)
