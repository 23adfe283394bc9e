"""Sources of rollouts: llama-server with the current adapter, or the model in training itself.

Both draw from the model's own distribution: temperature 1 and no sampler that cuts it. Otherwise the returned
probabilities would not be those of the draw.
"""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config.methods import ROLLOUTS
from pipeline.config.products import PRODUCTS, ModelFiles
from pipeline.core.errors import ToolError
from pipeline.core.publish import read_json, write_json
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.tuned_file import write_tuned
from pipeline.llamacpp.converters import FloatType, HeaderFields, lora_to_gguf, to_gguf
from pipeline.llamacpp.pretokenizer import find_pre_tokenizer
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.tools import Llama, Toolchain
from pipeline.models.tuners import tuner_on
from pipeline.models.tuners.scales import file_scales
from pipeline.stages.train.monitoring.samples import undisturbed
from pipeline.stages.train.run import Run

# The returned probabilities are those before the samplers. At temperature 1 and without any other sampler
# they are those of the draw.
SAMPLING = {
    "temperature": 1.0,
    "samplers": ["temperature"],
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "n_probs": 1,
    "return_tokens": True,
    "cache_prompt": True,
}


class Request(NamedTuple):
    """A prompt's token ids, and the seed of one completion."""

    prompt: list[int]
    seed: int


class Drawn(NamedTuple):
    """A completion: ids with the end of turn, their log-probabilities or None, whether it ended."""

    ids: list[int]
    logps: list[float | None]
    stopped: bool


class OwnSource:
    """Source that draws with the model in training: no gap between rollout and training, and no server.
    `ends` are the ids of tokens that end an answer. `same_again` is True if the same requests give the
    same completions.
    """

    name = "in-process"
    same_again = True

    def __init__(self, ends: Sequence[int], max_new_tokens: int) -> None:
        self.ends = frozenset(ends)
        self.max_new_tokens = max_new_tokens

    def draw(self, model: Any, requests: Sequence[Request], check_signal: Callable[[], None]) -> list[Drawn]:
        """Return a completion by `model` for each request, those of one prompt together. `check_signal` is
        called between prompts, and may raise.
        """
        drawn: list[Drawn] = []
        with undisturbed(model):
            for _, group in groupby(requests, key=lambda request: request.prompt):
                drawn += self._group(model, list(group))
                check_signal()
        return drawn

    def _group(self, model: Any, requests: Sequence[Request]) -> list[Drawn]:
        """Return the completions of one prompt, drawn token by token, each with a generator of its own.

        A completion that has ended stays in the batch until all have: its further tokens are thrown away.
        """
        import torch

        generators = [torch.Generator().manual_seed(request.seed) for request in requests]
        ids = torch.tensor([request.prompt for request in requests], device=model.device)  # (G, T)
        cache = None
        drawn = [Drawn([], [], False) for _ in requests]
        for _ in range(self.max_new_tokens):
            output = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            logs = output.logits[:, -1].float().log_softmax(-1).cpu()
            cache = output.past_key_values
            picked = [
                int(torch.multinomial(log.exp(), 1, generator=g))
                for log, g in zip(logs, generators, strict=True)
            ]
            drawn = [
                self._longer(completion, pick, logs[n])
                for n, (completion, pick) in enumerate(zip(drawn, picked, strict=True))
            ]
            if all(completion.stopped for completion in drawn):
                break
            ids = torch.tensor(picked, device=model.device)[:, None]
        return drawn

    def _longer(self, completion: Drawn, token: int, logs: Any) -> Drawn:
        if completion.stopped:
            return completion
        return Drawn([*completion.ids, token], [*completion.logps, float(logs[token])], token in self.ends)


