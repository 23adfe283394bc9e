"""Write the chat template that section `base` chooses into a base's files.

If it calls for today's date, it gets a fixed one. The folder's template is the one that training, adapter,
merged model and GGUFs use. A GGUF that is trained on unchanged has its template in the metadata, where
llama-server reads it.
"""

import json
from datetime import date
from pathlib import Path
from typing import Any

from pipeline.chat.clock import CLOCKS, NotFixed, without_clock
from pipeline.core.errors import DataError
from pipeline.core.publish import write_text
from pipeline.gguf.header import Header
from pipeline.gguf.tuned_file import rewrite_header
from pipeline.models.base_header import CHAT_TEMPLATE, named_templates
from pipeline.stages.base.chats import (
    KEY,
    TEMPLATE_FILE,
    ChatSettings,
    need_compiled,
    processors_template,
    unreadable,
)
from pipeline.stages.base.hf_folder import JSON_FILES, put_template, read_object


def settle_in_folder(folder: Path, chats: ChatSettings) -> bool:
    """Put the chosen template into a folder in place of its own, and fix the date in all its templates.
    Return True if one calls for today's date.

    Raises `DataError` for a template that is broken, exceeds its limits, or uses the date in a way that can't
    be fixed.
    """
    file = folder / TEMPLATE_FILE
    if chats.template is not None:
        put_template(folder, chats.template)
    is_dated = file.is_file() and _fix_text(file, chats.day)
    for name in JSON_FILES:
        if (folder / name).is_file():
            is_dated |= _fix_json(folder / name, chats.day)
    template = processors_template(folder)
    if template:
        put_template(folder, template)  # where tokenizers read it
    return is_dated


def settle_in_gguf(file: Path, header: Header, chats: ChatSettings) -> bool:
    """Put the chosen template into a GGUF's metadata in place of its own, and fix the date in all its
    templates. Return True if one calls for today's date.

    The tensors stay unchanged, byte for byte. Raises the errors of `settle_in_folder`.
    """
    templates = named_templates(header.fields)
    if chats.template is not None:
        templates = {"default": chats.template} if chats.template else {}
    fixed = {name: _fixed(text, str(file), chats.day) for name, text in templates.items()}
    if fixed != named_templates(header.fields):
        fields = {
            CHAT_TEMPLATE if name == "default" else f"{CHAT_TEMPLATE}.{name}": text
            for name, text in fixed.items()
        }
        rewrite_header(file, header, fields, dropped=(CHAT_TEMPLATE,))
    return fixed != templates


def _fix_text(file: Path, day: date) -> bool:
    """Fix the date in a template file. Return True if the template calls for today's date."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise unreadable(file.parent, error) from error
    fixed = _fixed(text, str(file.parent), day)
    if fixed != text:
        write_text(file, fixed)
    return fixed != text


def _fix_json(file: Path, day: date) -> bool:
    """Fix the date in the template, or the list of templates, of a JSON file.

    Return True if one calls for it.
    """
    settings = read_object(file)
    named = settings.get(KEY)
    fixed: Any = named
    if isinstance(named, str):
        fixed = _fixed(named, str(file.parent), day)
    elif isinstance(named, list):
        fixed = [
            entry | {"template": _fixed(entry["template"], str(file.parent), day)}
            if isinstance(entry, dict) and isinstance(entry.get("template"), str)
            else entry
            for entry in named
        ]
    if fixed != named:
        write_text(file, json.dumps(settings | {KEY: fixed}, indent=2, ensure_ascii=False) + "\n")
    return bool(fixed != named)


def _fixed(template: str, owner: str, day: date) -> str:
    """Return the template of `owner` with a fixed date."""
    if not any(word in template for word in CLOCKS):
        return template
    need_compiled({"default": template}, owner)  # compiled in a process with limits before it is parsed here
    try:
        return without_clock(template, day)
    except NotFixed as error:
        raise DataError(
            "Q-BASE-042",
            f"the chat template of {owner} asks for today's date, and {error}, or take another model",
        ) from None
