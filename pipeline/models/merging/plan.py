"""Plan the merged model's tensors and the source of each. Every adapter tensor must be used exactly once."""

from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.core.errors import DataError
from pipeline.gguf.safetensors_rows import Entry, same_values
from pipeline.gguf.sources import FUSED, in_model
from pipeline.models.merging.adapter import Adapter, Module
from pipeline.models.merging.compute import Job, Update, bias, lookup, low_rank
from pipeline.models.merging.inputs import Structure


@dataclass
class Plan:
    """Tensors of the merged model, and the settings of its config that differ from the base's."""

    jobs: list[Job]
    config: dict[str, Any] = field(default_factory=dict)


def plan(base: dict[str, Entry], adapter: Adapter, model: Structure, *, nf4: bool) -> Plan:
    """Return every tensor of the merge of `adapter` into `base`, in the base's order. Raises `DataError` if
    the two don't fit, naming shapes.
    """
    # Names are the model's here; the base's names are restored at the end.
    stored = {in_model(name): name for name in base}
    base = {name: base[old] for name, old in stored.items()}
    updates = _updates(base, adapter, model)
    changed = {name: Job(name, entry) for name, entry in adapter.full.items()}
    for name, update in updates.items():
        source = changed[name].source if name in changed else base.get(name)
        if source is None and name == model.head and model.tied:
            source = base[model.embedding]
        if source is not None:
            quantized = nf4 and name in model.quantized and name not in changed
            changed[name] = Job(name, source, update=update, quantized=quantized)
    config = _settle_tied(base, changed, model, stays_tied=adapter.settings.ensure_weight_tying)
    _check(base, changed, updates, model, adapter)
    jobs = []
    for name, entry in base.items():
        job = changed.pop(name, Job(name, entry, quantized=nf4 and name in model.quantized))
        jobs.append(replace(job, file=entry.file.name))
    jobs += [replace(job, file=jobs[-1].file) for job in changed.values()]
    more = _resized(jobs, base, model)
    jobs = [replace(job, name=stored.get(job.name, job.name)) for job in jobs]
    return Plan(jobs, config | more)


def _updates(base: dict[str, Entry], adapter: Adapter, model: Structure) -> dict[str, Update]:
    """Return {tensor: update} by checkpoint name.

    A module that the base lacks is listed under the name it would have.
    """
    targets = tuple(f".{name}" for name in adapter.settings.target_parameters or ())
    # Parameters by the module that contains them, in the order in which it declares them.
    parameters: dict[str, list[str]] = {}
    for name in model.shapes:
        if f".{name}".endswith(targets):
            parameters.setdefault(name.rpartition(".")[0], []).append(name)
    updates: dict[str, Update] = {}
    for module in adapter.modules:
        if module.path not in parameters:
            updates |= _linear(module, adapter, model)
    for path in dict.fromkeys(module.path for module in adapter.modules if module.path in parameters):
        # PEFT wraps a module once per parameter. The parameter that is declared first is innermost.
        group = sorted(
            (module for module in adapter.modules if module.path == path), key=lambda module: -module.depth
        )
        if len(group) != len(parameters[path]):
            raise DataError(
                "Q-MODELS-017",
                f"{path} has {len(group)} adapters in {adapter.folder} for its {len(parameters[path])} "
                "target parameters: train it again",
            )
        for name, module in zip(parameters[path], group, strict=True):
            updates |= _parameter(name, module, base, adapter, model)
    return updates


def _linear(module: Module, adapter: Adapter, model: Structure) -> dict[str, Update]:
    weight = f"{module.path}.weight"
    scale = adapter.scale(module.path)
    if "lora_embedding_A" in module.parts:
        update = lookup(module, scale)
    else:
        update = low_rank(module, scale, transposed=weight in model.transposed)
    _check_rank(module, update, adapter.rank(module.path))
    updates = {weight: update}
    if "lora_B.bias" in module.parts:
        updates[f"{module.path}.bias"] = bias(module, scale)
    return updates


def _check_rank(module: Module, update: Update, rank: int) -> None:
    inner = (update.left.shape[2], update.right.shape[1])
    if inner != (rank, rank):
        ranks = " and ".join(map(str, sorted(set(inner))))
        raise DataError(
            "Q-MODELS-017",
            f"{module.where} has rank {ranks} and the adapter's settings say {rank}: weights and settings "
            "are of two adapters",
        )


