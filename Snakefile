# Quench's stages in order, those that every recipe has; what follows training is in graphs/. The same as dvc.yaml: tests/test_dag.py fails
# where they differ.
#   snakemake            everything            snakemake -n         what it would do
#   snakemake train      up to the adapter     snakemake -c2        with two cores
from pathlib import Path

from pipeline.params import load_params
from pipeline.workflow.prepare import prepare

SETTINGS = prepare(workflow.config_settings) if workflow.is_main_process else load_params(Path("params.yaml"))
NAME = SETTINGS.convert.name
TYPE = SETTINGS.convert.type
LEVELS = SETTINGS.quantize.levels
GRAPH = SETTINGS.graph
MODELS = SETTINGS.evaluate.models


wildcard_constraints:
    level="|".join(LEVELS),
    model="|".join(MODELS),


rule all:
    input:
        "reports/index.html",


rule base:
    input:
        code=[
            "pipeline/base.py",
            "pipeline/packed",
            "pipeline/chat.py",
            "pipeline/llamacpp/converters.py",
            "pipeline/llamacpp/gguf_file.py",
            "pipeline/llamacpp/gguf_header.py",
            "pipeline/llamacpp/gguf_tensors.py",
            "pipeline/llamacpp/levels.py",
            "pipeline/llamacpp/tensor_types.py",
            "pipeline/merging/tensor_files.py",
            "pipeline/seams/gguf_sources.py",
            "pipeline/skeleton.py",
            "pipeline/sources/gguf_import.py",
            "pipeline/sources/hf_folder.py",
            "pipeline/sources/hub.py",
            "pipeline/sources/packed_gguf.py",
            "pipeline/tokens/rendering.py",
        ],
    output:
        model=directory("models/base"),
        lineage="models/base.json",
    log:
        "logs/base.log",
    shell:
        "python -m pipeline base 2>&1 | tee {log}"


rule curate:
    input:
        code=[
            "pipeline/curate.py",
            "pipeline/curation",
            "pipeline/jsonl.py",
            "pipeline/rows.py",
            "pipeline/scoring/refusals.py",
            "pipeline/reporting/data_page.py",
            "pipeline/reporting/data_words.py",
            "pipeline/reporting/differences.py",
            "pipeline/reporting/drawings.py",
            "pipeline/reporting/templating.py",
            "pipeline/reporting/templates/data.css",
            "pipeline/reporting/templates/data.html.jinja",
            "pipeline/reporting/templates/style.css",
        ],
        raw="data/raw",
        guard="data/guard",
        lineage="models/base.json",
        base="models/base",
    output:
        final=[f"data/final/{split}.jsonl" for split in ("train", "val", "test")],
        account=["data/rejects.jsonl", "data/changes.jsonl", "data/clusters.jsonl"],
        report=["reports/data.json", "reports/data.html"],
    log:
        "logs/curate.log",
    threads: workflow.cores
    shell:
        "python -m pipeline curate 2>&1 | tee {log}"


rule preprocess:
    input:
        code=[
            "pipeline/preprocess.py",
            "pipeline/chat.py",
            "pipeline/jsonl.py",
            "pipeline/skeleton.py",
            "pipeline/tokens",
            "pipeline/reporting/data_words.py",
            "pipeline/reporting/differences.py",
            "pipeline/reporting/drawings.py",
            "pipeline/reporting/labels_page.py",
            "pipeline/reporting/templating.py",
            "pipeline/reporting/templates/data.css",
            "pipeline/reporting/templates/labels.css",
            "pipeline/reporting/templates/labels.html.jinja",
            "pipeline/reporting/templates/style.css",
        ],
        final=["data/final/train.jsonl", "data/final/val.jsonl"],
        base="models/base",
    output:
        tokens=directory("data/tokens"),
        report=["reports/labels.json", "reports/labels.html"],
    log:
        "logs/preprocess.log",
    shell:
        "python -m pipeline preprocess 2>&1 | tee {log}"


rule train:
    input:
        code=[
            "pipeline/train.py",
            "pipeline/packed",
            "pipeline/chat.py",
            "pipeline/fidelity/finite.py",
            "pipeline/healing/cache.py",
            "pipeline/healing/loss.py",
            "pipeline/healing/teacher.py",
            "pipeline/healing/trainer.py",
            "pipeline/llamacpp/gguf_file.py",
            "pipeline/llamacpp/gguf_header.py",
            "pipeline/llamacpp/gguf_tensors.py",
            "pipeline/merging/tensor_files.py",
            "pipeline/seams/gguf_sources.py",
            "pipeline/skeleton.py",
            "pipeline/tokens/manifest.py",
            "pipeline/tokens/rendering.py",
            "pipeline/training/arguments.py",
            "pipeline/training/callbacks.py",
            "pipeline/training/checkpoints.py",
            "pipeline/training/chunked.py",
            "pipeline/training/dataset.py",
            "pipeline/training/interruption.py",
            "pipeline/training/liger.py",
            "pipeline/training/proofs.py",
            "pipeline/training/qlora.py",
            "pipeline/training/randomness.py",
            "pipeline/training/run.py",
            "pipeline/training/runtime.py",
            "pipeline/training/tensors.py",
            "pipeline/training/trainer.py",
            "pipeline/watching/epochs.py",
            "pipeline/watching/hardware.py",
            "pipeline/watching/health.py",
            "pipeline/watching/journal.py",
            "pipeline/watching/rules.py",
            "pipeline/watching/samples.py",
            "pipeline/watching/tensorboard.py",
        ],
        tokens="data/tokens",
        base="models/base",
    output:
        adapter=directory("models/adapter"),
        report="reports/train.json",
        curve="reports/train.csv",
        journal="reports/train.jsonl",
    log:
        "logs/train.log",
    threads: workflow.cores
    shell:
        "python -m pipeline train 2>&1 | tee {log}"


include: f"graphs/{GRAPH}.smk"
