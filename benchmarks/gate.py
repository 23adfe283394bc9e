"""Does the gate refuse what is broken and let pass what is not? Planted damage against ten clean levels, on a
finished project.

    python benchmarks/gate.py PROJECT [--rows 24] [--folder DIR]

Damage, each at Q4_K_M, at a level's own evaluation by `pipeline.stages.evaluate.stage.evaluate`:
- 1 % of the blocks of every quantized tensor zeroed;
- an adapter trained to answer without stopping (LoRA on the merged model, 12 steps: each answer is followed
  by a newline and itself, never by the end of turn), with the 16-bit model of its own that it is compared
  with;
- the untuned base's level under the tuned level's name.
Parity's own parity check of the level's weights is measured beside the gate, which is told that parity
passed. What is done is not done again.
"""

import argparse
import json
import shutil
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pipeline.gate.scores import Evidence

LEVEL = "Q4_K_M"
CLEAN = ("Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "IQ4_XS", "IQ4_NL")
CHECK = {"verdict": "pass", "figure": 0.0, "limit": 0.0, "unit": "", "detail": ""}
PASSED = {
    "verdict": "pass",
    "checks": {f"weights_{name.lower()}": CHECK | {"title": name} for name in (*CLEAN, "gguf")},
    "files": {},
}
STEPS, ROWS_A_STEP, LEARNING_RATE, LONGEST = 12, 4, 2e-3, 192


def zero_blocks(path: Path, share: float, seed: int = 0) -> int:
    """Zero `share` of the blocks of every quantized tensor, in place; how many."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    from pipeline.gguf.tensors import gguf_tensors

    dice, zeroed = np.random.default_rng(seed), 0
    for tensor in gguf_tensors(path)[1].values():
        weights, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.ggml_type)]
        if weights == 1:
            continue
        blocks = tensor.rows * tensor.columns // int(weights)
        stored = np.memmap(path, dtype=np.uint8, mode="r+", offset=tensor.start, shape=(blocks, int(size)))
        chosen = dice.choice(blocks, max(1, round(blocks * share)), replace=False)
        stored[chosen] = 0
        stored.flush()
        zeroed += len(chosen)
    return zeroed


def taught(merged: Path, rows: Path, folder: Path, *, ends: bool, seed: int = 0) -> Path:
    """Train the merged model briefly on answers of `rows`, which end or never do; `folder` (Hugging Face)."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from pipeline.chat.tokens import chats, encodable, load_tokenizer, trained_positions
    from pipeline.core.jsonl import read_rows

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
    adapted = get_peft_model(model, lora)
    trained = (parameter for parameter in adapted.parameters() if parameter.requires_grad)
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)
    tokenizer = load_tokenizer(merged)
    newline = tokenizer("\n", add_special_tokens=False)["input_ids"]
    encoded = list(islice(encodable(tokenizer, chats(read_rows(rows)), LONGEST), STEPS * ROWS_A_STEP))
    for step in range(STEPS):
        for row in encoded[step * ROWS_A_STEP : (step + 1) * ROWS_A_STEP]:
            places = trained_positions(row)
            question, answer = row.ids[: places[0] + 1], [row.ids[place + 1] for place in places]
            stated = answer if ends else (answer[:-1] + newline) * 2  # the last one is the end of turn
            ids = torch.tensor([[*question, *stated]])
            labels = torch.tensor([[-100] * len(question) + stated])
            (adapted(input_ids=ids, labels=labels, use_cache=False).loss / ROWS_A_STEP).backward()
        optimizer.step()
        optimizer.zero_grad()
    adapted.merge_and_unload().to(torch.float16).save_pretrained(folder)
    for file in merged.iterdir():
        if file.suffix in (".json", ".jinja") and not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)
    return folder


