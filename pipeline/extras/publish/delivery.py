"""Deliver a bundle that `quench ship` made: to a repository on the hub, or into a program on this machine.

quench ship Q4_K_M --push OWNER/NAME
quench ship Q4_K_M --to ollama
quench ship Q4_K_M --to lmstudio
"""

from pathlib import Path

from pipeline.commands.ship import Destination
from pipeline.extras.publish import hub, programs
from pipeline.extras.publish.shipped import read_bundle


def check(destination: Destination, *, with_lora: bool) -> None:
    """Raise now what `deliver` would raise after gigabytes were hashed and copied: no token, no program.

    `with_lora` is true for a bundle of a base and its adapter.
    """
    if destination.repository:
        hub.check(destination.repository)
    if destination.program:
        programs.check(destination.program, with_lora=with_lora)


def deliver(folder: Path, destination: Destination) -> None:
    """Deliver the bundle in `folder`, and print where it is.

    Raises what `hub.push` and `programs.install` do.
    """
    bundle = read_bundle(folder)
    if destination.program:
        for line in programs.install(destination.program, bundle):
            print(f"  {line}")
    if destination.repository:
        for line in hub.push(bundle, destination.repository, public=destination.public):
            print(f"  {line}")
