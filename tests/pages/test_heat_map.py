"""heat_map: each figure has its cell and its words, steps follow the figures, what is missing is no
figure.
"""

import re

import pytest
from html_page import Page
from hypothesis import given
from hypothesis import strategies as st

from pipeline.pages.heat_map import STEPS, by_cell, heat_map, modules_of


def shown(value: float) -> str:
    return f"{value:.4f}"


def steps(drawing: str) -> dict[str, str]:
    """The class of each cell by the words of its title before the colon."""
    cells = re.findall(r'<rect class="([^"]+)"[^>]*><title>([^:]+):', drawing)
    return {words: kind for kind, words in cells}


def test_the_least_is_palest_the_largest_is_full_and_zero_and_gaps_have_marks_of_their_own() -> None:
    drawing = heat_map(
        "map",
        "Map",
        {(0, "q_proj"): [0.01], (1, "q_proj"): [0.08], (2, "q_proj"): [0.0], (3, "q_proj"): [None]},
        shown,
    )
    cells = steps(drawing)
    assert cells == {
        "layer 0, q_proj": "heat-1",
        "layer 1, q_proj": f"heat-{STEPS}",
        "layer 2, q_proj": "heat-zero",
        "layer 3, q_proj": "heat-open",
    }
    text = Page(drawing).text
    for words in (
        "layer 1, q_proj: 0.0800",
        "layer 2, q_proj: 0.0000, nothing learned",
        "layer 3, q_proj: not measured",
    ):
        assert words in text
    assert "4 layers, 0.0000 to 0.0800; means by module: q_proj 0.0300." in text


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=90))
def test_a_larger_figure_is_never_paler(values: list[float]) -> None:
    cells = steps(
        heat_map("map", "Map", {(layer, "q_proj"): [value] for layer, value in enumerate(values)}, shown)
    )
    ordered = [
        int(cells[f"layer {layer}, q_proj"].removeprefix("heat-"))
        for _, layer in sorted((value, layer) for layer, value in enumerate(values))
    ]
    assert ordered == sorted(ordered)
    assert set(ordered) <= set(range(1, STEPS + 1))
    assert ordered[-1] == STEPS


@pytest.mark.parametrize(("layers", "modules"), [(1, 1), (28, 7), (80, 9), (130, 3)])
def test_every_cell_is_inside_the_drawing(layers: int, modules: int) -> None:
    figures = {
        (layer, f"mlp.part_{part}_proj"): [0.01 + layer] for layer in range(layers) for part in range(modules)
    }
    drawing = heat_map("map", "Map", figures, shown)
    assert len(steps(drawing)) == layers * modules
    width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', drawing).groups())  # type: ignore[union-attr]
    for x, y, wide, high in re.findall(
        r'<rect [^>]*x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"', drawing
    ):
        assert float(x) + float(wide) <= width
        assert float(y) + float(high) <= height
        assert float(wide) > 0


def test_experts_of_a_layer_share_a_cell() -> None:
    figures = {(0, f"mlp.experts.{expert}.up_proj"): [float(expert)] for expert in range(5)} | {
        (0, "mlp.gate"): [1.0]
    }
    drawing = heat_map("map", "Map", figures, shown)
    assert set(steps(drawing)) == {"layer 0, mlp.experts.up_proj", "layer 0, mlp.gate"}
    assert "2.0000 (mean of 5, 0.0000 to 4.0000)" in drawing
    assert by_cell(figures)[0, "mlp.experts.up_proj"] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_modules_stand_as_a_layer_computes() -> None:
    named = ["mlp.down_proj", "mlp.other", "mlp.gate_proj", "self_attn.o_proj", "self_attn.q_proj"]
    assert modules_of([(0, module) for module in named]) == [
        "self_attn.q_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.down_proj",
        "mlp.other",
    ]


@pytest.mark.parametrize("figures", [{}, {(0, "q_proj"): [None]}, {(0, "q_proj"): [0.0]}])
def test_nothing_is_drawn_of_nothing(figures: dict[tuple[int, str], list[float | None]]) -> None:
    assert heat_map("map", "Map", figures, shown) == ""


def test_names_are_text_and_the_drawing_is_the_same_each_time() -> None:
    figures = {(0, "<b>&"): [0.5], (1, "<b>&"): [0.7]}
    assert "<b>" not in heat_map("map", "Map", figures, shown)
    assert heat_map("map", "Map", figures, shown) == heat_map("map", "Map", figures, shown)
