"""Rollouts by the model in training itself: no gap between rollout and training, and no server."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from pipeline.stages.train.grpo.rollouts import Drawn, Request
from pipeline.stages.train.monitoring.samples import undisturbed


class OwnSource:
    """Draws with the model in training. `ends` are the ids of tokens that end an answer."""

    name, same_again = "in-process", True

    def __init__(self, ends: Sequence[int], max_new_tokens: int) -> None:
        self.ends, self.max_new_tokens = frozenset(ends), max_new_tokens

    def draw(self, model: Any, requests: Sequence[Request], heed: Callable[[], None]) -> list[Drawn]:
        """A completion for each request, those of one prompt together."""
        drawn: list[Drawn] = []
        with undisturbed(model):
            for _, group in groupby(requests, key=lambda request: request.prompt):
                drawn += self._group(model, list(group))
                heed()
        return drawn

    def _group(self, model: Any, requests: Sequence[Request]) -> list[Drawn]:
        """The completions of one prompt, token by token, each with a generator of its own.

        A completion that has ended stays in the batch until all have: its further tokens are thrown away.
        """
        import torch

        chance = [torch.Generator().manual_seed(request.seed) for request in requests]
        ids = torch.tensor([request.prompt for request in requests], device=model.device)  # (G, T)
        cache, drawn = None, [Drawn([], [], False) for _ in requests]
        for _ in range(self.max_new_tokens):
            output = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            logs, cache = output.logits[:, -1].float().log_softmax(-1).cpu(), output.past_key_values
            picked = [
                int(torch.multinomial(log.exp(), 1, generator=g)) for log, g in zip(logs, chance, strict=True)
            ]
            drawn = [
                self._longer(one, pick, logs[n])
                for n, (one, pick) in enumerate(zip(drawn, picked, strict=True))
            ]
            if all(one.stopped for one in drawn):
                break
            ids = torch.tensor(picked, device=model.device)[:, None]
        return drawn

    def _longer(self, one: Drawn, token: int, logs: Any) -> Drawn:
        if one.stopped:
            return one
        return Drawn([*one.ids, token], [*one.logps, float(logs[token])], token in self.ends)
