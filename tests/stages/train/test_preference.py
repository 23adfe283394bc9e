"""train with preferences: step-1 losses are the closed forms, gradients are TRL's."""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import preferences
import pyarrow
import pytest
import torch
from datasets import Dataset
from preferences import ANSWERS, says, settings, user
from torch.nn.utils.rnn import pad_sequence
from train_runs import train_in, trainer_in

from pipeline.chat.sequences import CHOSEN, REJECTED
from pipeline.chat.tokens import load_tokenizer
from pipeline.config.methods import Method
from pipeline.config.sections import Train
from pipeline.core.errors import DataError
from pipeline.core.metrics_log import MetricsLog
from pipeline.models.preference_losses import Likelihoods, pair_losses
from pipeline.stages.preprocess.proof import load_base, prove
from pipeline.stages.train.dataset import Collator, load_rows
from pipeline.stages.train.preference.collator import PreferenceCollator
from pipeline.stages.train.preference.trainer import likelihoods

PAIRS = 4
LENGTH = 300  # tokens: two pairs, not three


def preference(number: int) -> dict[str, Any]:
    good, bad = ANSWERS[number % 6], ANSWERS[(number + 2) % 6]
    prompt = [user(f"Question {number}: what is it?")]
    return {"kind": "preference", "messages": prompt, "chosen": [says(good)], "rejected": [says(bad)]}


def feedback(number: int) -> dict[str, Any]:
    turns = [user(f"Question {number}: what is it?"), says(ANSWERS[number % 6])]
    return {"kind": "feedback", "messages": turns, "label": number % 2 == 0}


def tokens_of(
    prepared: Path,
    root: Path,
    method: str,
    length: int = 512,
    packing: bool = True,
    rows: list[dict[str, Any]] | None = None,
) -> Path:
    rows = rows or [{"kto": feedback}.get(method, preference)(number) for number in range(PAIRS)]
    made = settings(method)
    return preferences.tokens_of(prepared, root, rows, settings=made, length=length, packing=packing)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "first"), [("dpo", math.log(2)), ("ipo", 25.0), ("kto", 0.5), ("orpo", None), ("simpo", None)]
)
def test_a_run_starts_at_the_closed_form_and_tells_what_it_measures(
    method: str, first: float | None, prepared: Path, tmp_path: Path
) -> None:
    # with these the model is the base at first too
    start: dict[str, Any] = {
        "dpo": {"lora_variants": ["gaussian"]},
        "ipo": {"modules_to_save": ["input_layernorm", "norm"]},
        "kto": {"modules_to_save": ["embed_tokens", "lm_head"]},
    }.get(method, {})
    asked, tokens = settings(method, learning_rate=1e-3, **start), tokens_of(prepared, tmp_path, method)
    report = train_in(prepared, tmp_path, asked, tokens=tokens, resume=True)
    steps = [row for row in report["metrics_log"] if row["kind"] == "step"]
    held_out = [row for row in report["metrics_log"] if row["kind"] == "eval"]
    if first is not None:
        assert steps[0]["loss"] == pytest.approx(first, rel=1e-6)
        assert steps[0]["measures"]["chosen_gain"] == pytest.approx(0.0, abs=1e-6)
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert steps[0]["items"] == PAIRS == held_out[0]["items"]
    assert held_out[-1]["measures"]["margin"] > steps[0]["measures"]["margin"]
    told = report["preferences"]
    assert told["right"] == round(held_out[-1]["measures"]["accuracy"] * PAIRS)
    assert 0 <= told["low"] <= told["accuracy"] <= told["high"] <= 1
    assert not (tmp_path / "checkpoints/reference.jsonl").exists(), "a finished run leaves none behind"


