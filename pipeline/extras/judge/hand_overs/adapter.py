"""Base → adapter: a check that the adapter is a LoRA that was trained on this base."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.core.checks import Check
from pipeline.core.errors import DataError
from pipeline.core.publish import read_json
from pipeline.extras.judge.hand_overs.inputs import Files, has_tokenizer
from pipeline.extras.judge.hand_overs.verdicts import failed, passed, unmeasured, warned
from pipeline.gguf.safetensors_rows import read_folder, read_rows
from pipeline.models.merging.adapter import Adapter, other_base_named, read_adapter
from pipeline.models.merging.inputs import Structure, structure
from pipeline.models.merging.plan import Plan, plan

KEY = "adapter"
NAME = "base → adapter"
# error ids for an adapter that was trained on another base, and for one with another vocabulary
OTHER_BASE = ("Q-MODELS-017", "Q-MODELS-018")
OTHER_ROWS = "Q-MODELS-019"


@dataclass(frozen=True)
class Expected:
    """Expected weights of the merged model, from base and adapter, or from the base only."""

    plan: Plan
    model: Structure
    adapter: Adapter | None


def expected_of(files: Files) -> tuple[Expected | None, Check | None]:
    """Return the merge of base and adapter, and the verdict on the adapter.

    Both are None if no adapter was named.
    """
    if files.adapter is None:
        return None, None
    if files.base is None:
        return None, unmeasured(KEY, NAME, "no --base was named")
    try:
        adapter = read_adapter(files.adapter)
        model = structure(files.base)
        planned = plan(read_folder(files.base), adapter, model, nf4=False)
    except DataError as error:
        return None, refused(error)
    expected = Expected(planned, model, adapter)
    wrong = idle(adapter) or resized(files.base, files.adapter, adapter, model)
    if wrong:
        return expected, wrong
    names = named_base(files.base, files.adapter)
    fits = f"{len(adapter.modules)} modules fit the base's shapes"
    if names:
        remedy = "See that both are the same model: another finetune of the same size has the same shapes"
        return expected, warned(f"{KEY}.named_otherwise", NAME, f"{fits}; {names}", remedy)
    return expected, passed(KEY, NAME, fits)


def refused(error: DataError) -> Check:
    """Return the verdict on an adapter that can't be merged into the base."""
    sentence, _, _ = error.sentence.rpartition(": ")
    if error.id in OTHER_BASE:
        return failed(
            f"{KEY}.other_base", NAME, sentence, "Name the base that adapter_config.json names, in 16 bit"
        )
    if error.id == OTHER_ROWS:
        return failed(
            f"{KEY}.other_vocabulary",
            NAME,
            sentence,
            "Train again with embeddings and head both in modules_to_save",
        )
    return unmeasured(KEY, NAME, sentence or error.sentence)


def idle(adapter: Adapter) -> Check | None:
    """Return the verdict on an adapter that changes nothing. None for others."""
    second = [
        entry
        for module in adapter.modules
        for part, entry in module.parts.items()
        if part in ("lora_B.weight", "lora_embedding_B")
    ]
    if adapter.full or any(read_rows(entry).any() for entry in second):
        return None
    return failed(
        f"{KEY}.untrained",
        NAME,
        f"every B of the {len(second)} modules is zero, so the adapter changes nothing",
        "Save the adapter of the trained model; under DeepSpeed ZeRO-3 gather its weights first",
    )


def resized(base: Path, folder: Path, adapter: Adapter, model: Structure) -> Check | None:
    """Return the verdict on an adapter with more tokens in its tokenizer than rows in the embeddings.

    None for others.
    """
    if not has_tokenizer(folder):
        return None
    from pipeline.chat.tokenizer_file import plain_tokenizer

    tokens = plain_tokenizer(folder).get_vocab_size()
    trained = adapter.full.get(model.embedding)
    rows = trained.rows if trained else model.shapes[model.embedding][0]
    if tokens <= rows:
        return None
    return failed(
        f"{KEY}.other_vocabulary",
        NAME,
        f"the adapter's tokenizer has {tokens} tokens, the embeddings of {base.name} {rows} rows, and the "
        "adapter brings none",
        "Train again with modules_to_save: [embed_tokens, lm_head], so that both are saved",
    )


def named_base(base: Path, folder: Path) -> str:
    """Return a sentence if the adapter names another base. It is empty if it names this one or none.

    A path in adapter_config.json is not compared. A snapshot's folder in the hub's cache is named after a
    commit, so the folders above it, one of which has the model's name, are compared too.
    """
    stated = read_json(base / "config.json", "fetch the base again").get("_name_or_path")
    places = [base.resolve().as_posix(), stated if isinstance(stated, str) else ""]
    named = other_base_named(folder, places)
    return f"adapter_config.json names {named}, and the base is {base.name}" if named else ""
