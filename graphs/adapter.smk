# After training: the base's GGUF stays as it is, and the adapter becomes a GGUF beside it.


rule lora:
    input:
        code=[
            "pipeline/lora.py",
            "pipeline/conversion/passport.py",
            "pipeline/llamacpp/converters.py",
            "pipeline/llamacpp/gguf_file.py",
            "pipeline/llamacpp/gguf_header.py",
            "pipeline/llamacpp/levels.py",
            "pipeline/llamacpp/tensor_types.py",
            "pipeline/serving/adapter.py",
        ],
        lineage="models/base.json",
        base="models/base",
        adapter="models/adapter",
    output:
        lora=f"models/gguf/{NAME}-lora.gguf",
    log:
        "logs/lora.log",
    shell:
        "python -m pipeline lora 2>&1 | tee {log}"


rule parity:
    input:
        code=[
            "pipeline/parity.py",
            "pipeline/seams",
            "pipeline/merging",
            "pipeline/packed",
            "pipeline/chat.py",
            "pipeline/conversion/passport.py",
            "pipeline/jsonl.py",
            "pipeline/llamacpp/converters.py",
            "pipeline/llamacpp/gguf_file.py",
            "pipeline/llamacpp/gguf_header.py",
            "pipeline/llamacpp/gguf_tensors.py",
            "pipeline/llamacpp/levels.py",
            "pipeline/llamacpp/logits.py",
            "pipeline/llamacpp/lora.py",
            "pipeline/llamacpp/server.py",
            "pipeline/llamacpp/server_log.py",
            "pipeline/llamacpp/server_process.py",
            "pipeline/llamacpp/tensor_types.py",
            "pipeline/reporting/data_words.py",
            "pipeline/reporting/differences.py",
            "pipeline/reporting/parity_drawings.py",
            "pipeline/reporting/parity_page.py",
            "pipeline/reporting/parity_words.py",
            "pipeline/reporting/svg.py",
            "pipeline/reporting/templating.py",
            "pipeline/skeleton.py",
            "pipeline/tokens/rendering.py",
            "pipeline/training/qlora.py",
            "pipeline/training/runtime.py",
            "pipeline/reporting/templates/style.css",
            "pipeline/reporting/templates/data.css",
            "pipeline/reporting/templates/seams.css",
            "pipeline/reporting/templates/parity.css",
            "pipeline/reporting/templates/parity.html.jinja",
        ],
        final="data/final/test.jsonl",
        adapter="models/adapter",
        lineage="models/base.json",
        base="models/base",
        lora=f"models/gguf/{NAME}-lora.gguf",
    output:
        report=["reports/parity.json", "reports/parity.html"],
    log:
        "logs/parity.log",
    threads: workflow.cores
    shell:
        "python -m pipeline parity 2>&1 | tee {log}"


rule evaluate:
    input:
        code=[
            "pipeline/evaluate.py",
            "pipeline/evaluation",
            "pipeline/scoring",
            "pipeline/answers.py",
            "pipeline/chat.py",
            "pipeline/held_out.py",
            "pipeline/jsonl.py",
            "pipeline/llamacpp/gguf_file.py",
            "pipeline/llamacpp/gguf_header.py",
            "pipeline/llamacpp/logits.py",
            "pipeline/llamacpp/lora.py",
            "pipeline/llamacpp/server.py",
            "pipeline/llamacpp/server_log.py",
            "pipeline/llamacpp/server_process.py",
            "pipeline/skeleton.py",
            "pipeline/tokens/rendering.py",
        ],
        final="data/final/test.jsonl",
        adapter="models/adapter",
        own="data/evaluation",
        base="models/base",
        lora=f"models/gguf/{NAME}-lora.gguf",
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
            "pipeline/reporting/templates",
            "pipeline/jsonl.py",
            "pipeline/llamacpp/levels.py",
            "pipeline/llamacpp/lora.py",
            "pipeline/llamacpp/server.py",
            "pipeline/llamacpp/server_log.py",
            "pipeline/llamacpp/server_process.py",
            "pipeline/planning/disk.py",
            "pipeline/planning/level_bytes.py",
            "pipeline/planning/serving.py",
            "pipeline/planning/shape.py",
            "pipeline/planning/units.py",
            "pipeline/planning/weights.py",
            "pipeline/reporting/answers_browser.py",
            "pipeline/reporting/commands.py",
            "pipeline/reporting/comparisons.py",
            "pipeline/reporting/differences.py",
            "pipeline/reporting/forgetting.py",
            "pipeline/reporting/formats.py",
            "pipeline/reporting/healing.py",
            "pipeline/reporting/heat_map.py",
            "pipeline/reporting/inputs.py",
            "pipeline/reporting/level_table.py",
            "pipeline/reporting/merge_section.py",
            "pipeline/reporting/ollama.py",
            "pipeline/reporting/page.py",
            "pipeline/reporting/parity_words.py",
            "pipeline/reporting/plots.py",
            "pipeline/reporting/quality_plot.py",
            "pipeline/reporting/quantising.py",
            "pipeline/reporting/quants.py",
            "pipeline/reporting/recommend.py",
            "pipeline/reporting/recommend_adapter.py",
            "pipeline/reporting/records.py",
            "pipeline/reporting/svg.py",
            "pipeline/reporting/task_scores.py",
            "pipeline/reporting/terminal.py",
            "pipeline/reporting/training_plots.py",
            "pipeline/reporting/verdict.py",
            "pipeline/reporting/ways_section.py",
            "pipeline/scoring/intervals.py",
            "pipeline/scoring/paired.py",
            "pipeline/seams/level_limits.py",
            "pipeline/serving/key.py",
            "pipeline/shipping/advice.py",
            "pipeline/shipping/card.py",
            "pipeline/shipping/gate.py",
            "pipeline/shipping/gate_adapter.py",
            "pipeline/shipping/listing.py",
            "pipeline/watching/journal.py",
            "pipeline/ways/names.py",
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
