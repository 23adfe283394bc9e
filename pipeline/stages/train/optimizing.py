"""How an optimizer step treats gradients and parameters: cut element by element, faster for B (LoRA+)."""

from typing import Any

import torch

from pipeline.config.sections import Training
from pipeline.stages.train.trained_only import TrainedOnly


class Optimizing(TrainedOnly):
    """Trains with `train.clip_value` and `train.loraplus_lr_ratio` of `settings`."""

    def __init__(self, *, settings: Training, **rest: Any) -> None:
        super().__init__(**rest)
        self.settings = settings

    def _clip_grad_norm(self, model: Any) -> Any:
        """The gradients' norm as the backward made them. Then every element is cut to ± `clip_value`, and
        what is left is scaled down to `max_grad_norm`.
        """
        if self.settings.clip_value is None:
            return super()._clip_grad_norm(model)
        # brings float16's scaled gradients back to their size first, which can be done once a step only
        norm = self.accelerator.clip_grad_norm_(model.parameters(), float("inf"))
        torch.nn.utils.clip_grad_value_(model.parameters(), self.settings.clip_value)
        torch.nn.utils.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
        return norm

    def create_optimizer(self, model: Any = None) -> Any:
        """The library's optimizer; LoRA+ (arXiv:2402.12354) has B learn `ratio` times as fast as A."""
        if self.settings.loraplus_lr_ratio is None or self.optimizer is not None:
            return super().create_optimizer(model)
        from peft.optimizers import create_loraplus_optimizer

        model = model or self.model
        kind, options = self.get_optimizer_cls_and_kwargs(self.args, model)
        self.optimizer: Any = create_loraplus_optimizer(
            model,
            kind,
            lr=options.pop("lr"),
            loraplus_lr_ratio=self.settings.loraplus_lr_ratio,
            loraplus_weight_decay=self.args.weight_decay,
            **options,
        )
        return self.optimizer
