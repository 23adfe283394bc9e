"""GRPO's loss against closed forms and TRL's own, and that the correction for rollouts acts."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.config.sections.training import Grpo
from pipeline.stages.train.grpo.losses import correction, policy_terms, training_batch
from pipeline.stages.train.grpo.rounds import Completion


def numbers(seed: int, *shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradient(logps: Any, **given: Any) -> Any:
    """The gradient of the summed loss by the log-probabilities."""
    logps = logps.clone().requires_grad_()
    policy_terms(logps, **given).loss.sum().backward()
    return logps.grad


@pytest.mark.parametrize(
    ("moved", "advantage", "counts"),
    [
        (0.3, 1.0, False),
        (0.2, 1.0, True),
        (0.3, -1.0, True),
        (-0.3, -1.0, False),
        (-0.2, -1.0, True),
        (-0.3, 1.0, True),
    ],
)
def test_beyond_its_border_a_token_that_has_moved_far_enough_is_left_alone(
    moved: float, advantage: float, counts: bool
) -> None:
    old, worth = torch.tensor([-1.0]), torch.tensor([advantage])
    given = {"old": old, "advantages": worth, "weights": torch.ones(1), "settings": Grpo()}
    assert bool(gradient(old + moved, **given) != 0) is counts
    terms = policy_terms(old + moved, **given)
    assert bool(terms.low_clipped | terms.high_clipped) is not counts


@pytest.mark.parametrize(("moved", "advantage"), [(0.15, 1.0), (-0.15, -1.0)])
def test_the_borders_are_those_of_the_settings(moved: float, advantage: float) -> None:
    """A move of 0.15 is inside of 0.2 and 0.28, and outside of 0.1."""
    old, worth = torch.tensor([-1.0]), torch.tensor([advantage])
    given = {"old": old, "advantages": worth, "weights": torch.ones(1)}
    assert bool(gradient(old + moved, **given, settings=Grpo()) != 0)
    assert not bool(gradient(old + moved, **given, settings=Grpo(clip_low=0.1, clip_high=0.1)) != 0)


def test_a_token_without_a_probability_of_the_rollout_is_not_corrected() -> None:
    found = correction(torch.tensor([-1.0, -1.0]), torch.tensor([float("nan"), -1.5]))
    torch.testing.assert_close(found, torch.tensor([1.0, torch.e**0.5]))


@pytest.mark.parametrize("loss", ["dapo", "dr_grpo"])
@pytest.mark.parametrize("kl_beta", [0.0, 0.04])
def test_loss_and_gradient_are_trls(loss: str, kl_beta: float) -> None:
    from trl.trainer.grpo_trainer import GRPOTrainer

    lengths = torch.tensor([5, 3, 6, 1])
    mask = (torch.arange(6) < lengths[:, None]).long()
    given = {
        name: numbers(seed, 4, 6)
        for seed, name in enumerate(("old_per_token_logps", "ref_per_token_logps", "sampling"))
    }
    advantages, logps = (
        numbers(7, 4),
        (given["old_per_token_logps"] + 0.3 * numbers(8, 4, 6)).requires_grad_(),
    )
    inputs = given | {
        "prompt_ids": torch.zeros(4, 2, dtype=torch.long),
        "prompt_mask": torch.ones(4, 2, dtype=torch.long),
        "completion_ids": torch.zeros(4, 6, dtype=torch.long),
        "completion_mask": mask,
        "advantages": advantages,
        "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": (given["old_per_token_logps"] - given["sampling"]).exp().clamp(max=2.0),
    }
    theirs = GRPOTrainer._compute_loss(trl(loss, kl_beta, logps), None, inputs)
    theirs.backward()
    settings = Grpo(loss=loss, kl_beta=kl_beta, max_new_tokens=6, group_size=4)
    ours_at = logps.detach().clone().requires_grad_()
    kept = mask.bool()
    terms = policy_terms(
        ours_at[kept],
        given["old_per_token_logps"][kept],
        advantages[:, None].expand(4, 6)[kept],
        correction(given["old_per_token_logps"][kept], given["sampling"][kept]),
        settings,
        reference=given["ref_per_token_logps"][kept] if kl_beta else None,
    )
    # the longest was cut off, and counts, as in TRL
    group = [Completion(0, n, 0, [1] * int(lengths[n]), [], n != 2, reward=float(n)) for n in range(4)]
    batch = training_batch({"prompts": [[1]], "rows": [0], "row_ids": ["a"]}, [group], settings)
    ours = terms.loss.sum() / batch["items"]
    ours.backward()
    assert float(ours) == pytest.approx(float(theirs), rel=1e-6)
    torch.testing.assert_close(ours_at.grad, logps.grad, rtol=1e-5, atol=1e-7)


def trl(loss: str, kl_beta: float, logps: Any) -> Any:
    """Return a stand-in for TRL's trainer, with all that `_compute_loss` asks of it."""
    from collections import defaultdict

    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value
    )
    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *given, **more: (
            logps,
            torch.zeros_like(logps).detach(),
            None,
        ),
        accelerator=accelerator,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        beta=kl_beta,
        current_gradient_accumulation_steps=1,
        epsilon_low=0.2,
        epsilon_high=0.28,
        importance_sampling_level="token",
        loss_type=loss,
        max_completion_length=6,
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        _entropy_bonus_enabled=False,
        use_adaptive_entropy=False,
        entropy_coef=0.0,
        _metrics={"train": defaultdict(list)},
    )
