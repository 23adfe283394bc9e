"""transformers' Trainer, of whose model only what trains is written and read back: an adapter, or scales."""

from pathlib import Path
from typing import Any

from transformers import Trainer

from pipeline.gguf.base_files import is_scales
from pipeline.models.scales import fill_scales
from pipeline.models.tuners import save_trained


class TrainedOnly(Trainer):  # type: ignore[misc]
    """Base, tokenizer and arguments are known by their hashes. The library reads PEFT's folders back."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write what was trained into `output_dir`."""
        save_trained(self.model, output_dir or self.args.output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if is_scales(Path(resume_from_checkpoint)):
            fill_scales(model or self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        best = Path(self.state.best_model_checkpoint)
        if is_scales(best):
            fill_scales(self.model, best)
        else:
            super()._load_best_model()
