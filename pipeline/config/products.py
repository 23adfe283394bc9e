"""The artifact that each graph of stages makes for serving, a row each: levels of a merged model, the base's
own GGUF with an adapter's GGUF, or that GGUF with trained scales. Callers read the row instead of the graph.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.config.levels import UNTUNED, ModelName, level_key
from pipeline.config.sections import BASE, BASE_WITH_ADAPTER, ORIGINAL, TUNED, Graph

REFERENCES = ("F16", "BF16")  # the 16-bit model that levels are made from
BASE_FILE, ORIGINAL_FILE = "models/base/model.gguf", "models/base/source.gguf"
SERVED_CHECK = "outputs_served"  # Parity compares training's forward with llama.cpp's.


class ModelFiles(NamedTuple):
    """A model's GGUF, and the adapter's GGUF that is applied to it (None if there is none)."""

    gguf: Path
    lora: Path | None = None


@dataclass(frozen=True)
class Product:
    """The artifact of one graph.

    `served` is the one model that is served, None if each level of a merged model can be. `made_by` is the
    stage that only this graph has, and that makes it. `plural`, `called`, `beside` (the file with which the
    base's GGUF is served), `whole` and `subject` are its names in sentences. With `with_lora` it is two
    files, the second an adapter's. `checks` are the parity checks that must have passed for it, with what
    each measures.
    """

    graph: Graph
    served: str | None
    plural: str
    called: str
    made_by: str
    beside: str = ""
    whole: str = ""
    subject: str = ""
    with_lora: bool = False
    checks: tuple[tuple[str, str], ...] = ()

    @property
    def holds_scales(self) -> bool:
        """True if it is the base's file with trained scales, without an adapter."""
        return bool(self.served) and not self.with_lora

    def reference(self, models: Container[str]) -> str:
        """Return the one of the evaluated `models` that the tuned ones are compared with.

        It is the 16-bit model, or only the base's file.
        """
        return BASE if self.served else next(name for name in REFERENCES if name in models)

    def untuned(self, models: Container[str]) -> str:
        """Return the untuned model from which forgetting is measured."""
        return BASE if self.served else UNTUNED + self.reference(models)

    def files(self, root: Path, name: str, model: str) -> ModelFiles:
        """Return the paths of the files of `model` below the project's folder `root`, existing or not.

        `name` is that of the GGUFs (`convert.name`). Without a merge "base" and "adapter" are one GGUF, the
        second with the adapter's GGUF next to it; "tuned" is that GGUF with trained scales, a file of its
        own.
        """
        ggufs = root / "models/gguf"
        if not self.served or model == TUNED:
            return ModelFiles(ggufs / f"{name}-{model}.gguf")
        lora = ggufs / f"{name}-lora.gguf" if model == BASE_WITH_ADAPTER else None
        gguf = ORIGINAL_FILE if model == ORIGINAL else BASE_FILE
        return ModelFiles(root / gguf, lora)

    def needed_checks(self, model: str, sixteen: str) -> Mapping[str, str]:
        """Return the parity checks, by key, that must pass before `model` is served, with what each measures.

        `sixteen` is the name of the 16-bit model.
        """
        if self.served == model:
            return dict(self.checks)
        key = "weights_gguf" if model == sixteen else level_key("weights", model)
        return {} if is_base(model) else {key: f"the weights of {model}"}


FILE_CHECK = ("weights_file", "which file the base is")
PRODUCTS: Mapping[Graph, Product] = {
    "merged": Product("merged", None, "merged models", called="every level", made_by="merge"),
    "adapter": Product(
        "adapter",
        BASE_WITH_ADAPTER,
        "adapters on a GGUF",
        called="the adapter",
        made_by="lora",
        beside="its adapter",
        whole="the base GGUF with the adapter's GGUF on it",
        subject="base and adapter",
        with_lora=True,
        checks=(
            FILE_CHECK,
            ("weights_lora", "the weights of the adapter's GGUF"),
            (SERVED_CHECK, "what base and adapter say in llama.cpp"),
        ),
    ),
    "tuned": Product(
        "tuned",
        TUNED,
        "GGUFs with trained scales",
        called="the tuned file",
        made_by="tuned",
        beside="trained scales",
        whole="the base GGUF with trained scales",
        subject="the tuned file",
        checks=(
            FILE_CHECK,
            ("weights_scales", "the scales of the tuned file"),
            (SERVED_CHECK, "what the tuned file says in llama.cpp"),
        ),
    ),
}


def product_of(models: Container[str]) -> Product:
    """Return the product to which these models of `evaluate.models` belong."""
    unmerged = (product for product in PRODUCTS.values() if product.served and product.served in models)
    return next(unmerged, PRODUCTS["merged"])


def is_base(model: str) -> bool:
    """Return True if a model of `evaluate.models` is untuned."""
    return ModelName(model).untuned or model in (BASE, ORIGINAL)
