"""Check how llama.cpp reads a folder's tokenizer after conversion, before anything is trained.

Stage `base` checks two kinds of tokenizers. The first are those that are not byte-level BPE (SentencePiece):
the converter reads other files than training, and llama.cpp has rules of its own for spaces. The second are
those of families that are unknown or have rules of their own (`pipeline.gguf.families`).
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline.chat.rendering import Unrenderable, render
from pipeline.chat.tokens import load_tokenizer, probes
from pipeline.chat.trial import ANSWER, QUESTION
from pipeline.core.errors import DataError, ToolError
from pipeline.core.text import common_start
from pipeline.llamacpp.tools import Toolchain, run_converter
from pipeline.stages.base.gguf_import import ids_by_llama_cpp
from pipeline.stages.base.sentencepiece_file import PIECES_FILE

SHOWN = 4  # tokens shown in a message
CONTEXT = 20  # characters shown before those tokens


def same_ids_when_converted(folder: Path, tools: Toolchain, pre: str | None) -> None:
    """Raise `DataError` if llama.cpp's converter can't convert the tokenizer of `folder`, or if llama.cpp
    gives other ids than training with the converted tokenizer. `pre` is its pre-tokenizer, None if the
    converter chooses.
    """
    tokenizer = load_tokenizer(folder)
    texts = [*probes(tokenizer), control_tokens(tokenizer)]
    with suppress(Unrenderable):  # such a base trains texts only, which was reported before
        texts.append(render(tokenizer, [QUESTION, ANSWER]))
    with TemporaryDirectory() as place:
        vocabulary = Path(place) / "vocabulary.gguf"
        try:
            arguments: list[str | Path] = [folder, "--vocab-only", "--outfile", vocabulary]
            run_converter(tools, "convert_hf_to_gguf.py", arguments, pre)
        except ToolError as error:
            raise DataError(
                "Q-BASE-053",
                f"llama.cpp's converter can't take the tokenizer of {folder} "
                f"({error.sentence.strip().splitlines()[-1]}): complete the folder, or take another model",
            ) from error
        for text in texts:
            ours = tokenizer(text, add_special_tokens=False)["input_ids"]
            theirs = ids_by_llama_cpp(vocabulary, text, tools)
            if ours != theirs:
                differ = first_difference(tokenizer, ours, theirs or [])
                raise DataError(
                    "Q-BASE-054", f"{folder}: {differ} by the converted tokenizer: {remedy(folder)}"
                )


def control_tokens(tokenizer: Any) -> str:
    """Return a text that contains every control token.

    The converter gives some of them the type of ordinary tokens.
    """
    added = tokenizer.added_tokens_decoder.values()
    return "".join(f"a{token.content}" for token in added if token.special)


def remedy(folder: Path) -> str:
    """Return advice for a folder whose tokens llama.cpp reads differently."""
    if (folder / PIECES_FILE).is_file():
        return "take a GGUF of the model, on which training goes by llama.cpp's tokens, or another model"
    return f"complete the folder ({PIECES_FILE}), or take another model"


def first_difference(tokenizer: Any, ours: Sequence[int], theirs: Sequence[int]) -> str:
    """Return words that tell where two encodings of a text differ, and by which tokens."""
    same = common_start(ours, theirs)
    words = [tokenizer.convert_ids_to_tokens(list(ids[same : same + SHOWN])) for ids in (ours, theirs)]
    return (
        f"behind {tokenizer.decode(ours[:same])[-CONTEXT:]!r} training would give {words[0]}, and llama.cpp "
        f"gives {words[1]}"
    )
