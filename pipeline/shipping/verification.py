"""Is a bundle what it says? Checksums, nothing missing, nothing extra, the GGUF's passport and the card, the bill, the evidence, the signature.

A bundle may come from anyone: nothing is executed, followed out of the folder or waited for, and the large file is read only once everything small
agrees.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.conversion.passport import passport
from pipeline.errors import DataError
from pipeline.shipping.bundle import BILL, CARD, EVALUATION, GATE, PARITY, SCRIPT, SUMS, UNIT
from pipeline.shipping.card import claimed
from pipeline.shipping.listing import MAX_SMALL, Hostile, checksums, hash_plain, plain_files, read_small
from pipeline.shipping.sbom import subject_hash
from pipeline.shipping.signature import SIGNATURE, signature_fault

NEEDED = (CARD, BILL, SCRIPT, UNIT, "Modelfile", EVALUATION, PARITY, GATE, SUMS)


def bundle_faults(folder: Path, key: Path | None = None) -> list[str]:
    """What is wrong with a bundle, a sentence each; none where it verifies. `key` is the public key that must have signed it.

    Raises `DataError` where there is no such folder, `ToolError` and `ConfigError` where a signature can't be checked here.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: give the one that `quench ship` made")
    try:
        return list(_faults(folder, key))
    except Hostile as error:
        return [str(error)]


def _faults(folder: Path, key: Path | None) -> Iterator[str]:
    sizes = plain_files(folder)
    if lacking := [name for name in NEEDED if name not in sizes]:
        yield f"These files are missing: {', '.join(lacking)}."
        return
    if key and SIGNATURE not in sizes:
        yield f"It is not signed, though a key was given: there is no {SIGNATURE}."
        return
    listed = checksums(read_small(folder / SUMS))
    if (missing := sorted(set(listed) - set(sizes))) or (extra := sorted(set(sizes) - set(listed) - {SUMS, SIGNATURE})):
        yield f"Listed in {SUMS} and not there: {', '.join(missing)}." if missing else f"Not listed in {SUMS}: {', '.join(extra)}."
        return
    ggufs = [name for name in listed if name.endswith(".gguf")]
    if len(ggufs) != 1:
        yield f"There are {len(ggufs)} GGUFs where one belongs."
        return
    if foreign := sorted(set(listed) - {*NEEDED, *ggufs}):
        yield f"These files belong into no bundle: {', '.join(foreign)}."
        return
    if large := [name for name, size in sizes.items() if size > MAX_SMALL and name not in ggufs]:
        yield f"These files are larger than anything that belongs into a bundle: {', '.join(large)}."
        return
    small = list(_altered(folder, {name: sha256 for name, sha256 in listed.items() if name not in ggufs}))
    yield from small
    if small:
        return
    about = list(_claims(folder, ggufs[0], sizes[ggufs[0]], listed[ggufs[0]]))
    yield from about
    if about:
        return
    large_file = list(_altered(folder, {ggufs[0]: listed[ggufs[0]]}))
    yield from large_file
    if key and not large_file and (fault := signature_fault(folder, key)):
        yield f"The signature does not vouch for it: {fault.rstrip('.')}."


def _altered(folder: Path, listed: dict[str, str]) -> Iterator[str]:
    for name, sha256 in listed.items():
        if hash_plain(folder / name) != sha256:
            yield f"{name} is not the file that {SUMS} lists: its sha256 differs."


def _claims(folder: Path, gguf: str, size: int, sha256: str) -> Iterator[str]:
    """Whether card, bill and evidence speak of this GGUF, by what the checksums say of it and by its own passport."""
    card = read_small(folder / CARD)
    try:
        evaluation, parity, gate = (_object(folder / name) for name in (EVALUATION, PARITY, GATE))
        subject, said = subject_hash(read_small(folder / BILL)), claimed(card)
    except (ValueError, RecursionError) as error:  # deep brackets end the decoder
        yield f"The bundle's JSON can't be read ({error})."
        return
    for name, found in ((BILL, subject), (EVALUATION, evaluation.get("sha256"))):
        if found != sha256:
            yield f"{name} is about another file than {gguf} (sha256 {str(found)[:12]!a}…)."
    if evaluation.get("bytes") != size:
        yield f"{gguf} has {size:,} bytes, {EVALUATION} speaks of {str(evaluation.get('bytes'))[:20]!a}."
        return
    if f"| {gguf} | `{sha256}` |" not in card:
        yield f"{CARD} does not name {gguf} with its sha256."
    if gate.get("model") != evaluation.get("model") or not _passed(gate):
        yield f"{GATE} does not say that this level passed the gate."
    if parity.get("verdict") != "pass" or (parity.get("files") or {}).get(gguf) != sha256:
        yield f"{PARITY} does not say that this file passed every seam."
    try:
        own = passport(folder / gguf)
    except DataError as error:
        yield f"{gguf} is not a whole GGUF ({' '.join(str(error).split())[:200]})."
        return
    if differ := sorted(key for key in own.keys() | said.keys() if own.get(key) != said.get(key)):
        yield f"{CARD} says otherwise than the passport in {gguf}: {', '.join(ascii(key)[1:-1] for key in differ[:10])}."


def _passed(gate: dict[str, Any]) -> bool:
    """Whether the verdict and every finding behind it say so."""
    findings = gate.get("findings")
    told = [one.get("verdict") for one in findings if isinstance(one, dict)] if isinstance(findings, list) else []
    return gate.get("verdict") == "pass" and bool(told) and "fail" not in told


def _object(path: Path) -> dict[str, Any]:
    value = json.loads(read_small(path))
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is no object")
    return value
