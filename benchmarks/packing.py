"""Measures packing: real tokens a second of training packed rows against the same chats unpacked, and how
full packed rows are.

    python benchmarks/packing.py BASE [--steps 2] [--length 1024]

BASE is models/base of the demo (SmolLM2). Steps of QLoRA (forward and backward, the demo's settings) on short
chats of benchmarks/chats.py run alternately (A B A B): one packed row, and unpacked batches of 1, 2 and 8
rows, padded to the longest and with a mask, as trainers make them. Padding is no real token. On two cores it
takes some three minutes.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
ROWS = 400
BATCHES = (1, 2, 8)


def packed_batch(rows: list[Any]) -> dict[str, Any]:
    """Rows flattened by TRL's collator, as train does it."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collated = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(
        [{"input_ids": row.ids, "labels": row.labels} for row in rows]
    )
    return {key: collated[key] for key in ("input_ids", "labels", "position_ids")}


def padded_batch(rows: list[Any]) -> dict[str, Any]:
    """Rows padded to the longest by TRL's collator."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    batch: dict[str, Any] = DataCollatorForLanguageModeling(pad_token_id=0)(
        [{"input_ids": row.ids, "labels": row.labels} for row in rows]
    )
    return batch


def main() -> None:
    """Print density and the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    options = parser.parse_args()
    from peft import get_peft_model
    from tokenizing import generated

    from pipeline.chat.rendering import Unrenderable
    from pipeline.chat.tokens import encode, load_tokenizer
    from pipeline.config.params import load_params
    from pipeline.models.chunked_loss import chunked_loss
    from pipeline.models.lora import lora_config
    from pipeline.models.qlora import load_quantized
    from pipeline.models.runtime import silence_libraries, use_all_cores
    from pipeline.stages.preprocess.packing import best_fit

    silence_libraries()
    use_all_cores()
    tokenizer = load_tokenizer(options.base)
    train = load_params(Path(__file__).parents[1] / "recipes/demo.yaml").training
    found = [
        one
        for _, each in encode(tokenizer, generated(ROWS))
        if not isinstance(each, Unrenderable)
        for one in each
    ]
    rows = [one for one in found if len(one.ids) <= options.length]
    bins = best_fit([len(one.ids) for one in rows], options.length)
    tokens = sum(len(one.ids) for one in rows)
    density = tokens / len(bins) / options.length
    print(
        f"{len(rows)} chats of {tokens / len(rows):.0f} tokens: {len(bins)} packed rows of "
        f"{options.length}, {density:.1%} full"
    )
    model = get_peft_model(load_quantized(options.base, train), lora_config(train))
    model.train()

    def step(batch: dict[str, Any]) -> float:
        start = time.perf_counter()
        loss = chunked_loss(model.get_base_model(), batch)
        (loss[0] if isinstance(loss, tuple) else loss).backward()
        model.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    sides = {
        "packed": [packed_batch([rows[number] for number in one]) for one in bins[5 : 5 + options.steps]]
    }
    at = 0
    for size in BATCHES:
        # as long as the packed side, about
        each = max(1, round(options.steps * options.length / (tokens / len(rows)) / size / 2))
        sides[f"{size} unpacked"] = [
            padded_batch(rows[at + n * size : at + (n + 1) * size]) for n in range(each)
        ]
        at += each * size
    step(packed_batch(rows[:1]))  # the first step allocates
    seconds = dict.fromkeys(sides, 0.0)
    done = dict.fromkeys(sides, 0)
    queues = {name: list(batches) for name, batches in sides.items()}
    while any(queues.values()):
        for name, queue in queues.items():
            if queue:
                batch = queue.pop()
                real = (
                    int(batch["attention_mask"].sum())
                    if "attention_mask" in batch
                    else batch["input_ids"].numel()
                )
                seconds[name] += step(batch)
                done[name] += real
    reference = done["packed"] / seconds["packed"]
    for name in sides:
        speed = done[name] / seconds[name]
        print(
            f"  {name:12} {done[name]:6,} real tokens  {seconds[name]:6.1f} s  {speed:6.0f} tokens/s   "
            f"packed is {reference / speed:4.2f} × as fast"
        )


if __name__ == "__main__":
    main()
