"""A real SSH server on 127.0.0.1, started and ended by a test: keys, port, configuration and a home folder of
its own. The host is called `card` in `Card.config`.
"""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from needed import absent

SESSION = Path(__file__).with_name("ssh_session.py")


class Card(NamedTuple):
    """The server: `folder`/home is what a session's home is."""

    folder: Path
    port: int

    @property
    def config(self) -> Path:
        """For `ssh -F`."""
        return self.folder / "config"

    @property
    def store(self) -> Path:
        """The folder in which Quench works on the host."""
        return self.folder / "home/.cache/quench/remote"

    @property
    def calls(self) -> list[str]:
        """The commands that ran there."""
        return (self.folder / "calls").read_text().splitlines()

    def plan(self, *cuts: tuple[str, str, int]) -> None:
        """Have the line cut: see tests/support/ssh_session.py."""
        (self.folder / "cuts.json").write_text(json.dumps(cuts))

    def planned(self) -> list:
        """The cuts that are still to come."""
        return json.loads((self.folder / "cuts.json").read_text())

    def write_config(self, name: str, **changed: str) -> Path:
        """A configuration with other settings; the file."""
        settings = {
            "HostName": "127.0.0.1",
            "Port": str(self.port),
            "User": getpass.getuser(),
            "IdentityFile": str(self.folder / "key"),
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": str(self.folder / "known_hosts"),
            "StrictHostKeyChecking": "yes",
        }
        lines = [f"    {key} {value}\n" for key, value in (settings | changed).items()]
        path = self.folder / name
        path.write_text("".join(["Host card\n", *lines]))
        return path


@contextmanager
def ssh_host(folder: Path) -> Iterator[Card]:
    """The server, as long as the body lasts. Skips without sshd or rsync."""
    if reason := absent("sshd", "ssh", "ssh-keygen", "rsync"):
        pytest.skip(reason)
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "home").mkdir(parents=True)
    (folder / "path").write_text(os.environ["PATH"])
    (folder / "calls").touch()
    for name in ("host_key", "key", "other_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host_key.pub').read_text()}")
    settings = f"""
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
ForceCommand {sys.executable} -I -S {SESSION} {folder}
"""
    (folder / "sshd_config").write_text(settings)
    with (folder / "sshd.log").open("w") as log:
        server = subprocess.Popen([sshd, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    try:
        wait_for(port, server)
        card = Card(folder, port)
        card.write_config("config")
        yield card
    finally:
        server.terminate()
        server.wait()


def wait_for(port: int, server: subprocess.Popen) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until and server.poll() is None:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"sshd ended with {server.poll()}")
