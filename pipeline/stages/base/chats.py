"""Check that a folder's tokenizer and template are sound, and whether chats can be trained on them.

Both are foreign programs, so they are first tried in processes with limits. Nothing but small files is read,
so it is known before the weights are fetched or copied.
"""

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pipeline.chat.new_tokens import added
from pipeline.chat.template import try_templates
from pipeline.chat.thinking import FreePrompt, free_prompt
from pipeline.chat.tokenizer_file import try_tokenizer
from pipeline.chat.tokens import need_end_of_turn, read_tokenizer
from pipeline.chat.trial import end_of_turn, need_trainable, why_no_chats, with_beginning, with_own_end
from pipeline.config.sections import Base
from pipeline.config.sections.base import TEMPLATE_DATE
from pipeline.core.errors import DataError, QuenchError
from pipeline.core.places import expanded
from pipeline.core.publish import read_if_there
from pipeline.core.special_files import need_file
from pipeline.core.text import listed, quoted, shortened
from pipeline.stages.base.model_trial import tried_model
from pipeline.stages.base.text_part import settings_only

EARLY_BYTES = 1 << 30  # of weights
DAY = date.fromisoformat(TEMPLATE_DATE)
# no system turn where the chat has none, as in Hermes' and most models of one's own
CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
SHOWN = 12  # control tokens in a sentence


@dataclass(frozen=True)
class ChatSettings:
    """Choices of section `base` on how chats are written: `template` in place of the base's chat template (""
    for none, None for its own), `end_of_turn`, the control token that ends an answer (None for the one that
    the template writes), and `day`, the date that a template prints which asks for today's. `new_tokens` are
    those that the tokenizer gets.
    """

    template: str | None = None
    end_of_turn: str | None = None
    day: date = DAY
    new_tokens: tuple[str, ...] = ()


OWN = ChatSettings()


def chosen_chats(chosen: Base, root: Path) -> ChatSettings:
    """Return what section `base` says of chats. Raises `DataError` if its template file can't be read."""
    template: str | None
    match chosen.chat_template:
        case "own":
            template = None
        case "chatml":
            template = CHATML
        case None:
            template = ""
        case name:
            template = read_template(root / expanded(name, "base.chat_template"))
    day = date.fromisoformat(chosen.template_date)
    return ChatSettings(template, chosen.end_of_turn, day, tuple(chosen.new_tokens))


def read_template(file: Path) -> str:
    """Return the text of a template. Raises `DataError` if the file can't be read, or holds nothing."""
    try:
        need_file(file)
        text = file.read_text(encoding="utf-8-sig")  # editors of Windows write a mark
    except (OSError, ValueError) as error:
        raise DataError(
            "Q-BASE-045",
            f"base.chat_template names {file}, which can't be read ({error}): write own, chatml, null or a "
            "file with a Jinja template",
        ) from error
    if not text.strip():
        raise DataError(
            "Q-BASE-045", f"{file} holds no template: set base.chat_template to null if it is to have none"
        )
    return text


@dataclass(frozen=True)
class Tried:
    """A tokenizer, with `no_chats`, a sentence if no chat can be trained on it and its template, only texts;
    or with `note`, a sentence if that is so of a usual kind of chats.

    Its eos_token is the end of turn. `named_end` is the one that the folder names, if that is another, "" if
    it names none. Its template is `prompt`'s, if the generation prompt of the folder's had to be changed,
    `is_begun` if the beginning of text had to be put in front, and `keeps_end` if it still writes `named_end`
    beside the end of turn.
    """

    tokenizer: Any
    named_end: str | None = None
    prompt: FreePrompt | None = None
    no_chats: str | None = None
    note: str | None = None
    is_begun: bool = False
    keeps_end: bool = False


