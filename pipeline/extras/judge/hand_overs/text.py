"""Tokenizer and template → GGUF: token ids, special tokens, the end of an answer, the chat template."""

import re
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import date
from itertools import takewhile
from pathlib import Path
from typing import Any

from pipeline.chat.clock import NotFixed, without_clock
from pipeline.chat.rendering import Unrenderable, render
from pipeline.chat.trial import QUESTION, end_of_turn
from pipeline.config.products import ModelFiles
from pipeline.core.checks import Check
from pipeline.core.errors import ToolError
from pipeline.extras.judge.hand_overs.verdicts import failed, passed, plain, reworded, unmeasured, warned
from pipeline.gguf.header import Header
from pipeline.llamacpp.server import Server, serving
from pipeline.llamacpp.tools import Llama
from pipeline.models.base_header import named_templates
from pipeline.stages.parity import special_tokens
from pipeline.stages.parity.check import CTX_SIZE
from pipeline.stages.parity.probe_inputs import chosen, strings
from pipeline.stages.parity.rendering import in_use, served_texts, template_text
from pipeline.stages.parity.tokens import GgufVocabulary, corpus_ids, open_vocabulary, token_ids

LOADED = "loaded"
TOKENS = "tokens"
SPECIAL = "special"
TEMPLATE = "template"
BOS = "bos"
STRINGS = 4000
CONVERSATIONS = 20
CONVERT = "Convert again with a folder that has the trained tokenizer's files, all of them"
GUESSED = ("default", None)  # values of tokenizer.ggml.pre when the converter did not know the tokenizer


@dataclass(frozen=True)
class Text:
    """Tokenizer of the training, from `folder`, and the GGUF that should have the same."""

    tokenizer: Any
    folder: Path
    gguf: Path
    header: Header
    llama: Llama


def loaded_check(gguf: Path, llama: Llama, name: str) -> Check:
    """Check that llama.cpp loads the GGUF."""
    try:
        with serving(llama, ModelFiles(gguf), ctx_size=CTX_SIZE):
            return passed(LOADED, name, "llama.cpp loads it")
    except ToolError as error:
        return failed(
            LOADED,
            name,
            f"llama.cpp does not load it ({reason(error)})",
            "See the rows above if one differs; else convert again with the llama.cpp that serves",
        )


def reason(error: ToolError) -> str:
    """Return the line of llama-server's log that gives the reason for its exit."""
    lines = [line.strip() for line in error.sentence.splitlines()]
    telling = [line for line in lines if re.search(r"error loading|unknown|missing|wrong|invalid", line)]
    return (telling or lines)[0].rpartition("error loading model: ")[2]


def tokens_check(text: Text, name: str) -> Check:
    """Compare token ids: llama.cpp's and the tokenizer's, for strings on which tokenizers differ."""
    check = corpus_ids(strings(text.tokenizer, [], STRINGS), text.tokenizer, text.gguf, text.llama.tools)
    if check.verdict != "fail":
        return reworded(check, TOKENS, name)
    if check.key == "other_vocabulary":
        return failed(f"{TOKENS}.other_vocabulary", name, check.found, plain(check.remedy))
    if text.header.fields.get("tokenizer.ggml.model") != "gpt2":
        return failed(f"{TOKENS}.other_ids", name, check.found, plain(check.remedy))
    pre = text.header.fields.get("tokenizer.ggml.pre")
    how = "no pre-tokenizer" if pre in GUESSED else f"the pre-tokenizer {pre}"
    return failed(
        f"{TOKENS}.pre_tokenizer",
        name,
        check.found,
        f"The GGUF names {how}, and text is split otherwise than in training: convert again with a "
        "llama.cpp that knows this tokenizer, or serve with --override-kv tokenizer.ggml.pre=str:NAME",
    )


def special_check(text: Text, name: str) -> Check:
    """Check the ends of text and turn, the beginning of text, and the tokens that are added to a text."""
    with open_vocabulary(text.llama.tools, text.gguf) as vocabulary:
        faults = list(special_faults(text, vocabulary, name))
    if faults:
        return next((check for check in faults if check.verdict == "fail"), faults[0])
    end = end_of_answer(text.tokenizer)
    return passed(SPECIAL, name, f"beginning and end of text are the same, and llama.cpp stops at {end}")


def end_of_answer(tokenizer: Any) -> Any:
    """Return the token that ends an answer: the one that the template writes, otherwise the end of text."""
    written = end_of_turn(tokenizer) if tokenizer.chat_template else None
    return written or tokenizer.eos_token


def special_faults(text: Text, vocabulary: GgufVocabulary, name: str) -> Iterator[Check]:
    """Yield the faults of special tokens: failed checks and warnings."""
    tokenizer = text.tokenizer
    folder = text.folder
    gguf = text.gguf
    token = end_of_answer(tokenizer)
    number = tokenizer.convert_tokens_to_ids(token)
    if not vocabulary.ends(number):
        yield failed(
            f"{SPECIAL}.end_of_turn",
            name,
            f"an answer ends with {token} ({number}), and llama.cpp does not stop there: its end is "
            f"{text.header.fields.get('tokenizer.ggml.eos_token_id')}",
            f"Write it into the GGUF (gguf-set-metadata FILE tokenizer.ggml.eos_token_id {number}), or set "
            "eos_token in tokenizer_config.json, and eos_token_id in config.json and generation_config.json, "
            "and convert again",
        )
    for difference in filter(None, special_tokens.ends(tokenizer, folder, gguf, vocabulary)):
        yield failed(f"{SPECIAL}.end_of_turn", name, difference, CONVERT)
    for stored in special_tokens.special_ids(tokenizer, folder, gguf):
        if not stored.fault:
            continue
        if stored.place == special_tokens.GGUF and stored.kind != "pad":
            # Another end at which llama.cpp stops as well is harmless. If it does not stop, this was reported
            # above.
            stops = stored.kind == "eos" and vocabulary.ends(tokenizer.eos_token_id)
            verdict = warned if stops else failed
            yield verdict(f"{SPECIAL}.{stored.kind}", name, stored.fault, CONVERT)
        elif stored.kind == "eos":
            yield warned(
                f"{SPECIAL}.folder",
                name,
                stored.fault,
                "Write the same end into the folder's files: programs read different ones",
            )
    for difference in filter(None, special_tokens.added(tokenizer, gguf, vocabulary)):
        yield failed(
            f"{SPECIAL}.added",
            name,
            difference,
            "Set add_bos_token and add_eos_token in tokenizer_config.json as in training, and convert again",
        )


