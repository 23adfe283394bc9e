"""The losses of preferences: group `train.preference`."""

from typing import Annotated

from pydantic import Field

from pipeline.config.sections.values import Section, key

Weight = Annotated[float, Field(ge=0, le=1000)]


class Preference(Section):
    beta: Annotated[float, Field(gt=0, le=1000)] | None = key(
        None,
        "how strongly answers are held to the reference's (dpo, ipo, kto), how much the pairs count beside "
        "the chosen answers (orpo), or how much a difference in log-probability counts (simpo); null: 0.1, "
        "simpo 2.0",
    )
    simpo_gamma: Weight = key(
        1.0, "simpo only: margin by which the chosen answer is to win, half of beta is usual"
    )
    sft_weight: Weight = key(
        0.0,
        "dpo, ipo and simpo: weight of the usual loss on the chosen answers, against their becoming less "
        "likely; orpo has its own",
    )
    desirable_weight: Weight = key(1.0, "kto only: weight of answers with a thumb up")
    undesirable_weight: Weight = key(1.0, "kto only: weight of answers with a thumb down")
