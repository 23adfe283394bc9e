"""Check that a folder's tokenizer and template are sound, and whether chats can be trained on them.

Both are third-party programs, so they are first tried in processes with limits. Only small files are read, so
the result is known before the weights are fetched or copied.
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

# bytes of weights from which tokenizer and template are tried before the weights arrive
EARLY_BYTES = 1 << 30
TEMPLATE_FILE = "chat_template.jinja"
KEY = "chat_template"
DAY = date.fromisoformat(TEMPLATE_DATE)
# A chat without a system turn gets none, as in Hermes' and most custom ChatML templates.
CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
SHOWN = 12  # control tokens shown in a message


@dataclass(frozen=True)
class ChatSettings:
    """Choices of section `base` on how chats are written.

    `template` replaces the base's chat template ("" for none, None for the base's own). `end_of_turn` is the
    control token that ends an answer (None for the one that the template writes). `day` is the date that a
    template prints if it calls for today's. `new_tokens` are added to the tokenizer.
    """

    template: str | None = None
    end_of_turn: str | None = None
    day: date = DAY
    new_tokens: tuple[str, ...] = ()


OWN = ChatSettings()


def chosen_chats(chosen: Base, root: Path) -> ChatSettings:
    """Return the chat settings of section `base`. Raises `DataError` if its template file can't be read."""
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
    """Return the text of a template. Raises `DataError` if the file can't be read or is empty."""
    try:
        need_file(file)
        text = file.read_text(encoding="utf-8-sig")  # editors on Windows write a byte-order mark
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
    """Tokenizer of a folder, and what can be trained with it.

    `no_chats` is a sentence if no chat can be trained on it and its template, only texts. `note` is a
    sentence if a usual kind of chats can't be trained.

    The tokenizer's eos_token is the end of turn. `named_end` is the token that the folder names instead: None
    if it is the same, "" if the folder names none. If the folder's generation prompt had to be changed,
    `prompt` contains the changed template. `is_begun` is True if the beginning of text had to be put in front
    of the template, and `keeps_end` if the template still writes `named_end` in addition to the end of turn.
    """

    tokenizer: Any
    named_end: str | None = None
    prompt: FreePrompt | None = None
    no_chats: str | None = None
    note: str | None = None
    is_begun: bool = False
    keeps_end: bool = False


def tried_tokenizer(folder: Path, chosen: ChatSettings = OWN) -> Tried:
    """Return the tokenizer of `folder` with the chosen chat template and end of turn, and what can't be
    trained on it. If no end of turn is chosen, it is the one that the template writes.

    Raises `DataError` if tokenizer or template is broken or exceeds its limits.
    """
    try:
        try_tokenizer(folder)
        tokenizer = read_tokenizer(folder)
        if chosen.new_tokens:  # missing in the files if they are tried early
            tokenizer.add_tokens(added(chosen.new_tokens, chosen.end_of_turn))
        if not tokenizer.chat_template:
            tokenizer.chat_template = processors_template(folder)
        if chosen.template is not None:
            tokenizer.chat_template = chosen.template or None
        if chosen.template == CHATML:
            need_chatml(tokenizer, folder)
        named = tokenizer.chat_template
        if isinstance(named, dict) and "default" not in named:
            raise DataError(
                "Q-BASE-037",
                f"{folder} has the chat templates {listed(sorted(named))}, and none of them is called "
                "default: write the one for chats into a file and name that in base.chat_template",
            )
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
            # only texts are trained, and they end in the token that the model names
            tokenizer.eos_token = named_end
        note = None if no_chats else need_trainable(tokenizer, str(folder))
    except QuenchError:
        raise
    # untrusted files: the libraries raise errors of any kind
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


def processors_template(folder: Path) -> str | None:
    """Return the template of chat_template.json, where transformers 4 wrote that of a model for images. Its
    tokenizers read it nowhere, so it counts only if `folder` has no other.
    """
    if (folder / TEMPLATE_FILE).is_file() or read_if_there(folder / "tokenizer_config.json").get(KEY):
        return None
    template = read_if_there(folder / "chat_template.json").get(KEY)
    return template if isinstance(template, str) else None


def generation_ends(folder: Path) -> list[Any]:
    """Return the ids at which generation stops. They come from generation_config.json of `folder`, or from
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
    """Return the first `SHOWN` of the tokenizer's control tokens as text for a message."""
    words = list(tokenizer.get_added_vocab())
    return ", ".join(words[:SHOWN]) + (" …" if len(words) > SHOWN else "")


def try_early(folder: Path, weights: int, owner: str, chosen: ChatSettings = OWN) -> None:
    """Try tokenizer and model before `weights` bytes of weights are fetched or copied. If only texts can be
    trained on `owner`, print why, so that users who have chats can stop.

    The finished folder is tried in any case. That takes three seconds, in which a small model is fetched, so
    nothing is tried early below `EARLY_BYTES`. Raises what `tried_tokenizer` and `tried_model` raise.
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
    """Try the templates (by name) of `owner` in a process with limits.

    Raises `DataError` for an invalid one.
    """
    broken = try_templates(templates, owner)
    if broken:
        raise DataError(
            "Q-BASE-037",
            f"the chat template of {owner} can't be compiled ({broken}): fetch it again, or correct it",
        )


def unreadable(folder: Path, error: Exception) -> DataError:
    """Return the error for an exception that a library raised over the files of `folder`."""
    if "trust_remote_code" in str(error):
        kind = read_if_there(folder / "tokenizer_config.json").get("tokenizer_class")
        return DataError(
            "Q-BASE-012",
            f"{folder}: tokenizer_config.json names {quoted(kind)}, a class of the author's own code "
            "(auto_map), which Quench never runs: write PreTrainedTokenizerFast as tokenizer_class and take "
            "auto_map out there, so that tokenizer.json counts alone",
        )
    reason = shortened(error, 300)
    return DataError("Q-BASE-012", f"{folder} can't be read ({reason}): fetch it again")