class Bench:
    """A project, and a folder for what is made of it."""

    def __init__(self, root: Path, folder: Path, rows: int) -> None:
        from pipeline.config.params import load_params
        from pipeline.llamacpp.tools import find_toolchain

        self.root, self.folder, self.params = root, folder, load_params(root / "params.yaml")
        self.tools, self.name = find_toolchain(self.params.machine.llama_cpp), self.params.convert.name
        fewer = {"perplexity_rows": rows, "task_rows": rows, "general": "none", "harness": []}
        evaluate = self.params.evaluate.model_copy(update=fewer)
        self.params = self.params.model_copy(update={"evaluate": evaluate})
        folder.mkdir(parents=True, exist_ok=True)

    def gguf(self, model: str) -> Path:
        """One of the project's."""
        return self.root / "models" / "gguf" / f"{self.name}-{model}.gguf"

    def level(self, source: Path, level: str, name: str) -> Path:
        """`source` at a level, made once."""
        from pipeline.llamacpp.converters import quantize_gguf
        from pipeline.llamacpp.tools import Llama

        target = self.folder / f"{name}.gguf"
        if not target.exists():
            quantize_gguf(Llama(self.tools), source, target, level)
        return target

    def evaluated(
        self, case: str, model: Path, reference: Path
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """`evaluate`'s figures and answers of `model`, measured once."""
        from pipeline.config.products import ModelFiles
        from pipeline.core.hashing import file_hash
        from pipeline.stages.evaluate.stage import evaluate

        kept = self.folder / f"{case}.json"
        if not kept.exists():
            sha256 = {model: file_hash(model)}
            measured = evaluate(self.params, self.root, ModelFiles(model), reference, sha256, untuned=False)
            kept.write_text(json.dumps({"figures": measured.figures, "answers": measured.answers}))
        found = json.loads(kept.read_text())
        return found["figures"], found["answers"]

    def evidence(self, level: str, case: str, model: Path, sixteen_case: str, sixteen: Path) -> "Evidence":
        """A level's evaluation, and that of the 16-bit model that it is compared with."""
        from pipeline.gate.evaluations import ANSWERS, Evaluation
        from pipeline.gate.scores import Evidence

        found = {
            "F16": self.evaluated(sixteen_case, sixteen, sixteen),
            level: self.evaluated(case, model, sixteen),
        }
        named = {name: figures | {"reference": "F16", "model": name} for name, (figures, _) in found.items()}
        return Evidence(
            {name: Evaluation.model_validate(figures) for name, figures in named.items()},
            {name: ANSWERS.validate_python(answers) for name, (_, answers) in found.items()},
        )

    def judge(self, case: str, level: str, model: Path, sixteen: Path, sixteen_case: str) -> None:
        """Print what the gate says of `model` as `level`, and what parity's check of its weights does."""
        from pipeline.config.levels import ModelName
        from pipeline.gate.records import Parity
        from pipeline.gate.verdict import judge
        from pipeline.stages.parity.level_weights import level_weights

        evidence = self.evidence(level, case, model, sixteen_case, sixteen)
        verdict = judge(level, evidence, Parity.model_validate(PASSED), self.params.report.gate)
        check = level_weights(sixteen, model, ModelName(level).level, {})
        figures = ", ".join(
            f"{one.key} {one.figure:.4g}"
            for one in verdict.checks
            if one.figure is not None and one.key != "parity"
        )
        refused = [finding.key for finding in verdict.checks if finding.verdict == "fail"]
        print(
            f"{case}: {verdict.verdict} ({', '.join(refused) or 'nothing refuses'}); {figures}; parity's "
            f"weights: {check.verdict}",
            flush=True,
        )
        for reason in verdict.reasons:
            print(f"    {reason}", flush=True)


def main() -> None:
    """Damage, then the ten clean levels, then the damage that has to be trained."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("project", type=Path)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--folder", type=Path, default=Path("gate-benchmark"))
    arguments = parser.parse_args()
    bench = Bench(arguments.project, arguments.folder, arguments.rows)
    sixteen = bench.gguf("F16")
    zeroed = bench.folder / "zeroed.gguf"
    if not zeroed.exists():
        shutil.copyfile(bench.gguf(LEVEL), zeroed)
        print(f"zeroed {zero_blocks(zeroed, 0.01):,} blocks")
    bench.judge("1 % of blocks zeroed", LEVEL, zeroed, sixteen, "F16")
    other = bench.level(bench.gguf("base-F16"), LEVEL, "base")
    bench.judge("another model's level", LEVEL, other, sixteen, "F16")
    for level in CLEAN:
        bench.judge(f"clean {level}", level, bench.level(sixteen, level, f"clean-{level}"), sixteen, "F16")
    endless = bench.folder / "endless-F16.gguf"
    if not endless.exists():
        from pipeline.llamacpp.converters import HeaderFields, to_gguf

        merged, rows = bench.root / "models/merged", bench.root / "data/final/train.jsonl"
        folder = taught(merged, rows, bench.folder / "endless", ends=False)
        to_gguf(bench.tools, folder, endless, "F16", HeaderFields("endless"))
    bench.judge("never ends", LEVEL, bench.level(endless, LEVEL, "endless"), endless, "endless F16")


if __name__ == "__main__":
    main()
