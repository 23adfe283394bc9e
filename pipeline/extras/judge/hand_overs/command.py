"""Find the hand-over at which a model differs, in files of any tool: base, adapter, merged folder, GGUFs.

Weights, settings, tokens, template and outputs are compared in the order in which the files are made from
each other. The checks are those of stage parity that need no project. Writes nothing.

    quench judge --base DIR --adapter DIR --gguf FILE
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.commands.terminal import plain_table, wide_console
from pipeline.core.checks import Check
from pipeline.core.errors import DataError, GateError, QuenchError
from pipeline.extras.judge.command import settings_of
from pipeline.extras.judge.files import whole_header
from pipeline.extras.judge.hand_overs import adapter, gguf, merged, outputs, text
from pipeline.extras.judge.hand_overs.inputs import Files
from pipeline.extras.judge.hand_overs.verdicts import failed, reason_of, unmeasured
from pipeline.gguf.header import Header
from pipeline.llamacpp.tools import Llama, find_llama
from pipeline.models.runtime import one_thread

KEYS = {"id": "key", "hand_over": "name", "verdict": "verdict", "found": "found", "remedy": "remedy"}
MARKS = {"pass": "equal", "warn": "beware", "fail": "differs", "not measured": "not measured"}
COLORS = {"pass": "green", "warn": "yellow", "fail": "bold red", "not measured": "yellow"}
FILES_ONLY = "--files-only was given"
# names of the comparisons of a GGUF's text and outputs
NAMES = {
    text.LOADED: "llama.cpp",
    text.TOKENS: "tokenizer",
    text.SPECIAL: "special tokens",
    text.TEMPLATE: "chat template",
    text.BOS: "beginning of text",
    outputs.OUTPUTS: "outputs",
    outputs.ENDS: "answers end",
}


def main(files: Files, params_file: Path | None, root: Path, *, files_only: bool, as_json: bool) -> int:
    """Print the results. Return exit code 5 if a hand-over differs, otherwise 0."""
    checks = list(judged(files, find_llama(settings_of(params_file, root).machine), files_only=files_only))
    first = next((check for check in checks if check.verdict == "fail"), None)
    if as_json:
        report: dict[str, Any] = {
            "verdict": "different" if first else "equal",
            "first": first and first.key,
            "checks": [check.record(KEYS) for check in checks],
            "files": files.as_values(),
        }
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show(checks, first)
    return GateError.exit_code if first else 0


def judged(files: Files, llama: Llama, *, files_only: bool) -> Iterator[Check]:
    """Yield the verdict on each hand-over, in order."""
    headers = {path: whole_header(path) for path in files.ggufs}
    with one_thread():
        expected, check = adapter.expected_of(files)
        if check:
            yield check
        if files.merged:
            yield merged_check(files, expected)
        if not headers:
            return
        yield from weights_and_settings(files, expected, headers)
    yield from of_text(files, headers, llama, files_only=files_only)


def merged_check(files: Files, expected: adapter.Expected | None) -> Check:
    """Return the verdict on the merged folder, as far as the named files allow one."""
    assert files.merged
    if files.base is None:
        return unmeasured(merged.KEY, merged.NAME, "no --base was named")
    if files.adapter and expected is None:
        return unmeasured(merged.KEY, merged.NAME, "it is not known what base and adapter make together")
    alone = expected is None
    try:
        check = merged.merged_check(files.base, files.merged, expected or merged.base_alone(files.base))
    except DataError as error:
        return unmeasured(merged.KEY, merged.NAME, error.sentence)
    if not alone:
        return check
    if check.verdict == "pass":
        return failed(f"{merged.KEY}.absent", merged.NAME, check.sentence, merged.AGAIN)
    if check.key == f"{merged.KEY}.other_base":  # A merge is meant to change these weights.
        return unmeasured(
            merged.KEY, merged.NAME, "weights differ from the base's, and no --adapter says how they should"
        )
    return check


def weights_and_settings(
    files: Files, expected: adapter.Expected | None, headers: dict[Path, Header]
) -> Iterator[Check]:
    """Yield the verdicts on the weights and settings of each GGUF."""
    alone = None
    if files.base and not files.adapter and not files.merged:
        with suppress(DataError):
            alone = merged.base_alone(files.base)
    try:
        model: gguf.Model | str = gguf.model_of(files.base, files.merged, expected or alone)
    except DataError as error:
        model = error.sentence
    for path, header in headers.items():
        if isinstance(model, str):
            yield unmeasured(gguf.WEIGHTS, f"weights → {path.name}", model)
            yield unmeasured(gguf.SETTINGS, f"config.json → {path.name}", model)
        else:
            yield gguf.weights_check(path, model, f"{model.label} → {path.name}")
            yield gguf.settings_check(path, model, header, f"config.json → {path.name}")


def of_text(files: Files, headers: dict[Path, Header], llama: Llama, *, files_only: bool) -> Iterator[Check]:
    """Yield the verdicts on tokens, template and outputs of each GGUF."""
    folder = files.text_folder
    tokenizer = None
    why = "no folder that was named has a tokenizer.json"
    if folder:
        try:
            tokenizer = tokenizer_of(folder)
        except (QuenchError, OSError, ValueError, KeyError, TypeError) as error:
            why = f"the tokenizer of {folder} can't be read ({reason_of(error)})"
    output_verdicts: dict[Path, Check] = {}
    if tokenizer and not files_only:
        print("judge: what the models say", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="quench-judge-") as scratch:
            output_verdicts = outputs.output_checks(files, headers, tokenizer, llama, Path(scratch))
    for path, header in headers.items():
        names = {key: f"{words} → {path.name}" for key, words in NAMES.items()}
        loaded = text.loaded_check(path, llama, names.pop(text.LOADED))
        yield loaded
        if loaded.verdict == "fail" or tokenizer is None or folder is None:
            missing = "llama.cpp does not load it" if loaded.verdict == "fail" else why
            yield from (unmeasured(key, name, missing) for key, name in names.items())
            continue
        print(f"judge: text and tokens of {path.name}", file=sys.stderr, flush=True)
        of_file = text.Text(tokenizer, folder, path, header, llama)
        for key, look in ((text.TOKENS, text.tokens_check), (text.SPECIAL, text.special_check)):
            try:
                yield look(of_file, names[key])
            except QuenchError as error:
                yield unmeasured(key, names[key], error.sentence)
        yield from text.template_checks(of_file, names[text.TEMPLATE], names[text.BOS])
        if files_only:
            yield unmeasured(outputs.OUTPUTS, names[outputs.OUTPUTS], FILES_ONLY)
            yield unmeasured(outputs.ENDS, names[outputs.ENDS], FILES_ONLY)
            continue
        yield replace(output_verdicts[path], name=names[outputs.OUTPUTS])
        yield replace(outputs.ends_check(path, tokenizer, llama), name=names[outputs.ENDS])


def tokenizer_of(folder: Path) -> Any:
    """Return the folder's tokenizer. Like its template it is a foreign program, so it is first tried in
    processes with limits.
    """
    from pipeline.chat.template import try_templates
    from pipeline.chat.tokenizer_file import try_tokenizer
    from pipeline.chat.tokens import load_tokenizer

    try_tokenizer(folder)
    tokenizer = load_tokenizer(folder)
    templates = tokenizer.chat_template
    if templates:
        try_templates(templates if isinstance(templates, dict) else {"default": templates}, str(folder))
    return tokenizer


def show(checks: list[Check], first: Check | None) -> None:
    """Print a table of the hand-overs, the remedies for those that differ, and the first of them."""
    from rich.text import Text

    console = wide_console(None)
    table = plain_table("hand-over", "verdict", "what was found", unwrapped=(1,))
    for check in checks:
        table.add_row(
            Text(check.name), Text(MARKS[check.verdict], style=COLORS[check.verdict]), Text(check.found)
        )
    console.print(table)
    for check in checks:
        if check.verdict in ("fail", "warn") and check is not first:
            line = f"{check.name} ({check.key}): {check.remedy.rstrip('.')}."
            console.print(line, markup=False, soft_wrap=True)
    console.print(last_line(checks, first), markup=False, soft_wrap=True)


def last_line(checks: list[Check], first: Check | None) -> str:
    """Return a sentence on the first hand-over that differs, with its remedy, or on how many are equal."""
    if first:
        return (
            f"The first hand-over that differs: {first.name} ({first.key}): {first.found.rstrip('.')}. "
            f"{first.remedy.rstrip('.')}."
        )
    equal = sum(check.verdict in ("pass", "warn") for check in checks)
    open_ = len(checks) - equal
    if open_:
        return f"No hand-over differs in what was measured: {equal} equal, {open_} not measured."
    return f"No hand-over differs: {equal} equal."
