"""Where the divergence between training's forward and llama.cpp's comes from: the same weights as the file
has them, and as float32.

    python benchmarks/served_floor.py ROOT [--rows 12]

ROOT is a finished project of a recipe with base.quantization gguf. llama.cpp rounds activations to 8 bit
before it multiplies them with quantized blocks; with float32 weights it doesn't. So what is left there is
everything else: names, orders, rotary positions, scales.
"""

import argparse
import sys
import tempfile
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.chat.tokens import chats, encodable, load_tokenizer
from pipeline.core.jsonl import read_rows
from pipeline.gguf.base_files import MODEL_FILE
from pipeline.llamacpp.tools import find_toolchain, run_tool
from pipeline.metrics.divergence import compare, gguf_speaker, kept_logits, spread
from pipeline.metrics.forward import trained_model

CTX_SIZE = 2048


def main() -> None:
    """Print a line per pair."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--rows", type=int, default=12)
    asked = parser.parse_args()
    base, adapter, tools = asked.root / "models/base", asked.root / "models/adapter", find_toolchain()
    lora = next((asked.root / "models/gguf").glob("*-lora.gguf"))
    rows = encodable(
        load_tokenizer(adapter), chats(read_rows(asked.root / "data/final/test.jsonl")), CTX_SIZE
    )
    prompts = [spread(row.ids) for row in islice(rows, asked.rows)]
    with tempfile.TemporaryDirectory(dir=asked.root / "models") as folder:
        scratch, wide = Path(folder), Path(folder) / "float32.gguf"
        run_tool([tools.tool("llama-quantize"), "--allow-requantize", base / MODEL_FILE, wide, "F32"])
        print(f"{'llama.cpp runs':32} {'mean KLD':>10} {'largest':>10} {'same top':>9}")
        for words, trained, over in (("the base", None, None), ("the base with the adapter", adapter, lora)):
            with kept_logits(
                prompts, trained_model(base, trained, float32=True, settings_of=adapter), scratch
            ) as before:
                for file, name in ((base / MODEL_FILE, "as it is"), (wide, "in float32")):
                    with kept_logits(
                        prompts, gguf_speaker(file, prompts, threads=2, tools=tools, lora=over), scratch
                    ) as after:
                        found = compare(before, after)
                        print(
                            f"{words + ', ' + name:32} {found.kld:10.2g} {found.kld_max:10.2g} "
                            f"{found.same_top:9.1%}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
