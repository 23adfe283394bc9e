"""Teacher of distillation: the file that the level was made from, queried once about every row before
training, then freed.

Reads `models/base/source.gguf` and `data/tokens/`; writes `models/checkpoints/teacher/`
(`pipeline.stages.train.distill.cache`). A run that resumes after a kill uses what is there. Teacher and
student are never in memory together.
"""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from pipeline.config.methods import TEACHER, TEACHER_TOP_K
from pipeline.core.errors import GateError
from pipeline.core.progress import progress
from pipeline.core.publish import need_disk, publishing, write_json
from pipeline.gguf.base_files import SOURCE_FILE
from pipeline.models.distill_loss import followed
from pipeline.models.loss_parts import logit_rule
from pipeline.models.quantized_head import block_logits, compute_type, vocabulary_blocks
from pipeline.models.quantized_model import load_gguf
from pipeline.models.row_attention import attend_by_row
from pipeline.planning.memory.parts import TEACHER_ROOM
from pipeline.stages.train.dataset import Collator, load_rows
from pipeline.stages.train.distill.cache import (
    RECORD,
    Key,
    Teacher,
    cache_bytes,
    key_of,
    open_teacher,
    position_counts,
    write_answers,
)
from pipeline.stages.train.run import Run


def ask_teacher(run: Run) -> Teacher:
    """Return the original's answers to a run's rows: those next to its checkpoints if they belong to this
    run, otherwise newly computed ones.

    Raises `MachineError` if the disk is too small for 6 k + 2 bytes a position, `DataError` if the file can't
    be loaded, `GateError` if its answers are not numbers.
    """
    from transformers import AutoConfig

    folder = run.checkpoints / TEACHER
    rows = {name: load_rows(run.tokens, name) for name in ("train", "val")}
    counts = {split: position_counts(dataset["seq_lengths"]) for split, dataset in rows.items()}
    config = AutoConfig.from_pretrained(run.base, local_files_only=True, trust_remote_code=False)
    key = key_of(run.record, min(TEACHER_TOP_K, config.vocab_size))
    teacher = open_teacher(folder, key, counts)
    if teacher is not None:
        return teacher
    publish_answers(folder, key, rows, counts, run)
    teacher = open_teacher(folder, key, counts)
    assert teacher is not None, f"{folder} does not read back as it was written"
    return teacher


