"""A tokenizer.json holds regular expressions and replacements that somebody else wrote, and they may take any
time and memory: tried once, in a process with limits, before anything loads it without.

Run as a script, this tries the file and texts on stdin (it imports nothing of the project).

    python -P tokenizer_trial.py < job.json
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CPU_SECONDS = 5  # a vocabulary of 262,000 words takes 0.9
MEMORY_BYTES = 1 << 30  # of address space
MEMORY_EACH = 16  # bytes more, for each byte of the file; a sound one takes some 12
MOST_TOKENS = 64  # for each character; a sound one has at most 8, an emoji's bytes in halves
TOO_MUCH = "too much"


def try_tokenizer(file: Path, texts: Sequence[str]) -> None:
    """Load the tokenizer.json `file` and encode each text, in a process with limits of time and memory.

    Raises `DataError` if it exceeds them. What else the library says of the file, it says again to the one
    who loads it.
    """
    # not at the top: the script imports nothing of the project
    from pipeline.core.child import bound
    from pipeline.core.errors import DataError

    memory = MEMORY_BYTES + MEMORY_EACH * file.stat().st_size
    limits = {resource.RLIMIT_CPU: CPU_SECONDS, resource.RLIMIT_AS: memory, resource.RLIMIT_CORE: 0}
    done = subprocess.run(
        bound([sys.executable, "-P", str(Path(__file__).resolve())], limits=limits),
        input=json.dumps({"file": str(file.resolve()), "texts": list(texts)}).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a panic's
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
    """Try the job on stdin; say if the tokenizer made too much of it."""
    job = json.load(sys.stdin)
    try:
        if encoded_in_bounds(job["file"], job["texts"]):
            return
    except MemoryError:
        pass
    except BaseException:  # of any kind: a panic is no Exception
        return
    sys.stdout.write(TOO_MUCH)


def encoded_in_bounds(file: str, texts: Sequence[str]) -> bool:
    """Whether no text becomes more than `MOST_TOKENS` tokens a character."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(file)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return all(
        len(tokenizer.encode(text, add_special_tokens=False).ids) <= MOST_TOKENS * len(text) for text in texts
    )


if __name__ == "__main__":
    main()
