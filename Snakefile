# Quench's stages for Snakemake: a rule for each stage of graphs/stages.yaml, from which dvc.yaml is written too.
#   snakemake            everything            snakemake -n         what it would do
#   snakemake train      up to the adapter     snakemake -c2        with two cores
from pipeline.workflow.prepare import prepare
from pipeline.workflow.remote import SHELL, finish_workflow, job_settings
from pipeline.workflow.stages import rules as stage_rules

SETTINGS = prepare(workflow.config_settings) if workflow.is_main_process else job_settings(remote=workflow.remote_exec)

shell.prefix(SHELL)


onsuccess:
    finish_workflow(failed=False)


onerror:
    finish_workflow(failed=True)


STAGES = {stage.name: stage for stage in stage_rules(SETTINGS, workflow.cores)}


rule all:
    input:
        "reports/index.html",


for STAGE in STAGES.values():

    rule:
        name:
            STAGE.name
        input:
            code=STAGE.code,
            data=STAGE.deps,
        output:
            files=STAGE.files,
            folders=[directory(path) for path in STAGE.folders],
        log:
            STAGE.log,
        wildcard_constraints:
            **STAGE.items,
        threads: STAGE.threads
        params:
            stage=STAGE.stage,
        shell:
            "python -m pipeline {params.stage} 2>&1 | tee {log}"
