"""Ship a level: check that the reports belong to these files and the gate passes it, then make the bundle.

Reads `models/gguf/NAME-LEVEL.gguf`, the adapter, the merged model and every report. Writes
`models/bundle/NAME-LEVEL/`. If base.quantization is gguf, only `adapter` can be shipped: the base's GGUF and
the adapter's. If train.tuner is scales too, it is `tuned`: the base's GGUF with trained scales.

    quench ship Q4_K_M
    quench ship Q4_K_M --to /mnt/share --sign quench.key
    quench ship Q4_K_M --push OWNER/NAME
    quench ship --check models/bundle/demo-Q4_K_M
"""

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.commands.project import Project
from pipeline.config.levels import ModelName
from pipeline.config.params import Params
from pipeline.core.errors import ConfigError, GateError
from pipeline.core.extras import provider
from pipeline.gate.inputs import load_inputs
from pipeline.gate.recommend import advise
from pipeline.ship.bundle import SCRIPT, UNIT, Shipment, make_bundle
from pipeline.ship.evidence import mismatches
from pipeline.ship.lineage import need_records
from pipeline.ship.listing import SIGNATURE
from pipeline.ship.ollama import chat_template
from pipeline.ship.verification import bundle_faults

# inputs of a bundle's texts
DESCRIBED = ("data/final", "models/adapter", "models/base.json", "models/gguf", "reports")
PROGRAMS = ("ollama", "lmstudio")  # values of --to that are programs, not folders


@dataclass(frozen=True)
class Destination:
    """Where a bundle goes after it was made: a `repository` (OWNER/NAME) on the hub, a `program` here."""

    repository: str | None = None
    public: bool = False
    program: str | None = None

    @property
    def option(self) -> str:
        """The option that asks for it, by which an extra provides it."""
        return "ship --push" if self.repository else "ship --to"


def main(
    project: Project,
    requested: str,
    to: Path | None,
    key: Path | None,
    destination: Destination | None = None,
) -> int:
    """Make the bundle of a level and print its path. Return the exit code: 5 with a line per reason if it may
    not be shipped, otherwise 0.
    """
    params = project.params
    root = project.root
    level = shippable(params, requested)
    if destination:
        provider(destination.option).check(destination, with_lora=params.product.with_lora)
    if key:
        # A wrong key is refused now, before gigabytes are hashed and copied.
        provider("ship --sign").signer(key)
    # The shipped files, and the sources of the bundle's texts, must be the ones that the stages recorded.
    project.verify(*project.files(level))
    project.verify(*(root / place for place in DESCRIBED), again=False)
    shipment, reasons = prepare(params, root, level)
    if reasons:
        print(f"{level} is not shipped:", *reasons, sep="\n  ", file=sys.stderr)
        return GateError.exit_code
    for check in shipment.verdict.checks:
        print(f"  {check.verdict}: {check.sentence}")
    for gain in shipment.advice.gains:
        if gain.model == level and gain.beats is False:
            print(f"  Beware: {gain.sentence}")
    folder = make_bundle(shipment, to or root / "models" / "bundle", key)
    place = shlex.quote(str(folder))
    print(
        f"{level} is in {folder}{', signed' if key else ''}",
        f"serve:   {place}/serve.sh",
        f"check:   quench ship --check {place}",
        f"publish: everything in {place} (README.md is the model card)",
        sep="\n  ",
    )
    if destination:
        provider(destination.option).deliver(folder, destination)
    return 0


def shippable(params: Params, requested: str) -> str:
    """Return the level as spelled in params.yaml.

    Raises `ConfigError` for one that is not made, not tuned or not evaluated.
    """
    served = params.product.served
    if served:
        if requested.lower() != served:
            means = "the adapter's beside it" if params.product.with_lora else params.product.beside
            raise ConfigError(
                "Q-SHIP-011",
                f"{requested} can't be shipped: with base.quantization gguf only {served} is made, the "
                f"base's GGUF with {means}",
            )
        return served
    if ModelName(requested.lower()).untuned:
        raise ConfigError(
            "Q-SHIP-011",
            f"{requested} is the untuned base: ship a level of the tuned model "
            f"({', '.join(params.quantize.files)})",
        )
    levels = {name.upper(): name for name in (*params.quantize.files, params.convert.type)}
    if requested.upper() not in levels:
        raise ConfigError(
            "Q-SHIP-011",
            f"no level is called {requested!r}: this recipe makes {', '.join(levels.values())} "
            "(quantize.levels in params.yaml)",
        )
    level = levels[requested.upper()]
    if level not in params.evaluate.models:
        raise ConfigError(
            "Q-SHIP-012",
            f"{level} is not in evaluate.models, so nothing is known about it: add it there and run "
            "`snakemake`",
        )
    return level


def prepare(params: Params, root: Path, level: str) -> tuple[Shipment, list[str]]:
    """Return the contents of the bundle, and the reasons why it may not be made."""
    inputs = load_inputs(root, params)
    datasets = need_records(root, inputs, level)
    advice, verdicts = advise(inputs, params.report, params.serving)
    files = params.files(root, level)
    shipment = Shipment(
        files.gguf,
        params.convert.name,
        level,
        inputs,
        advice,
        verdicts[level],
        params.serving,
        chat_template(root / "models" / "adapter"),
        tuple(params.curate.languages),
        datasets,
        files.lora,
    )
    return shipment, [
        *mismatches(level, params.convert.name, root, inputs.evaluations, inputs.parity),
        *verdicts[level].reasons,
    ]


def check_bundle(folder: Path, key: Path | None, *, as_json: bool = False) -> int:
    """Check a bundle, signed by the public `key` if one is given, and print the result. Return the exit code:
    5 if it does not verify, otherwise 0.
    """
    faults = bundle_faults(folder, key)
    if as_json:
        signed = (folder / SIGNATURE).exists()
        report = {
            "bundle": str(folder),
            "verdict": "fail" if faults else "pass",
            "faults": list(faults),
            "signed": signed,
            "signature_checked": bool(key),
        }
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return GateError.exit_code if faults else 0
    if faults:
        print(f"{folder} does not verify:", *faults, sep="\n  ", file=sys.stderr)
        return GateError.exit_code
    print(
        f"{folder} verifies: checksums, card, bill of materials and evidence agree with the "
        f"GGUF{', and so does the signature' if key else ''}"
    )
    if not key:
        signed = (folder / SIGNATURE).exists()
        unchecked = "it is signed, but no --key tells by whom" if signed else "it is not signed"
        print(
            f"  But {unchecked}: its maker may have written {SCRIPT}, {UNIT} and Modelfile. Read them "
            "before you run them."
        )
    return 0