class ServerSource:
    """Source that draws with a llama-server per round, on the file and with the adapter that will be served.

    A running server can't load another adapter, so each round starts one, with the adapter in the form that
    llama.cpp's own converter writes (trained scales: with the tuned file). A base that is not a GGUF is
    converted once, in 16 bit. Its weights then differ from training's NF4 weights, which the importance
    correction corrects and the run's figures show. The base's GGUF is among the checkpoints.
    """

    name = "llama-server"

    def __init__(self, tools: Toolchain, run: Run) -> None:
        self.tools = tools
        self.run = run
        self.settings = run.settings
        # With more slots the requests that share a batch are not deterministic, so their rounding isn't
        # either.
        self.same_again = self.settings.grpo.parallel == 1 and self.settings.rollout_layers == 0

    @cached_property
    def model(self) -> Path:
        """The base's GGUF: its own file, otherwise one that is converted from it when it is first needed."""
        file = self.run.base / MODEL_FILE
        folder = self.run.checkpoints / ROLLOUTS
        if file.is_file():
            return file
        assert self.settings.rollout_type, "None only if the base is a GGUF itself"
        weights = self.run.record["base"]["weights_sha256"]
        return as_gguf(self.tools, self.run.base, folder, self.settings.rollout_type, weights)

    def draw(self, model: Any, requests: Sequence[Request], check_signal: Callable[[], None]) -> list[Drawn]:
        """Return a completion for each request by `model` as it is now."""
        grpo = self.settings.grpo
        drawn = list[Drawn]()
        llama = Llama(self.tools, self.settings.machine.threads, self.settings.rollout_layers)
        room = max(len(request.prompt) for request in requests) + grpo.max_new_tokens + 8
        with (
            tempfile.TemporaryDirectory(prefix="quench-rollouts-") as scratch,
            serving(
                llama, self.learned(model, Path(scratch)), ctx_size=room, parallel=grpo.parallel
            ) as server,
            ThreadPoolExecutor(grpo.parallel) as pool,
        ):
            completed = partial(complete, server, max_new_tokens=grpo.max_new_tokens)
            try:
                for completion in pool.map(completed, requests):
                    drawn.append(completion)
                    check_signal()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return drawn

    def learned(self, model: Any, scratch: Path) -> ModelFiles:
        """Return the file to serve and the adapter to put on it, from `model` as it is now."""
        adapter = scratch / "adapter"
        tuner_on(model).save(model, adapter)
        if not PRODUCTS[self.settings.gguf_graph].with_lora:
            write_tuned(self.model, scratch / "tuned.gguf", file_scales(self.run.base, adapter), {})
            return ModelFiles(scratch / "tuned.gguf", None)
        lora_to_gguf(self.tools, adapter, self.run.base, scratch / "lora.gguf", "F16")
        return ModelFiles(self.model, scratch / "lora.gguf")


def as_gguf(tools: Toolchain, base: Path, folder: Path, type: FloatType, weights: str) -> Path:
    """Return the Hugging Face folder `base` as a GGUF in `folder`, converted unless it exists."""
    file = folder / f"base-{type}.gguf"
    key = {"weights_sha256": weights, "llama_cpp": tools.commit}
    record = folder / "made-of.json"
    if file.is_file() and record.is_file() and read_json(record, f"delete {folder}") == key:
        return file
    to_gguf(tools, base, file, type, HeaderFields("base", find_pre_tokenizer(base, tools).name))
    write_json(record, key)
    return file


def complete(server: Server, request: Request, max_new_tokens: int) -> Drawn:
    """Return one completion. Raises `ToolError` if it has no token, or probabilities that are not its own."""
    body = SAMPLING | {"prompt": request.prompt, "seed": request.seed, "n_predict": max_new_tokens}
    answer = server.post("/completion", body)
    ids = [int(token) for token in answer.get("tokens") or []]
    if not ids:
        raise ToolError(
            "Q-GRPO-005",
            f"llama-server completed a prompt of {len(request.prompt)} tokens with nothing, not even an end "
            "of turn: give it more context or another base",
        )
    try:
        entries = [
            (int(entry["id"]), float(entry["logprob"])) for entry in answer["completion_probabilities"]
        ]
        return Drawn(ids, aligned(ids, entries), answer["stop_type"] == "eos")
    except (KeyError, TypeError, ValueError) as error:
        raise ToolError(
            "Q-GRPO-006",
            f"llama-server's log-probabilities don't fit its tokens ({error}): run `make setup` for the "
            "pinned llama.cpp",
        ) from error


def aligned(tokens: Sequence[int], entries: Sequence[tuple[int, float]]) -> list[float | None]:
    """Return the log-probability of each of `tokens` from `entries`, (id, log-probability) of some in order.

    llama-server's list of probabilities leaves out tokens that end inside a UTF-8 character (`process_token`
    adds none until the character is whole); its entries contain ids and keep their order. A value is None if
    there is no entry, or if the entry could as well be another token's: an entry's place is certain if it is
    the same in the leftmost and in the rightmost alignment. Raises `ValueError` if `entries` are not among
    the tokens.
    """
    ids = [token for token, _ in entries]
    first = _leftmost(tokens, ids)
    last = _leftmost(tokens[::-1], ids[::-1])
    logps: list[float | None] = [None] * len(tokens)
    for number, (_, value) in enumerate(entries):
        rightmost = len(tokens) - 1 - last[-1 - number]
        if first[number] == rightmost:
            logps[first[number]] = value
    return logps


def _leftmost(tokens: Sequence[int], wanted: Sequence[int]) -> list[int]:
    places = []
    place = -1
    for token in wanted:
        place = next((i for i in range(place + 1, len(tokens)) if tokens[i] == token), -1)
        if place < 0:
            raise ValueError(f"token {token} has a probability, and is not among the tokens")
        places.append(place)
    return places
