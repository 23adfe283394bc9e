"""Text, token ids and vocabularies: the same in training, in llama-server and in every GGUF."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.llamacpp.gguf_file import check_gguf
from pipeline.llamacpp.server import Server
from pipeline.seams.seam import Seam, count_seam, equal_seam
from pipeline.skeleton import Message
from pipeline.tokens.rendering import Unrenderable, render

# what users send and training sets rarely hold
EDGE_CASES: tuple[list[Message], ...] = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Why?"}],
    [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}, {"role": "user", "content": "Three"}],
    [{"role": "user", "content": "naïve café – “quotes” 東京 Привет مرحبا 🙂👩‍💻 ½ ①"}],
    [{"role": "user", "content": "def f(x):\n    return {'a': x ** 2}\n\n\n\t# tabs  and   spaces"}],
    [{"role": "user", "content": "1234567890 3.14159 1e-5 0x1F"}],
    [{"role": "user", "content": "<b>&amp;</b> \"quoted\" \\n 'single' {{braces}} {% raw %}"}],
)


Rendered = tuple[list[Message], bool, str]  # turns, with generation prompt, text by training's template


def template_text(server: Server, chats: list[Rendered]) -> Seam:
    """The chats' text by training's template against llama-server's `/apply-template`, byte for byte."""
    pairs = (
        (ours, server.post("/apply-template", {"messages": messages, "add_generation_prompt": prompt})["prompt"]) for messages, prompt, ours in chats
    )
    return equal_seam("Template text", "conversations whose text differs between training and llama-server", pairs)


def token_ids(tokenizer: Any, server: Server, chats: list[Rendered]) -> Seam:
    """The chats' token ids by training's tokenizer against llama-server's, tokenised as it does for a chat (BOS included)."""
    pairs = (
        (
            tokenizer(text, add_special_tokens=False)["input_ids"],
            server.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"],
        )
        for _, _, text in chats
    )
    return equal_seam("Token ids", "conversations whose token ids differ between training and llama-server", pairs)


def rendered(tokenizer: Any, conversations: list[list[Message]]) -> Iterator[Rendered]:
    """Each chat as a question, and whole with one more user turn.

    The further turn keeps llama-server from taking the last answer for one to be continued, so that the trained
    answers are compared too. What the template itself refuses (a system turn, say) is left out.
    """
    for messages in conversations:
        question = messages[:-1] if messages[-1]["role"] == "assistant" else messages
        answered = [*messages, {"role": "user", "content": "And then?"}] if messages[-1]["role"] == "assistant" else messages
        for turns, prompt in ((question, True), (answered, False)):
            try:
                text = render(tokenizer, turns, add_generation_prompt=prompt)
            except Unrenderable:
                continue
            yield turns, prompt, text


def special_tokens(tokenizer: Any, merged: Path, f16: Path) -> Seam:
    """End-of-turn and beginning-of-text ids in tokenizer, config, generation config and GGUF: all four must agree."""
    places: dict[str, dict[str, Any]] = {"tokenizer": {"eos": tokenizer.eos_token_id, "bos": tokenizer.bos_token_id}}
    for name in ("config.json", "generation_config.json"):
        if (merged / name).exists():
            values = json.loads((merged / name).read_text(encoding="utf-8"))
            places[name] = {kind: values.get(f"{kind}_token_id") for kind in ("eos", "bos")}
    fields = check_gguf(f16).fields
    places["GGUF"] = {kind: fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "bos")}
    wrong = [
        f"{kind} is {values[kind]} in {place} and {places['tokenizer'][kind]} in the tokenizer"
        for place, values in places.items()
        for kind in ("eos", "bos")
        if not agrees(kind, places["tokenizer"][kind], values[kind])
    ]
    return count_seam("Special tokens", "places that disagree about end of turn or beginning of text", len(wrong), 2 * len(places), "; ".join(wrong))


def agrees(kind: str, tokenizer_id: int | None, other: Any) -> bool:
    """Whether a place says the same as the tokenizer. A place may list several ends, and may leave bos out where nobody adds one."""
    if other is None or (kind == "bos" and tokenizer_id is None):
        return kind == "bos"
    return tokenizer_id in other if isinstance(other, list) else tokenizer_id == other


def level_vocabularies(f16: Path, levels: list[Path]) -> Seam:
    """Vocabulary, merges, special ids and chat template of every level against the F16 GGUF's."""
    expected = tokenizer_fields(f16)
    wrong = []
    for level in levels:
        found = tokenizer_fields(level)
        wrong += [f"{level.name}: {key}" for key, value in found.items() if expected.get(key) != value]
        wrong += [f"{level.name}: {key} is missing" for key in sorted(expected.keys() - found.keys())]
    compared = len(levels) * len(expected)
    return count_seam("Level vocabularies", "tokenizer fields that differ between F16 and a level", len(wrong), compared, "; ".join(wrong[:3]))


def tokenizer_fields(path: Path) -> dict[str, Any]:
    """Every `tokenizer.*` field of a GGUF."""
    return {name: value for name, value in check_gguf(path).fields.items() if name.startswith("tokenizer.")}
