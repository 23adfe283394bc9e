"""Models that say one token, once or without end."""

from pathlib import Path

import numpy as np
import tiny

HE, START, END, TOKENS, HIDDEN = 256, 259, 260, 261, 32  # of tiny.tiny_gguf's vocabulary


def rigged(file: Path, says: int = HE, *, stops: bool = True, weight: float = 1) -> Path:
    """A model that says one token, once or without end.

    The blocks add nothing, so the last token alone decides: the output row of `says` likes +1 embeddings, the
    row of the end of turn -1; only `says` itself has -1, and only where the model `stops`.
    """
    embedding, output = np.ones((TOKENS, HIDDEN), np.float16), np.zeros((TOKENS, HIDDEN), np.float16)
    embedding[says] = -1 if stops else 1
    output[says], output[END] = weight, -weight
    nothing = {
        "blk.0.attn_output.weight": np.zeros((HIDDEN, HIDDEN), np.float16),
        "blk.0.ffn_down.weight": np.zeros((HIDDEN, 64), np.float16),
    }
    return tiny.tiny_gguf(file, tensors={"token_embd.weight": embedding, "output.weight": output, **nothing})
