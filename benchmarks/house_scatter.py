"""In how many modules of pipeline a feature is named outside its home.

Its home is the modules and folders that are about nothing else. It is named where code has one of its names:
an identifier, the path of an import, or a text without white space (a key, a value, a path). Docstrings,
comments and sentences don't count, nor do the modules `elsewhere`, in which the name means something else.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Feature(NamedTuple):
    """The home, a pattern of names (texts in quotes), and the modules that mean something else; places are
    below pipeline/, with blanks between them.
    """

    home: str
    names: str
    elsewhere: str = ""


FEATURES = {
    "several processes": Feature(
        "core/launch.py core/ranks.py models/sharded.py stages/train/follow.py stages/train/several",
        r"train\.several|core\.ranks|^(run_rank|leads|processes|shares_base)$|--processes",
        "stages/curate",  # its workers
    ),
    "scales": Feature(
        "models/scales.py models/scaled_linear.py models/tuners models/tuners.py "
        "gguf/scales.py gguf/tuned_file.py stages/parity/scales_weights.py",
        r"^'scales'$|^tuner$|^(is|tunes)_scales$|_scaled$|(models|gguf)\.scale|ScaledLinear",
        "llamacpp/server_command.py",  # of adapters
    ),
    "unmerged": Feature(
        "config/products.py stages/lora stages/parity/unmerged_chain.py stages/tuned",
        r"(?i:unmerged)|^TUNED$|^'tuned'$|tuned_file",
    ),
    "distil": Feature(
        "gate/distillation.py models/distill_loss.py stages/distill stages/train/distill "
        "subprojects/distill.py subprojects/distill_rows.py",
        r"(?i:distil)",
    ),
    "experts": Feature("models/experts", r"(?i:expert)"),
    "preferences": Feature(
        "commands/pairs models/preference_losses.py stages/curate/pairs.py stages/train/preference",
        r"(?i:preference)|(?i:\b(dpo|ipo|kto|orpo|simpo)\b)",
    ),
    "budgets": Feature(
        "config/budgets.py planning/budget.py stages/budget",
        r"(?i:budget)",
        "stages/curate stages/parity/behavior.py",  # of tokens
    ),
    "compare": Feature(
        "config/strategies.py stages/compare stages/report/strategies_section.py",
        r"^(strategies|Strategies|Compare|StrategyName)$|config\.strategies|compare\.|/(compare|strategies)",
        "llamacpp/pretokenizer.py workflow/sources.py",  # ast.Compare
    ),
}


def names(tree: ast.Module) -> Iterator[str]:
    """What the code of a module names: identifiers, imported modules, and texts in quotes."""
    stated = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        for part in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(name := getattr(node, part, None), str):
                yield name
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in stated:
            yield "" if re.search(r"\s", node.value) else repr(node.value)


def outside(feature: Feature, named: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """The modules that name a feature outside its home, and how; `named` has the names of each module."""
    away = f"{feature.home} {feature.elsewhere}".split()
    found = {
        module: sorted({name for name in texts if re.search(feature.names, name)})
        for module, texts in named.items()
        if not any(module == place or module.startswith(f"{place}/") for place in away)
    }
    return {module: texts for module, texts in found.items() if texts}


def scatter(folder: Path, trees: Mapping[Path, ast.Module]) -> dict[str, dict[str, list[str]]]:
    """`outside` of each feature; `trees` are the modules of pipeline, which is `folder`."""
    named = {path.relative_to(folder).as_posix(): set(names(tree)) for path, tree in trees.items()}
    return {name: outside(feature, named) for name, feature in FEATURES.items()}
