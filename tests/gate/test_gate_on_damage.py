"""The gate on a real model (SmolLM2, the embedded base) with planted damage: each is refused for the right
reason, and a clean level passes.
"""

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.params import load_params
from pipeline.core.places import PROJECT
from pipeline.gate.records import Parity
from pipeline.gate.verdict import Judgment, judge
from pipeline.llamacpp.converters import HeaderFields, to_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.parity.check import KEYS
from pipeline.stages.parity.level_weights import level_weights

pytestmark = pytest.mark.slow
BENCHMARK = runpy.run_path(str(PROJECT / "benchmarks" / "gate.py"))
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Cuba": "Havana",
}
LEVEL = "Q8_0"
# what was taught so hastily is flat on the questions' tokens (perplexity 222): a clean Q8_0 has another first
# choice at 32 of 360, where a sound model's has fewer
ENOUGH_SAME_TOP = 0.85


def write_rows(path: Path, times: int) -> None:
    rows = []
    for place, (country, city) in enumerate(list(CAPITALS.items()) * times):
        question, answer = f"What is the capital of {country}?", f"The capital of {country} is {city}."
        rows.append(
            {
                "id": f"r{place}",
                "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def bench(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The embedded base, taught eight answers and to end them, as a merged model and its 16-bit GGUF."""
    from pipeline.__main__ import main

    root = tmp_path_factory.mktemp("damage")
    params = load_params(PROJECT / "recipes" / "demo-small.yaml").model_dump(mode="json")
    params["evaluate"] |= {"max_new_tokens": 48, "scorers": ["exact_match"], "parallel": 2}
    params["serve"] |= {"ctx_size": 512}
    (root / "params.yaml").write_text(yaml.safe_dump(params), encoding="utf-8")
    assert main(["base", "--root", str(root)]) == 0
    write_rows(root / "data/final/test.jsonl", 1)
    write_rows(root / "data/final/train.jsonl", 8)
    for place in ("data/evaluation", "models/gguf"):
        (root / place).mkdir()
    shutil.copytree(root / "models/base", root / "models/adapter")  # for its tokenizer
    BENCHMARK["taught"](
        root / "models/base", root / "data/final/train.jsonl", root / "models/merged", ends=True
    )
    to_gguf(tools, root / "models/merged", root / "models/gguf/demo-F16.gguf", "F16", HeaderFields("demo"))
    return BENCHMARK["Bench"](root, root / "made", len(CAPITALS))


@pytest.fixture(scope="module")
def endless(bench: Any, tools: Toolchain) -> Path:
    """The 16-bit GGUF of a model that was trained not to end its answers."""
    folder = BENCHMARK["taught"](
        bench.root / "models/base",
        bench.root / "data/final/train.jsonl",
        bench.folder / "endless",
        ends=False,
    )
    to_gguf(tools, folder, bench.folder / "endless-F16.gguf", "F16", HeaderFields("endless"))
    return Path(bench.folder / "endless-F16.gguf")


def judged(bench: Any, case: str, model: Path, sixteen: Path) -> Judgment:
    """The gate on a level's own evaluation and on parity's parity check of its weights."""
    evidence = bench.evidence(LEVEL, case, model, f"{sixteen.stem}-itself", sixteen)
    params = load_params(bench.root / "params.yaml")
    check = level_weights(sixteen, model, LEVEL, {})
    checks = {f"weights_{LEVEL.lower()}": check.record(KEYS)}
    parity = Parity.model_validate({"verdict": check.verdict, "checks": checks, "files": {}})
    return judge(LEVEL, evidence, parity, params.report.gate)


def refusing(verdict: Judgment) -> set[str]:
    failed = {check.key: check.figure or 0.0 for check in verdict.checks if check.verdict == "fail"}
    return {rule for rule, figure in failed.items() if rule != "same_top" or figure < ENOUGH_SAME_TOP}


def test_a_clean_level_passes(bench: Any) -> None:
    sixteen = bench.gguf("F16")
    assert not refusing(judged(bench, "clean", bench.level(sixteen, LEVEL, "clean"), sixteen))


def test_zeroed_blocks_are_refused(bench: Any) -> None:
    sixteen = bench.gguf("F16")
    damaged = shutil.copyfile(bench.level(sixteen, LEVEL, "clean"), bench.folder / "zeroed.gguf")
    assert BENCHMARK["zero_blocks"](damaged, 0.01) > 10_000
    # the eight answers known by heart survive it; the parity check of the weights and the divergence over all
    # tokens see it
    assert {"parity", "kld"} <= refusing(judged(bench, "zeroed", damaged, sixteen))


@pytest.mark.exhaustive
def test_a_model_that_never_ends_its_answers_is_refused_for_just_that(bench: Any, endless: Path) -> None:
    verdict = judged(bench, "endless", bench.level(endless, LEVEL, "endless"), endless)
    assert refusing(verdict) == {"stopped"}  # its 16-bit model doesn't either, so divergence sees nothing


@pytest.mark.exhaustive
def test_a_level_of_another_model_is_refused(bench: Any, endless: Path) -> None:
    other = bench.level(endless, LEVEL, "endless")
    assert {"parity", "kld", "task_drop"} <= refusing(judged(bench, "other", other, bench.gguf("F16")))
