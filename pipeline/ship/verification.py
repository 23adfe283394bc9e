"""Verify a bundle: checksums, nothing missing, nothing extra, the GGUF's provenance and the card, the bill,
the evidence, the signature.

An adapter's bundle has two GGUFs: its own, and that of the base it was trained on. A bundle may come from any
source: nothing is executed, followed out of the folder or waited for, and the large file is read only after
everything small agrees.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.core.extras import provider
from pipeline.gguf.file import check_gguf
from pipeline.gguf.provenance import BASE_FILE, provenance
from pipeline.ship.bundle import BILL, CARD, EVALUATION, GATE, PARITY, SCRIPT, SUMS, UNIT
from pipeline.ship.card import claimed
from pipeline.ship.listing import (
    MAX_SMALL,
    SIGNATURE,
    Hostile,
    checksums,
    hash_plain,
    need_modes,
    obeyed,
    plain_files,
    read_small,
)

VERSION = "1.6"  # version of CycloneDX
MOST_VALUES = 5000  # most values of a bill, because a validator compares each value of a list with each other
ADAPTER = "-lora.gguf"  # suffix of an adapter's GGUF; the base's file is in the same folder
# Exceptions from reading untrusted JSON: deep brackets stop the decoder.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
PASSING = ("pass", "not decided")  # verdicts of a record that refuse nothing
GOOD = {*PASSING, "warn", "not measured"}  # those of its parts
NEEDED = (CARD, BILL, SCRIPT, UNIT, "Modelfile", EVALUATION, PARITY, GATE, SUMS)


def bundle_faults(folder: Path, key: Path | None = None) -> list[str]:
    """Return the faults of a bundle, a sentence each; none if it verifies. `key` is the public key that must
    have signed it.

    Raises `DataError` if there is no such folder, `ToolError` and `ConfigError` if a signature can't be
    checked here.
    """
    if not folder.is_dir():
        raise DataError("Q-SHIP-010", f"{folder} is not a folder: give the one that `quench ship` made")
    try:
        return _faults(folder, key)
    except Hostile as error:
        return [str(error)]


def _faults(folder: Path, key: Path | None) -> list[str]:
    """Return the faults of the first step that finds any: files, texts, claims, large files, signature."""
    sizes = plain_files(folder)
    need_modes(folder, sizes)
    lacking = [name for name in NEEDED if name not in sizes]
    if lacking:
        raise Hostile(f"These files are missing: {', '.join(lacking)}.")
    if key and SIGNATURE not in sizes:
        raise Hostile(f"It is not signed, though a key was given: there is no {SIGNATURE}.")
    listed = checksums(read_small(folder / SUMS))
    ggufs = sorted(
        (name for name in listed if name.endswith(".gguf")), key=lambda name: not name.endswith(ADAPTER)
    )
    large = {name for name, size in sizes.items() if size > MAX_SMALL and name not in ggufs}
    for names, what in (
        (set(listed) - set(sizes), f"Listed in {SUMS} and missing"),
        (set(sizes) - set(listed) - {SUMS, SIGNATURE}, f"Not listed in {SUMS}"),
        (set(listed) - {*NEEDED, *ggufs}, "These files belong in no bundle"),
        (large, "These files are larger than anything that belongs in a bundle"),
    ):
        if names:
            raise Hostile(f"{what}: {', '.join(sorted(names))}.")
    if len(ggufs) != 1 and [name.endswith(ADAPTER) for name in ggufs] != [True, False]:
        raise Hostile(f"There are {len(ggufs)} GGUFs where one belongs, or an adapter's and its base's.")
    texts = {name: listed[name] for name in listed if name not in ggufs}
    hashes = {name: listed[name] for name in ggufs}
    return (
        list(_altered(folder, texts))
        or list(_unshown(folder, texts))
        or list(_claims(folder, sum(sizes[name] for name in ggufs), hashes))
        or list(_altered(folder, hashes))
        or list(_unsigned(folder, key))
    )


def _unsigned(folder: Path, key: Path | None) -> Iterator[str]:
    if key and (fault := provider("ship --key").signature_fault(folder, key)):
        yield f"The signature does not vouch for it: {fault.rstrip('.')}."


def _altered(folder: Path, listed: dict[str, str]) -> Iterator[str]:
    for name, sha256 in listed.items():
        if hash_plain(folder / name) != sha256:
            yield f"{name} is not the file that {SUMS} lists: its sha256 differs."


def _unshown(folder: Path, texts: Iterable[str]) -> Iterator[str]:
    """Yield faults of texts, which are to be read: a character that hides or reorders others would show
    something else than the text.
    """
    for name in texts:
        hidden = obeyed(read_small(folder / name))
        if hidden:
            yield (
                f"{name} holds {hidden}, a control character that can hide what stands there: no bundle "
                "of `quench ship` does."
            )


def _claims(folder: Path, size: int, hashes: dict[str, str]) -> Iterator[str]:
    """Yield faults if card, bill and evidence are not about these GGUFs (an adapter's before its base's;
    bytes of all), by the checksums and the first's provenance.
    """
    card = read_small(folder / CARD)
    first, *others = hashes
    gguf = others[0] if others else first  # the one that `evaluation.json` calls its file
    try:
        evaluation, parity, gate, bill = (_object(folder / name) for name in (EVALUATION, PARITY, GATE, BILL))
        subject = bill["metadata"]["component"]
        own_sha256 = _sha256(bill["metadata"]["component"])
        parts = {part["name"]: part["hashes"][0]["content"] for part in subject.get("components") or []}
        on_card = claimed(card)
        invalid = schema_fault(read_small(folder / BILL), bill)
    except UNREADABLE as error:
        raise Hostile(f"The bundle's JSON can't be read ({type(error).__name__}: {error}).") from error
    if invalid:
        raise Hostile(f"{BILL} is not a CycloneDX {VERSION} bill of materials ({invalid}).")
    lora = evaluation["lora"] if isinstance(evaluation.get("lora"), dict) else {}
    claims = [(BILL, first, own_sha256), (EVALUATION, gguf, evaluation.get("sha256"))]
    if others:
        claims += [(BILL, gguf, parts.get(gguf)), (EVALUATION, first, lora.get("sha256"))]
    for name, file, stated in claims:
        if stated != hashes[file]:
            yield f"{name} is about another file than {file} (sha256 {str(stated)[:12]!a}…)."
    if not others and (lora or parts):
        yield f"{EVALUATION} or {BILL} names a second GGUF, which is missing."
    if evaluation.get("bytes") != size:
        yield (
            f"{' and '.join(hashes)} has {size:,} bytes, {EVALUATION} says "
            f"{str(evaluation.get('bytes'))[:20]!a}."
        )
        return
    for file, sha256 in hashes.items():
        if f"| {file} | `{sha256}` |" not in card:
            yield f"{CARD} does not name {file} with its sha256."
    if gate.get("model") != evaluation.get("model") or not _passed(gate, "findings"):
        yield f"{GATE} does not say that this level passed the gate."
    proven = parity["files"] if isinstance(parity.get("files"), dict) else {}
    if not _passed(parity, "checks") or any(proven.get(file) != sha256 for file, sha256 in hashes.items()):
        yield (
            f"{PARITY} does not say that {'these files' if others else 'this file'} passed every parity "
            "check."
        )
    yield from _provenance_faults(folder, hashes, bill, on_card)


def _provenance_faults(
    folder: Path, hashes: dict[str, str], bill: Mapping[str, Any], on_card: Mapping[str, Any]
) -> Iterator[str]:
    """Yield faults if the GGUFs are incomplete, or card and bill do not repeat the first one's provenance."""
    first, *beside = hashes
    try:
        for file in beside:
            check_gguf(folder / file)
        fields = provenance(folder / first)
    except DataError as error:
        yield f"{' or '.join(hashes)} is not a complete GGUF ({' '.join(error.sentence.split())[:200]})."
        return
    for file in beside:
        if fields.get(BASE_FILE) != hashes[file]:
            trained_on = str(fields.get(BASE_FILE))[:12]
            yield f"{first} was trained on another file than {file} (sha256 {trained_on!a}…)."
    yield from (f"{BILL} {fault}." for fault in bill_faults(bill, hashes, fields))
    differ = _differing(fields, on_card)
    if differ:
        yield f"{CARD} says otherwise than the provenance in {first}: {', '.join(differ[:10])}."


