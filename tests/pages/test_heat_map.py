"""heat_map: each figure has its cell and words, steps follow the figures, what is missing is no figure."""

import pytest
from html_page import Page
from hypothesis import given
from hypothesis import strategies as st

from pipeline.pages.heat_map import by_cell, heat_map, modules_of
from pipeline.pages.templating import TEMPLATES

Figures = dict[tuple[int, str], list[float | None]]


def shown(value: float) -> str:
    return f"{value:.4f}"


def steps(figures: Figures) -> dict[str, str]:
    """The class of each cell by the words of its title before the colon."""
    drawn = heat_map(figures, shown)
    assert drawn
    cells = [cell for row in drawn["rows"] for cell in row["cells"] if cell]
    return {title.partition(":")[0]: kind for kind, title in cells}


def page(figures: Figures) -> Page:
    """The map as HTML."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    macro = environment.from_string('{% from "heat_map.html.jinja" import heat_map %}{{ heat_map(map) }}')
    return Page(macro.render(map=heat_map(figures, shown)))


def test_the_least_is_palest_the_largest_is_full_and_zero_and_gaps_have_marks_of_their_own() -> None:
    figures: Figures = {(layer, "q_proj"): [one] for layer, one in enumerate((0.01, 0.08, 0.0, None))}
    assert [*steps(figures).values()] == ["heat-1", "heat-7", "heat-zero", "heat-open"]
    html = page(figures)
    titles = [attributes["title"] or "" for tag, attributes in html.tags if "title" in attributes]
    said = ["0.0100", "0.0800", "0.0000, nothing learned", "not measured"]
    assert [title.split(": ")[1] for title in titles] == said
    assert "0.0000 to 0.0800" in html.text and "q_proj 0.0300" in html.text


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=90))
def test_a_larger_figure_is_never_paler(values: list[float]) -> None:
    cells = steps({(layer, "q_proj"): [value] for layer, value in enumerate(values)})
    ordered = [
        int(cells[f"layer {layer}, q_proj"].removeprefix("heat-"))
        for _, layer in sorted((value, layer) for layer, value in enumerate(values))
    ]
    assert ordered == sorted(ordered)
    assert set(ordered) <= set(range(1, 8))
    assert ordered[-1] == 7


@pytest.mark.parametrize(("layers", "modules"), [(1, 1), (28, 7), (80, 9), (130, 3)])
def test_every_row_has_a_cell_for_every_layer_and_its_mean(layers: int, modules: int) -> None:
    places = ((layer, f"mlp.part_{part}_proj") for layer in range(layers) for part in range(modules))
    html = page({(layer, module): [0.01 + layer] for layer, module in places})
    tags = [tag for tag, _ in html.tags]
    assert tags.count("tr") == 1 + modules
    assert tags.count("td") == (layers + 1) * modules
    assert sum("title" in attributes for _, attributes in html.tags) == layers * modules
    spans = [int(attributes["colspan"] or 0) for _, attributes in html.tags if "colspan" in attributes]
    assert sum(spans) == layers
    assert len(spans) <= 24


def test_experts_of_a_layer_share_a_cell() -> None:
    figures: Figures = {(0, f"mlp.experts.{expert}.up_proj"): [float(expert)] for expert in range(5)} | {
        (0, "mlp.gate"): [1.0]
    }
    assert set(steps(figures)) == {"layer 0, mlp.experts.up_proj", "layer 0, mlp.gate"}
    titles = [attributes.get("title") for _, attributes in page(figures).tags]
    assert "layer 0, mlp.experts.up_proj: 2.0000 (mean of 5, 0.0000 to 4.0000)" in titles
    assert by_cell(figures)[0, "mlp.experts.up_proj"] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_modules_stand_as_a_layer_computes() -> None:
    order = ["self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj", "mlp.other"]
    assert modules_of([(0, order[place]) for place in (3, 4, 2, 1, 0)]) == order


@pytest.mark.parametrize("figures", [{}, {(0, "q_proj"): [None]}, {(0, "q_proj"): [0.0]}])
def test_nothing_is_drawn_of_nothing(figures: Figures) -> None:
    assert heat_map(figures, shown) is None


def test_names_are_text() -> None:
    assert "<b>&" in page({(0, "<b>&"): [0.5], (1, "<b>&"): [0.7]}).text
