"""Which LoRA adapter may be served on which GGUF: the one that was trained on its base, by what both files say of themselves."""

from pathlib import Path

from pipeline.conversion.passport import ADAPTER, passport
from pipeline.errors import ConfigError, DataError
from pipeline.llamacpp.gguf_file import check_gguf

BASE = "quench.base.sha256"


def matching_adapter(model: Path, adapter: Path) -> Path:
    """`adapter`, proven to belong to the base that `model` is a level of.

    Raises `ConfigError` where `model` holds an adapter already, `DataError` where `adapter` is not there, is no LoRA, or is of another base.
    """
    if not adapter.exists():
        raise DataError(f"{adapter} is not there: stage convert makes the adapter's GGUF, or name another with --adapter")
    served = passport(model)
    if ADAPTER in served:
        raise ConfigError(f"{model.name} holds its adapter already: --lora is for a level of the untuned base, base-Q4_K_M for example")
    fields = check_gguf(adapter).fields
    if (fields.get("general.type"), fields.get("adapter.type")) != ("adapter", "lora"):
        raise DataError(f"{adapter} is no LoRA adapter (general.type is {fields.get('general.type')!r}): give the one that stage convert made")
    for file, found in ((adapter, fields), (model, served)):
        if BASE not in found:
            raise DataError(f"{file.name} doesn't say its base ({BASE}), so nothing proves that the two belong together: run stage convert again")
    if fields[BASE] != served[BASE]:
        raise DataError(f"{adapter.name} was trained on another base ({fields[BASE][:12]}…) than {model.name} is a level of ({served[BASE][:12]}…): "
                        "serve the base that it belongs to")  # fmt: skip
    return adapter
