"""Files that are served without a merge, their names in sentences, and two checks: whether their records
agree, and whether the adapter's GGUF equals the adapter (every matrix number for number, and its scale).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.products import PRODUCTS
from pipeline.config.targets import alpha_alone
from pipeline.config.tuners import trained_file
from pipeline.core.checks import Check
from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.publish import read_json
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.delta_heads import to_file
from pipeline.gguf.file import check_gguf
from pipeline.gguf.provenance import ADAPTER, BASE_FILE
from pipeline.gguf.tensors import gguf_tensors
from pipeline.metrics.forward import run_settings
from pipeline.stages.parity.check import count_check

BARE_TITLE = "Base in training's arithmetic → its GGUF in llama.cpp"
LORA_TITLE = "Adapter → its GGUF"
LORA_WHAT = "matrices whose numbers are not the trained ones, rounded once"
PREFIX = "base_model.model."


@dataclass(frozen=True)
class Artifact:
    """Artifact that llama.cpp serves: `title` of the hand-over, the file's name in a sentence, and the advice
    to make it again.
    """

    title: str
    file: str
    again: str


LORA = Artifact(
    "Trained model → base GGUF with LoRA GGUF", "the adapter's GGUF", "run `snakemake --force lora`"
)
TUNED = Artifact("Trained model → tuned GGUF", "the tuned file", "run `snakemake --force tuned`")


@dataclass(frozen=True)
class ServedFiles:
    """Files of a project without a merge: the base's folder (with `model.gguf`) and record, the folder that
    was trained, the GGUF that is served, and the adapter's GGUF. `lora` is None if the scales in the served
    file itself were trained.
    """

    base: Path
    lineage: Path
    adapter: Path
    served: Path
    lora: Path | None = None

    @property
    def bare(self) -> Path:
        """File that is trained on."""
        return self.base / MODEL_FILE

    @property
    def artifact(self) -> Artifact:
        """Artifact that was made from the training result."""
        return LORA if self.lora else TUNED


def base_file(files: ServedFiles) -> Check:
    """Check that the base's file is the one that was trained on and the one that the served file names, and
    that the served file was made from the training result.
    """
    digest = file_hash(files.bare)
    trained_with = run_settings(files.adapter)
    recorded = read_json(files.lineage, "run `snakemake base`")["files"].get(MODEL_FILE)
    run = read_json(files.adapter / "run.json", "run `snakemake --force train`")
    gguf = files.lora or files.served
    fields = check_gguf(gguf).fields
    weights = file_hash(trained_file(files.adapter))
    claims = {
        f"{files.lineage.name} names {str(recorded)[:12]}…, the file is {digest[:12]}…": recorded == digest,
        f"{files.adapter.name}/ was trained on another file than {files.bare.name}": (
            run["base"]["weights_sha256"] == json_hash({MODEL_FILE: digest})
        ),
        f"{gguf.name} was made for {str(fields.get(BASE_FILE))[:12]}…, the file is {digest[:12]}…": (
            fields.get(BASE_FILE) == digest
        ),
        f"{gguf.name} was not made of what {files.adapter.name}/ holds": fields.get(ADAPTER) == weights,
        f"{files.adapter.name}/ was not trained on a GGUF's blocks": trained_with.quantization == "gguf",
        f"{files.adapter.name}/ was trained with train.tuner {trained_with.tuner}": (
            PRODUCTS[trained_with.gguf_graph].with_lora == bool(files.lora)
        ),
    }
    wrong = [fault for fault, holds in claims.items() if not holds]
    return count_check(
        "The base's file, and what was trained on it",
        what="records that name another file or run",
        different=len(wrong),
        compared=len(claims),
        first="; ".join(wrong),
        cause="Files of different runs lie here: run `snakemake` once more.",
    )


def lora_weights(base: Path, adapter: Path, lora: Path) -> Check:
    """Check each `lora_A` and `lora_B` of folder `adapter`, and α, against the GGUF `lora` in its type."""
    from safetensors import safe_open
    from transformers import AutoConfig

    from pipeline.models.gguf_names import Place, left_over, values_at
    from pipeline.models.quantized_model import tensor_names

    header, tensors = gguf_tensors(lora)
    config = AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    names = tensor_names(config, header, lora)
    wrong: list[str] = []
    seen: set[Place] = set()
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as weights:
        for key in weights.keys():  # noqa: SIM118 (safe_open is not a mapping)
            path, _, part = key.removeprefix(PREFIX).removesuffix(".weight").rpartition(".lora_")
            if part not in ("A", "B"):
                raise DataError(
                    "Q-PARITY-002",
                    f"{adapter} holds {key}, which is no matrix of a LoRA adapter: train with plain LoRA",
                )
            parameter = f"{path}.weight"
            place = names.place(parameter, f".lora_{part.lower()}")
            tensor = values_at(tensors, place)
            seen.add(place)
            trained = weights.get_tensor(key).float()
            if tensor is None or tensor.rows * tensor.columns != trained.numel():
                wrong.append(f"{place.tensor} is missing or of another shape, for {key}")
                continue
            stored: Any = tensor.values(0, tensor.rows).reshape(tuple(trained.shape))
            if part == "B":
                trained = names.in_file_order(parameter, trained)
            else:
                grid = names.grid(parameter)
                trained = to_file(trained, grid) if grid else trained
            if not np.array_equal(stored, rounded(trained.numpy(), tensor.type)):
                wrong.append(f"{place.tensor} differs from {key}")
    wrong += [f"{name} is not all in the adapter" for name in left_over(tensors, seen)]
    alpha = float(np.float32(alpha_alone(read_json(adapter / "adapter_config.json", LORA.again))))
    if header.fields.get("adapter.lora.alpha") != alpha:
        wrong.append(f"alpha is {header.fields.get('adapter.lora.alpha')} instead of {alpha}")
    return count_check(
        LORA_TITLE,
        what=LORA_WHAT,
        different=len(wrong),
        compared=len(seen) + 1,
        first="; ".join(wrong[:3]),
        cause=f"The GGUF is not of this adapter: {LORA.again}.",
    )


def rounded(values: Any, kind: str) -> Any:
    """Return float32 values rounded to the type `kind`, as float32 again."""
    return values.astype(np.float16).astype(np.float32) if kind == "F16" else values