def tried_tokenizer(folder: Path, chosen: ChatSettings = OWN) -> Tried:
    """Return the tokenizer of `folder` with the chat template and the end of turn that are chosen, and what
    can't be trained on it. Without a chosen end of turn it has the one that the template writes.

    Raises `DataError` if tokenizer or template is broken, or takes too much.
    """
    try:
        try_tokenizer(folder)
        tokenizer = read_tokenizer(folder)
        if chosen.new_tokens:  # which the files have not yet if they are tried early
            tokenizer.add_tokens(added(chosen.new_tokens, chosen.end_of_turn))
        if chosen.template is not None:
            tokenizer.chat_template = chosen.template or None
        if chosen.template == CHATML:
            need_chatml(tokenizer, folder)
        named = tokenizer.chat_template
        if named:
            need_compiled(named if isinstance(named, dict) else {"default": str(named)}, str(folder))
        named_end = tokenizer.eos_token
        end = chosen.end_of_turn or end_of_turn(tokenizer, generation_ends(folder))
        own_end = None
        if end:
            need_token(tokenizer, end, folder)
            own_end = with_own_end(tokenizer, end)
            tokenizer.eos_token = end
        if own_end:
            tokenizer.chat_template = own_end
        need_end_of_turn(tokenizer, folder)
        beginning = with_beginning(tokenizer)
        if beginning:
            tokenizer.chat_template = beginning
        prompt = free_prompt(tokenizer)
        if prompt:
            tokenizer.chat_template = prompt.template
        no_chats = why_no_chats(tokenizer, str(folder))
        if no_chats and named_end and not chosen.end_of_turn:
            tokenizer.eos_token = named_end  # only texts are trained, which end as the model names it
        note = None if no_chats else need_trainable(tokenizer, str(folder))
    except QuenchError:
        raise
    # untrusted files: the libraries raise what they stumble over
    except Exception as error:
        raise unreadable(folder, error) from error
    other_end = None if tokenizer.eos_token == named_end else named_end or ""
    return Tried(
        tokenizer,
        other_end,
        prompt,
        no_chats,
        note,
        is_begun=beginning is not None,
        keeps_end=own_end is not None,
    )


def generation_ends(folder: Path) -> list[Any]:
    """Return the ids at which generation stops, as the files of `folder` say: generation_config.json, or
    config.json if that names none.
    """
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        ends = read_if_there(file).get("eos_token_id")
        if ends is not None:
            return ends if isinstance(ends, list) else [ends]
    return []


def need_token(tokenizer: Any, chosen: str, folder: Path) -> None:
    """Raise `DataError` if the tokenizer of `folder` has no control token `chosen`."""
    if chosen not in tokenizer.get_added_vocab():
        raise DataError(
            "Q-BASE-044",
            f"base.end_of_turn is {quoted(chosen)}, which is none of the control tokens of {folder} "
            f"({control_tokens(tokenizer)}): name one of them, or set it to null",
        )


def need_chatml(tokenizer: Any, folder: Path) -> None:
    """Raise `DataError` if the tokenizer of `folder` lacks a token that ChatML needs."""
    missing = [word for word in ("<|im_start|>", "<|im_end|>") if word not in tokenizer.get_added_vocab()]
    if missing:
        raise DataError(
            "Q-BASE-046",
            f"base.chat_template is chatml, and {listed(missing)} is none of the control tokens of "
            f"{folder} ({control_tokens(tokenizer)}): name a file with a template that is written with those",
        )


def control_tokens(tokenizer: Any) -> str:
    """Return the first of the tokenizer's control tokens, for a sentence."""
    words = list(tokenizer.get_added_vocab())
    return ", ".join(words[:SHOWN]) + (" …" if len(words) > SHOWN else "")


def try_early(folder: Path, weights: int, owner: str, chosen: ChatSettings = OWN) -> None:
    """Raise what `tried_tokenizer` and `tried_model` do, before weights of so many bytes are fetched or
    copied, and print why only texts can be trained on `owner`, if that is so: whoever has chats can stop.

    The finished folder is tried in any case; that costs three seconds, in which a small model is here.
    """
    if weights < EARLY_BYTES:
        return
    with settings_only(folder) as tried:
        try:
            tried_model(tried)
            no_chats = tried_tokenizer(tried, chosen).no_chats
        except DataError as error:
            raise DataError(error.id, error.sentence.replace(str(tried), owner)) from error
    if no_chats:
        print(
            f"base: only plain text can be trained on it, no chats: {no_chats.replace(str(tried), owner)}. "
            f"If data/raw holds chats, stop here (Ctrl-C): {weights / 1e9:.1f} GB of weights come next",
            flush=True,
        )


def need_compiled(templates: dict[str, str], owner: str) -> None:
    """Try the templates (by name) of `owner` in a process with limits. Raises `DataError` for a bad one."""
    if broken := try_templates(templates, owner):
        raise DataError(
            "Q-BASE-037",
            f"the chat template of {owner} can't be compiled ({broken}): fetch it again, or correct it",
        )


def unreadable(folder: Path, error: Exception) -> DataError:
    """Return the error for what a library raised over the files of `folder`."""
    reason = shortened(error, 300)
    return DataError("Q-BASE-012", f"{folder} can't be read ({reason}): fetch it again")
