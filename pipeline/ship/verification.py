"""Is a bundle what it says? Checksums, nothing missing, nothing extra, the GGUF's passport and the card, the bill, the evidence, the signature.

Of an adapter there are two GGUFs: its own, and that of the base it was trained on.
A bundle may come from anyone: nothing is executed, followed out of the folder or waited for, and the large file is read only after
everything small agrees.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.gguf.file import check_gguf
from pipeline.gguf.provenance import BASE_FILE, passport
from pipeline.ship.bundle import BILL, CARD, EVALUATION, GATE, PARITY, SCRIPT, SUMS, UNIT
from pipeline.ship.card import claimed
from pipeline.ship.listing import MAX_SMALL, Hostile, checksums, hash_plain, obeyed, plain_files, read_small
from pipeline.ship.sbom import bill_faults, hashes_beside, schema_fault, subject_hash
from pipeline.ship.signature import SIGNATURE, signature_fault

ADAPTER = "-lora.gguf"  # how the name of an adapter's GGUF ends; the base's file is beside it
NEEDED = (CARD, BILL, SCRIPT, UNIT, "Modelfile", EVALUATION, PARITY, GATE, SUMS)


def bundle_faults(folder: Path, key: Path | None = None) -> list[str]:
    """What is wrong with a bundle, a sentence each; none if it verifies. `key` is the public key that must have signed it.

    Raises `DataError` if there is no such folder, `ToolError` and `ConfigError` if a signature can't be checked here.
    """
    if not folder.is_dir():
        raise DataError("Q-SHIP-010", f"{folder} is no folder: give the one that `quench ship` made")
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
    ggufs.sort(key=lambda name: not name.endswith(ADAPTER))
    if len(ggufs) != 1 and [name.endswith(ADAPTER) for name in ggufs] != [True, False]:
        yield f"There are {len(ggufs)} GGUFs where one belongs, or an adapter's and its base's."
        return
    if foreign := sorted(set(listed) - {*NEEDED, *ggufs}):
        yield f"These files belong in no bundle: {', '.join(foreign)}."
        return
    if large := [name for name, size in sizes.items() if size > MAX_SMALL and name not in ggufs]:
        yield f"These files are larger than anything that belongs in a bundle: {', '.join(large)}."
        return
    texts = {name: sha256 for name, sha256 in listed.items() if name not in ggufs}
    small = list(_altered(folder, texts)) or list(_unshown(folder, texts))
    yield from small
    if small:
        return
    about = list(_claims(folder, {name: sizes[name] for name in ggufs}, {name: listed[name] for name in ggufs}))
    yield from about
    if about:
        return
    large_files = list(_altered(folder, {name: listed[name] for name in ggufs}))
    yield from large_files
    if key and not large_files and (fault := signature_fault(folder, key)):
        yield f"The signature does not vouch for it: {fault.rstrip('.')}."


def _altered(folder: Path, listed: dict[str, str]) -> Iterator[str]:
    for name, sha256 in listed.items():
        if hash_plain(folder / name) != sha256:
            yield f"{name} is not the file that {SUMS} lists: its sha256 differs."


def _unshown(folder: Path, texts: Iterable[str]) -> Iterator[str]:
    """Texts are to be read: a character that hides or reorders others would show something else than the text."""
    for name in texts:
        if found := obeyed(read_small(folder / name)):
            yield f"{name} holds {found}, a control character that can hide what stands there: no bundle of `quench ship` does."


def _claims(folder: Path, sizes: dict[str, int], hashes: dict[str, str]) -> Iterator[str]:
    """Whether card, bill and evidence speak of these GGUFs (an adapter's before its base's), by the checksums and the first's passport."""
    card, (made, *beside) = read_small(folder / CARD), hashes
    gguf = beside[0] if beside else made  # the one that `evaluation.json` calls its file
    try:
        evaluation, parity, gate = (_object(folder / name) for name in (EVALUATION, PARITY, GATE))
        bill = read_small(folder / BILL)
        subject, parts, said = subject_hash(bill), hashes_beside(bill), claimed(card)
        invalid = schema_fault(bill)
    except (ValueError, RecursionError) as error:  # deep brackets end the decoder
        yield f"The bundle's JSON can't be read ({error})."
        return
    if invalid:
        yield f"{BILL} is no CycloneDX 1.6 bill of materials ({invalid})."
        return
    lora = evaluation.get("lora") if isinstance(evaluation.get("lora"), dict) else {}
    told = [(BILL, made, subject), (EVALUATION, gguf, evaluation.get("sha256"))]
    told += [(BILL, gguf, parts.get(gguf)), (EVALUATION, made, (lora or {}).get("sha256"))] if beside else []
    for name, file, found in told:
        if found != hashes[file]:
            yield f"{name} is about another file than {file} (sha256 {str(found)[:12]!a}…)."
    if not beside and (lora or parts):
        yield f"{EVALUATION} or {BILL} speaks of a second GGUF, which is not there."
    if evaluation.get("bytes") != sum(sizes.values()):
        yield f"{' and '.join(hashes)} has {sum(sizes.values()):,} bytes, {EVALUATION} speaks of {str(evaluation.get('bytes'))[:20]!a}."
        return
    for file, sha256 in hashes.items():
        if f"| {file} | `{sha256}` |" not in card:
            yield f"{CARD} does not name {file} with its sha256."
    if gate.get("model") != evaluation.get("model") or not _passed(gate):
        yield f"{GATE} does not say that this level passed the gate."
    files = parity.get("files")
    proven = files if isinstance(files, dict) else {}
    if parity.get("verdict") != "pass" or any(proven.get(file) != sha256 for file, sha256 in hashes.items()):
        yield f"{PARITY} does not say that {'these files' if beside else 'this file'} passed every seam."
    try:
        for file in beside:
            check_gguf(folder / file)
        own = passport(folder / made)
    except DataError as error:
        yield f"{made if not beside else ' or '.join(hashes)} is not a whole GGUF ({' '.join(error.sentence.split())[:200]})."
        return
    if beside and own.get(BASE_FILE) != hashes[gguf]:
        yield f"{made} was trained on another file than {gguf} (sha256 {str(own.get(BASE_FILE))[:12]!a}…)."
    yield from (f"{BILL} {fault}." for fault in bill_faults(bill, hashes, own))
    if differ := sorted(key for key in own.keys() | said.keys() if own.get(key) != said.get(key)):
        yield f"{CARD} says otherwise than the passport in {made}: {', '.join(ascii(key)[1:-1] for key in differ[:10])}."


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
