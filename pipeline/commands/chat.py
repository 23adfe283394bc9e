"""Chat in the terminal with the model that `quench serve` serves: streamed answers, dimmed reasoning, speed.

A line that ends in a backslash continues on the next one. Between two lines of three double quotes, text is
taken unchanged (for pasting).

Reads `.quench/api-key` and section `serve`. The conversation is kept in memory only.

    quench chat [MODEL]
"""

import contextlib
import io
import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import httpx

from pipeline.chat.template_probe import Message
from pipeline.commands.project import Project
from pipeline.config.params import Params
from pipeline.core.errors import ConfigError, ToolError
from pipeline.core.text import one_line, safe
from pipeline.llamacpp.server import connect
from pipeline.serve.client import BROKEN_OFF, Piece, opening, parse_line, reason
from pipeline.serve.key import KEY_FILE, read_key
from pipeline.serve.port import server_url

HELP = (
    "/new forgets the conversation, /quit ends (so do Ctrl-D and Ctrl-C twice), Ctrl-C breaks an answer "
    "off, \\ continues in the next line, "
    '""" many lines'
)
FENCE = '"""'
HALF = re.compile("[\ud800-\udfff]")  # Python's replacement of a byte that is not UTF-8
DIM = "\033[2m"
PLAIN = "\033[0m"


def served_model(client: httpx.Client) -> str:
    """Return the name of the model behind `client`. Raises `ToolError` if no server of this project answers.

    The first request has no key: a program that listens on the port and requires none does not get it.
    """
    what = f"what listens on {client.base_url}"
    remedy = "stop it, or serve on another port (`quench serve --port N`)"
    try:
        # The request is sent without the key.
        answer = httpx.get(client.base_url.join("/v1/models"), timeout=10, trust_env=False)
        if answer.status_code == 503:
            raise ToolError(
                "Q-SERVE-019",
                f"the server on {client.base_url} is still loading its model: try again in a moment",
            )
        if answer.status_code != 401:
            raise ToolError(
                "Q-SERVE-015",
                f"{what} asks for no key (HTTP {answer.status_code}), so `quench serve` did not start it: "
                f"{remedy}",
            )
        answer = client.get("/v1/models", timeout=10)
        if answer.status_code != 200:
            raise ToolError(
                "Q-SERVE-015",
                f"{what} does not take this project's key (HTTP {answer.status_code}): stop it, then run "
                "`quench serve`",
            )
        return str(answer.json()["data"][0]["id"])
    except httpx.TimeoutException:
        raise ToolError("Q-SERVE-015", f"{what} does not answer: {remedy}") from None
    except httpx.ConnectError:
        raise ToolError(
            "Q-SERVE-013",
            f"nothing answers on {client.base_url}: start the server with `quench serve` in another terminal",
        ) from None
    except (httpx.RequestError, ValueError, KeyError, IndexError, TypeError):
        raise ToolError("Q-SERVE-015", f"{what} is not a llama-server: {remedy}") from None


def stream(client: httpx.Client, messages: list[Message]) -> Generator[Piece]:
    """Yield the answer's pieces; the last ones contain usage and timings.

    Raises `ToolError` if the server refuses.

    A caller that stops asking for pieces closes the connection. The server then frees the answer's slot.
    """
    body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                raise ToolError(
                    "Q-SERVE-016", f"the server answered {answer.status_code}: {reason(answer.read())}"
                )
            for piece in filter(None, map(parse_line, answer.iter_lines())):
                if piece.error:
                    raise ToolError("Q-SERVE-017", f"the server broke off ({piece.error}): {BROKEN_OFF}")
                yield piece
    except httpx.RequestError as error:
        raise ToolError("Q-SERVE-017", f"the server broke off ({error}): {BROKEN_OFF}") from None


