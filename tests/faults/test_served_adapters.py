"""Adapters on the real llama-server: what is asked for is what answers, also after a switch; and what doesn't
belong together is never served.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tiny
import yaml
from tiny_lora import tiny_lora

from pipeline.commands.project import Project
from pipeline.commands.serve import chosen_adapters, serve
from pipeline.commands.served import change_scales
from pipeline.config.params import Params, load_params
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.core.places import PROJECT
from pipeline.gguf.provenance import BASE_FILE
from pipeline.llamacpp import server_command as llama_server
from pipeline.llamacpp.server import Server, free_port
from pipeline.llamacpp.server_command import Served
from pipeline.llamacpp.tools import Toolchain
from pipeline.serve import client as serve_client
from pipeline.serve.adapter import Adapter, matching_adapters
from pipeline.serve.key import KEY_FILE, new_key, read_key

PROMPT = "hello there my friend " * 3
Open = Callable[..., Any]
Tokens = list[int]


@pytest.fixture(scope="module")
def params() -> Params:
    """A recipe that trains on a GGUF's own blocks, served on a free port."""
    values = load_params(PROJECT / "recipes" / "demo.yaml").model_dump(mode="json")
    values["base"] |= {"quantization": "gguf", "level": None}
    values["evaluate"]["models"] = ["base", "adapter"]
    values["serve"] |= {"port": free_port(), "ctx_size": 256, "n_predict": 16, "parallel": 2}
    return Params.model_validate(values)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """A project: its base's file, its adapter and another of that file. Read only: copy it to change it."""
    folder = tmp_path_factory.mktemp("adapters")
    for name in ("base", "gguf"):
        (folder / "models" / name).mkdir(parents=True)
    model = tiny.tiny_gguf(folder / "models" / "base" / "model.gguf")
    belongs = {BASE_FILE.replace(".", "__"): file_hash(model)}
    tiny_lora(folder / "models" / "gguf" / "demo-lora.gguf", seed=1, **belongs)
    tiny_lora(folder / "tone.gguf", seed=2, **belongs)
    (folder / "params.yaml").write_text(yaml.safe_dump(params.model_dump()), encoding="utf-8")
    return folder


@pytest.fixture
def served(tools: Toolchain, params: Params, root: Path) -> Open:
    """`served(own=1, tone=0.5)` is a context with the base's server and those adapters at those scales."""
    files = {"own": root / "models/gguf/demo-lora.gguf", "tone": root / "tone.gguf"}

    @contextmanager
    def run(**scales: float) -> Iterator[Server]:
        pairs = [(files[name], scale) for name, scale in scales.items()]
        model, log = Project(params, root).files("base").gguf, root / "logs" / "test.log"
        with serve(
            Served(model, pairs), tools=tools, key_file=new_key(root), log=log, settings=params.serving
        ) as running:
            yield running

    return run


def output(server: Server, lora: list[dict[str, float]] | None = None, **more: Any) -> Tokens:
    """The eight tokens that follow `PROMPT`, greedily."""
    body = {
        "prompt": PROMPT,
        "n_predict": 8,
        "temperature": 0,
        "ignore_eos": True,
        "return_tokens": True,
    } | more
    answer = server.post("/completion", body if lora is None else body | {"lora": lora})
    tokens: Tokens = answer["tokens"]
    assert len(tokens) == 8
    return tokens


@pytest.fixture(scope="module")
def truth(tools: Toolchain, params: Params, root: Path) -> dict[tuple[float, float], Tokens]:
    """Return the output at scales (own, tone), each from a server that was started so and asked once."""
    found = {}
    for own, tone in ((0.0, 0.0), (1.0, 0.0), (0.5, 0.0), (0.0, 1.0), (1.0, 1.0)):
        lora = [
            (file, scale)
            for file, scale in ((root / "models/gguf/demo-lora.gguf", own), (root / "tone.gguf", tone))
            if scale
        ]
        model, log = Project(params, root).files("base").gguf, root / "logs" / "truth.log"
        with serve(
            Served(model, lora), tools=tools, key_file=new_key(root), log=log, settings=params.serving
        ) as running:
            found[own, tone] = output(running)
    assert len({tuple(tokens) for tokens in found.values()}) == 5
    return found


