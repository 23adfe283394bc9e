"""Serve one model with the pinned llama-server on 127.0.0.1, behind a key, with the recipe's flags.

Reads one GGUF of `models/gguf/` (or `models/base/model.gguf`, if base.quantization is gguf) and its adapters.
Reads `reports/` (for the recommended level, and whether the gate refuses it), section `serve` and, for the
smoke test, `data/final/test.jsonl`. Writes `.quench/api-key` (a new one each time, readable by its owner
only), `.quench/port` while it serves, and a new `logs/serve-MODEL.log`.

    quench serve [MODEL] [--port N] [--lora] [--adapter FILE[=SCALE] ...] [--smoke K]
"""

import errno
import json
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from pipeline.chat.selection import why_unanswered
from pipeline.commands.chat import served_model
from pipeline.commands.project import Project
from pipeline.config.sections import Serve as ServeSettings
from pipeline.core.errors import ConfigError, MachineError, QuenchError
from pipeline.gguf.file import check_gguf
from pipeline.llamacpp.devices import placement
from pipeline.llamacpp.server import Server, connect, start, wait_for_health
from pipeline.llamacpp.server_command import Served, server_command
from pipeline.llamacpp.tools import Toolchain
from pipeline.serve.adapter import Adapter, matching_adapters, parse_adapter
from pipeline.serve.client import how_to_call
from pipeline.serve.key import KEY_FILE, new_key, read_key
from pipeline.serve.port import announced
from pipeline.serve.restarts import keep_serving
from pipeline.serve.smoke import held_out_prompts, judge, smoke, summary

LAST_PORT = 65535
STOPS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
)  # Ctrl-C, a service manager, a closed terminal


@dataclass(frozen=True)
class Options:
    """How a model is served. `lora` applies the project's own adapter to a level of the untuned base, and
    `adapters` (FILE or FILE=SCALE) further ones. `port` replaces serve.port. With `smoke`, that many test
    prompts are sent, and then the server is stopped; with `as_json` the figures are JSON.
    """

    smoke: int = 0
    lora: bool = False
    adapters: Sequence[str] = ()
    port: int | None = None
    as_json: bool = False


def chosen_adapters(project: Project, model: str, *, lora: bool, given: Sequence[str]) -> list[Adapter]:
    """Return the adapters to serve on `model`: the project's own if `lora` or the model requires it, then the
    `given` ones (FILE or FILE=SCALE). Raises `ConfigError` if the project's own is wanted and it trains
    scales.
    """
    params = project.params
    if lora and params.product.holds_scales:
        raise ConfigError(
            "Q-SERVE-022",
            "train.tuner is scales, so there is no adapter: "
            f"{params.convert.name}-{params.product.served}.gguf holds what was trained, in one file; name "
            "another adapter's GGUF with --adapter to put that on it",
        )
    chosen = [*map(parse_adapter, given)]
    if lora or params.files(project.root, model).lora:
        chosen.insert(0, Adapter(project.root / "models" / "gguf" / f"{params.convert.name}-lora.gguf"))
    return chosen


def need_port(port: int, root: Path | None = None) -> None:
    """Raise `MachineError` if something listens on `port` of 127.0.0.1. This is checked first, because it
    must not pass for our server. If it is the server of the project `root`, the message says so.
    """
    if not _in_use(port):
        return
    free = next((other for other in range(port + 1, LAST_PORT + 1) if not _in_use(other)), None)
    served = _served_on(port, root) if root else None
    what = f"port {port} of 127.0.0.1 is in use: stop what listens there"
    if served:
        what = f"{served} of this project is served on port {port} of 127.0.0.1: stop it"
    elsewhere = f", or serve on another (`quench serve --port {free}`)" if free else ""
    raise MachineError("Q-SERVE-003", what + elsewhere)


