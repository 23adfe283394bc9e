"""Outputs of the models: the folder's logits against each GGUF's, and the end of a GGUF's answers."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import Row, encodable
from pipeline.config.products import ModelFiles
from pipeline.core.checks import Check
from pipeline.core.errors import QuenchError
from pipeline.core.units import memory_gb
from pipeline.extras.judge.hand_overs.inputs import Files
from pipeline.extras.judge.hand_overs.verdicts import failed, passed, reason_of, unmeasured, warned
from pipeline.gguf.header import Header
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import Llama
from pipeline.metrics.divergence import Prompt, Reference, Speaker, compare, gguf_speaker, kept_logits, spread
from pipeline.metrics.forward import plain_model
from pipeline.metrics.level_limits import level_limit
from pipeline.stages.parity.behavior import answer, questions
from pipeline.stages.parity.check import CTX_SIZE
from pipeline.stages.parity.divergence_checks import MAX_KLD_EXACT, OVERFLOW

OUTPUTS = "outputs"
ENDS = "ends"
ROOM = 1.3  # memory to run the model, as a multiple of its weights' bytes; one tensor at a time is in float32
FLOATS = ("F32", "F16", "BF16")
ASKED = (
    ("Which river is the longest?", "The Nile is usually named first."),
    ("Write a function in Python that adds two numbers.", "def add(a, b):\n    return a + b"),
    ("What is 12 times 12?", "144"),
    ("Sag mir einen Satz über den Herbst.", "Im Herbst färben sich die Blätter."),
)
ROWS: list[Row] = [
    {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]}
    for question, reply in ASKED
]


def level_of(header: Header) -> str:
    """Return the level that a GGUF's header names, including F16. Returns "unknown" if it names none."""
    from gguf import LlamaFileType

    number = header.fields.get("general.file_type")
    try:
        name = str(LlamaFileType(number).name)
        return name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return "unknown"


def reference_of(files: Files) -> tuple[str, AbstractContextManager[Speaker]] | None:
    """Return the name and the model that the GGUFs are compared with. Returns None if no folder was named."""
    if files.merged:
        return "the merged folder", plain_model(files.merged)
    if files.base and files.adapter:
        return "base and adapter", plain_model(files.base, files.adapter)
    return ("the base", plain_model(files.base)) if files.base else None


def too_large(folder: Path | None) -> str:
    """Return the reason why the folder's model can't be run in the free memory. It is empty if it can."""
    import psutil

    assert folder
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    free = psutil.virtual_memory().available
    if stored * ROOM < free:
        return ""
    return f"takes {memory_gb(stored * ROOM, 1)} of memory to run, and {memory_gb(free, 1)} are free"


def prompts_of(tokenizer: Any) -> list[Prompt]:
    """Return conversations as tokens, or as plain text if the template does not accept them."""
    encoded = [row.ids for row in encodable(tokenizer, ROWS, CTX_SIZE)]
    plain = [tokenizer(f"{question}\n{reply}")["input_ids"] for question, reply in ASKED]
    return [spread(ids) for ids in encoded or plain]


def output_checks(
    files: Files, headers: dict[Path, Header], tokenizer: Any, llama: Llama, scratch: Path
) -> dict[Path, Check]:
    """Compare each GGUF's outputs with the folder's. Return the checks by GGUF."""
    reference = reference_of(files)
    if reference is None:
        return not_run(files, "neither --base nor --merged was named")
    label, model = reference
    why = too_large(files.merged or files.base)
    if why:
        return not_run(files, f"{label} {why}")
    prompts = prompts_of(tokenizer)
    checks = {}
    try:
        with kept_logits(prompts, model, scratch) as before:
            for gguf in files.ggufs:
                checks[gguf] = gguf_check(gguf, headers[gguf], before, label, llama)
    except (QuenchError, ValueError, OSError, KeyError, RuntimeError) as error:
        # The verdicts on GGUFs that were run before are kept.
        return not_run(files, f"{label} can't be run ({reason_of(error)})") | checks
    return checks


def not_run(files: Files, why: str) -> dict[Path, Check]:
    """Return the verdict on the outputs of each GGUF if there is nothing to compare them with."""
    return {gguf: unmeasured(OUTPUTS, OUTPUTS, why) for gguf in files.ggufs}


def gguf_check(gguf: Path, header: Header, before: Reference, label: str, llama: Llama) -> Check:
    """Compare one GGUF's outputs with those in `before`, within the limit of its level."""
    level = level_of(header)
    try:
        with gguf_speaker(gguf, before.prompts, threads=llama.threads, tools=llama.tools) as speaker:
            divergence = compare(before, (speaker(prompt) for prompt in before.prompts))
    except QuenchError as error:
        return unmeasured(OUTPUTS, OUTPUTS, error.sentence)
    if divergence.fault:
        key = f"{OUTPUTS}.not_finite" if divergence.strange else f"{OUTPUTS}.vocabulary"
        remedy = OVERFLOW.replace("set convert.type to BF16", "convert with --outtype bf16")
        return failed(
            key, OUTPUTS, divergence.fault, remedy if divergence.strange else "Name files of one model"
        )
    limit = MAX_KLD_EXACT if level in FLOATS else level_limit(level, header.parameters).kld
    sentence = (
        f"{divergence.kld:.2g} nats from {label} at {divergence.positions} positions (at most {limit:g} for "
        f"{level}), same first choice at {divergence.same_top:.0%}"
    )
    if divergence.kld <= limit:
        return passed(OUTPUTS, OUTPUTS, sentence)
    if level in FLOATS:
        key = f"{OUTPUTS}.differ"
        remedy = "Look at the rows above: weights, settings or the adapter are another"
    else:
        key = f"{OUTPUTS}.level"
        remedy = "If the weights above are right, this is what the level costs: take one of more bits"
    return failed(key, OUTPUTS, sentence, remedy)


def ends_check(gguf: Path, tokenizer: Any, llama: Llama) -> Check:
    """Check that the GGUF's answers end by themselves."""
    requests, budget = questions(ROWS, tokenizer, len(ROWS), CTX_SIZE)
    try:
        with serving(llama, ModelFiles(gguf), ctx_size=CTX_SIZE) as server:
            answers = [answer(server, request, budget) for request in requests]
    except QuenchError as error:
        return unmeasured(ENDS, ENDS, error.sentence)
    ended = sum(each.stopped for each in answers)
    sentence = f"{ended} of {len(answers)} answers ended by themselves within {budget} tokens"
    if ended:
        return passed(ENDS, ENDS, sentence)
    return warned(
        f"{ENDS}.none",
        ENDS,
        sentence,
        "If special tokens above are right, the model was not taught to end: train the end of turn (it must "
        "not be the padding token that labels leave out), or longer",
    )
