"""Serve one model with the pinned llama-server on 127.0.0.1, behind a key, with the recipe's flags.

Reads one GGUF of `models/gguf/` (or `models/base/model.gguf`, if base.quantization is gguf) and its adapters,
`reports/quants.json` (which level to take), section `serve` and, for the smoke test, `data/final/test.jsonl`.
Writes `.quench/api-key` (a new one each time, readable by its owner only) and a new `logs/serve-MODEL.log`.

    quench serve [MODEL] [--lora] [--adapter FILE[=SCALE] ...] [--smoke K]
"""

import errno
import json
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from pipeline.config.levels import distilled_from
from pipeline.config.params import Params
from pipeline.config.sections import BASE, TUNED
from pipeline.config.sections import Serve as ServeSettings
from pipeline.core.errors import ConfigError, DataError, MachineError
from pipeline.llamacpp.devices import placement
from pipeline.llamacpp.server import Server, connect, start, wait_for_health
from pipeline.llamacpp.server_command import Lora, server_command
from pipeline.llamacpp.tools import Toolchain, find_toolchain
from pipeline.serve.adapter import Adapter, matching_adapters, parse_adapter
from pipeline.serve.client import how_to_call
from pipeline.serve.key import new_key, read_key
from pipeline.serve.restarts import keep_serving
from pipeline.serve.smoke import held_out_prompts, judge, smoke
from pipeline.workflow.integrity import verify_outputs

STOPS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
)  # Ctrl-C, a service manager, a terminal that was closed


def choose_model(params: Params, root: Path, asked: str | None) -> str:
    """The model to serve, spelled as in `params.yaml`: what was asked for (any case), else the recommended
    one, else the first level.

    If base.quantization is gguf there are two: "adapter" (the base's file with its adapter beside it) or
    "tuned" (that file with trained scales), and "base" (the file alone). Raises `ConfigError` for a name that
    the recipe doesn't make.
    """
    if served := params.product.served:
        model = (asked or served).lower()
        if model not in (served, BASE):
            raise ConfigError(
                "Q-SERVE-001",
                f"no model is called {asked!r}: with base.quantization gguf there are {served} "
                f"(the base with {params.product.beside}) and {BASE}",
            )
        return model
    untuned = [f"base-{params.convert.type}"] if params.convert.base else []
    names = {
        name.upper(): name
        for name in (*params.quantize.files, *params.quantize.untuned, params.convert.type, *untuned)
    }
    if asked is None:
        return names.get(_recommended(root).upper(), params.quantize.tuned[0])
    if asked.upper() not in names:
        raise ConfigError(
            "Q-SERVE-001",
            f"no model is called {asked!r}: this recipe makes {', '.join(names.values())} (quantize.levels "
            "in params.yaml)",
        )
    return names[asked.upper()]


def model_file(params: Params, root: Path, model: str) -> Path:
    """The GGUF of a model (without its adapter). If it is missing, the `DataError` names the stage that makes
    it."""
    path = params.files(root, model).gguf
    if not path.exists():
        stage = f"{'budget' if model in params.quantize.budgets else 'quantize'}@{model}"
        stage = "convert" if model.endswith(params.convert.type) else stage
        if plain := distilled_from(model):
            stage = f"distill@{plain}"
        if params.product.served:
            stage = "tuned" if model == TUNED else "base"
        raise DataError(
            "Q-SERVE-002",
            f"{path} is missing: stage {stage} makes it, so run `snakemake` (everything) or `python -m "
            f"pipeline {stage}` (only that)",
        )
    return path


def chosen_adapters(
    params: Params, root: Path, model: str, *, lora: bool, given: Sequence[str]
) -> list[Adapter]:
    """The adapters to serve on `model`: the project's own if `lora` or the model says so, then the `given`
    ones (FILE or FILE=SCALE). Raises `ConfigError` if the project's own is wanted and it trains scales."""
    if lora and params.graph == "tuned":
        raise ConfigError(
            "Q-SERVE-022",
            f"train.tuner is scales, so there is no adapter: {params.convert.name}-{TUNED}.gguf holds what "
            "was trained, in one file; name another adapter's GGUF with --adapter to put that on it",
        )
    chosen = [*map(parse_adapter, given)]
    if lora or params.files(root, model).lora:
        chosen.insert(0, Adapter(root / "models" / "gguf" / f"{params.convert.name}-lora.gguf"))
    return chosen


