"""Check how llama.cpp reads the tokenizer of a folder once it is converted, before anything is trained.

Only of tokenizers that are no byte-level BPE (SentencePiece's): of those the converter reads other files than
training, and llama.cpp has rules of its own for spaces.
"""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.chat.rendering import Unrenderable, render
from pipeline.chat.tokens import load_tokenizer, probes
from pipeline.chat.trial import ANSWER, QUESTION
from pipeline.core.errors import DataError, ToolError
from pipeline.llamacpp.tools import Toolchain, run_converter
from pipeline.stages.base.gguf_import import ids_by_llama_cpp


def same_ids_when_converted(folder: Path, tools: Toolchain) -> None:
    """Raise `DataError` if llama.cpp's converter can't take the tokenizer of `folder`, or llama.cpp gives
    other ids than training by what it makes of it.
    """
    tokenizer = load_tokenizer(folder)
    texts = list(probes(tokenizer))
    with suppress(Unrenderable):  # such a base trains texts only, which has been said
        texts.append(render(tokenizer, [QUESTION, ANSWER]))
    with TemporaryDirectory() as place:
        vocabulary = Path(place) / "vocabulary.gguf"
        try:
            run_converter(tools, "convert_hf_to_gguf.py", [folder, "--vocab-only", "--outfile", vocabulary])
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
                raise DataError(
                    "Q-BASE-054",
                    f"{folder}: training would give {ours[:8]} for {text[:30]!r}, and llama.cpp gives "
                    f"{theirs and theirs[:8]} by the converted tokenizer: complete the folder "
                    "(tokenizer.model), or take another model",
                )
