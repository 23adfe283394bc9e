"""Compare each file's next-token distributions with a reference's, at the reference answers to the same rows.
This measures what a level of a model lost, independent of the task.

Only files with the reference's vocabulary can be compared; the others are "not measured". The text is the
reference's: its chat template, and the row's own answer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.chat.tokens import Row, chat_request
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Serve
from pipeline.core.progress import progress
from pipeline.core.publish import scratch_folder
from pipeline.core.text import common_start
from pipeline.extras.judge.files import Candidate
from pipeline.extras.judge.measure import loaded
from pipeline.llamacpp.logits import open_gguf
from pipeline.llamacpp.server import Server
from pipeline.llamacpp.tools import Toolchain, llama_of
from pipeline.metrics.divergence import Prompt, Speaker, compare, kept_logits, thinned

SCRATCH = Path("reports/.judge.writing")  # removed after a kill
NO_REFERENCE = "no reference was named (--reference)"


def divergences(
    files: Sequence[Candidate],
    reference: Candidate | None,
    rows: Sequence[Row],
    load: Serve,
    tools: Toolchain,
    root: Path,
) -> dict[str, dict[str, Any]]:
    """Return for each file its divergence, or {"not_measured": reason}.

    A divergence is {"kld": mean nats, "same_top": share, "rows", "positions"}.
    """
    if reference is None:
        return {file.name: {"not_measured": NO_REFERENCE} for file in files}
    figures_of: dict[str, dict[str, Any]] = {
        file.name: {"not_measured": f"its vocabulary is not that of {reference.name}"}
        for file in files
        if file.vocabulary != reference.vocabulary
    }
    measured = [file for file in files if file.name not in figures_of]
    if not measured:
        return figures_of
    with loaded(reference, load, tools) as server:
        prompts = [*filter(None, (answer_positions(server, row, load.ctx_size) for row in rows))]
    if not prompts:
        why = "no answer in words fits the context"
        return figures_of | {file.name: {"not_measured": why} for file in measured}
    with (
        scratch_folder(root / SCRATCH) as scratch,
        progress("judge: divergence", (len(measured) + 1) * len(prompts)) as advance,
        kept_logits(prompts, speaking(reference, prompts, load, tools, advance), scratch) as before,
    ):
        for file in measured:
            with speaking(file, prompts, load, tools, advance) as speaker:
                figures = compare(before, (speaker(prompt) for prompt in prompts))
            if figures.fault:
                figures_of[file.name] = {"not_measured": figures.fault}
                continue
            figures_of[file.name] = {
                "kld": figures.kld,
                "same_top": figures.same_top,
                "rows": len(figures.kld_rows),
                "positions": figures.positions,
            }
    return figures_of


def answer_positions(server: Server, row: Row, room: int) -> Prompt | None:
    """Return a row's question in the server's template followed by the row's answer. The positions are those
    that predict the answer's tokens. Returns None if it is longer than `room` tokens.
    """
    *question_turns, last = row["messages"]
    question = server.post("/apply-template", chat_request(question_turns, row.get("tools")))["prompt"]
    before = server.tokens(question)
    ids = server.tokens(question + last["content"])
    start = max(1, common_start(before, ids))  # A position predicts the token after it.
    positions = list(range(start - 1, len(ids) - 1))
    return Prompt(ids, thinned(positions)) if positions and len(ids) <= room else None


@contextmanager
def speaking(
    file: Candidate, prompts: Sequence[Prompt], load: Serve, tools: Toolchain, advance: Any
) -> Iterator[Speaker]:
    """Yield a function that returns the file's logits. The file is loaded as it is served."""
    longest = max(len(prompt.ids) for prompt in prompts)
    with open_gguf(llama_of(tools, load), ModelFiles(file.path), ctx_size=longest) as model:

        def speak(prompt: Prompt) -> Any:
            advance(1)
            return model.logits(prompt.ids, prompt.positions)

        yield speak
