"""Make an installed Quench ready: `quench setup`.

Builds llama.cpp in the user's cache folder, once for all projects, for the GPU that is there, and installs
its Python binding; with `--torch` another build of PyTorch, and with `--demo` SmolLM2. In a
checkout `make setup` does the same, and more.
"""

import sys

from pipeline.commands.doctor import gpu, packages
from pipeline.commands.install import install, install_torch
from pipeline.core.errors import ConfigError
from pipeline.core.places import IS_CHECKOUT, resource
from pipeline.llamacpp.build import set_up


def main(*, demo: bool, llama: str | None = None, torch: str | None = None) -> None:
    """Build and install what is missing; `llama` names llama.cpp's backend, `torch` PyTorch's build. Raises
    `ConfigError` in a checkout, `ToolError` or `MachineError` where the build fails.
    """
    if IS_CHECKOUT:
        raise ConfigError(
            "Q-COMMANDS-037", "this Quench is a checkout of its repository: `make setup` sets it up"
        )
    if torch:
        install_torch(torch)
    set_up(llama)
    if demo:
        install(resource("requirements-demo.lock"))
    print("set up: llama.cpp is ready")
    if (card := gpu()).verdict == "warn":
        print(card, file=sys.stderr)
    pins = packages(resource("requirements.lock"))
    if pins.verdict == "fail":
        print(
            f"{pins.sentence}: install Quench again with the constraints of requirements.lock",
            file=sys.stderr,
        )
