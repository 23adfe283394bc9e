"""Packing keeps documents apart: each row sees only itself, with an end of text between two documents."""

from pathlib import Path

import torch
from curating import sentence
from pyarrow import parquet
from transformers import AutoModelForCausalLM

from pipeline.chat.tokens import load_tokenizer
from pipeline.core.jsonl import write_rows
from pipeline.models.packed_rows import packed_positions
from pipeline.stages.preprocess.stage import preprocess

DOCUMENTS = [sentence(number, 10 + number) for number in range(8)]


def test_a_packed_document_ends_and_sees_only_itself(tiny_qwen2: Path, tmp_path: Path) -> None:
    rows = [
        {
            "id": f"{number:016}",
            "source": f"{number}.txt:1",
            "kind": "text",
            "domain": "documents",
            "messages": [],
            "segments": [{"text": text, "train": True}],
        }
        for number, text in enumerate(DOCUMENTS)
    ]
    for split, chosen in (("train", rows[1:]), ("val", rows[:1])):
        write_rows(tmp_path / f"final/{split}.jsonl", chosen)
    preprocess(
        rows_folder=tmp_path / "final",
        base=tiny_qwen2,
        tokens_folder=tmp_path / "tokens",
        max_length=256,
        packing=True,
    )
    tokenizer = load_tokenizer(tiny_qwen2)
    model = AutoModelForCausalLM.from_pretrained(tiny_qwen2, dtype=torch.float32).eval()
    packed = parquet.read_table(tmp_path / "tokens/train.parquet").to_pylist()
    assert len(packed) < len(DOCUMENTS) - 1
    seen = []
    for line in packed:
        ids = torch.tensor(line["input_ids"])
        lengths = tuple(line["seq_lengths"])
        assert line["labels"] == line["input_ids"]
        with torch.inference_mode():
            together = model(input_ids=ids[None], use_cache=False, **packed_positions(lengths)).logits[0]
            for document, logits in zip(ids.split(lengths), together.split(lengths), strict=True):
                assert document[-1] == tokenizer.eos_token_id
                seen.append(tokenizer.decode(document[:-1]))
                alone = model(input_ids=document[None], use_cache=False).logits[0]
                assert float((alone - logits).abs().max()) < 1e-3
    assert sorted(seen) == sorted(DOCUMENTS[1:])