def _parameter(
    name: str, module: Module, base: dict[str, Entry], adapter: Adapter, model: Structure
) -> dict[str, Update]:
    """Return the update of a parameter, split into linears if the checkpoint has these."""
    shape = model.shapes[name]
    slices = shape[0] if len(shape) == 3 else 1  # experts of a layer
    if module.parts["lora_A.weight"].shape[0] % slices or module.parts["lora_B.weight"].shape[1] % slices:
        raise DataError(
            "Q-MODELS-018",
            f"{module.where} does not divide into the {slices} experts of {name}: the adapter belongs to "
            "another base, train it again",
        )
    update = low_rank(module, adapter.scale(name), transposed=name in model.transposed, slices=slices)
    _check_rank(module, update, adapter.rank(name))
    path, _, last = name.rpartition(".")
    parts = FUSED.get(last, ())
    if name in base or not parts or f"{path}.0.{parts[0]}.weight" not in base:
        return {name: update}
    high = update.left.shape[1] // len(parts)
    return {
        f"{path}.{number}.{part}.weight": update.part(number, place * high, (place + 1) * high)
        for number in range(slices)
        for place, part in enumerate(parts)
    }


def _settle_tied(
    base: dict[str, Entry], changed: dict[str, Job], model: Structure, *, stays_tied: bool
) -> dict[str, Any]:
    """Give embeddings and head a table each if they share one and the adapter treats them differently.

    Corrects `changed`; returns the changes to the config. PEFT trains only the side that was named: the other
    keeps the base's numbers, unless training tied the two (`stays_tied`). A table of another length can only
    be both.
    """
    embedding, head = changed.get(model.embedding), changed.get(model.head)
    if not model.tied or (embedding is None and head is None):
        return {}
    resized = embedding is not None and embedding.source.shape != base[model.embedding].shape
    same = (
        embedding is not None
        and head is not None
        and not embedding.update
        and not head.update
        and embedding.source.dtype == head.source.dtype
        and same_values(embedding.source, head.source)
    )
    follows = head is None and embedding is not None and embedding.update is None and stays_tied
    if same or follows or (resized and head is None):
        changed.pop(model.head, None)
        if model.head in base and embedding is not None:
            changed[model.head] = replace(embedding, name=model.head)
        return {}
    if head is None:
        changed[model.head] = Job(model.head, base[model.embedding])
    return {"tie_word_embeddings": False}


def _check(
    base: dict[str, Entry],
    changed: dict[str, Job],
    updates: dict[str, Update],
    model: Structure,
    adapter: Adapter,
) -> None:
    """Raise `DataError` if a target is missing or has another shape."""
    present = base.keys() | ({model.head} if model.tied else set())
    missing = sorted((updates.keys() | adapter.full.keys()) - present)
    if missing:
        shapes = ", ".join(f"{name} {_shape(updates, adapter, name)}" for name in missing[:3])
        raise DataError(
            "Q-MODELS-018",
            f"{len(missing)} adapter targets are not in the base ({shapes}): train the adapter again if it "
            "belongs to another base; if not, the base's files name them otherwise than transformers: take "
            "another base",
        )
    odd = []
    for name, job in changed.items():
        original = base[name if name in base else model.embedding]
        resizable = name in (model.embedding, model.head) and job.source.shape[1:] == original.shape[1:]
        if job.source.shape != original.shape and not resizable:
            odd.append(f"{name} is {job.source.shape} in the adapter and {original.shape} in the base")
        elif job.update and job.update.shape != (job.source.rows, job.source.columns):
            odd.append(f"{name} is {job.update.shape} in the adapter and {job.source.shape} in the base")
    if odd:
        raise DataError(
            "Q-MODELS-018",
            f"{len(odd)} adapter targets do not fit ({'; '.join(odd[:3])}): the adapter belongs to another "
            "base, train it again",
        )


def _shape(updates: dict[str, Update], adapter: Adapter, name: str) -> tuple[int, ...]:
    return updates[name].shape if name in updates else adapter.full[name].shape


def _resized(jobs: list[Job], base: dict[str, Entry], model: Structure) -> dict[str, Any]:
    rows = {job.name: job.source.shape[0] for job in jobs if job.name in (model.embedding, model.head)}
    if len(set(rows.values())) > 1:
        counts = " and ".join(f"{name} {count}" for name, count in rows.items())
        raise DataError(
            "Q-MODELS-019",
            f"the merged model would have {counts} rows: save both in the adapter (modules_to_save), or "
            "neither",
        )
    count = rows[model.embedding]
    return {"vocab_size": count} if count != base[model.embedding].shape[0] else {}
