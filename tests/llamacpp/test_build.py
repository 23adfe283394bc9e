"""The source of llama.cpp: unpacked nowhere but in its folder, refused where its hash is another."""

import io
import stat
import tarfile
from pathlib import Path

import pytest

from pipeline.core.errors import ToolError
from pipeline.llamacpp import build


def make_archive(path: Path, members: dict[str, bytes | str]) -> Path:
    """A .tar.gz; a str value makes a symbolic link to it."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size, info.mode = len(content), 0o4755
                tar.addfile(info, io.BytesIO(content))
    return path


def test_unpack(tmp_path: Path) -> None:
    build.unpack(
        make_archive(tmp_path / "a.tar.gz", {"top/a.txt": b"a", "top/b/c.txt": b"c"}), tmp_path / "source"
    )
    assert (tmp_path / "source" / "b" / "c.txt").read_bytes() == b"c"
    if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
        assert not stat.S_IMODE((tmp_path / "source" / "a.txt").stat().st_mode) & stat.S_ISUID
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "source"]


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="Python below 3.11.4 has no filters")
@pytest.mark.parametrize(
    "members",
    [
        {"../out.txt": b"x"},
        {"top/../../out.txt": b"x"},
        {"top/link": "/etc/passwd"},
        {"top/link": "../../out"},
    ],
)
def test_unpack_refuses_to_leave_its_folder(tmp_path: Path, members: dict[str, bytes | str]) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    with pytest.raises(tarfile.FilterError):
        build.unpack(make_archive(tmp_path / "a.tar.gz", members), inner / "source")
    assert list(inner.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir() if path.name != "inner"] == ["a.tar.gz"]


def test_a_source_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_pip", lambda *_: (tmp_path / f"{build.SDIST}.tar.gz").write_bytes(b"not it"))
    with pytest.raises(ToolError, match="Q-LLAMACPP-002"):
        build._download(tmp_path)
