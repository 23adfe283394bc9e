"""The losses of preferences: group `train.preference`."""

from typing import Annotated

from pydantic import Field

from pipeline.config.sections.values import Section, key


class Preference(Section):
    beta: Annotated[float, Field(gt=0, le=1000)] | None = key(
        None,
        "how strongly answers are held to the reference's (dpo, ipo, kto), how much the pairs count beside "
        "the chosen answers (orpo), or how much a difference in log-probability counts (simpo, whose margin "
        "is half of it); null: 0.1, simpo 2.0",
    )
