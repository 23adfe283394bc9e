"""llama-server's command line: the one place that says how it is hardened. `quench serve`, every measurement,
the report and the bundle take it from here. LoRA adapters are said as all of llama.cpp's tools take them
(common/arg.cpp).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.sections import Serve
from pipeline.core.errors import ConfigError
from pipeline.llamacpp.tools import Toolchain

Lora = tuple[Path, float]  # an adapter's GGUF and the factor that its change is multiplied with
IDLE_SECONDS = 10  # that a client may take for the next byte of its request, before it loses its thread
# that wait for requests. llama-server starts more where none is idle, but counts one as idle until it has
# woken, so of connections that come at once only this many find one (llama-server's default: 4 more than
# slots). The others wait until a thread's client has been idle for too long
HTTP_THREADS = 64
# between two looks at what else is asked; llama-server's own default is 2,048, computed 512 at a time as well
BATCH_TOKENS = 512
PROMPT_CACHE_MIB = 512  # of conversations that no slot holds any more; llama-server's own default is 8 GiB


def lora_arguments(lora: Sequence[Lora]) -> list[str]:
    """The adapters as llama.cpp's tools take them: each value is a row of CSV, and with a scale its parts are
    split at every colon.

    Raises `ConfigError` for a scale beside a path with a colon.
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
    """What a server holds: a GGUF, the adapters to apply, and the model's name (else of the files' names)."""

    model: Path
    lora: Sequence[Lora] = ()
    alias: str | None = None

    @property
    def name(self) -> str:
        """What requests call it: no comma, which would make two names of it."""
        name = self.alias or "+".join([self.model.stem, *(file.stem for file, _ in self.lora)])
        return name.replace(",", "_")


def server_command(
    tools: Toolchain, served: Served, settings: Serve, key_file: Path, idle_seconds: int = IDLE_SECONDS
) -> list[str]:
    """The hardened command line: loopback only, key from a file, no web page, no slot view, nothing fetched,
    the model's own template.

    No web page may read an answer: the one origin that is allowed is the server's own, where no page is.
    `settings.ctx_size` is per slot; llama-server divides its context among its slots. Raises `ConfigError`
    for an adapter that can't be said there.
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
    """Return how flash attention is switched; auto is llama-server's own default."""
    return [] if chosen == "auto" else ["--flash-attn", chosen]


def cache_arguments(adapters: int) -> list[str]:
    """How prompts are kept between requests, by the number of adapters that a request can switch.

    llama-server keeps what it computed of a prompt when an adapter's scale changes, and then answers from one
    adapter's keys with another's weights (llama.cpp's issue 26207). So nothing is kept of several adapters,
    and of one only what a slot holds, which `pipeline.serve.client` makes it forget.
    """
    kept = ["--cache-ram", str(0 if adapters else PROMPT_CACHE_MIB)]
    return [*kept, "--no-cache-prompt"] if adapters > 1 else kept
