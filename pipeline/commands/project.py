"""A project with models that are ready, for the commands that use one: the model in question, its files, and
the check that these are the recorded ones.
"""

import difflib
import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.params import Params
from pipeline.config.products import ModelFiles, is_base
from pipeline.config.sections import BASE
from pipeline.core.errors import ConfigError, DataError, QuenchError
from pipeline.core.text import one_line, plural, quoted
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.workflow.state.integrity import verify_outputs

REASON = 160  # characters of the gate's reason


def model_names(params: Params) -> tuple[str, ...]:
    """Return the models that the settings make and that can be served."""
    served = params.product.served
    if served:
        return served, BASE
    untuned = [f"base-{params.convert.type}"] if params.base_gguf else []
    return (*params.quantize.files, *params.quantize.untuned, params.convert.type, *untuned)


@dataclass(frozen=True)
class Project:
    """Settings `params` and folder `root`. `file` is the file of the settings, if it was named."""

    params: Params
    root: Path
    file: Path | None = None

    @property
    def tools(self) -> Toolchain:
        """Return the project's llama.cpp. Raises as `find_toolchain`."""
        return find_toolchain(self.params.machine.llama_cpp)

    def name_of(self, requested: str | None) -> str:
        """Return the model's name, spelled as in `params.yaml`: the requested one (in any case), otherwise
        the recommended one, otherwise the first level.

        If base.quantization is gguf there are two: "adapter" (the base's file with its adapter next to it) or
        "tuned" (that file with trained scales), and "base" (the file only). Raises `ConfigError` for a name
        that the recipe does not make.
        """
        params = self.params
        names = {name.upper(): name for name in model_names(params)}
        if requested is None:
            return params.product.served or names.get(self._recommended().upper(), params.quantize.tuned[0])
        if requested.upper() in names:
            return names[requested.upper()]
        near = difflib.get_close_matches(requested.upper(), names, n=1)
        hint = f"did you mean {names[near[0]]}? " if near else ""
        if params.product.served:
            raise ConfigError(
                "Q-SERVE-001",
                f"no model is called {quoted(requested)}: {hint}with base.quantization gguf there are "
                f"{params.product.served} (the base with {params.product.beside}) and {BASE}",
            )
        raise ConfigError(
            "Q-SERVE-001",
            f"no model is called {quoted(requested)}: {hint}This recipe makes {', '.join(names.values())} "
            "(quantize.levels in params.yaml)",
        )

    def files(self, model: str) -> ModelFiles:
        """Return the files of a model.

        If its GGUF is missing, the `DataError` names the stage that makes it.
        """
        files = self.params.files(self.root, model)
        if not files.gguf.exists():
            stage = self._stage_of(model)
            raise DataError(
                "Q-SERVE-002",
                f"{files.gguf} is missing: stage {stage} makes it, so run `snakemake` (everything) or "
                f"`python -m pipeline {stage}` (only that)",
            )
        return files

    def verify(self, *paths: Path | None, again: bool = True) -> None:
        """Raise `DataError` if one of `paths` differs from its stage's record (`verify_outputs`)."""
        verify_outputs([*filter(None, paths)], self.root, again=again, params=self.file)

    def refusal(self, model: str) -> str | None:
        """Return one line with the gate's reason for refusing a model, or that no gate has judged it yet,
        because reports are missing or damaged. Returns None if it passes.
        """
        from pipeline.gate.inputs import load_inputs
        from pipeline.gate.scores import Evidence
        from pipeline.gate.verdict import judge

        models = self.params.evaluate.models
        if is_base(model) or model not in models:
            return None
        try:
            inputs = load_inputs(self.root, self.params)
        except QuenchError:
            return f"no gate has judged {model} yet: `quench run` proves, measures and judges it"
        evidence = Evidence(inputs.evaluations, inputs.answers)
        judgment = judge(model, evidence, inputs.parity, self.params.report.gate, inputs.train)
        if judgment.verdict != "fail":
            return None
        reasons = [reason.partition(". ")[0].rstrip(".") for reason in judgment.reasons]
        reason, *others = reasons
        more = f" and for {plural(len(others), 'more reason')}" if others else ""
        page = self.root / "reports" / "index.html"
        return f"the gate refuses {model}: {one_line(reason, REASON)}{more} (see {page})"

    def system_prompt(self, model: str) -> str | None:
        """Return the system prompt that most rows were trained with; None if there is none, for an untuned
        model, and as long as no stage has recorded it.
        """
        from pipeline.gate.inputs import read_record
        from pipeline.gate.records import Labels

        if is_base(model):
            return None
        try:
            return read_record(self.root, "reports/labels.json", Labels, "preprocess").system_prompt
        except QuenchError:
            return None

    def _stage_of(self, model: str) -> str:
        params = self.params
        served = params.product.served
        if served:
            is_made_here = params.product.holds_scales and model == served
            return params.product.made_by if is_made_here else "base"
        if model.endswith(params.convert.type):
            return "convert"
        return params.quantize.stage_of(model)

    def _recommended(self) -> str:
        try:
            report = json.loads((self.root / "reports" / "quants.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ""  # There is no report yet.
        return str(report.get("recommended") or "") if isinstance(report, dict) else ""
