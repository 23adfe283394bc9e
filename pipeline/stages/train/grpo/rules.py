"""Monitoring rules of GRPO: guards against faults that occur only when learning from rewards.

Its loss is about 0 all the time, so no range of losses means anything. The usual ranges are Axolotl's: less
than 0.8 of the groups without variance, a divergence below 0.5 (alarm at 2), less than 0.3 of the completions
cut off, an entropy above 0.05.
"""

import statistics
from collections.abc import Mapping
from itertools import pairwise

from pipeline.config.tuners import Rate, TunerName
from pipeline.core.checks import Check
from pipeline.stages.train.monitoring.monitor import WINDOW, History, Rules, failure, passed, unknown, warning
from pipeline.stages.train.monitoring.rules import (
    finite_eval_loss,
    finite_gradient,
    finite_loss,
    gradient_alarm,
    rank,
    speed,
    usual_rate,
)

RATES: Mapping[TunerName, Rate] = {
    "lora": (5e-6, 2e-4, "2.0e-5 is a good start, 1.0e-4 for a small model"),
    "scales": (1e-4, 1e-2, "1.0e-3 is a good start"),
}
CONSTANT_STEPS = 5  # steps without any variance from the start, which chance would not give
SAME = 0.8  # share of the groups
CUT = 0.3  # share of the completions
LONGER = 3.0  # times the length at the start
ENTROPY = 0.05  # nats
DIVERGENCE = 0.5  # nats a token
BLOWN_UP = 2.0  # nats a token
GAP = 0.1  # nats a token
SCATTER = 2.0, 4.0  # standard deviations of a step's reward from which a fall warns, and fails


def constant_reward(run: History) -> Check:
    """Check that a group has had variance since the start."""
    same = run.measured("zero_variance")
    if not same or min(same) < 1:
        return passed("rewards differ within groups")
    if len(same) < min(CONSTANT_STEPS, run.max_steps):
        return unknown(f"fewer than {CONSTANT_STEPS} steps")
    return failure(
        f"in all {len(same)} steps every completion of a prompt had the same reward (mean "
        f"{statistics.fmean(run.measured('reward')):.3g})",
        "nothing can be learned: give partial points in train.grpo.rewards, easier or harder prompts, or "
        "tune the base on such answers first (train.method sft)",
        "Q-GRPO-009",
    )


def zero_variance(run: History) -> Check:
    """Check that most groups have variance."""
    same = run.measured("zero_variance")[-WINDOW:]
    if len(same) < WINDOW:
        return unknown(f"fewer than {WINDOW} steps")
    share = statistics.fmean(same)
    text = (
        f"{share:.0%} of the groups have equal rewards in the last {WINDOW} steps, usual is below {SAME:.0%}"
    )
    if share < SAME:
        return passed(text)
    return warning(text, "most prompts are too easy or too hard by now: stop here, or take other prompts")


def reward_collapse(run: History) -> Check:
    """Check that the reward is not far below its best, in units of its usual scatter from step to step."""
    rewards = run.measured("reward")
    if len(rewards) < 2 * WINDOW:
        return unknown(f"fewer than {2 * WINDOW} steps")
    windows = [
        statistics.fmean(rewards[start : start + WINDOW]) for start in range(len(rewards) - WINDOW + 1)
    ]
    scatter = statistics.fmean(abs(after - before) for before, after in pairwise(rewards)) + 1e-9
    best, now = max(windows), windows[-1]
    text = f"mean reward {now:.3g} in the last {WINDOW} steps, {best:.3g} at best, {windows[0]:.3g} at first"
    cause = "the policy left what had the reward: lower train.learning_rate, or set train.grpo.kl_beta"
    if now < best - SCATTER[1] * scatter and now < windows[0]:
        return failure(text, cause, "Q-GRPO-011")
    if now < best - SCATTER[0] * scatter:
        return warning(text, cause)
    return passed(text)


def entropy_collapse(run: History) -> Check:
    """Check that completions are not nearly certain."""
    entropy = run.measured("entropy")[-WINDOW:]
    if len(entropy) < WINDOW:
        return unknown(f"fewer than {WINDOW} steps")
    now = statistics.fmean(entropy)
    text = f"{now:.3g} nats a token in the last {WINDOW} steps, usual are {ENTROPY} and more"
    if now >= ENTROPY:
        return passed(text)
    return warning(
        text,
        "the model says the same again and again, so nothing is tried any more: lower train.learning_rate, "
        "or stop here if the reward is what you want",
    )


def length_explosion(run: History) -> Check:
    """Check that completions are not several times as long as at the start, or cut off."""
    lengths = run.measured("completion_tokens")
    cut = run.measured("truncated")
    if len(lengths) < 2 * WINDOW:
        return unknown(f"fewer than {2 * WINDOW} steps")
    first, now = statistics.fmean(lengths[:WINDOW]), statistics.fmean(lengths[-WINDOW:])
    share = statistics.fmean(cut[-WINDOW:])
    text = f"{now:.0f} tokens a completion, {first:.0f} at first, {share:.0%} cut off"
    if now > LONGER * first or share > CUT:
        return warning(text, "raise train.grpo.max_new_tokens, or reward short answers")
    return passed(text)


def divergence(run: History) -> Check:
    """Check the divergence from the base."""
    values = run.measured("kl")[-WINDOW:]
    if not values:
        return unknown("train.grpo.kl_beta is 0, so it is not computed")
    now = statistics.fmean(values)
    text = (
        f"{now:.3g} nats a token from the base in the last {len(values)} steps, usual are below {DIVERGENCE}"
    )
    cause = "lower train.learning_rate or raise train.grpo.kl_beta"
    if now > BLOWN_UP and len(values) == WINDOW:
        return failure(text, cause, "Q-GRPO-013")
    return warning(text, cause) if now > DIVERGENCE else passed(text)


def rollout_gap(run: History) -> Check:
    """Check the difference between the rollouts' log-probabilities and training's."""
    values = run.measured("gap")[-WINDOW:]
    if not values:
        return unknown("no token was trained yet")
    now = statistics.fmean(values)
    text = f"{now:.3g} nats a token between training's log-probabilities and the rollouts'"
    if now <= GAP:
        return passed(text)
    return warning(
        text,
        "llama-server has other weights (with NF4) or rounds otherwise: the correction acts on it; "
        "base.quantization gguf has the same weights on both sides, a train.bnb_4bit_compute_dtype of "
        "float32 rounds less, a lower train.learning_rate moves less at a time",
    )


GRPO_STEP: Rules = {
    "finite loss": finite_loss,
    "finite gradient": finite_gradient,
    "constant reward": constant_reward,
    "zero variance": zero_variance,
    "reward collapse": reward_collapse,
    "entropy collapse": entropy_collapse,
    "length explosion": length_explosion,
    "divergence": divergence,
    "rollout gap": rollout_gap,
    "gradient alarm": gradient_alarm,
    "speed": speed,
    "learning rate": lambda run: usual_rate(run, RATES, "higher forgets, lower hardly learns"),
    "rank": rank,
}
GRPO_EVAL: Rules = {"finite eval loss": finite_eval_loss}
