"""The software bill of materials of a bundle: CycloneDX 1.6 JSON (https://cyclonedx.org/docs/1.6/json/) of what the model is made of.

The GGUF is the subject, a machine-learning-model with its hash; the base is its ancestor; data are listed by hash only; then llama.cpp
and the Python packages of the training run. Neither dates nor places: the same model has the same bill.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.ship.listing import escaped

NAMESPACE = uuid.UUID("4f0a0c5e-8f0e-5d5c-9a53-8a1d6b1d2f67")  # ours, for serial numbers that follow from the model's hash
BASE_REF, LLAMA_REF = "base-model", "llama.cpp"
VERSION = "1.6"  # of CycloneDX
MOST_VALUES = 5000  # of a bill: a validator compares each value of a list with each other


def bill(
    *,
    name: str,
    file: str,
    sha256: str,
    base: Mapping[str, Any],
    passport: Mapping[str, Any],
    datasets: Mapping[str, str],
    versions: Mapping[str, Any],
    beside: Mapping[str, str] | None = None,
) -> str:
    """The bill as JSON text.

    `beside` are further files that the model consists of, sha256 by name: the base's GGUF, if `file` is an adapter's.
    `base` is models/base.json, `passport` the GGUF's own, `datasets` sha256 by name, `versions` the training run's packages (None: not installed).
    """
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType, Pedigree
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from packageurl import PackageURL

    ancestor = _base(base)
    model = Component(
        name=name, type=ComponentType.MACHINE_LEARNING_MODEL, bom_ref=file, version=sha256[:12], hashes=[_hash(sha256)], licenses=_license(base),
        pedigree=Pedigree(ancestors=[ancestor]), properties=_properties(passport),
        components=[Component(name=one, type=ComponentType.FILE, bom_ref=f"beside/{one}", hashes=[_hash(digest)])
                    for one, digest in sorted((beside or {}).items())],
    )  # fmt: skip
    llama = Component(
        name="llama.cpp", type=ComponentType.APPLICATION, bom_ref=LLAMA_REF, version=str(passport.get("quench.llama_cpp.commit", "unknown")),
        purl=PackageURL("pypi", name="llama-cpp-python", version=_text(passport.get("quench.llama_cpp.package"))),
    )  # fmt: skip
    packages = [
        Component(name=package, version=version, type=ComponentType.LIBRARY, bom_ref=f"pkg:pypi/{package}@{version}",
                  purl=PackageURL("pypi", name=package, version=version))
        for package, version in sorted(versions.items()) if version and package != "quench"
    ]  # fmt: skip
    data = [
        Component(name=title, type=ComponentType.DATA, bom_ref=f"data:{title}", hashes=[_hash(digest)]) for title, digest in sorted(datasets.items())
    ]
    quench = Component(name="quench", version=__version__, type=ComponentType.APPLICATION, bom_ref="quench")
    bom = Bom(
        serial_number=uuid.uuid5(NAMESPACE, sha256), components=[_base(base), llama, *packages, *data],
        metadata=BomMetaData(component=model, tools=ToolRepository(components=[quench])),
    )  # fmt: skip
    bom.register_dependency(model, [*bom.components])
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    value = json.loads(text)
    value["metadata"].pop("timestamp", None)  # the library always writes the present one
    return escaped(json.dumps(value, indent=2, ensure_ascii=False)) + "\n"


def subject_hash(text: str) -> str | None:
    """The sha256 of the model that a bill is about; None if it has none. Raises `ValueError` if the text is no such JSON."""
    value = json.loads(text)
    try:
        hashes = value["metadata"]["component"]["hashes"]
        return next((str(one["content"]) for one in hashes if one["alg"] == "SHA-256"), None)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it has no {error}") from error


def hashes_beside(text: str) -> dict[str, str]:
    """sha256 by name of the further files that the model of a bill consists of. Raises `ValueError` if the text is no such JSON."""
    value = json.loads(text)
    try:
        parts = value["metadata"]["component"].get("components") or []
        return {str(one["name"]): str(one["hashes"][0]["content"]) for one in parts}
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"it has no {error}") from error


def schema_fault(text: str) -> str | None:
    """What makes a text no CycloneDX 1.6 bill, in half a sentence; None if it is one. Raises `ValueError` if it is no JSON."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if text.count(",") + text.count("{") + text.count("[") > MOST_VALUES:
        return f"it has more than {MOST_VALUES:,} values"
    if (found := json.loads(text).get("specVersion")) != VERSION:
        return f"specVersion is {str(found)[:20]!a}, not {VERSION}"
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    return None if fault is None else f"{fault.data.json_path[:80]}: {fault.data.message[:160]}"


def bill_faults(text: str, hashes: Mapping[str, str], passport: Mapping[str, Any]) -> Iterator[str]:
    """If a valid bill says otherwise than the GGUFs' `hashes` (sha256 by name) and the `passport` of the first, half a sentence each."""
    value = json.loads(text)
    subject = value["metadata"]["component"]
    said = {one["name"]: one.get("value") for one in subject.get("properties", [])}
    if differ := sorted(key for key in said.keys() | passport.keys() if said.get(key) != _text(passport.get(key))):
        yield f"says otherwise than the passport in {next(iter(hashes))}: {', '.join(ascii(key)[1:-1] for key in differ[:10])}"
    listed = [*subject.get("components", []), *(part for one in value.get("components", []) for part in one.get("components", []))]
    if other := sorted({part["name"] for part in listed if part["name"] in hashes and _sha256(part) != hashes[part["name"]]}):
        yield f"has another sha256 for {', '.join(other)}"
    refs = {one.get("bom-ref"): one for one in value.get("components", [])}
    if not any(_sha256(part) for part in refs.get(BASE_REF, {}).get("components", [])):
        yield "does not say which files the base is"
    if not any(one["type"] == "data" and _sha256(one) for one in refs.values()):
        yield "does not say which rows the model was trained on"


def _sha256(component: Mapping[str, Any]) -> str | None:
    return next((str(one["content"]) for one in component.get("hashes", []) if one["alg"] == "SHA-256"), None)


def _base(base: Mapping[str, Any]) -> Any:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    on_hub = base["source"] == "hub"
    owner, _, short = str(base["model"]).rpartition("/") if on_hub else ("", "", Path(str(base["model"])).name)
    purl = PackageURL("huggingface", namespace=owner or None, name=short, version=_text(base.get("revision"))) if on_hub else None
    weights = {file: digest for file, digest in base["files"].items() if file.endswith((".safetensors", ".gguf"))}
    parts = [
        Component(name=file, type=ComponentType.FILE, bom_ref=f"{BASE_REF}/{file}", hashes=[_hash(digest)])
        for file, digest in sorted(weights.items())
    ]
    return Component(
        name=short, group=owner or None, type=ComponentType.MACHINE_LEARNING_MODEL, bom_ref=BASE_REF, version=_text(base.get("revision")),
        licenses=_license(base), purl=purl, components=parts,
    )  # fmt: skip


def _license(base: Mapping[str, Any]) -> list[Any]:
    """The base's license, by SPDX id if it is one."""
    from cyclonedx.factory.license import LicenseFactory

    named = base.get("license")
    return [LicenseFactory().make_from_string(str(named))] if named else []


def _hash(sha256: str) -> Any:
    from cyclonedx.model import HashAlgorithm, HashType

    return HashType(alg=HashAlgorithm.SHA_256, content=sha256)


def _properties(passport: Mapping[str, Any]) -> list[Any]:
    from cyclonedx.model import Property

    return [Property(name=key, value=str(value)) for key, value in passport.items()]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
