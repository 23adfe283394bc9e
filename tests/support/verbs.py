"""The verbs of the command line, as Typer knows them."""

from typing import Any

import typer

from pipeline.cli import app


def verb_names() -> list[str]:
    """Return every verb that can be typed after `quench`: `status`, `config show` and so on."""
    names = []
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        inner = getattr(command, "commands", {})
        names += [f"{name} {verb}" for verb in inner]
        if not inner or command.invoke_without_command:
            names.append(name)
    return names