def _differing(fields: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, escaped."""
    keys = sorted(key for key in fields.keys() | other.keys() if fields.get(key) != other.get(key))
    return [ascii(key)[1:-1] for key in keys]


def schema_fault(text: str, bill: Mapping[str, Any]) -> str | None:
    """Return the reason why `bill`, read from `text`, is not a CycloneDX 1.6 bill, in half a sentence; None
    if it is one.
    """
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if text.count(",") + text.count("{") + text.count("[") > MOST_VALUES:
        return f"it has more than {MOST_VALUES:,} values"
    version = bill.get("specVersion")
    if version != VERSION:
        return f"specVersion is {str(version)[:20]!a}, not {VERSION}"
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    return None if fault is None else f"{fault.data.json_path[:80]}: {fault.data.message[:160]}"


def bill_faults(
    bill: Mapping[str, Any], hashes: Mapping[str, str], fields: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the differences of a valid bill from the GGUFs' `hashes` (sha256 by name) and the provenance of
    the first, half a sentence each.
    """
    from pipeline.ship.sbom import BASE_REF

    subject = bill["metadata"]["component"]
    components = bill.get("components", [])
    listed = {entry["name"]: entry.get("value") for entry in subject.get("properties", [])}
    texts = {key: None if value is None else str(value) for key, value in fields.items()}
    differ = _differing(texts, listed)
    if differ:
        yield f"says otherwise than the provenance in {next(iter(hashes))}: {', '.join(differ[:10])}"
    parts = [part for component in (subject, *components) for part in component.get("components", [])]
    known = [part for part in parts if part["name"] in hashes]
    other = sorted({part["name"] for part in known if _sha256(part) != hashes[part["name"]]})
    if other:
        yield f"has another sha256 for {', '.join(other)}"
    bases = [component for component in components if component.get("bom-ref") == BASE_REF]
    if not any(_sha256(part) for base in bases for part in base.get("components", [])):
        yield "does not say which files the base is"
    if not any(component["type"] == "data" and _sha256(component) for component in components):
        yield "does not say which rows the model was trained on"


def _sha256(component: Mapping[str, Any]) -> str | None:
    return next(
        (str(entry["content"]) for entry in component.get("hashes", []) if entry["alg"] == "SHA-256"), None
    )


def _passed(record: dict[str, Any], parts: str) -> bool:
    """Return True if the verdict refuses nothing, and none below it does; there must be some in `parts`."""
    has_parts = any(_verdicts(record.get(parts)))
    return record.get("verdict") in PASSING and has_parts and {*_verdicts(record)} <= GOOD


def _verdicts(record: Any) -> Iterator[str]:
    """Yield every verdict in a record, at any depth; one that is not text as its type."""
    left = [record]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if "verdict" in value:
                verdict = value["verdict"]
                yield verdict if isinstance(verdict, str) else type(verdict).__name__
            left += value.values()
        elif isinstance(value, list):
            left += value


def _object(path: Path) -> dict[str, Any]:
    value = json.loads(read_small(path))
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not an object")
    return value