def test_scales_of_the_command_line_and_of_a_request(
    served: Open, truth: dict[tuple[float, float], Tokens]
) -> None:
    with served(own=1, tone=0) as server:
        assert output(server) == truth[1, 0]
        assert output(server, lora=[{"id": 0, "scale": 0}]) == truth[0, 0]
        assert output(server) == truth[1, 0]  # the prompt of a request with other scales is not gone on from
        assert output(server, lora=[{"id": 0, "scale": 0.5}]) == truth[0.5, 0]
        assert output(server, lora=[{"id": 1, "scale": 1}]) == truth[0, 1]
        assert output(server, lora=[{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]) == truth[1, 1]
        assert output(server) == truth[1, 0]
    with served(own=0) as server:
        assert output(server) == truth[0, 0]


def test_switching_one_adapter_by_the_command(
    served: Open,
    truth: dict[tuple[float, float], Tokens],
    params: Params,
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served(own=1) as server:
        assert [output(server, id_slot=slot) for slot in (0, 1)] == [truth[1, 0]] * 2
        for words, scale, shown in (
            ([], 1, "1"),
            (["demo-lora=0"], 0, "0 (off)"),
            (["demo-lora=0.5"], 0.5, "0.5"),
            (["demo-lora=1"], 1, "1"),
        ):
            change_scales(params, root, words)
            assert capsys.readouterr().out.splitlines()[1:] == [f"  demo-lora  {shown}"]
            assert [output(server, id_slot=slot) for slot in (0, 1, 0)] == [truth[scale, 0]] * 3


def test_switching_several_leaves_the_others(
    served: Open,
    truth: dict[tuple[float, float], Tokens],
    params: Params,
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served(own=1, tone=0) as server:
        output(server)
        change_scales(params, root, ["tone=1"])
        assert capsys.readouterr().out.splitlines()[1:] == ["  demo-lora  1", "  tone       1"]
        assert output(server) == truth[1, 1]
        change_scales(params, root, ["demo-lora=0"])
        assert output(server) == truth[0, 1]
        change_scales(params, root, ["demo-lora=0.5", "tone=0"])
        assert output(server) == truth[0.5, 0]


@pytest.mark.parametrize("adapters", [1, 2])
def test_without_our_guards_llama_server_goes_on_from_another_adapters_keys(
    served: Open,
    truth: dict[tuple[float, float], Tokens],
    params: Params,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    adapters: int,
) -> None:
    """Check the fault that forbids keeping prompts: once this test fails, llama.cpp has repaired it, and
    `cache_arguments` and `forget_prompts` can go.
    """
    monkeypatch.setattr(llama_server, "cache_arguments", lambda number: [])
    monkeypatch.setattr(serve_client, "forget_prompts", lambda client: None)
    with served(own=1) if adapters == 1 else served(own=1, tone=0) as server:
        assert output(server) == truth[1, 0]
        change_scales(params, root, ["demo-lora=0"])
        assert output(server) != truth[0, 0]
        assert output(server, cache_prompt=False) == truth[0, 0]


def test_the_endpoint_wants_the_key(served: Open, truth: dict[tuple[float, float], Tokens]) -> None:
    with served(own=1) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert httpx.get(f"{server.url}/lora-adapters", headers=headers).status_code == 401
            assert (
                httpx.post(
                    f"{server.url}/lora-adapters", headers=headers, json=[{"id": 0, "scale": 0}]
                ).status_code
                == 401
            )
        assert output(server) == truth[1, 0]


def test_words_that_the_command_refuses(
    served: Open,
    params: Params,
    root: Path,
    truth: dict[tuple[float, float], Tokens],
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = {
        "lora": "Q-COMMANDS-009: .lora. has no scale",
        "lora=inf": "has the scale 'inf'",
        "x=1": "has no adapter x: it has demo-lora",
    }
    with served(own=1) as server:
        for word, words in refused.items():
            with pytest.raises(ConfigError, match=words):
                change_scales(params, root, [word])
        with pytest.raises(ConfigError, match="Q-COMMANDS-009: x is given"):
            change_scales(params, root, ["x=1", "x=2"])
        assert output(server) == truth[1, 0]
    with served():
        change_scales(params, root, [])
        assert "is served without an adapter" in capsys.readouterr().out
        with pytest.raises(ConfigError, match="Q-SERVE-018"):
            change_scales(params, root, ["demo-lora=0"])
    with pytest.raises(ToolError, match="Q-SERVE-013"):
        change_scales(params, root, [])


def test_what_a_project_with_a_gguf_base_serves(params: Params, root: Path, tmp_path: Path) -> None:
    own = Adapter(root / "models/gguf/demo-lora.gguf")
    assert [Project(params, root).name_of(asked) for asked in (None, "adapter", "BASE")] == [
        "adapter",
        "adapter",
        "base",
    ]
    assert {Project(params, root).files(model).gguf for model in ("adapter", "base")} == {
        root / "models/base/model.gguf"
    }
    assert chosen_adapters(Project(params, root), "adapter", lora=False, given=["x.gguf=2"]) == [
        own,
        Adapter(Path("x.gguf"), 2),
    ]
    assert chosen_adapters(Project(params, root), "base", lora=False, given=[]) == []
    assert chosen_adapters(Project(params, root), "base", lora=True, given=[]) == [own]
    with pytest.raises(ConfigError, match="Q-SERVE-001"):
        Project(params, root).name_of("Q4_K_M")
    with pytest.raises(DataError, match="Q-SERVE-002"):
        Project(params, tmp_path).files("base")


def quench(root: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", *words, "--root", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env=os.environ,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "title", "name"),
    [
        ([], "adapter with demo-lora.gguf", "demo-adapter"),
        (["base"], "base", "demo-base"),
        (["--adapter", "tone.gguf=0.5"], "adapter with demo-lora.gguf, tone.gguf × 0.5", "demo-adapter+tone"),
    ],
)
def test_the_command(root: Path, params: Params, words: Sequence[str], title: str, name: str) -> None:
    process = quench(
        root, "serve", *(str(root / word) if word.startswith("tone") else word for word in words)
    )
    try:
        assert process.stdout is not None
        first = next((line for line in process.stdout if "is served on" in line), "")
        assert first.startswith(f"{title} is served on"), process.stderr and process.stderr.read()
        key = read_key(root / KEY_FILE)
        answer = httpx.get(
            f"http://127.0.0.1:{params.serve.port}/v1/models",
            headers={"Authorization": f"Bearer {key}"},
            trust_env=False,
        )
        assert answer.json()["data"][0]["id"] == name
    finally:
        process.terminate()
        process.communicate(timeout=30)


def spoil(root: Path, kind: str) -> None:
    model, own = root / "models/base/model.gguf", root / "models/gguf/demo-lora.gguf"
    match kind:
        case "one bit":
            content = bytearray(model.read_bytes())
            content[-1] ^= 1
            model.write_bytes(content)
        case "base cut off":
            model.write_bytes(model.read_bytes()[:-100])
        case "adapter cut off":
            own.write_bytes(own.read_bytes()[:-100])
        case "no adapter":
            own.unlink()
        case "shapes":
            wide = {"blk.0.ffn_down.weight.lora_a": np.ones((4, 96), np.float32)}
            tiny_lora(own, tensors=wide, **{BASE_FILE.replace(".", "__"): file_hash(model)})


FAULTS = {
    "one bit": "demo-lora.gguf was trained on another file",
    "base cut off": "model.gguf is not a complete GGUF",
    "adapter cut off": "demo-lora.gguf is not a complete GGUF",
    "no adapter": "demo-lora.gguf is missing",
    "shapes": "changes blk.0.ffn_down.weight by 96×4 and 4×32, which doesn't fit 64×32",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_what_does_not_belong_together_is_not_served(
    root: Path, tmp_path: Path, params: Params, kind: str
) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "project"))
    spoil(copy, kind)
    with pytest.raises(DataError, match=FAULTS[kind]):
        matching_adapters(
            Project(params, copy).files("adapter").gguf,
            chosen_adapters(Project(params, copy), "adapter", lora=False, given=[]),
        )


def test_the_sentence_comes_before_the_server(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "project", ignore=shutil.ignore_patterns("logs", ".quench")))
    spoil(copy, "one bit")
    process = quench(copy, "serve")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (3, "", 1)
    assert "was trained on another file" in err
    assert not (copy / "logs").exists() and not (copy / ".quench/api-key").exists()
