"""Names of a GGUF's files in models/base, a base's hashes, and the proof that a training was on that file."""

from collections.abc import Iterable
from pathlib import Path

from pipeline.core.errors import DataError
from pipeline.core.hashing import file_hash, json_hash
from pipeline.core.publish import read_json

# The file that is trained on and served, and, if base.level is set, the file that it was quantized from.
MODEL_FILE, SOURCE_FILE = "model.gguf", "source.gguf"


def base_hashes(base: Path) -> dict[str, str]:
    """Return the SHA-256 of the base's weights, configuration, tokenizer and chat template, so that a change
    has a name.
    """

    def together(files: Iterable[Path]) -> str:
        return json_hash({path.name: file_hash(path) for path in files})

    template = base / "chat_template.jinja"
    return {
        "weights_sha256": together([*base.glob("*.safetensors"), *base.glob(MODEL_FILE)]),
        "config_sha256": together(path for path in base.glob("*config.json") if "tokenizer" not in path.name),
        "tokenizer_sha256": together([*base.glob("tokenizer.json"), *base.glob("tokenizer_config.json")]),
        "template_sha256": file_hash(template) if template.is_file() else "",
    }


def file_trained_on(base: Path, adapter: Path, lineage: Path) -> str:
    """Return the sha256 of the GGUF in the folder `base`, proven to be the one that `lineage`
    (models/base.json) names and that the adapter in the folder `adapter` was trained on. Raises `DataError`
    if it is not.
    """
    model = base / MODEL_FILE
    digest = file_hash(model)
    recorded = read_json(lineage, "run `snakemake base`")["files"].get(MODEL_FILE)
    if digest != recorded:
        raise DataError(
            "Q-GGUF-021",
            f"{model} is not the file that {lineage} names ({digest[:12]}… and {str(recorded)[:12]}…): run "
            "`snakemake --force base`",
        )
    run = read_json(adapter / "run.json", "run `snakemake --force train`")
    if run["base"]["weights_sha256"] != json_hash({MODEL_FILE: digest}):
        raise DataError(
            "Q-GGUF-022",
            f"{adapter} was trained on another file than {model}: run `snakemake --force train`, or put the "
            "file that it belongs to back",
        )
    return digest