def template_checks(text: Text, name: str, bos_name: str) -> Iterator[Check]:
    """Yield the verdicts on the GGUF's template, as llama-server renders it, and on the beginning of text."""
    stored = in_use(named_templates(text.header.fields))
    ours = in_use(text.tokenizer.chat_template)
    if ours is not None and stored is not None:
        with serving(text.llama, ModelFiles(text.gguf), ctx_size=CTX_SIZE) as server:
            yield rendered_check(text, server, stored == ours, name)
            yield bos_check(text, server.tokens, bos_name)
        return
    if ours is not None:
        yield failed(
            f"{TEMPLATE}.missing",
            name,
            "the GGUF has no chat template, so llama.cpp falls back to ChatML",
            "Put chat_template.jinja, or chat_template in tokenizer_config.json, into the folder, and "
            "convert again; or serve with --chat-template-file",
        )
    else:
        where = " and in the GGUF" if stored is None else ""
        yield unmeasured(TEMPLATE, name, f"{text.folder.name} has no chat template{where}")
    yield unmeasured(BOS, bos_name, "one side has no chat template")


def rendered_check(text: Text, server: Server, same: bool, name: str) -> Check:
    """Compare conversations as `server`, which has loaded the GGUF, renders and tokenizes them. `same` is
    True if the GGUF's template is the folder's, letter for letter.
    """
    texts = served_texts(text.tokenizer, server, chosen([], CONVERSATIONS))
    check = template_text(texts, text.tokenizer, text.gguf)
    if check.verdict == "not measured":
        return reworded(check, TEMPLATE, name)
    if check.verdict == "fail":
        return template_fault(text, server, check, same, name)
    ids = token_ids(texts, text.tokenizer, server, text.gguf)
    if ids.verdict == "fail":
        return reworded(ids, f"{TEMPLATE}.ids", name)
    if not same:
        return warned(
            f"{TEMPLATE}.words",
            name,
            f"the GGUF's template is written otherwise, and {len(texts.compared)} texts came out alike",
            "Nothing, or serve with the folder's template (--chat-template-file)",
        )
    return passed(
        TEMPLATE, name, f"the same, and {len(texts.compared)} conversations have the same text and ids"
    )


def template_fault(text: Text, server: Server, check: Check, same: bool, name: str) -> Check:
    """Return the verdict on conversations that llama-server renders otherwise, as `check` found."""
    if not same:
        return failed(
            f"{TEMPLATE}.other",
            name,
            check.found,
            "Serve with the folder's template (--chat-template-file), or convert again",
        )
    if prints_today(text, server):
        return warned(
            f"{TEMPLATE}.date",
            name,
            "the template prints a date: llama-server takes today's, and training may have had another",
            "Serve with a template that has training's date in it (--chat-template-file)",
        )
    return reworded(check, f"{TEMPLATE}.rendered", name)


def prints_today(text: Text, server: Server) -> bool:
    """Return True if conversations are rendered alike once the folder's template contains today's date."""
    tokenizer = copy(text.tokenizer)
    templates = tokenizer.chat_template
    try:
        if isinstance(templates, dict):
            dated = {name: without_clock(each, date.today()) for name, each in templates.items()}
            tokenizer.chat_template = dated
        else:
            tokenizer.chat_template = without_clock(templates, date.today())
    except NotFixed:
        return False
    texts = served_texts(tokenizer, server, chosen([], CONVERSATIONS))
    return not any(each.differs for each in texts.compared)


def bos_check(text: Text, tokens: Callable[[str], list[int]], name: str) -> Check:
    """Check that the beginning of text does not come twice: from the template and from llama.cpp."""
    tokenizer = text.tokenizer
    if tokenizer.bos_token is None:
        return passed(BOS, name, "the tokenizer has no beginning of text")
    try:
        written = render(tokenizer, [QUESTION], add_generation_prompt=True)
    except Unrenderable as why:
        return unmeasured(BOS, name, str(why))
    begin = tokenizer.bos_token_id
    trained = tokenizer(written, add_special_tokens=False)["input_ids"]
    raw = tokens(written)
    in_training = leading_count(trained, begin)
    in_llamacpp = leading_count(raw, begin)
    if in_llamacpp <= max(in_training, 1):
        return passed(BOS, name, f"{in_llamacpp} before a rendered conversation")
    return warned(
        f"{BOS}.doubled",
        name,
        f"the template writes {tokenizer.bos_token} and add_bos_token adds another; llama-server takes one "
        "off, programs that send rendered text (completions, llama-cpp-python) do not",
        "Send messages, not rendered text; or convert with add_bos_token false",
    )


def leading_count(ids: Sequence[int], token: int) -> int:
    """Count how often `token` stands at the beginning of `ids`."""
    return sum(1 for _ in takewhile(lambda number: number == token, ids))
