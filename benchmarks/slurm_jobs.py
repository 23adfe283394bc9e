"""What a job costs on SLURM besides its work: a chain of jobs that do nothing, by SLURM and on this machine.

    python benchmarks/slurm_jobs.py [--jobs 4] [--looks 1] [--write]

Starts a SLURM of one node (tests/slurm.py, of Debian's packages) and ends it. A job's time is that from the
work of the job before to its own: to notice that one has ended, to submit the next, to start Snakemake on the
node (twice: for the job, and for its step), each time with what the project's Snakefile imports and reads. On
a real cluster come the queue, and the seconds between two looks at the jobs, which here are `--looks`.
`--write` adds the result to benchmarks/results/.
"""

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import slurm

PROJECT = Path(__file__).resolve().parents[1]

SNAKEFILE = """
from pipeline.workflow.remote import job_settings
from pipeline.workflow.stages import rules as stage_rules

list(stage_rules(job_settings(remote=workflow.remote_exec), 1))

rule all:
    input: "{last}.txt"

rule first:
    output: "0.txt"
    shell: "date +%s.%N > {{output}}; cut -d ' ' -f 14,15 /proc/$PPID/stat >> {{output}}"

rule next:
    input: lambda wildcards: f"{{int(wildcards.number) - 1}}.txt"
    output: "{{number}}.txt"
    wildcard_constraints: number="[1-9]\\\\d*"
    shell: "date +%s.%N > {{output}}; cut -d ' ' -f 14,15 /proc/$PPID/stat >> {{output}}"
"""


def seconds_per_job(root: Path, jobs: int) -> list[float]:
    """From each job's work to the next one's, in seconds."""
    times = [float((root / f"{number}.txt").read_text().split()[0]) for number in range(jobs + 1)]
    return [later - earlier for earlier, later in pairwise(times)]


def cpu_seconds(root: Path, jobs: int) -> float:
    """The CPU time of a job's own Snakemake until the work begins: the median."""
    ticks = [sum(map(int, (root / f"{number}.txt").read_text().split()[1:])) for number in range(jobs + 1)]
    return median(ticks) / os.sysconf("SC_CLK_TCK")


def chain(root: Path, jobs: int) -> Path:
    """A project folder with a chain of jobs after a first one."""
    root.mkdir()
    (root / "Snakefile").write_text(SNAKEFILE.format(last=jobs))
    shutil.copy(PROJECT / "recipes" / "demo.yaml", root / "params.yaml")
    shutil.copytree(PROJECT / "profiles" / "slurm", root / "profiles" / "slurm")
    return root


def measure(folder: Path, jobs: int, looks: int) -> tuple[dict[str, list[float]], float]:
    """Seconds per job on this machine and by SLURM; seconds of CPU to start Snakemake once on a node."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    local = chain(folder / "local", jobs)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--quiet", "all"]
    subprocess.run(command, cwd=local, env=environment, check=True)
    submitted = chain(folder / "submitted", jobs)
    with slurm.started(folder / "slurm", looks=looks) as cluster:
        run = cluster.snakemake(submitted, environment={"PYTHONPATH": str(PROJECT)})
        if run.wait():
            sys.exit(run.log())
    found = {
        "on this machine": seconds_per_job(local, jobs),
        "by SLURM": seconds_per_job(submitted, jobs),
    }
    return found, cpu_seconds(submitted, jobs)


def report(found: dict[str, list[float]], start: float, looks: int) -> str:
    """The result as a page."""
    names = ("snakemake", "snakemake-executor-plugin-slurm", "snakemake-executor-plugin-slurm-jobstep")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    command = [slurm.daemon("slurmctld"), "-V"]
    slurms = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    lines = [
        f"# What a job costs on SLURM: measured on {datetime.datetime.now().astimezone():%Y-%m-%d}",
        "",
        f"`python benchmarks/slurm_jobs.py --jobs {len(found['by SLURM'])} --looks {looks}`; "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, "
        f"{slurms}, {versions}.",
        "",
        "| a job that does nothing | seconds, median | least | most |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {name} | {median(times):.1f} | {min(times):.1f} | {max(times):.1f} |"
            for name, times in found.items()
        ),
        "",
        f"SLURM adds **{median(found['by SLURM']) - median(found['on this machine']):.1f} s** a job; up to "
        f"{looks} s of it pass until Snakemake looks. To start Snakemake takes **{start:.1f} s of "
        "CPU**, twice a job, however busy the machine is.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--looks", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if reason := slurm.missing():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder:
        text = report(*measure(Path(folder), asked.jobs, asked.looks), asked.looks)
    print(text)
    if asked.write:
        name = f"{datetime.datetime.now().astimezone():%Y-%m-%d}-slurm-jobs.md"
        (PROJECT / "benchmarks" / "results" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
