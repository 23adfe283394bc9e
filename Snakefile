# Quench's stages in order, those that every recipe has; what follows training is in graphs/. The same as dvc.yaml: tests/test_dag.py fails
# where they differ.
#   snakemake            everything            snakemake -n         what it would do
#   snakemake train      up to the adapter     snakemake -c2        with two cores
from pathlib import Path

from pipeline.config.params import load_params
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
            "pipeline/stages/base/stage.py",
            "pipeline/gguf/base_files.py",
            "pipeline/gguf/dequantize.py",
            "pipeline/gguf/kernels.py",
            "pipeline/models/quantized_head.py",
            "pipeline/models/quantized_linear.py",
            "pipeline/models/quantized_model.py",
            "pipeline/chat/tokens.py",
            "pipeline/llamacpp/converters.py",
            "pipeline/gguf/file.py",
            "pipeline/gguf/header.py",
            "pipeline/gguf/tensors.py",
            "pipeline/config/levels.py",
            "pipeline/gguf/tensor_types.py",
            "pipeline/gguf/safetensors_rows.py",
            "pipeline/gguf/sources.py",
            "pipeline/chat/template_probe.py",
            "pipeline/stages/base/gguf_import.py",
            "pipeline/stages/base/hf_folder.py",
            "pipeline/stages/base/hub.py",
            "pipeline/stages/base/quantized_gguf.py",
            "pipeline/chat/rendering.py",
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
            "pipeline/stages/curate/stage.py",
            "pipeline/core/special_files.py",
            "pipeline/stages/curate/clean.py",
            "pipeline/stages/curate/comparing/balance.py",
            "pipeline/stages/curate/comparing/compare.py",
            "pipeline/stages/curate/comparing/contamination.py",
            "pipeline/stages/curate/comparing/decide.py",
            "pipeline/stages/curate/comparing/duplicates.py",
            "pipeline/stages/curate/comparing/features.py",
            "pipeline/stages/curate/comparing/minhash.py",
            "pipeline/stages/curate/comparing/poison.py",
            "pipeline/stages/curate/comparing/shingles.py",
            "pipeline/stages/curate/comparing/spill.py",
            "pipeline/stages/curate/comparing/splits.py",
            "pipeline/stages/curate/export.py",
            "pipeline/stages/curate/outputs.py",
            "pipeline/stages/curate/reading/containers.py",
            "pipeline/stages/curate/reading/formats.py",
            "pipeline/stages/curate/reading/json_array.py",
            "pipeline/stages/curate/reading/tables.py",
            "pipeline/stages/curate/reading/turns.py",
            "pipeline/stages/curate/reading/unpack.py",
            "pipeline/stages/curate/rules/changes.py",
            "pipeline/stages/curate/rules/cleaning.py",
            "pipeline/stages/curate/rules/control_tokens.py",
            "pipeline/stages/curate/rules/heuristics.py",
            "pipeline/stages/curate/rules/length.py",
            "pipeline/stages/curate/rules/personal.py",
            "pipeline/stages/curate/rules/reasoning.py",
            "pipeline/stages/curate/rules/redaction.py",
            "pipeline/stages/curate/rules/secrets.py",
            "pipeline/stages/curate/rules/template.py",
            "pipeline/stages/curate/rules/text_parts.py",
            "pipeline/stages/curate/rules/token_count.py",
            "pipeline/stages/curate/samples.py",
            "pipeline/stages/curate/spool.py",
            "pipeline/stages/curate/stats.py",
            "pipeline/stages/curate/workers.py",
            "pipeline/core/jsonl.py",
            "pipeline/chat/rows.py",
            "pipeline/metrics/refusals.py",
            "pipeline/stages/curate/page.py",
            "pipeline/core/wording.py",
            "pipeline/pages/differences.py",
            "pipeline/pages/drawings.py",
            "pipeline/pages/templating.py",
            "pipeline/pages/templates/data.css",
            "pipeline/pages/templates/data.html.jinja",
            "pipeline/pages/templates/style.css",
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
            "pipeline/stages/preprocess/stage.py",
            "pipeline/chat/tokens.py",
            "pipeline/core/jsonl.py",
            "pipeline/chat/template_probe.py",
            "pipeline/chat/manifest.py",
            "pipeline/chat/rendering.py",
            "pipeline/stages/preprocess/attention.py",
            "pipeline/stages/preprocess/packing.py",
            "pipeline/stages/preprocess/proof.py",
            "pipeline/stages/preprocess/samples.py",
            "pipeline/stages/preprocess/stats.py",
            "pipeline/stages/preprocess/tables.py",
            "pipeline/core/wording.py",
            "pipeline/pages/differences.py",
            "pipeline/pages/drawings.py",
            "pipeline/stages/preprocess/page.py",
            "pipeline/pages/templating.py",
            "pipeline/pages/templates/data.css",
            "pipeline/pages/templates/labels.css",
            "pipeline/pages/templates/labels.html.jinja",
            "pipeline/pages/templates/style.css",
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
            "pipeline/stages/train/stage.py",
            "pipeline/gguf/base_files.py",
            "pipeline/gguf/dequantize.py",
            "pipeline/gguf/kernels.py",
            "pipeline/models/quantized_head.py",
            "pipeline/models/quantized_linear.py",
            "pipeline/models/quantized_model.py",
            "pipeline/chat/tokens.py",
            "pipeline/models/finite.py",
            "pipeline/stages/train/distill/cache.py",
            "pipeline/models/distill_loss.py",
            "pipeline/stages/train/distill/teacher.py",
            "pipeline/stages/train/distill/trainer.py",
            "pipeline/gguf/file.py",
            "pipeline/gguf/header.py",
            "pipeline/gguf/tensors.py",
            "pipeline/gguf/safetensors_rows.py",
            "pipeline/gguf/sources.py",
            "pipeline/chat/template_probe.py",
            "pipeline/chat/manifest.py",
            "pipeline/chat/rendering.py",
            "pipeline/stages/train/arguments.py",
            "pipeline/planning/steps.py",
            "pipeline/stages/train/callbacks.py",
            "pipeline/stages/train/checkpoints.py",
            "pipeline/models/chunked_loss.py",
            "pipeline/models/loss_parts.py",
            "pipeline/stages/train/dataset.py",
            "pipeline/core/interruption.py",
            "pipeline/models/liger_loss.py",
            "pipeline/stages/train/proofs.py",
            "pipeline/models/qlora.py",
            "pipeline/stages/train/randomness.py",
            "pipeline/stages/train/run.py",
            "pipeline/models/runtime.py",
            "pipeline/models/tensors.py",
            "pipeline/stages/train/trainer.py",
            "pipeline/stages/train/monitoring/epochs.py",
            "pipeline/core/hardware.py",
            "pipeline/stages/train/monitoring/health.py",
            "pipeline/core/metrics_log.py",
            "pipeline/stages/train/monitoring/rules.py",
            "pipeline/stages/train/monitoring/samples.py",
            "pipeline/stages/train/monitoring/tensorboard.py",
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
