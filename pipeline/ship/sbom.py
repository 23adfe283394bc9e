"""The software bill of materials of a bundle: CycloneDX 1.6 JSON (https://cyclonedx.org/docs/1.6/json/) of
the model's parts.

The GGUF is the subject, a machine-learning-model with its hash. The base is its ancestor; data are listed by
hash only; then llama.cpp and the Python packages of the training run. There are neither dates nor paths: the
same model has the same bill.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType, Pedigree
from cyclonedx.model.license import License
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from pipeline import __version__
from pipeline.gate.records import Base
from pipeline.ship.listing import escaped

# Our namespace, for serial numbers that are derived from the model's hash.
NAMESPACE = uuid.UUID("4f0a0c5e-8f0e-5d5c-9a53-8a1d6b1d2f67")
BASE_REF, LLAMA_REF = "base-model", "llama.cpp"


@dataclass(frozen=True)
class Subject:
    """Model that a bill describes: its name, and its file with the hash.

    `beside` are further files that it consists of, sha256 by name: the base's GGUF, if `file` is an
    adapter's.
    """

    name: str
    file: str
    sha256: str
    beside: Mapping[str, str]


def bill(
    subject: Subject,
    *,
    base: Base,
    provenance: Mapping[str, Any],
    datasets: Mapping[str, str],
    versions: Mapping[str, Any],
) -> str:
    """Return the bill as JSON text.

    `base` is models/base.json, `provenance` the GGUF's own, `datasets` sha256 by name, `versions` the
    training run's packages (None: not installed).
    """
    model = Component(
        name=subject.name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=subject.file,
        version=subject.sha256[:12],
        hashes=[_hash(subject.sha256)],
        licenses=_license(base),
        pedigree=Pedigree(ancestors=[_base(base, None)]),
        properties=[Property(name=key, value=str(value)) for key, value in provenance.items()],
        components=_hashed(subject.beside, ComponentType.FILE, "beside/"),
    )
    package_version = provenance.get("quench.llama_cpp.package")
    llama = Component(
        name="llama.cpp",
        type=ComponentType.APPLICATION,
        bom_ref=LLAMA_REF,
        version=str(provenance.get("quench.llama_cpp.commit", "unknown")),
        purl=PackageURL("pypi", name="llama-cpp-python", version=package_version and str(package_version)),
    )
    packages = [
        Component(
            name=package,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=f"pkg:pypi/{package}@{version}",
            purl=PackageURL("pypi", name=package, version=version),
        )
        for package, version in sorted(versions.items())
        if version and package != "quench"
    ]
    quench = Component(name="quench", version=__version__, type=ComponentType.APPLICATION, bom_ref="quench")
    bom = Bom(
        serial_number=uuid.uuid5(NAMESPACE, subject.sha256),
        components=[_base(base, BASE_REF), llama, *packages, *_hashed(datasets, ComponentType.DATA, "data:")],
        metadata=BomMetaData(component=model, tools=ToolRepository(components=[quench])),
    )
    bom.register_dependency(model, [*bom.components])
    value = json.loads(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())
    value["metadata"].pop("timestamp", None)  # The library always writes the present time.
    return escaped(json.dumps(value, indent=2, ensure_ascii=False)) + "\n"


def _base(base: Base, ref: str | None) -> Component:
    """Return the base, or another mention of it if `ref` is None: no two parts of a bill share a ref."""
    owner = None
    purl = None
    short = Path(base.model).name
    revision = base.revision
    if base.source == "hub":
        owner = base.model.rpartition("/")[0] or None
        purl = PackageURL("huggingface", namespace=owner, name=short, version=revision)
    weights = {
        file: digest for file, digest in base.files.items() if file.endswith((".safetensors", ".gguf"))
    }
    return Component(
        name=short,
        group=owner,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=ref,
        version=revision,
        licenses=_license(base),
        purl=purl,
        components=_hashed(weights, ComponentType.FILE, ref and f"{ref}/"),
    )


def _hashed(digests: Mapping[str, str], kind: ComponentType, prefix: str | None) -> list[Component]:
    """Return a part by name for each sha256 by name; without a `prefix` none has a ref."""
    return [
        Component(name=name, type=kind, bom_ref=prefix and prefix + name, hashes=[_hash(digest)])
        for name, digest in sorted(digests.items())
    ]


def _license(base: Base) -> list[License]:
    """Return the base's license, by SPDX id if it is one."""
    return [LicenseFactory().make_from_string(base.license)] if base.license else []


def _hash(sha256: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=sha256)
