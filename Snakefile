# Quench's stages in order; the same as dvc.yaml, and tests/test_dag.py fails where they differ.
#   snakemake            everything            snakemake -n         what it would do
#   snakemake train      up to the adapter     snakemake -c2        with two cores
from pipeline.workflow.prepare import prepare

if workflow.is_main_process:
    prepare()


configfile: "params.yaml"


NAME = config["convert"]["name"]
LEVELS = config["quantize"]["levels"]
MODELS = config["evaluate"]["models"]


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
            "pipeline/chat.py",
            "pipeline/skeleton.py",
            "pipeline/tokens/rendering.py",
            "pipeline/llamacpp/gguf_header.py",
            "pipeline/sources/gguf_import.py",
            "pipeline/sources/hf_folder.py",
            "pipeline/sources/hub.py",
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
            "pipeline/chat.py",
            "pipeline/skeleton.py",
            "pipeline/fidelity/finite.py",
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


rule merge:
    input:
        code="pipeline/merge.py",
        base="models/base",
        adapter="models/adapter",
    output:
        merged=directory("models/merged"),
    log:
        "logs/merge.log",
    shell:
        "python -m pipeline merge 2>&1 | tee {log}"


rule convert:
    input:
        code=["pipeline/convert.py", "pipeline/llamacpp/gguf_file.py", "pipeline/llamacpp/gguf_header.py", "pipeline/llamacpp/tools.py"],
        base="models/base",
        adapter="models/adapter",
        merged="models/merged",
    output:
        tuned=f"models/gguf/{NAME}-F16.gguf",
        base=f"models/gguf/{NAME}-base-F16.gguf",
        lora=f"models/gguf/{NAME}-lora.gguf",
    log:
        "logs/convert.log",
    shell:
        "python -m pipeline convert 2>&1 | tee {log}"


rule quantize:
    input:
        code=["pipeline/quantize.py", "pipeline/llamacpp/gguf_file.py", "pipeline/llamacpp/gguf_header.py"],
        tuned=f"models/gguf/{NAME}-F16.gguf",
    output:
        gguf=f"models/gguf/{NAME}-{{level}}.gguf",
    log:
        "logs/quantize-{level}.log",
    threads: config["quantize"]["nthreads"]
    shell:
        "python -m pipeline quantize@{wildcards.level} 2>&1 | tee {log}"


rule parity:
    input:
        code=[
            "pipeline/parity.py",
            "pipeline/chat.py",
            "pipeline/skeleton.py",
            "pipeline/tokens/rendering.py",
            "pipeline/jsonl.py",
            "pipeline/llamacpp/gguf_file.py",
            "pipeline/llamacpp/gguf_header.py",
            "pipeline/llamacpp/tools.py",
            "pipeline/llamacpp/logits.py",
            "pipeline/llamacpp/server.py",
            "pipeline/seams/outputs.py",
            "pipeline/seams/seam.py",
            "pipeline/seams/text.py",
            "pipeline/training/runtime.py",
        ],
        final="data/final/test.jsonl",
        adapter="models/adapter",
        base="models/base",
        merged="models/merged",
        ggufs=expand("models/gguf/{name}-{level}.gguf", name=NAME, level=["F16", *LEVELS]),
    output:
        report="reports/parity.json",
    log:
        "logs/parity.log",
    threads: workflow.cores
    shell:
        "python -m pipeline parity 2>&1 | tee {log}"


rule evaluate:
    input:
        code=[
            "pipeline/evaluate.py",
            "pipeline/chat.py",
            "pipeline/skeleton.py",
            "pipeline/tokens/rendering.py",
            "pipeline/llamacpp/gguf_file.py",
            "pipeline/llamacpp/gguf_header.py",
            "pipeline/jsonl.py",
            "pipeline/llamacpp/tools.py",
            "pipeline/llamacpp/logits.py",
            "pipeline/scoring.py",
            "pipeline/llamacpp/server.py",
        ],
        final="data/final/test.jsonl",
        adapter="models/adapter",
        reference=f"models/gguf/{NAME}-F16.gguf",
        gguf=f"models/gguf/{NAME}-{{model}}.gguf",
    output:
        report="reports/eval/{model}.json",
        answers="reports/eval/{model}.answers.jsonl",
    log:
        "logs/evaluate-{model}.log",
    threads: workflow.cores  # alone: side by side the speeds would be wrong
    shell:
        "python -m pipeline evaluate@{wildcards.model} 2>&1 | tee {log}"


rule report:
    input:
        code=[
            "pipeline/report.py",
            "pipeline/reporting/figures.py",
            "pipeline/jsonl.py",
            "pipeline/reporting/ollama.py",
            "pipeline/reporting/page.py",
            "pipeline/reporting/recommend.py",
            "pipeline/llamacpp/server.py",
            "pipeline/reporting/templates",
            "pipeline/watching/journal.py",
        ],
        adapter="models/adapter",
        lineage="models/base.json",
        data="reports/data.json",
        labels="reports/labels.json",
        train=["reports/train.json", "reports/train.csv", "reports/train.jsonl"],
        parity="reports/parity.json",
        evaluations=expand("reports/eval/{model}.{kind}", model=MODELS, kind=["json", "answers.jsonl"]),
    output:
        page="reports/index.html",
        card="reports/card.md",
        modelfile="reports/Modelfile",
        serve="reports/serve.txt",
        quants=["reports/quants.json", "reports/quants.csv"],
        metrics="reports/metrics.json",
    log:
        "logs/report.log",
    shell:
        "python -m pipeline report 2>&1 | tee {log}"
