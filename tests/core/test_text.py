"""No text that somebody else wrote steers the terminal, whatever prints it."""

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from make import quench
from tiny_lora import RANK, tiny_lora

from pipeline.__main__ import main as run_stage
from pipeline.core.text import console, one_line, safe, screen, shortened

# sets the window's title, turns text around, clears the screen, goes back to the line's start
EVIL = "\x1b]0;x\x07\u202e\x9b2J\r"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\u202eabc", r"\u202eabc"),
        ("é🙂👩\u200d💻", "é🙂👩\u200d💻"),
        ("\x9b1m\r", r"\u009b1m\r"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_steers_is_escaped_and_nothing_else(text: str, shown: str) -> None:
    assert safe(text, lines=True) == shown
    assert safe(text) == shown.replace("\t", r"\t").replace("\n", r"\n")
    assert json.loads(safe(json.dumps(text, ensure_ascii=False), lines=True)) == text


def test_one_line_is_cut() -> None:
    assert one_line("a\n\n b" * 100).startswith("a ba b")
    assert len(one_line("word " * 100)) == len(safe("x" * 200, 100)) == 100


def lora(folder: Path, name: str = f"blk.0.{EVIL}.weight", part: str = "lora_b") -> Path:
    """An adapter with a tensor of that name."""
    a, b = np.ones((RANK, 32), np.float32), np.zeros((32, RANK), np.float32)
    return tiny_lora(folder / f"lora{EVIL}.gguf", tensors={f"{name}.lora_a": a, f"{name}.{part}": b})


def peft(folder: Path) -> Path:
    from safetensors.numpy import save_file

    tensors = {f"base_model.model.{EVIL}.lora_A.weight": np.ones((2, 4), np.float32)}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": [EVIL]})
    )
    return folder


@pytest.mark.parametrize(
    "words",
    [
        lambda at: ["model", "norms", lora(at)],
        lambda at: ["model", "norms", lora(at), "--json"],
        lambda at: ["model", "norms", lora(at, part="lora_c")],
        lambda at: ["model", "norms", peft(at)],
        lambda at: ["model", "norms", at / EVIL],
        lambda at: ["model", "patch", lora(at), tiny_lora(at / "other.gguf"), at / "patch"],
        lambda at: ["model", "patch", lora(at), at / f"lora{EVIL}.gguf", at / f"patch{EVIL}"],
        lambda at: ["model", "apply", at / EVIL, at / EVIL, at / "new"],
        lambda at: ["judge", at / EVIL, at / EVIL, "--memory", EVIL],
        lambda at: ["ship", "--check", at / EVIL],
        lambda at: ["data", "check", at / EVIL],
        lambda at: ["config", "plan", "--config", at / EVIL],
        lambda at: ["config", "plan", "--params", at / EVIL],
        lambda at: ["model", "patch", f"--{EVIL}"],
        lambda at: [EVIL],
    ],
)
def test_no_command_prints_what_a_terminal_obeys(words: Callable[[Path], list], tmp_path: Path) -> None:
    result = quench(*words(tmp_path))
    assert not isinstance(result.exception, Exception), result.exception
    assert OBEYED.findall(result.output) == []
    assert re.search(r"\\(x1b|u001b)]0;x", result.output)  # it is named


def test_no_stage_prints_what_a_terminal_obeys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_stage(["train", "--root", str(tmp_path / EVIL)]) > 1
    said = capsys.readouterr().err
    assert OBEYED.findall(said) == [] and r"\x1b]0;x" in said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_our_own_colors_and_bars_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm-256color", "NO_COLOR": None, "FORCE_COLOR": None}.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with screen():
        print(EVIL)
        console().print(f"[bold]word[/bold]{EVIL}")
        for text in ("\r 10%", "\n\x1b[A", f"\r{EVIL}"):
            sys.stdout.write(text)
    assert sys.stdout is terminal
    shown = terminal.getvalue()
    assert "\x1b[1mword\x1b[0m" in shown and "\r 10%\n\x1b[A\r" in shown
    assert "\x1b]" not in shown and "\x07" not in shown and "\u202e" not in shown and "\x9b" not in shown
    assert shown.count(r"\u202e\u009b2J\r") >= 2


def test_a_stream_that_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snakemake puts a stream in the place of standard error whose `write` returns None."""
    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append, isatty=lambda: False))
    with screen():
        print("\x1b[2J", file=sys.stderr)
    assert "".join(written) == "\\x1b[2J\n"


def test_what_an_error_says_is_one_short_line() -> None:
    assert shortened(ValueError(" two\n  lines ")) == "two lines"
    assert shortened(ValueError("x" * 300)) == "x" * 200
    assert shortened(ValueError("x" * 300), 120) == "x" * 120
    assert shortened(KeyError()) == "KeyError"
