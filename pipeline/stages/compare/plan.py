"""What is run for each seed and level, as steps and the measurements that need them.

Per seed: NF4-SEED trains; W16-SEED and NF4M-SEED merge it, convert, and quantise; LEVEL-SEED trains on LEVEL's GGUF. Per level: LEVEL makes the
untuned base's GGUF, which NF4-SEED's adapter is put on as well, and the tokens for its own tokenizer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.sections import UNTUNED
from pipeline.config.strategies import FOLDER, LORA_LEVEL, LORA_NF4, MERGED_16, MERGED_NF4, title
from pipeline.core.errors import ToolError
from pipeline.core.hashing import file_hash, json_hash, tree_hash
from pipeline.core.publish import read_json, remove
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.llamacpp.converters import quantise_gguf
from pipeline.llamacpp.tools import Toolchain
from pipeline.stages.compare.child import run_module, run_stage
from pipeline.stages.compare.measuring import measure
from pipeline.stages.compare.projects import Settings, code_hash, key_of, level_settings, nf4_settings, open_project
from pipeline.stages.compare.reference import FOLDER as REFERENCE
from pipeline.stages.compare.steps import Measurement, Step, size_of

KLD_ROWS = 16  # held-out rows whose logits are compared: 64 positions each at most
RECORDS = "records"  # folder of figures that are kept, so that one more seed costs one seed
# settings that decide what answers and scores are; the rows themselves come with them
ANSWERING = ("scorers", "judge", "max_new_tokens", "ctx_size", "parallel", "threads", "n_gpu_layers", "seed")


@dataclass(frozen=True)
class Plan:
    """The project's folder and settings, the rows that are answered, and llama.cpp."""

    root: Path
    params: Params
    rows: Sequence[dict[str, Any]]
    tools: Toolchain

    @cached_property
    def training_key(self) -> str:
        """What every sub-project's outputs depend on."""
        return key_of(self.root, self.params, self.tools)

    @cached_property
    def measuring_key(self) -> str:
        """What every figure depends on, the code that is reached from here included: other code to measure with needs no other models."""
        evaluate, own = self.params.evaluate.model_dump(mode="json"), self.root / "data/evaluation"
        rows = [self.params.compare.rows, file_hash(self.root / "data/final/test.jsonl"), KLD_ROWS]
        answering, scorers = {name: evaluate[name] for name in ANSWERING}, tree_hash(own) if own.is_dir() else ""
        return json_hash([self.training_key, code_hash(__name__), rows, answering, scorers])

    @property
    def folder(self) -> Path:
        """Where sub-projects and records are."""
        return self.root / FOLDER

    def measurements(self) -> list[Measurement]:
        """Everything that is measured, in the order that needs least disk; opens the sub-projects."""
        levels = {level: self.level(level) for level in self.params.compare.levels}
        return [one for seed in self.params.compare.seeds for one in self.of_seed(seed, levels)]

    def of_seed(self, seed: int, levels: Mapping[str, Step]) -> list[Measurement]:
        """One seed's: the 16-bit merge and its levels, the adapter on the base's levels, the other merge's levels, each level's own training."""
        root, kind, name = self.root, self.params.convert.type, self.params.convert.name
        links = {"models/base": root / "models/base", "models/base.json": root / "models/base.json"}
        project = self.project(f"NF4-{seed}", nf4_settings(seed), links | {"data/tokens": root / "data/tokens"})
        train = self.train(project)
        reference = self.reference(project, train)
        converted = {onto: self.merged(seed, onto, train, links) for onto in ("w16", "nf4")}
        base = size_of(root / "models/base")
        lora = converted["w16"][1].project / f"models/gguf/{name}-lora.gguf"

        def merged(onto: str, way: str, level: str) -> Measurement:
            merge, convert = converted[onto]
            sixteen = convert.project / f"models/gguf/{name}-{kind}.gguf"
            if level == kind:
                made, needs = sixteen, (convert, reference, train)
            else:
                made = convert.project / f"models/gguf/{name}-{level}.gguf"
                quantize = Step(f"quantize@{level} in {convert.project.name}", convert.project, (made,),
                                lambda: run_stage(convert.project, f"quantize@{level}"), (convert,))  # fmt: skip
                needs = (quantize, reference, train)

            def disk() -> dict[str, int]:
                parts = {"base": base, "merged model": merge.bytes_of(merge.made[0]), f"{kind} GGUF": convert.bytes_of(sixteen)}
                return parts if level == kind else parts | {"GGUF": size_of(made)}

            return self.measurement(way, level, seed, made, None, project, disk, needs)

        def on_base(level: str) -> Measurement:
            file = levels[level].made[0] / MODEL_FILE

            def disk() -> dict[str, int]:
                return {"base": base, "GGUF": size_of(file), "LoRA GGUF": size_of(lora)}

            return self.measurement(LORA_NF4, level, seed, file, lora, project, disk, (levels[level], converted["w16"][1], reference, train))

        chosen = list(levels)
        return [
            *(merged("w16", MERGED_16, level) for level in [kind, *chosen]), *(on_base(level) for level in chosen),
            *(merged("nf4", MERGED_NF4, level) for level in chosen), *(self.on_level(level, seed, levels[level]) for level in chosen),
        ]  # fmt: skip

    def merged(self, seed: int, onto: str, train: Step, links: Mapping[str, Path]) -> tuple[Step, Step]:
        """The steps that merge the adapter of `train` into `onto` and convert the result to 16 bit."""
        name = {"w16": "W16", "nf4": "NF4M"}[onto]
        project = self.project(f"{name}-{seed}", nf4_settings(seed, onto), {**links, "models/adapter": train.made[0]})
        folder, stem = project / "models/gguf", self.params.convert.name
        kind = self.params.convert.type
        merge = self.stage("merge", project, (project / "models/merged",), (train,))
        made = (folder / f"{stem}-{kind}.gguf", folder / f"{stem}-lora.gguf")
        untuned = folder / f"{stem}-{UNTUNED}{kind}.gguf"  # is there already, in the project itself
        return merge, self.stage("convert", project, made, (merge, train), (untuned,))

    def level(self, level: str) -> Step:
        """The step that makes the untuned base's GGUF at `level`, and what is trained on it: models/base and data/tokens of a sub-project."""
        params, scratch = self.params, self.folder / level / "level.gguf"
        source = self.root / f"models/gguf/{params.convert.name}-{UNTUNED}{params.convert.type}.gguf"
        project = self.project(level, level_settings(scratch), {"data/final": self.root / "data/final"})

        def run() -> None:
            quantise_gguf(self.tools, source, scratch, level, params.evaluate.threads, tensor_types=params.quantize.tensor_types)
            run_stage(project, "base")
            remove(scratch)
            run_stage(project, "preprocess")

        return Step(f"base and preprocess in {level}", project, (project / "models/base", project / "models/base.json", project / "data/tokens"), run)

    def on_level(self, level: str, seed: int, made: Step) -> Measurement:
        """Training on the level's own GGUF, and the adapter as a GGUF."""
        base, lineage, tokens = made.made
        links = {"models/base": base, "models/base.json": lineage, "data/tokens": tokens}
        project = self.project(f"{level}-{seed}", level_settings(self.folder / level / "level.gguf", seed), links)
        file, lora = base / MODEL_FILE, project / f"models/gguf/{self.params.convert.name}-lora.gguf"
        train = self.train(project, made)
        needs = (made, self.stage("lora", project, (lora,), (train, made)), self.reference(project, train, made), train)
        return self.measurement(LORA_LEVEL, level, seed, file, lora, project, lambda: {"GGUF": size_of(file), "LoRA GGUF": size_of(lora)}, needs)

    def measurement(self, way: str, level: str, seed: int, gguf: Path, lora: Path | None, trained: Path, disk: Callable[[], Mapping[str, int]],
                    needs: tuple[Step, ...]) -> Measurement:  # fmt: skip
        """The measurement of one way; `disk` is asked when everything has been made.

        `needs` has the training as well, so that its adapter stays: code that measures otherwise asks for the reference anew.
        """

        def run() -> dict[str, Any]:
            training = read_json(trained / "reports/train.json", "run `python -m pipeline compare` once more")
            took = {name: training[name] for name in ("seconds", "tokens_per_second", "peak_memory_bytes", "steps", "loss_last")}
            found = measure(gguf, lora, trained=trained, rows=self.rows, settings=self.params.evaluate, tools=self.tools, root=self.root, disk=disk())
            return {"way": way, "level": level, "seed": seed, "training": took, **found}

        record = self.folder / RECORDS / f"{way}-{level}-{seed}.json"
        return Measurement(f"measuring {title(way, level)}, seed {seed}", record, json_hash([self.measuring_key, way, level, seed]), run, needs)

    def project(self, name: str, settings: Settings, links: Mapping[str, Path]) -> Path:
        """A sub-project, opened."""
        return open_project(self.folder / name, self.params, settings, links, json_hash([self.training_key, name]))

    def train(self, project: Path, *needs: Step) -> Step:
        """Training in `project`; what it leaves for the next one goes as soon as it is done."""
        scrap = project / "models/checkpoints", project / "reports/tensorboard"
        return self.stage("train", project, (project / "models/adapter",), needs, scrap)

    def reference(self, project: Path, *needs: Step) -> Step:
        """What the model that `project` trained says of held-out rows."""
        evaluate = self.params.evaluate
        words = {"--root": project, "--rows": self.root / "data/final/test.jsonl", "--count": KLD_ROWS, "--seed": evaluate.seed,
                 "--ctx-size": evaluate.ctx_size}  # fmt: skip
        flat = [str(word) for pair in words.items() for word in pair]

        def run() -> None:
            run_module("pipeline.stages.compare.reference", *flat, what=f"asking the model that {project.name} trained")

        return Step(f"reference of {project.name}", project, (project / REFERENCE,), run, needs, key=self.measuring_key)

    def stage(self, stage: str, project: Path, made: tuple[Path, ...], needs: tuple[Step, ...] = (), scrap: tuple[Path, ...] = ()) -> Step:
        """A stage of a sub-project as a step."""

        def run() -> None:
            run_stage(project, stage)
            if missing := [path.name for path in made if not path.exists()]:
                raise ToolError(f"{stage} in {project.name} ended well and made no {' and no '.join(missing)}: remove {FOLDER}, run again")

        return Step(f"{stage} in {project.name}", project, made, run, needs, scrap)