def _in_use(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return True
    return False


def _served_on(port: int, root: Path) -> str | None:
    """Return the model that a server of the project `root` serves on `port`; None if it is another's."""
    with suppress(QuenchError), connect(f"http://127.0.0.1:{port}", read_key(root / KEY_FILE)) as client:
        return served_model(client)
    return None


@contextmanager
def serve(
    served: Served, *, tools: Toolchain, key_file: Path, log: Path, settings: ServeSettings
) -> Iterator[Server]:
    """Run a ready server while the body runs. Stop it afterwards.

    Raises `MachineError` if the port is taken or `log` can't be written, and `ToolError` if the server does
    not start.
    """
    need_port(settings.port)
    slots, layers = placement(
        tools,
        served.model,
        ctx_size=settings.ctx_size,
        parallel=settings.parallel,
        n_gpu_layers=settings.n_gpu_layers,
    )
    settings = settings.model_copy(update={"n_gpu_layers": layers})
    command = server_command(tools, served, settings, key_file)
    with start(command, log) as process:
        url = f"http://127.0.0.1:{settings.port}"
        wait_for_health(process, url, log)
        with connect(url, read_key(key_file)) as client:
            yield Server(process, url, log, client, slots, layers)


def main(project: Project, model_name: str | None, options: Options) -> None:
    """Serve until a signal (Ctrl-C, SIGTERM, a closed terminal), through crashes, or for a smoke test."""
    params = project.params
    root = project.root
    model = project.name_of(model_name)
    path, lora_of_model = project.files(model)
    chosen = chosen_adapters(project, model, lora=options.lora, given=options.adapters)
    project.verify(path, *(adapter.file for adapter in chosen))
    applied = matching_adapters(path, chosen)
    named = applied[1:] if lora_of_model else applied  # The model's name already contains its own adapter.
    alias = "+".join([f"{params.convert.name}-{model}", *(adapter.name for adapter in named)])
    held_out = root / "data" / "final" / "test.jsonl"
    unanswered = None
    if options.smoke and held_out.exists():
        unanswered = why_unanswered(held_out)
    prompts = []
    if options.smoke and not unanswered:
        prompts = held_out_prompts(held_out, options.smoke)
    log = root / "logs" / f"serve-{model}.log"
    tools = project.tools
    # This is checked before key and log are replaced: they may belong to a running server.
    settings = params.serving.model_copy(update={"port": options.port or params.serve.port})
    need_port(settings.port, root)
    key_file = new_key(root)
    with suppress(OSError):  # Anything else than a file is refused when the log is opened.
        log.unlink()
    names = [use.file.name + ("" if use.scale == 1 else f" × {use.scale:g}") for use in applied]
    title = f"{model} with {', '.join(names)}" if applied else model
    server = partial(
        serve,
        Served(path, [(adapter.file, adapter.scale) for adapter in applied], alias),
        tools=tools,
        key_file=key_file,
        log=log,
        settings=settings,
    )
    with stopped_by_signals(), announced(root, settings.port):
        if unanswered:
            with server():
                if options.as_json:
                    print(json.dumps({"model": alias, "answers": 0, "not_asked": unanswered}, indent=2))
                else:
                    print(f"{title}: it starts, and nothing was asked: {unanswered}")
            return
        if prompts:
            with server() as running:
                replies = smoke(running, prompts)
            if options.as_json:
                print(json.dumps({"model": alias, **asdict(summary(replies))}, indent=2))
            sentence = judge(replies, params.report.gate.min_stopped)
            if not options.as_json:
                print(f"{title}: {sentence}")
            return
        refusal = project.refusal(model)
        if refusal:
            _print(refusal)
        note = context_note(path, params.serve.ctx_size)
        if note:
            _print(note)
        url = f"http://127.0.0.1:{settings.port}"
        adapters = [adapter.name for adapter in applied]
        call = how_to_call(title, url, key_file, log, adapters, project.system_prompt(model))
        try:
            keep_serving(server, call, _print)
        except KeyboardInterrupt:
            _print("\nstopped")


def context_note(model: Path, ctx_size: int) -> str | None:
    """Return a sentence if llama.cpp uses other rotary factors for this context than parity measured with."""
    from pipeline.gguf.rope import first_context

    context = first_context(check_gguf(model))
    if context is None or ctx_size <= context:
        return None
    return (
        f"serve.ctx_size is {ctx_size:,}: beyond {context:,} tokens {model.name} takes other rotary "
        "factors in every answer, which parity did not measure: set it to that, unless chats are longer"
    )


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into `KeyboardInterrupt` in the body.

    An ignored one (`nohup`) stays ignored.
    """
    previous = {number: signal.getsignal(number) for number in STOPS}
    for number, handler in previous.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _print(line: str) -> None:
    with suppress(OSError):  # The terminal may be gone.
        print(line, flush=True)
