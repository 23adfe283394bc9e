"""The command line of llama-server, hardened in this one place. `quench serve`, every measurement, the report
and the bundle use it. LoRA adapters are written as all of llama.cpp's tools accept them (common/arg.cpp).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError
from pipeline.llamacpp.tools import Toolchain

Lora = tuple[Path, float]  # an adapter's GGUF and the factor of its change
# seconds that a client may wait with the next byte of its request, before it loses its thread
IDLE_SECONDS = 10
# Threads that wait for requests. llama-server starts more if none is idle, but counts one as idle until it
# has woken. So of connections that arrive at once only this many get one (llama-server's default: 4 more than
# slots). The others wait until a thread's client has been idle for too long.
HTTP_THREADS = 64
# Tokens computed before the server looks at other requests. llama-server's own default is 2,048, computed 512
# at a time as well.
BATCH_TOKENS = 512
# MiB of conversations that no slot contains any more; llama-server's own default is 8 GiB
PROMPT_CACHE_MIB = 512


def lora_arguments(lora: Sequence[Lora]) -> list[str]:
    """Return the adapters as llama.cpp's tools accept them: each value is a row of CSV, and with a scale its
    parts are split at every colon.

    Raises `ConfigError` for a scale next to a path with a colon.
    """
    words = []
    for file, scale in lora:
        if scale != 1 and ":" in str(file):
            raise ConfigError(
                "Q-LLAMACPP-011",
                f"{file} has a colon in its path, which llama.cpp can't take beside a scale: rename it, or "
                "leave the scale away",
            )
        value = str(file) if scale == 1 else f"{file}:{scale:.6f}"
        words += [
            "--lora" if scale == 1 else "--lora-scaled",
            '"' + value.replace('"', '""') + '"' if set(value) & set(',"') else value,
        ]
    return words


@dataclass(frozen=True)
class Served:
    """Models of a server: a GGUF, the adapters to apply, and a name (by default from the files' names)."""

    model: Path
    lora: Sequence[Lora] = ()
    alias: str | None = None

    @property
    def name(self) -> str:
        """Model name in requests. It has no comma, which would make two names of it."""
        name = self.alias or "+".join([self.model.stem, *(file.stem for file, _ in self.lora)])
        return name.replace(",", "_")


def server_command(
    tools: Toolchain, served: Served, settings: Serve, key_file: Path, idle_seconds: int = IDLE_SECONDS
) -> list[str]:
    """Return the hardened command line: loopback only, key from a file, no web page, no slot view, nothing
    fetched, the model's own template.

    No web page may read an answer: the only allowed origin is the server's own, and it serves no page.
    `settings.ctx_size` is per slot; llama-server divides its context among its slots. Raises `ConfigError`
    for an adapter that the command line can't express.
    """
    return [
        str(tools.tool("llama-server")),
        *("--model", str(served.model)),
        *("--alias", served.name),
        *lora_arguments(served.lora),
        *cache_arguments(len(served.lora)),
        *("--host", "127.0.0.1"),
        *("--port", str(settings.port)),
        *("--api-key-file", str(key_file)),
        *("--cors-origins", f"http://127.0.0.1:{settings.port}"),
        "--no-cors-credentials",
        *("--timeout", str(idle_seconds)),
        *("--threads-http", str(HTTP_THREADS)),
        "--no-webui",
        "--no-slots",
        "--offline",
        "--jinja",
        *("--ctx-size", str(settings.ctx_size * settings.parallel)),
        *("--parallel", str(settings.parallel)),
        *("--threads", str(settings.threads)),
        *("--n-gpu-layers", str(settings.n_gpu_layers)),
        *flash_arguments(settings.flash_attn),
        *("--n-predict", str(settings.n_predict)),
        "--cont-batching",
        *("--batch-size", str(BATCH_TOKENS)),
    ]


def flash_arguments(chosen: str) -> list[str]:
    """Return the option for flash attention; auto is llama-server's own default."""
    return [] if chosen == "auto" else ["--flash-attn", chosen]


def cache_arguments(adapters: int) -> list[str]:
    """Return options that keep prompts between requests, by the number of adapters a request can switch.

    llama-server keeps what it computed of a prompt when an adapter's scale changes, and then answers from one
    adapter's keys with another's weights (llama.cpp's issue 26207). So nothing is kept for more than one
    adapter. For one adapter only the contents of a slot are kept, and `pipeline.serve.client` makes the slot
    forget them.
    """
    kept = ["--cache-ram", str(0 if adapters else PROMPT_CACHE_MIB)]
    return [*kept, "--no-cache-prompt"] if adapters > 1 else kept
