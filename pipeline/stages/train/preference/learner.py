"""Learning from answers that are judged: dpo, ipo, kto, orpo and simpo."""

from functools import partial
from itertools import chain
from typing import Any, ClassVar

from pipeline.chat.answers import CHOSEN, REJECTED
from pipeline.config.methods import METHODS
from pipeline.stages.train.checkpoints import REFERENCE
from pipeline.stages.train.learner import Learner, Learning
from pipeline.stages.train.monitoring.monitor import RuleSets
from pipeline.stages.train.monitoring.run_rules import EVERY_EVAL
from pipeline.stages.train.preference.rules import PREFERENCE_END, PREFERENCE_STEP


class PreferenceLearner(Learner):
    """Compares answers, with those of the untrained model where the method has such a reference."""

    rules: ClassVar[RuleSets] = RuleSets(PREFERENCE_STEP, EVERY_EVAL, PREFERENCE_END)

    def learning(self, collate: Any, rows: Any, held_out: Any) -> Learning:
        """The collators that know both answers, and the trainer with its reference."""
        from pipeline.models.preference_losses import kto_weights
        from pipeline.stages.train.preference.collator import PreferenceCollator
        from pipeline.stages.train.preference.trainer import PreferenceTrainer, Reference

        run, method = self.run, self.run.settings.method
        reference = None
        if METHODS[method].reference:
            # with a base that is shared out no process can go by what it alone remembers: all run the layers
            # as often
            again = run.settings.shares_base
            reference = Reference(run.checkpoints / REFERENCE, run.record, keep=run.leads, again=again)
        weights = 1.0, 1.0
        if method == "kto":
            roles = list(chain.from_iterable(rows["roles"]))
            weights = kto_weights(roles.count(CHOSEN), roles.count(REJECTED))
        return Learning(
            PreferenceCollator(collate, method, rows),
            PreferenceCollator(collate, method, held_out),
            partial(PreferenceTrainer, reference=reference, weights=weights),
        )

    def figures(self, rows: list[dict[str, Any]], evaluation: dict[str, Any]) -> dict[str, Any]:
        """How the held-out pairs (KTO: answers) are ranked at the end, with the 95 % interval of the share
        that is ranked correctly (Wilson's, for one of few pairs); nothing without any.
        """
        from scipy.stats import binomtest

        measures = evaluation.get("measures", {})
        if "accuracy" not in measures:
            return {}
        right = round(measures["accuracy"] * evaluation["items"])
        interval = binomtest(right, evaluation["items"]).proportion_ci(method="wilson")
        sure = {"low": round(float(interval.low), 4), "high": round(float(interval.high), 4)}
        return {"preferences": {"items": evaluation["items"], "right": right, **measures, **sure}}


LEARNER = PreferenceLearner
