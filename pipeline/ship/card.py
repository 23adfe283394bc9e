"""Fill a bundle's texts (card, Modelfile, serve script, systemd unit) from `pipeline/pages/templates/`."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline import __version__
from pipeline.config.products import REFERENCES, product_of
from pipeline.config.sections import BASE_WITH_ADAPTER, ORIGINAL, TUNED, Serve
from pipeline.gate.evaluations import commonest_line
from pipeline.gate.inputs import Inputs
from pipeline.gate.recommend import Recommendation
from pipeline.gate.records import Base, LabelsSplit
from pipeline.llamacpp.server_command import Served, server_command
from pipeline.llamacpp.server_process import KEPT, KEPT_PREFIXES, STACK_BYTES
from pipeline.llamacpp.tools import Toolchain
from pipeline.pages.formats import percent
from pipeline.pages.templating import fill
from pipeline.serve.client import first_request
from pipeline.ship.listing import escaped
from pipeline.ship.ollama import ollama_template, why_unwritten

# A line of the card's lineage.
CLAIM = re.compile(r"^\| `((?:quench|general)\.[^`|]+)` \| `([^`|]*)` \|$", re.MULTILINE)
KEY = "@key@"  # placeholder for the script's variable


@dataclass(frozen=True)
class PrintedTools(Toolchain):
    """Toolchain whose commands are printed, not run: its build need not be on this machine."""

    def tool(self, name: str) -> Path:
        """Return the path of the tool `name`."""
        return self.bin / name


def text_values(
    inputs: Inputs, advice: Recommendation, *, name: str, level: str, serve: Serve, jinja: str | None
) -> dict[str, Any]:
    """Return the values for card.md.jinja and Modelfile.jinja.

    `name` is the GGUFs' name, `jinja` the base's chat template.
    """
    chosen = inputs.evaluations.get(level)
    trained = inputs.labels.system_prompt or ""
    fault = why_unwritten(trained)
    system_prompt = "" if fault else trained
    product = product_of(inputs.evaluations)
    architecture = inputs.base.architecture
    return {
        "inputs": inputs,
        "advice": advice,
        "name": name,
        "level": level,
        "serve": serve,
        "ollama": ollama_template(jinja),
        "system_prompt": system_prompt,
        "system_fault": fault,
        "first_request": first_request(system_prompt, temperature=0),
        "version": __version__,
        "reference": product.reference(inputs.evaluations),
        "chosen": chosen,
        "trained": what_was_trained(inputs),
        "line": commonest_line(inputs.evaluations),
        "unmeasured": {
            what: why
            for evaluation in inputs.evaluations.values()
            for what, why in evaluation.not_measured.items()
        },
        "checks": list(inputs.parity.checks.values()),
        "architecture": ", ".join(architecture.architectures or [architecture.model_type]),
        "bundle": None,
        "product": product,
        "lora": chosen.lora if chosen else None,
        "ORIGINAL": ORIGINAL,
    }


def what_was_trained(inputs: Inputs) -> str:
    """Return how many of the rows can be trained, and how many of these training has seen."""
    data = inputs.data
    train = inputs.labels.splits.get("train") or LabelsSplit()
    written = max(0, train.rows_read - data.splits.get("train", 0))  # rows that stage augment added
    texts = any(evaluation.not_measured for evaluation in inputs.evaluations.values())
    noun = "conversations" if inputs.train.method == "sft" and not texts else "rows"
    trained = f"{train.rows:,} of {data.rows_kept + written:,} {noun} can be trained"
    passes = inputs.passes
    if passes is None or not train.packed_rows:
        return trained
    rows = f"{train.packed_rows:,} {'packed rows' if inputs.labels.packing else 'rows'}"
    if passes >= 1:
        return f"{trained}; all {rows} were seen ({passes:.1f} epochs)"
    seen = round(passes * train.packed_rows)
    return f"{trained}; {seen:,} of {rows} were seen ({percent(passes, 0)})"


def front_matter(
    base: Base, level: str = "", languages: Sequence[str] = (), datasets: Sequence[str] = ()
) -> str:
    """Return the Hugging Face model card's metadata as YAML (huggingface.co/docs/hub/model-cards); the base
    only if it is on the hub.
    """
    values: dict[str, Any] = {"license": (base.license or "unknown").lower()}
    if languages:
        values["language"] = list(languages)
    if datasets:
        values["datasets"] = list(datasets)
    if base.source == "hub":
        values |= {"base_model": base.model, "base_model_relation": _relation(level)}
    tags = ["gguf", "llama.cpp", *([] if level == TUNED else ["lora"]), "quench"]
    return yaml.safe_dump(
        values | {"pipeline_tag": "text-generation", "tags": tags},
        sort_keys=False,
    ).rstrip()


def _relation(level: str) -> str:
    """Return how `level` was made of the base, in the words of the hub."""
    if level == BASE_WITH_ADAPTER:
        return "adapter"
    return "finetune" if level in REFERENCES else "quantized"


def claims(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return a provenance as the card prints it: JSON values without characters that end the table's cell."""
    return {
        key: escaped(json.dumps(value, ensure_ascii=False)).replace("`", r"\u0060").replace("|", r"\u007c")
        for key, value in provenance.items()
    }


def claimed(card: str) -> dict[str, Any]:
    """Return the provenance that a card prints. Raises `ValueError` if a value is not JSON."""
    return {key: json.loads(value) for key, value in CLAIM.findall(card)}


def printed_command(
    tools: PrintedTools, file: str, serve: Serve, key_file: Path, lora: str | None
) -> list[str]:
    """Return `quench serve`'s command for the GGUF `file`, with the adapter `lora` (a GGUF) if given."""
    if not lora:
        return server_command(tools, Served(Path(file)), serve, key_file)
    # NAME-adapter, the name that `quench serve` uses, so that `quench chat` knows it.
    alias = f"{Path(lora).stem.removesuffix('-lora')}-{BASE_WITH_ADAPTER}"
    return server_command(tools, Served(Path(file), [(Path(lora), 1.0)], alias), serve, key_file)


def serve_script(file: str, serve: Serve, lora: str | None = None) -> str:
    """Return serve.sh: `quench serve`'s hardened command for the GGUF `file` in the same folder, in an
    environment and with limits like those of `server_process`.

    `lora` is an adapter's GGUF in that folder, which is applied to it.
    """
    command = printed_command(PrintedTools(Path(), Path()), file, serve, Path(KEY), lora)
    words = {file: '"$here"/' + shlex.quote(file), KEY: '"$key"'}
    if lora:
        words[lora] = (
            # llama-server reads it as a row of CSV, so a comma in the folder's name would split it.
            f'"\\"$csv/{lora}\\""'
        )
    arguments = " ".join(words.get(word, shlex.quote(word)) for word in command[1:])
    kept = "|".join([*sorted(KEPT), *(f"{prefix}*" for prefix in KEPT_PREFIXES)])
    return fill(
        "serve.sh.jinja",
        arguments=arguments,
        kept=kept,
        stack_kib=STACK_BYTES // 1024,
        port=serve.port,
        csv=lora is not None,
    )