def need_port(port: int) -> None:
    """Raise `MachineError` if something listens on `port` of 127.0.0.1: checked first, since that must not
    pass for our server."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise MachineError(
                "Q-SERVE-003",
                f"port {port} of 127.0.0.1 is in use: stop what listens there, or set another serve.port in "
                "params.yaml",
            ) from None


@contextmanager
def serve(
    *,
    tools: Toolchain,
    model: Path,
    key_file: Path,
    log: Path,
    settings: ServeSettings,
    lora: Sequence[Lora] = (),
    alias: str | None = None,
) -> Iterator[Server]:
    """A healthy server while the body runs, stopped after it; `lora` are adapters to apply, `alias` is what
    the server calls the model.

    Raises `MachineError` if the port is taken or `log` can't be written, `ToolError` if the server doesn't
    start.
    """
    need_port(settings.port)
    slots, layers = placement(
        tools,
        model,
        ctx_size=settings.ctx_size,
        parallel=settings.parallel,
        n_gpu_layers=settings.n_gpu_layers,
    )
    settings = settings.model_copy(update={"n_gpu_layers": layers})
    command = server_command(tools, model, settings, key_file, lora, alias)
    with start(command, log) as process:
        url = f"http://127.0.0.1:{settings.port}"
        wait_for_health(process, url, log)
        with connect(url, read_key(key_file)) as client:
            yield Server(process, url, log, client, slots, layers)


def main(
    params: Params,
    root: Path,
    asked: str | None,
    smoke_count: int,
    *,
    lora: bool = False,
    adapters: Sequence[str] = (),
    file: Path | None = None,
) -> None:
    """Serve until a signal (Ctrl-C, SIGTERM, a closed terminal), through crashes; with `smoke_count` ask that
    many test prompts, then stop.

    `lora` applies the project's own adapter to a level of the untuned base, `adapters` (FILE or FILE=SCALE)
    further ones. `file` is what `params` were read from, if that was named.
    """
    model = choose_model(params, root, asked)
    path = model_file(params, root, model)
    chosen = chosen_adapters(params, root, model, lora=lora, given=adapters)
    verify_outputs([path, *(adapter.file for adapter in chosen)], root, params=file)
    applied = matching_adapters(path, chosen)
    # the model's name says its own already
    named = applied[1:] if params.files(root, model).lora else applied
    alias = "+".join([f"{params.convert.name}-{model}", *(adapter.name for adapter in named)])
    prompts = held_out_prompts(root / "data" / "final" / "test.jsonl", smoke_count) if smoke_count else []
    log, tools = root / "logs" / f"serve-{model}.log", find_toolchain(params.machine.llama_cpp)
    need_port(params.serve.port)  # before key and log are replaced: they may be those of a running server
    key_file = new_key(root)
    with suppress(OSError):  # anything else than a file is refused when the log is opened
        log.unlink()
    files = ", ".join(one.file.name + ("" if one.scale == 1 else f" × {one.scale:g}") for one in applied)
    title = f"{model} with {files}" if applied else model
    server = partial(
        serve,
        tools=tools,
        model=path,
        key_file=key_file,
        log=log,
        settings=params.serving,
        lora=[(adapter.file, adapter.scale) for adapter in applied],
        alias=alias,
    )
    with stopped_by_signals():
        if prompts:
            with server() as running:
                print(f"{title}: {judge(smoke(running, prompts), params.report.gate.min_stopped)}")
            return
        url = f"http://127.0.0.1:{params.serve.port}"
        call = how_to_call(title, url, key_file, log, [adapter.name for adapter in applied])
        try:
            keep_serving(server, params.serve.max_restarts, call, _print)
        except KeyboardInterrupt:
            _print("\nstopped")


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise `KeyboardInterrupt` in the body; one that is ignored (`nohup`) stays
    ignored."""
    previous = {number: signal.getsignal(number) for number in STOPS}
    for number, handler in previous.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _recommended(root: Path) -> str:
    try:
        found = json.loads((root / "reports" / "quants.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""  # no report yet
    return str(found.get("recommended") or "") if isinstance(found, dict) else ""


def _print(line: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        print(line, flush=True)
