"""The sum of the gradients of an optimizer step, added up in the order of its micro-batches.

Micro-batch j is process j mod W's. After each round of W micro-batches every process gets a W-th of all W
gradients, and adds them in the order of the ranks to its part of the sum; at the end of the step the parts
are put together. So each number is ((g0 + g1) + g2) + …, as in one process, bit for bit, whatever W is. A
round sends what a reduce-scatter does, and takes twice the adapter's bytes.
"""

from collections.abc import Iterable
from typing import Any

import torch

from pipeline.stages.train.several.group import Group

NOTHING = -0.0  # x + -0.0 is x, bit for bit; + 0.0 is not, for -0.0


class GradientSum:
    """The gradients of `parameters`, float32 and on one device, over the micro-batches of a step."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], group: Group) -> None:
        self.parameters, self.group = list(parameters), group
        numbers = sum(parameter.numel() for parameter in self.parameters)
        self.size = -(-numbers // group.count) * group.count
        self.part: Any = None  # this process's part of the sum, (size ÷ processes,)
        self.reached = [False] * len(self.parameters)  # by a gradient of this process

    def add_round(self) -> None:
        """Add what the backward of each process has left in `.grad`, which is None afterwards."""
        flat = torch.full((self.size,), NOTHING, device=self.parameters[0].device)
        for place, (parameter, piece) in enumerate(self._pieces(flat)):
            if parameter.grad is not None:
                piece.copy_(parameter.grad.view(-1))
                parameter.grad, self.reached[place] = None, True
        for gradient in self.group.dealt(flat):
            self.part = gradient.clone() if self.part is None else self.part.add_(gradient)

    def finish(self) -> None:
        """Put the sum into every process's `.grad`; None where no gradient came, as in one process."""
        flat = self.group.gathered(self.part).view(-1)
        reached = self.group.gathered(torch.tensor(self.reached, dtype=torch.uint8)).any(0).tolist()
        for (parameter, piece), any_reached in zip(self._pieces(flat), reached, strict=True):
            # a copy lies in memory as a gradient of autograd's does
            parameter.grad = piece.clone().view_as(parameter) if any_reached else None
        self.part, self.reached = None, [False] * len(self.parameters)

    def _pieces(self, flat: torch.Tensor) -> Iterable[tuple[torch.nn.Parameter, torch.Tensor]]:
        sizes = [parameter.numel() for parameter in self.parameters]
        pieces = torch.split(flat[: sum(sizes)], sizes)
        return zip(self.parameters, pieces, strict=True)