def test_answers_get_their_roles_and_only_they_are_trained(prepared: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    folder = tokens_of(prepared, tmp_path, "dpo")
    (row,) = parquet.read_table(folder / "train.parquet").to_pylist()
    assert row["roles"] == [CHOSEN, REJECTED] * PAIRS
    assert len(row["row_ids"]) == 2 * PAIRS
    tokenizer = load_tokenizer(prepared / "models/base")
    trained = tokenizer.decode([label for label in row["labels"] if label != -100])
    wanted = [ANSWERS[n % 6] + "<|im_end|>" + ANSWERS[(n + 2) % 6] + "<|im_end|>" for n in range(PAIRS)]
    # the longest pairs are packed first
    assert sorted(trained.split("<|im_end|>")) == sorted("".join(wanted).split("<|im_end|>"))


def test_a_pair_stays_in_one_row_and_one_too_long_is_left_out(prepared: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    folder = tokens_of(prepared, tmp_path, "dpo", length=LENGTH)
    rows = parquet.read_table(folder / "train.parquet").to_pylist()
    assert 1 < len(rows) < PAIRS
    for row in rows:
        assert row["roles"] == [CHOSEN, REJECTED] * (len(row["roles"]) // 2)
        chosen, rejected = row["row_ids"][:2]
        assert chosen.removesuffix("#chosen") == rejected.removesuffix("#rejected")
    plain = parquet.read_table(
        tokens_of(prepared, tmp_path / "plain", "dpo", packing=False) / "train.parquet"
    ).to_pylist()
    assert [len(row["roles"]) for row in plain] == [2] * PAIRS, "without packing a row is a pair"


# --- TRL as the oracle --------------------------------------------------------------------------------------


def made(
    prepared: Path, root: Path, method: str, rows: list[dict[str, Any]] | None = None, **changes: Any
) -> Any:
    """Our trainer, with the reference asked."""
    tokens = tokens_of(prepared, root, method, packing=False, rows=rows)
    return trainer_in(prepared, root, settings(method, **changes), tokens)


def reference(trainer: Any, batch: Any) -> Any:
    """Return the reference's log-probabilities of a batch."""
    return trainer.reference.logps(trainer.model, trainer.model.get_base_model(), batch)


def disturb(model: Any) -> None:
    """Take the adapter away from its start, of which TRL has made a copy as its reference."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad and "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.05)


def gradients(model: Any) -> dict[str, Any]:
    found = {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}
    model.zero_grad()
    return found


def ours(trainer: Any, batches: list[list[int]]) -> dict[str, Any]:
    """The gradients of one optimizer step of these batches of packed rows."""
    rows = trainer.rows
    made = [trainer.collate([rows[number] for number in batch]) for batch in batches]
    items = sum(batch["items"] for batch in made)
    for batch in made:
        loss, _ = trainer.loss_over(batch, items)
        loss.backward()
    return gradients(trainer.model)


def of_trl(trainer: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The gradients of TRL's loss of a batch of these rows."""
    disturb(trainer.model)
    trainer.model.train()
    trainer.compute_loss(trainer.model, trainer.data_collator(rows)).backward()
    return gradients(trainer.model)


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        error = float((gradient - other[name]).norm() / other[name].norm())
        assert error < 1e-4, name


def split(row: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) of each sequence of a packed row, as token ids; the answer up to its end of turn."""
    found, at = [], 0
    for length in row["seq_lengths"]:
        ids, labels = (row[name][at : at + length] for name in ("input_ids", "labels"))
        start = next(place for place, label in enumerate(labels) if label != -100)
        found.append((ids[:start], [label for label in labels if label != -100]))
        at += length
    return found


def prompts(trainer: Any) -> Iterator[tuple[list[int], list[list[int]], list[int]]]:
    """(prompt, answers, roles) of each packed row."""
    for row in trainer.rows:
        pairs = split(row)
        yield pairs[-1][0], [answer for _, answer in pairs], row["roles"]


# settings of each of TRL's trainers
PLAIN = {"report_to": "none", "bf16": False, "gradient_checkpointing": False, "use_cpu": True}

PAIR = {"prompt": "a", "chosen": "b", "rejected": "c"}


@pytest.mark.parametrize("method", ["dpo", "ipo"])
def test_gradients_are_those_of_trl(method: str, prepared: Path, tmp_path: Path) -> None:
    from trl import DPOConfig, DPOTrainer

    trainer = made(prepared, tmp_path, method)
    kind = {"dpo": "sigmoid"}.get(method, method)
    theirs = DPOTrainer(
        model=copy.deepcopy(trainer.model),
        args=DPOConfig(output_dir=str(tmp_path / "trl"), loss_type=kind, beta=0.1, **PLAIN),
        train_dataset=Dataset.from_list([PAIR]),
        processing_class=load_tokenizer(prepared / "models/base"),
    )
    rows = [
        {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}
        for prompt, (chosen, rejected), _ in prompts(trainer)
    ]
    expected = of_trl(theirs, rows)
    disturb(trainer.model)
    same(ours(trainer, [[0, 1, 2, 3]]), expected)
    same(ours(trainer, [[0], [1], [2], [3]]), expected)


def test_ktos_gradients_are_those_of_trl(prepared: Path, tmp_path: Path) -> None:
    from trl import KTOConfig, KTOTrainer

    judged = [feedback(number) | {"label": number != 1} for number in range(PAIRS)]
    weights = {"desirable_weight": 1.0, "undesirable_weight": 3.0}  # of three thumbs up and one down
    trainer = made(prepared, tmp_path, "kto", judged)
    texts = Dataset.from_list([{"prompt": "a", "completion": "b", "label": True}] * 2)
    theirs = KTOTrainer(
        model=copy.deepcopy(trainer.model),
        args=KTOConfig(
            output_dir=str(tmp_path / "trl"),
            beta=0.1,
            per_device_train_batch_size=2,
            **PLAIN,
            **weights,
        ),
        train_dataset=texts,
        processing_class=load_tokenizer(prepared / "models/base"),
    )
    known = list(prompts(trainer))
    rows = [
        {
            "prompt_ids": prompt,
            "completion_ids": answers[0],
            "KL_completion_ids": known[(number + 1) % len(known)][1][0],
            "label": roles[0] == CHOSEN,
        }
        for number, (prompt, answers, roles) in enumerate(known)
    ]
    expected = of_trl(theirs, rows)
    disturb(trainer.model)
    same(ours(trainer, [[0, 1, 2, 3]]), expected)
    # accumulated, TRL takes the mean over micro-batches of losses with a z of each
    halves = [of_trl(theirs, rows[:2]), of_trl(theirs, rows[2:])]
    mean = {name: (gradient + halves[1][name]) / 2 for name, gradient in halves[0].items()}
    same(ours(trainer, [[0, 1], [2, 3]]), mean)


def padded(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch as TRL's older trainers read it: prompts with each answer, padded on the right."""
    found = {}
    for side in ("chosen", "rejected"):
        ids = [row["prompt_ids"] + row[f"{side}_ids"] for row in rows]
        labels = [[-100] * len(row["prompt_ids"]) + row[f"{side}_ids"] for row in rows]
        for name, values, pad in (("input_ids", ids, 0), ("labels", labels, -100)):
            tensors = [torch.tensor(one) for one in values]
            found[f"{side}_{name}"] = pad_sequence(tensors, batch_first=True, padding_value=pad)
        lengths = torch.tensor([len(one) for one in ids])[:, None]
        found[f"{side}_attention_mask"] = (torch.arange(int(lengths.max())) < lengths).long()
    return found


@pytest.mark.parametrize("method", ["orpo", "simpo"])
def test_gradients_without_a_reference_are_those_of_trl(method: str, prepared: Path, tmp_path: Path) -> None:
    """ORPO's sum is the paper's (answer only; TRL adds the prompt's loss); both of its terms are TRL's."""
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    trainer = made(prepared, tmp_path, method)
    config, kind = {"orpo": (ORPOConfig, ORPOTrainer), "simpo": (CPOConfig, CPOTrainer)}[method]
    own = {
        "orpo": {"beta": 0.1},
        "simpo": {"beta": 2.0, "loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 1.0},
    }[method]
    theirs = kind(
        model=copy.deepcopy(trainer.model),
        args=config(output_dir=str(tmp_path / "trl"), **PLAIN, **own),
        train_dataset=Dataset.from_list([PAIR]),
        processing_class=load_tokenizer(prepared / "models/base"),
    )
    batch = padded(
        [
            {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}
            for prompt, (chosen, rejected), _ in prompts(trainer)
        ]
    )
    disturb(theirs.model)
    theirs.model.train()
    chosen, rejected = theirs.concatenated_forward(theirs.model, batch)[:2]
    if method == "simpo":
        loss = theirs.cpo_loss(chosen, rejected)[0].mean()
    else:
        loss = -chosen.mean() - theirs.odds_ratio_loss(chosen, rejected)[0].mean()
    loss.backward()
    expected = gradients(theirs.model)
    disturb(trainer.model)
    same(ours(trainer, [[0, 1, 2, 3]]), expected)
    same(ours(trainer, [[0], [1], [2], [3]]), expected)


def some_likelihoods() -> tuple[Likelihoods, Likelihoods]:
    generator = torch.Generator().manual_seed(3)
    tokens = [torch.tensor([3.0, 5.0, 9.0]), torch.tensor([4.0, 2.0, 7.0])]
    found = [
        Likelihoods(
            (-torch.rand(3, generator=generator, dtype=torch.float64) * 3 * count).requires_grad_(),
            -torch.rand(3, generator=generator, dtype=torch.float64) * 3 * count,
            count.double(),
        )
        for count in tokens
    ]
    return found[0], found[1]


def test_the_loss_of_the_chosen_answers_can_be_added() -> None:
    chosen, rejected = some_likelihoods()
    plain, mixed = (
        pair_losses("dpo", chosen, rejected, beta=0.1, gamma=0.0, sft_weight=weight)[0]
        for weight in (0.0, 0.5)
    )
    assert torch.allclose(mixed, plain - 0.5 * chosen.logps / chosen.tokens)


@pytest.mark.parametrize("method", ["kto", "sft"])
def test_a_method_without_a_loss_of_pairs_is_refused(method: Method) -> None:
    chosen, rejected = some_likelihoods()
    with pytest.raises(ValueError, match=f"train.method {method} has no loss of pairs"):
        pair_losses(method, chosen, rejected, beta=0.1, gamma=0.0, sft_weight=0.0)


def test_margin_and_weight_of_the_chosen_answers_are_those_of_the_settings(
    prepared: Path, tmp_path: Path
) -> None:
    trainer = made(prepared, tmp_path, "simpo", preference={"beta": 1.0, "gamma": 0.7}, sft_weight=0.25)
    rows = [trainer.rows[number] for number in range(PAIRS)]
    batch = trainer.collate(rows)
    with torch.no_grad():
        logps, tokens = likelihoods(trainer.model.get_base_model(), batch, 2 * PAIRS)
        loss, _ = trainer.loss_over(batch, PAIRS)
    answers = Likelihoods(logps, torch.zeros_like(logps), tokens)
    chosen, rejected = (answers.of(batch["roles"] == role) for role in (CHOSEN, REJECTED))
    expected, _ = pair_losses("simpo", chosen, rejected, beta=1.0, gamma=0.7, sft_weight=0.25)
    assert float(loss) == pytest.approx(float(expected.mean()), rel=1e-4)


@pytest.mark.parametrize("changed", [False, True])
def test_a_reference_is_taken_from_the_file_of_the_same_base_only(
    changed: bool, prepared: Path, tmp_path: Path
) -> None:
    first = made(prepared, tmp_path, "dpo")
    disturb(first.model)
    batch = first.collate([first.rows[0]])
    asked = reference(first, batch)
    (row,) = MetricsLog(tmp_path / "checkpoints/reference.jsonl").rows()
    wrong = row | {"logps": [-1.0, -2.0], "key": "another base's" if changed else row["key"]}
    (tmp_path / "checkpoints/reference.jsonl").write_text(json.dumps(wrong) + "\n")
    found = reference(made(prepared, tmp_path, "dpo"), batch)
    assert found.tolist() == (asked.tolist() if changed else [-1.0, -2.0])


def test_a_row_is_asked_once_whatever_batch_it_is_in(prepared: Path, tmp_path: Path) -> None:
    trainer = made(prepared, tmp_path, "dpo")
    rows = trainer.rows
    for numbers in ([0, 1], [1, 2], [2, 0], [3]):
        found = reference(trainer, trainer.collate([rows[number] for number in numbers]))
        each = [reference(trainer, trainer.collate([rows[number]])) for number in numbers]
        assert torch.equal(found, torch.cat(each))
    assert len(MetricsLog(tmp_path / "checkpoints/reference.jsonl").rows()) == PAIRS


def test_a_damaged_file_of_the_reference_is_made_again(prepared: Path, tmp_path: Path) -> None:
    trainer = made(prepared, tmp_path, "dpo")
    batch = trainer.collate([trainer.rows[0]])
    asked = reference(trainer, batch)
    file = tmp_path / "checkpoints/reference.jsonl"
    file.write_bytes(b"\0\0\0\n" + file.read_bytes())
    assert torch.equal(reference(made(prepared, tmp_path, "dpo"), batch), asked)


def test_ktos_other_answers_are_those_of_other_prompts(prepared: Path, tmp_path: Path) -> None:
    rows = [
        preference(number) | {"chosen": [says(f"good {number}")], "rejected": [says(f"bad {number}")]}
        for number in range(3)
    ]
    for packing in (True, False):
        folder = tokens_of(prepared, tmp_path / str(packing), "kto", packing=packing, rows=rows)
        found = load_rows(folder, "train")
        collator = PreferenceCollator(Collator(), "kto", found)
        for number in range(len(found)):
            row, others = found[number], collator.with_others(number)
            for (prompt, _), (other_prompt, said) in zip(split(row), split(others), strict=True):
                assert other_prompt == prompt, "the prompt stays"
                assert said not in by_prompt(found)[tuple(prompt)]


def test_ktos_other_answers_make_no_row_longer_than_the_longest() -> None:
    def row(*shapes: tuple[int, int]) -> dict[str, Any]:
        """A packed row of sequences of so many tokens of a prompt (equal ones of equal length) and answer."""
        labels = [[-100] * prompt + [7] * answer for prompt, answer in shapes]
        return {
            "input_ids": [prompt for prompt, answer in shapes for _ in range(prompt + answer)],
            "labels": [label for one in labels for label in one],
            "seq_lengths": [len(one) for one in labels],
        }

    rows = Dataset.from_list([row((8, 2)), row((2, 10)), row((3, 1), (3, 2), (3, 3))])
    others = PreferenceCollator(Collator(), "kto", rows)
    # prompts of 8, 2 and 3 tokens with the answers behind them, of 10, 1 and 2 tokens; 15 are the longest row
    assert others.longest == 15
    assert others.with_others(0)["seq_lengths"] == [8 + 7]
    assert others.with_others(1)["seq_lengths"] == [2 + 1]
    assert others.with_others(2)["seq_lengths"] == [3 + 2] * 3
    rows = Dataset.from_list([row((3, 1), (3, 4)), row((1, 4)), row((1, 6))])
    others = PreferenceCollator(Collator(), "kto", rows)
    assert others.with_others(0)["seq_lengths"] == [3 + 1, 3 + 4]  # both borrow 4 tokens; 11 are the longest


def by_prompt(rows: Any) -> dict[tuple[int, ...], list[list[int]]]:
    answers: dict[tuple[int, ...], list[list[int]]] = {}
    for prompt, said in (pair for row in rows for pair in split(row)):
        answers.setdefault(tuple(prompt), []).append(said)
    return answers


def test_a_torn_pair_is_found_by_the_proof(prepared: Path, tmp_path: Path) -> None:
    from pyarrow import parquet

    folder = tokens_of(prepared, tmp_path, "dpo", packing=False)
    table = parquet.read_table(folder / "train.parquet").to_pylist()
    length = table[0]["seq_lengths"][0]
    table[0] = {
        name: values[: length if name in ("input_ids", "labels") else 1] for name, values in table[0].items()
    }
    schema = parquet.read_schema(folder / "train.parquet")
    torn = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(table, schema), torn)
    base = prepared / "models/base"
    with pytest.raises(DataError, match="Q-PREPROCESS-014"):
        known = load_base(base, load_tokenizer(base))
        prove(torn, [tmp_path / "data/final/train.jsonl"], known, 512, Train(method="dpo"), 0)


def test_no_row_of_the_methods_kind_names_the_method(prepared: Path, tmp_path: Path) -> None:
    chats = [{"messages": [user("a"), says("b")]}]  # an older project's, without a kind
    with pytest.raises(DataError, match=r"Q-PREPROCESS-001.*train\.method") as found:
        tokens_of(prepared, tmp_path, "dpo", rows=chats)
    assert "max_length" not in str(found.value)


def test_tokens_of_another_methods_rows_are_not_trained(prepared: Path, tmp_path: Path) -> None:
    tokens_of(prepared, tmp_path, "dpo")
    with pytest.raises(DataError, match="Q-TRAIN-001"):
        train_in(prepared, tmp_path, settings("sft"), tokens=tmp_path / "data/tokens", resume=True)
