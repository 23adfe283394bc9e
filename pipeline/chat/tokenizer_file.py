"""The tokenizer.json of a folder, as the library tokenizers loads it. It contains regular expressions and
replacements from an untrusted source, which may take any time and memory. So it is tried once in a process
with limits before anything loads it without.

Run as a script, this tries the file of a folder (it imports nothing of the project).

    python -P tokenizer_file.py FOLDER
"""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CPU_SECONDS = 5  # seconds; a vocabulary of 262,000 words needs 0.9
MEMORY_BYTES = 1 << 30  # bytes of address space
MEMORY_EACH = 16  # additional bytes for each byte of the file; a valid one needs some 12
MOST_TOKENS = 64  # tokens for each character; a valid tokenizer has at most 8, an emoji's bytes in halves
TOO_MUCH = "too much"
# Strings on which pre-tokenizers differ: digits, contractions, spaces, newlines, scripts, code, vowel signs
# that are marks of their own, a space at the beginning, more spaces than any token has.
PROBES = (
    "Hello, world! I'm 12345 years and 67.89 days old; you'll see.",
    "def f(x):\n    return {'a': x ** 2}\n\n\n\t# tabs  and   spaces " + " " * 33,
    "naïve café – “quotes” 東京 Привет مرحبا 🙂👩‍💻 ½ ①",
    " हिन्दी में नमस्ते, ภาษาไทย",
)


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise a `RuntimeError` for a panic in the library tokenizers, which in Python is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Its class can't be imported.
            raise
        raise RuntimeError(f"tokenizers stopped at it: {error}") from error


@panics_as_errors()
def plain_tokenizer(folder: Path) -> Any:
    """Return the `tokenizers.Tokenizer` of a folder's tokenizer.json, without the padding and truncation that
    some files set. They may have any length, and memory is allocated for it.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def try_tokenizer(folder: Path) -> None:
    """Load `folder`'s tokenizer.json and encode each of `PROBES`, in a process with limited time and memory.

    Raises `DataError` if it exceeds them. Other errors of the library are raised again when the file is
    loaded.
    """
    # The import is not at the top because the script imports nothing of the project.
    from pipeline.core.child import bound
    from pipeline.core.errors import DataError

    file = folder / "tokenizer.json"
    memory = MEMORY_BYTES + MEMORY_EACH * file.stat().st_size
    limits = {resource.RLIMIT_CPU: CPU_SECONDS, resource.RLIMIT_AS: memory, resource.RLIMIT_CORE: 0}
    done = subprocess.run(
        bound([sys.executable, "-P", str(Path(__file__).resolve()), str(folder.resolve())], limits=limits),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # output of a panic
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
        check=False,
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        excess = f"takes more than {CPU_SECONDS} s"
    elif done.returncode < 0:
        excess = f"takes more than {memory / 1e9:.1f} GB of memory (signal {-done.returncode})"
    elif done.stdout.decode() == TOO_MUCH:
        excess = "takes too much memory, or makes more tokens of a character than any tokenizer"
    else:
        done.check_returncode()
        return
    raise DataError(
        "Q-CHAT-009",
        f"{file} {excess} on a few words: take another model, or correct its normalizer and pre_tokenizer",
    )


def main() -> None:
    """Try the folder, and report if the tokenizer made too many tokens of the probes."""
    try:
        if encoded_in_bounds(Path(sys.argv[1])):
            return
    except MemoryError:
        pass
    except BaseException:  # A panic is not an `Exception`.
        return
    sys.stdout.write(TOO_MUCH)


def encoded_in_bounds(folder: Path) -> bool:
    """Return True if none of `PROBES` becomes more than `MOST_TOKENS` tokens a character."""
    tokenizer = plain_tokenizer(folder)
    return all(
        len(tokenizer.encode(text, add_special_tokens=False).ids) <= MOST_TOKENS * len(text)
        for text in PROBES
    )


if __name__ == "__main__":
    main()
