"""The files of a graph without a merge, what sentences call them, and whether their records agree."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.core.checks import Check
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.publish import read_json
from pipeline.gguf.base_files import MODEL_FILE, trained_file
from pipeline.gguf.file import check_gguf
from pipeline.gguf.provenance import ADAPTER, BASE_FILE
from pipeline.metrics.forward import run_settings
from pipeline.stages.parity.check import count_check

BARE_TITLE = "Base in training's arithmetic → its GGUF in llama.cpp"


@dataclass(frozen=True)
class Made:
    """What is made of what was trained, so that llama.cpp can serve it: `title` of the hand-over, the file's
    name in a sentence, what makes it again, and the `train.tuner` that it is made for.
    """

    title: str
    file: str
    again: str
    tuner: str

    @property
    def titles(self) -> dict[str, str]:
        """Titles of the parity checks of outputs, by key."""
        return {"outputs_bare": BARE_TITLE, "outputs_served": self.title}


LORA = Made(
    "Trained model → base GGUF with LoRA GGUF",
    "the adapter's GGUF",
    "run `snakemake --force lora`",
    tuner="lora",
)
TUNED = Made(
    "Trained model → tuned GGUF",
    "the tuned file",
    "run `snakemake --force tuned`",
    tuner="scales",
)


@dataclass(frozen=True)
class UnmergedChain:
    """The base's folder (with `model.gguf`) and record, what was trained (a folder), the GGUF that is served,
    and the adapter's GGUF that is put on it; None if the scales in the served file itself were trained.
    """

    base: Path
    lineage: Path
    adapter: Path
    served: Path
    lora: Path | None = None

    @property
    def bare(self) -> Path:
        """The file that is trained on."""
        return self.base / MODEL_FILE

    @property
    def made(self) -> Made:
        """What is made of what was trained."""
        return LORA if self.lora else TUNED


def base_file(chain: UnmergedChain) -> Check:
    """Whether the base's file is the one that was trained on and that the file made for serving names, and
    whether what was trained is in that.
    """
    found, trained_with = file_hash(chain.bare), run_settings(chain.adapter)
    recorded = read_json(chain.lineage, "run `snakemake base`")["files"].get(MODEL_FILE)
    run = read_json(chain.adapter / "run.json", "run `snakemake --force train`")
    made = chain.lora or chain.served
    fields = check_gguf(made).fields
    weights = file_hash(trained_file(chain.adapter))
    claims = {
        f"{chain.lineage.name} names {str(recorded)[:12]}…, the file is {found[:12]}…": recorded == found,
        f"{chain.adapter.name}/ was trained on another file than {chain.bare.name}": (
            run["base"]["weights_sha256"] == json_hash({MODEL_FILE: found})
        ),
        f"{made.name} was made for {str(fields.get(BASE_FILE))[:12]}…, the file is {found[:12]}…": (
            fields.get(BASE_FILE) == found
        ),
        f"{made.name} was not made of what {chain.adapter.name}/ holds": fields.get(ADAPTER) == weights,
        f"{chain.adapter.name}/ was not trained on a GGUF's blocks": trained_with.quantization == "gguf",
        f"{chain.adapter.name}/ was trained with train.tuner {trained_with.tuner}": (
            trained_with.tuner == chain.made.tuner
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