def read_message(ask: Callable[[], str]) -> tuple[str, bool]:
    """Read one message of one or more lines. Return it, and True if it is a command. After a backslash the
    next line belongs to the message. After three quotes all lines up to three quotes belong to it, unchanged.
    The end of input ends a message that has begun.
    """
    text = ask()
    if text.strip() == FENCE:
        lines: list[str] = []
        with contextlib.suppress(EOFError):
            while (line := ask()).strip() != FENCE:
                lines.append(line)
        return "\n".join(lines), False
    while text.endswith("\\"):
        text = f"{text[:-1]}\n"
        with contextlib.suppress(EOFError):
            text += ask()
    text = text.strip()
    return text, text.startswith("/")


def converse(
    client: httpx.Client,
    ask: Callable[[], str],
    show: Callable[[str], None],
    system_prompt: str | None = None,
) -> None:
    """Ask and stream answers until `/quit`, the end of input or Ctrl-C twice.

    `ask` returns a line, `show` prints text. Every conversation begins with `system_prompt`.
    """
    messages = opening(system_prompt)
    interrupted = False
    while True:
        try:
            text, is_command = read_message(ask)
        except EOFError:
            return
        # This was a mistake, or came just after the answer's end: the conversation is kept.
        except KeyboardInterrupt:
            if interrupted:
                return
            show("\n(Ctrl-C again ends)\n")
            interrupted = True
            continue
        interrupted = False
        if is_command and text == "/quit":
            return
        if is_command and text == "/new":
            messages = opening(system_prompt)
            show("a new conversation\n")
        elif is_command:
            show(HELP + "\n")
        elif HALF.search(text):
            show("that is not UTF-8, so it was not sent: set the terminal to UTF-8\n")
        elif text.strip():
            turn = [*messages, {"role": "user", "content": text}]
            try:
                messages = [*turn, {"role": "assistant", "content": _answer(client, turn, show)}]
            except ToolError as error:  # The conversation is unchanged: /new helps after a full context.
                show(safe(f"{error}\n", lines=True))


def main(params: Params, root: Path, model: str | None) -> None:
    """Chat with the running server. Raises `ConfigError` if it serves another model than `model`."""
    with connect(server_url(root, params.serve.port), read_key(root / KEY_FILE)) as client:
        served = served_model(client)
        if model:
            wanted = f"{params.convert.name}-{Project(params, root).name_of(model)}"
            if served.partition("+")[0] != wanted:
                raise ConfigError(
                    "Q-SERVE-020",
                    f"{served} is served, not {model}: stop that server, then `quench serve {model}`",
                )
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (gives input() history and line editing)
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # Bytes that are not UTF-8 fail only one message.
        print(f"{served}: {HELP}")
        name = served.partition("+")[0].removeprefix(f"{params.convert.name}-")
        system_prompt = Project(params, root).system_prompt(name)
        if system_prompt:
            print(f"system prompt, as in training: {one_line(system_prompt)}")
        converse(client, lambda: input("> "), _show, system_prompt)


def _answer(client: httpx.Client, messages: list[Message], show: Callable[[str], None]) -> str:
    text = ""
    timings: dict[str, float] = {}
    dim = False
    with contextlib.closing(stream(client, messages)) as answer:
        try:
            for piece in answer:
                if bool(piece.reasoning) > dim:  # Reasoning begins.
                    show(DIM)
                if dim and piece.text:
                    show(PLAIN + "\n")
                dim = bool(piece.reasoning) or (dim and not piece.text)
                text += piece.text
                timings = piece.timings or timings
                # A piece may consist only of a cursor movement.
                show(safe(piece.reasoning + piece.text, lines=True))
        except KeyboardInterrupt:
            show(" (broken off)")
        finally:
            if dim:
                show(PLAIN)
    if timings.keys() >= {"predicted_n", "predicted_per_second"}:
        show(f"\n[{timings['predicted_n']} tokens, {timings['predicted_per_second']:.1f} tokens/s]\n")
    else:
        show("\n")
    return text


def _show(text: str) -> None:
    sys.stdout.write(text if sys.stdout.isatty() else text.replace(DIM, "").replace(PLAIN, ""))
    sys.stdout.flush()
