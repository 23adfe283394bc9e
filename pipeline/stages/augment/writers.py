"""Writers of texts: a GGUF in llama-server, or a model at an OpenAI-compatible address."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from pipeline.chat.completions import answer_of
from pipeline.config.params import Params
from pipeline.config.products import ModelFiles
from pipeline.config.sections import Augment
from pipeline.config.sections.values import THIS_MACHINE
from pipeline.core.errors import ConfigError, DataError, ToolError
from pipeline.core.hashing import file_hash
from pipeline.core.places import expanded
from pipeline.core.text import one_line
from pipeline.gguf.file import check_gguf
from pipeline.llamacpp.server import serving
from pipeline.llamacpp.tools import find_llama
from pipeline.stages.augment.journal import Ask, Text

WAITS = (1.0, 4.0, 16.0, 60.0)  # seconds before another try if the address is busy or silent
LONGEST_WAIT = 120.0  # seconds that an address may ask for
BUSY = (408, 409, 425, 429, 500, 502, 503, 504)
READ_SECONDS = 120.0  # seconds without a byte
CALL_SECONDS = 600.0  # seconds for one try
MOST_BYTES = 16 << 20  # bytes of a reply
ROOM = 256  # tokens of the instruction and the template, in addition to the row


def identity(settings: Augment, root: Path) -> dict[str, Any]:
    """Return the writer's identity as each row states it.

    Raises `ConfigError` for a file that is not a GGUF.
    """
    if settings.url:
        return {"model": settings.model, "url": settings.url}
    file = model_file(settings, root)
    return {"model": file.name, "sha256": file_hash(file)}


def model_file(settings: Augment, root: Path) -> Path:
    """Return the path of the GGUF that writes. A relative path is resolved in the project. Raises
    `ConfigError` if the file is missing or not a GGUF.
    """
    file = root / expanded(str(settings.model), "augment.model")
    try:
        if not file.is_file():
            raise DataError("Q-CORE-001", "there is no such file")
        check_gguf(file)
    except DataError as error:
        raise ConfigError(
            "Q-AUGMENT-001",
            f"augment.model is {file}, which can't be served ({error.sentence}): name a GGUF file, or set "
            "augment.url to the address of a model",
        ) from error
    return file


@contextmanager
def served(params: Params, root: Path) -> Iterator[Ask]:
    """Serve the GGUF while the body runs, and yield the function that sends a request to it."""
    settings = params.augment
    room = params.preprocess.max_length + 2 * settings.max_new_tokens + ROOM
    files = ModelFiles(model_file(settings, root), None)
    with serving(find_llama(params.machine), files, ctx_size=room, parallel=settings.parallel) as server:
        # Prompt caching is off because a slot's earlier answer changes the rounding, and so the text.
        yield lambda request: text_of(
            server.post("/v1/chat/completions", request | {"cache_prompt": False}), "llama-server"
        )


@contextmanager
def addressed(settings: Augment) -> Iterator[Ask]:
    """Yield the function that sends a request to `augment.url`.

    Raises `ConfigError` if the key is missing.
    """
    key = key_of(settings)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = str(settings.url).rstrip("/")
    is_local = urlsplit(url).hostname in THIS_MACHINE  # No proxy leads back to this machine.
    timeout = httpx.Timeout(READ_SECONDS, connect=30.0)
    with httpx.Client(headers=headers, timeout=timeout, trust_env=not is_local) as client:
        address = f"{url}/chat/completions"
        yield lambda request: _reply(client, address, request | {"model": settings.model}, key)


def key_of(settings: Augment) -> str | None:
    """Return the address's key. Raises `ConfigError` if the variable contains none."""
    if not settings.key_env:
        return None
    key = os.environ.get(settings.key_env, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            "Q-AUGMENT-002",
            f"augment.key_env is {settings.key_env}, and that environment variable holds no key here: set it "
            "in the shell that runs the stage, or set augment.key_env to null",
        )
    return key


def _reply(client: httpx.Client, address: str, request: dict[str, Any], key: str | None) -> Text:
    """Return the reply, after further tries while the address is busy or silent. Raises `ToolError`."""
    why = ""
    for wait in (*WAITS, None):
        asked_for = None
        try:
            status, retry_after, body = _sent(client, address, request)
            if status == 200:
                return text_of(_decoded(body), address)
            why = f"answered {status}: {_shown(body, key)}"
            if status not in BUSY:
                raise ToolError(
                    "Q-AUGMENT-004",
                    f"{address} {why}: correct augment's url, model or key_env; what was written is kept",
                )
            asked_for = _seconds(retry_after)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = f"can't be reached ({_shown(str(error).encode(), key) or type(error).__name__})"
        if wait is not None:
            time.sleep(wait if asked_for is None else min(asked_for, LONGEST_WAIT))
    raise ToolError(
        "Q-AUGMENT-003",
        f"{address} {why}, {len(WAITS) + 1} times: run the same command again later, which goes on where it "
        "stopped, or set a smaller augment.parallel",
    )


def _sent(client: httpx.Client, address: str, request: dict[str, Any]) -> tuple[int, str, bytes]:
    """Return status, Retry-After and body of one try. A reply that is endless or too large is aborted."""
    end = time.monotonic() + CALL_SECONDS
    body = bytearray()
    with client.stream("POST", address, json=request) as reply:
        for piece in reply.iter_bytes():
            body += piece
            if len(body) > MOST_BYTES:
                raise httpx.ReadError(f"a reply of more than {MOST_BYTES >> 20} MiB")
            if time.monotonic() > end:
                raise httpx.ReadTimeout(f"no whole reply in {CALL_SECONDS:.0f} s")
        return reply.status_code, reply.headers.get("Retry-After", ""), bytes(body)


def _seconds(retry_after: str) -> float | None:
    """Return the seconds that an address asks to wait, or None for a date or a missing header."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    return None


def _shown(body: bytes, key: str | None) -> str:
    """Return the beginning of a reply, without the key that it may repeat."""
    text = body[:4096].decode("utf-8", "replace")
    return one_line(text.replace(key, "(the key)") if key else text, 200)


def _decoded(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:200].decode("utf-8", "replace")


def text_of(reply: Any, who: str) -> Text:
    """Return the kept parts of a chat completion. Raises `ToolError` if the reply is not one."""
    try:
        answer = answer_of(reply["choices"][0])
        usage = reply.get("usage") or {}
        tokens = [int(usage.get(f"{part}_tokens") or 0) for part in ("prompt", "completion")]
        return answer | {"tokens": tokens}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        shown = one_line(str(reply), 200)
        raise ToolError(
            "Q-AUGMENT-004",
            f"{who} did not answer with a chat completion: {shown!r}: correct augment.url; what was written "
            "is kept",
        ) from error
