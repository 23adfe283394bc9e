"""profiles/kubernetes: its plan, with every file in an S3 bucket. Nothing here runs a job on a cluster."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny

from pipeline.core.places import PROJECT

BUCKET = "quench"
USERS = ("data/raw/chats.jsonl", "data/guard/.gitkeep", "data/evaluation/.gitkeep")


@pytest.fixture
def storage() -> Iterator[dict[str, str]]:
    """A real S3 server on 127.0.0.1, as the environment names it."""
    server_of = pytest.importorskip("moto.server", reason="not measured: moto is not installed")
    pytest.importorskip("snakemake_storage_plugin_s3", reason="not measured: the S3 plugin is not installed")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {
        "SNAKEMAKE_STORAGE_S3_ENDPOINT_URL": f"http://{host}:{port}",
        "SNAKEMAKE_STORAGE_S3_ACCESS_KEY": "test",
        "SNAKEMAKE_STORAGE_S3_SECRET_KEY": "test",
    }
    server.stop()


def bucket(storage: dict[str, str]) -> object:
    import boto3

    found = boto3.resource(
        "s3",
        endpoint_url=storage["SNAKEMAKE_STORAGE_S3_ENDPOINT_URL"],
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106
        region_name="us-east-1",
    ).Bucket(BUCKET)
    found.create()
    return found


def plan(root: Path, storage: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--profile", "profiles/kubernetes", "-n"],
        cwd=root,
        env=os.environ | storage | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_plan_is_made_from_what_the_bucket_holds(tmp_path: Path, storage: dict[str, str]) -> None:
    root = tiny.write_project(tmp_path / "project", tiny.tiny_params(tmp_path))
    shutil.copytree(PROJECT / "profiles", root / "profiles")
    shutil.copyfile(PROJECT / "Snakefile", root / "Snakefile")
    files = bucket(storage)
    lacking = plan(root, storage)
    assert lacking.returncode and "s3://quench/.quench/code/base.key" in lacking.stdout + lacking.stderr
    for name in (*USERS, *(f".quench/code/{path.name}" for path in (root / ".quench/code").iterdir())):
        path = root / name
        files.put_object(Key=name, Body=path.read_bytes() if path.is_file() else b"")
    done = plan(root, storage)
    assert done.returncode == 0, done.stderr
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", done.stdout, re.MULTILINE))
    assert (jobs["train"], jobs["evaluate"], jobs["all"]) == ("1", "4", "1")
