"""The newcomer's machine that CI makes of this one: README's programs work there, and no others are there."""

import os
import subprocess
from pathlib import Path

import needed
from make import ended

from pipeline.core.places import PROJECT

WORK = """
make --version && git init --quiet repository && python3 -m venv --without-pip environment
echo '#include <string>
int main() { return std::string("ab").size() == 2 ? 0 : 1; }' > a.cpp
g++ a.cpp -o a && ./a && environment/bin/python -c 'print("works")'
"""


@needed.programs("dpkg-query", "apt-cache")
def test_a_bare_path_has_readmes_programs_and_no_other(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([PROJECT / ".ci/bare_path", bare], check=True)
    has = {path.name for path in bare.iterdir()}
    assert {"python3", "make", "g++", "git", "bash", "tar", "awk", "as", "ld"} <= has
    assert not has & {"rsync", "ssh", "sshd", "sbatch", "chromium", "curl", "cmake", "ninja", "uv", "apt-get"}
    done = ended(["bash", "-euc", WORK], cwd=tmp_path, env=os.environ | {"PATH": str(bare)})
    assert done.stdout.endswith("works\n"), done.stderr
    # an environment lives on without the folder
    assert bare not in (tmp_path / "environment/bin/python").resolve().parents