def publish_answers(
    folder: Path, key: Key, rows: dict[str, Any], counts: dict[str, list[int]], run: Run
) -> None:
    """Compute the answers to every row and publish them in `folder`. The model is freed when this returns."""
    top_k = key["top_k"]
    positions = sum(map(sum, counts.values()))
    size = cache_bytes(positions, top_k)
    need_disk(folder.parent, size)
    print(
        f"train: {SOURCE_FILE} answers at {positions:,} positions first; its {top_k} likeliest tokens at "
        f"each take {size / 1e6:.0f} MB in {folder}",
        flush=True,
    )
    model = load_gguf(
        run.base,
        compute_dtype=getattr(torch, run.settings.bnb_4bit_compute_dtype),
        device=roomy_device(run.base / SOURCE_FILE),
        name=SOURCE_FILE,
    )
    attend_by_row(model)
    probability_left_out = 0.0  # of the tokens that are not kept, summed over the positions
    with (
        publishing(folder) as aside,
        torch.no_grad(),
        progress("train: the original's answers", positions) as advance,
    ):
        aside.mkdir()
        for split, dataset in rows.items():
            answers = (compute_teacher_logprobs(model, batch, top_k, advance) for batch in batches(dataset))
            probability_left_out += write_answers(aside, split, sum(counts[split]), top_k, answers)
        figures = {
            "file": SOURCE_FILE,
            "sha256": key["file_sha256"],
            "top_k": top_k,
            "positions": positions,
            "bytes": size,
            # mean probability of the kept tokens
            "covered": 1 - probability_left_out / positions if positions else 1.0,
        }
        write_json(aside / RECORD, {"key": key, "figures": figures})
    del model
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def batches(rows: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows in order, batched to at most the longest one's length: what fits training fits here."""
    collate = Collator()
    length = 0
    waiting: list[dict[str, Any]] = []
    longest = max((sum(lengths) for lengths in rows["seq_lengths"]), default=0)
    for row in rows:
        size = sum(row["seq_lengths"])
        if waiting and length + size > longest:
            yield collate(waiting)
            waiting = []
            length = 0
        waiting.append(row)
        length += size
    if waiting:
        yield collate(waiting)


def compute_teacher_logprobs(
    model: Any, batch: dict[str, Any], top_k: int, advance: Callable[[int], None]
) -> tuple[Any, Any]:
    """Return ids (P, k), int32, and log-probabilities (P, k + 1), float32, of P positions. `advance` gets P.
    Raises `GateError` for NaN.
    """
    input_ids = batch["input_ids"].to(model.device)
    position_ids = batch["position_ids"].to(model.device)
    hidden = model.model(input_ids=input_ids, position_ids=position_ids, use_cache=False)[0][:, :-1]
    top_ids, logprobs = top_k_logprobs(hidden[followed(position_ids)], model, top_k)
    if logprobs.isnan().any():
        raise GateError(
            "Q-TRAIN-020",
            f"{SOURCE_FILE}'s answers are not numbers: run stage base again, for its weights are damaged",
        )
    advance(len(top_ids))
    return top_ids.int().cpu().numpy(), logprobs.cpu().numpy()


def top_k_logprobs(states: Any, model: Any, top_k: int) -> tuple[Any, Any]:
    """Return the `top_k` likeliest tokens (P, k) for states (P, H), the likeliest first, and
    log-probabilities (P, k + 1): theirs and that of all others.

    Works by blocks of the vocabulary, so that neither the head nor the logits are ever whole. What is not
    kept is summed by itself: one minus the sum of the kept would be only rounding if they are nearly all.
    """
    head = model.lm_head
    count = len(states)
    x = states.to(compute_type(head))
    factor, softcap = logit_rule(model.config)
    top_logits = torch.empty(count, 0, device=x.device)
    top_ids = torch.empty(count, 0, dtype=torch.long, device=x.device)
    # log of the sum of exp(logit) over what is not kept
    others = torch.full((count,), -torch.inf, device=x.device)
    for first, last in vocabulary_blocks(head, count):
        logits = block_logits(x, head, first, last, factor, softcap).logits
        block_top, block_places = take_largest(logits, top_k)
        others = others.logaddexp(logits.logsumexp(1))
        merged_logits = torch.cat([top_logits, block_top], 1)
        merged_ids = torch.cat([top_ids, block_places + first], 1)
        top_logits, kept = take_largest(merged_logits, top_k)
        top_ids = merged_ids.gather(1, kept)
        others = others.logaddexp(merged_logits.logsumexp(1))
    return top_ids, torch.cat([top_logits, others[:, None]], 1).log_softmax(1)


def take_largest(values: Any, count: int) -> tuple[Any, Any]:
    """Return the `count` largest of each row of `values` (P, n), and their places.

    `values` is set to −∞ there, in place.
    """
    largest, places = values.topk(min(count, values.shape[1]), 1)
    values.scatter_(1, places, -torch.inf)
    return largest, places


def roomy_device(file: Path) -> str:
    """Return the GPU if it has `TEACHER_ROOM` times the file's bytes free, otherwise the CPU, with a message
    that it is slow.
    """
    if not torch.cuda.is_available():
        return "cpu"
    if torch.cuda.mem_get_info(0)[0] > TEACHER_ROOM * file.stat().st_size:
        return "cuda:0"
    print(
        f"train: {file.name} doesn't fit the GPU's free memory, so it answers on the CPU, which takes long",
        flush=True,
    )
    return "cpu"
