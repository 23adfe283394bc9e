"""What several processes of one training come to on each one's card: parts of the base that the others hold,
what they exchange, and whether they could share the base out.
"""

from typing import Literal, NamedTuple

from pipeline.planning.base_kinds import base_kind
from pipeline.planning.setup import Setup

# layers that are there at once where `train.offload: shared` takes their parts off a card; estimated, not
# measured on GPUs: the layer that runs, the next, which FSDP2 gathers ahead, and what it gathers into
GATHERED = 3


class Share(NamedTuple):
    """Bytes of the layers' linears that other processes hold (`pipeline.models.sharded`), and of the layers
    that are put together at once, which `source` explains; 0 where every process has them all.
    """

    elsewhere: int
    gathered: int
    source: str


def share_of(setup: Setup) -> Share:
    """What is elsewhere for one of the processes."""
    source = f"the rest is with {setup.processes} processes"
    if not setup.train.shares_base or setup.processes == 1:
        return Share(0, 0, source)
    layers = base_kind(setup).layers
    elsewhere = sum(layers) - sum(layers) // setup.processes
    return Share(elsewhere, min(GATHERED * max(layers), sum(layers)), source)


def exchanged_bytes(setup: Setup, trained: int) -> int:
    """Bytes of all gradients of a round in one piece, what the others send, and this process's part of the
    sum; `trained` are those of what trains.
    """
    return 2 * trained + trained // setup.processes if setup.processes > 1 else 0


def offload_left(setup: Setup) -> Literal["shared", "layers", ""]:
    """What `train.offload` could still take off a card: the base, shared out among the processes, or layers
    to main memory; "" where neither is possible.
    """
    train = setup.train
    if train.use_dora:
        return ""
    if setup.processes > 1 and not train.offloaded_layers:
        return "shared"
    return "layers" if setup.device == "cuda" and not train.shares_base else ""
