"""quantize.distill: which levels can be distilled, what they are called, and what the graph makes of them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.config.params import Params, load_params
from pipeline.core.places import PROJECT
from pipeline.metrics.level_limits import level_limit
from pipeline.workflow.stages import rules, stages_in

RECIPE = PROJECT / "recipes/demo-level-distill.yaml"


def params(recipe: Path = RECIPE, **sections: dict[str, Any]) -> Params:
    values = load_params(recipe).model_dump(mode="json")
    return Params.model_validate(values | {name: values[name] | keys for name, keys in sections.items()})


def test_a_distilled_level_is_named_behind_its_own_and_has_its_limits() -> None:
    assert level_limit("Q4_0-distilled", 1e8) == level_limit("Q4_0", 1e8)
    assert params().quantize.files == ["Q4_K_M", "Q4_0", "Q4_0-distilled"]


@pytest.mark.parametrize(
    ("quantize", "words"),
    [
        ({"distill": ["Q5_0"]}, r"Q5_0.*\(Q4_K_M, Q4_0\)"),
        ({"distill": ["q4_0"]}, "spelled as in levels"),
        ({"levels": ["Q4_0-imatrix"], "distill": ["Q4_0-imatrix"]}, "without an importance matrix"),
        ({"levels": ["Q4_0", "base-Q4_0"], "distill": ["base-Q4_0"]}, "base-Q4_0"),
        ({"levels": ["TQ1_0"], "distill": ["TQ1_0"]}, "no scales that could learn"),
        ({"levels": ["Q4_0-distilled"], "distill": []}, "quantize.distill"),
        ({"distill": []}, "evaluate.models names Q4_0-distilled"),
    ],
)
def test_what_can_not_be_distilled_is_one_sentence(quantize: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        params(quantize=quantize)
    assert len(caught.value.errors()) == 1


def test_it_is_of_the_merged_graph_alone() -> None:
    with pytest.raises(ValidationError, match=r"quantize\.distill names Q4_K_M and base"):
        params(PROJECT / "recipes/demo-gguf.yaml", quantize={"distill": ["Q4_K_M"]})
    assert "distill" in stages_in(params())
    assert "distill" not in stages_in(load_params(PROJECT / "recipes/demo.yaml"))


def test_on_there_is_a_job_for_each_level_that_parity_and_evaluate_wait_for() -> None:
    chosen = params(quantize={"distill": ["Q4_K_M", "Q4_0"]})
    made = {rule.name: rule for rule in rules(chosen, cores=2)}
    distill = made["distill"]
    assert distill.items == {"item": "Q4_K_M|Q4_0"}
    assert set(distill.files) == {"models/gguf/demo-{item}-distilled.gguf", "reports/distill/{item}.json"}
    assert {"models/gguf/demo-F16.gguf", "models/gguf/demo-{item}.gguf"} <= set(distill.deps)
    waits = {
        "models/gguf/demo-Q4_0-distilled.gguf",
        "models/gguf/demo-Q4_K_M-distilled.gguf",
        "reports/distill/Q4_0.json",
    }
    assert waits <= set(made["parity"].deps)
    assert "models/gguf/demo-{item}.gguf" in made["evaluate"].deps
    assert "Q4_0-distilled" in made["evaluate"].items["item"]
