"""A chat template, which is an untrusted program. It is compiled in the sandbox that transformers uses, and
tried once in a process with limits before anything renders it without.

The way of transformers (utils/chat_template_utils.py) is copied here, because transformers takes a second and
110 MB to load. tests/stages/curate/test_length.py compares the two on llama.cpp's collection of templates.
Run as a script, this tries the templates on stdin (it imports nothing of the project).

    python -P template.py < templates.json
"""

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

# A template that is tried before its own clock is removed (`pipeline.chat.clock`) may print the day. It is
# always this one, a Wednesday in September.
DAY = datetime(2023, 9, 27)
SPECIAL = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
CPU_SECONDS = 2  # seconds of the whole trial; a valid template needs a twentieth
MEMORY_BYTES = 1 << 30  # bytes of address space; Python and Jinja need a tenth
LONGEST_TEXT = 1 << 20  # characters of a conversation of a few words
LIMITS = {
    resource.RLIMIT_CPU: CPU_SECONDS,
    resource.RLIMIT_AS: MEMORY_BYTES,
    resource.RLIMIT_CORE: 0,
}


def compiled(template: str) -> Callable[..., str]:
    """Return the template's render function, in the sandbox that transformers uses.

    Raises jinja2's `TemplateSyntaxError`, or any other error of the compiler.
    """
    render: Callable[..., str] = environment().from_string(template).render
    return render


def environment() -> Any:
    """Return the sandbox of jinja2 that transformers renders chat templates in."""
    from jinja2 import TemplateError, ext, nodes
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """Tag `{% generation %}`, which marks the assistant's text. Here it renders only its content."""

        tags = {"generation"}  # noqa: RUF012 (jinja2's attribute)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    sandbox.filters["tojson"] = tojson
    sandbox.globals |= {"raise_exception": raise_exception, "strftime_now": DAY.strftime}
    return sandbox


def try_templates(templates: Mapping[str, str], owner: str) -> str | None:
    """Try the templates (by name) of `owner`, a file or folder, on short conversations in a process with
    limits of time and memory. Return the reason why one can't be compiled; None if all can.

    Raises `DataError` for one that exceeds the limits. A template may refuse a conversation.
    """
    # The import is not at the top because the script imports nothing of the project.
    from pipeline.core.child import bound
    from pipeline.core.errors import DataError

    done = subprocess.run(
        bound([sys.executable, "-P", str(Path(__file__).resolve())], limits=LIMITS),
        input=json.dumps(dict(templates)).encode(),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode < 0:
        number = -done.returncode
        ended = f"ends the process that renders it (signal {number})"
        excess = f"takes more than {CPU_SECONDS} s" if number == signal.SIGXCPU else ended
    else:
        done.check_returncode()
        verdict: dict[str, str] = json.loads(done.stdout)
        if "excess" not in verdict:
            return verdict.get("broken")
        excess = verdict["excess"]
    raise DataError(
        "Q-CHAT-008",
        f"the chat template of {owner} {excess} on a conversation of a few words: take another model, or "
        "correct the template",
    )


def conversations() -> Iterator[dict[str, Any]]:
    """Yield the conversations that a template is tried on: a question, a system turn, reasoning, a tool's
    call, and 64 turns.
    """
    question, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}, "id": "c00000001"}
    tool = {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {"type": "object", "properties": {"x": {"type": "number"}}},
        },
    }
    called = [
        question,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "1", "name": "f", "tool_call_id": "c00000001"},
    ]
    reasoned = answer | {"reasoning_content": "r", "thinking": "r"}
    for messages, tools in (
        ([question], None),
        ([{"role": "system", "content": "s"}, question, reasoned, question], None),
        (called, [tool]),
        ([question, answer] * 32, None),
    ):
        for prompt in (True, False):
            yield {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}


def verdict_on(templates: Mapping[str, str]) -> dict[str, str]:
    """Return the verdict on the templates.

    `excess` is set for a template that recurses, or needs too much memory, on the conversations. `broken` is
    the reason why one can't be compiled.
    """
    tokens = {name: f"<{name}>" for name in SPECIAL}
    for source in templates.values():
        try:
            render = compiled(source)
        except (RecursionError, MemoryError):
            raise
        except Exception as error:  # errors of Jinja, and of the Python that it generates
            return {"broken": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
        for conversation in conversations():
            try:
                text = render(**conversation, **tokens)
            except (RecursionError, MemoryError):
                raise
            except Exception:  # noqa: S112 (it may refuse, or stumble over, what it is shown)
                continue
            if len(text) > LONGEST_TEXT:
                return {"excess": f"writes more than {LONGEST_TEXT:,} characters"}
    return {}


def main() -> None:
    """Write the verdict on the templates on stdin, as JSON."""
    try:
        verdict = verdict_on(json.load(sys.stdin))
    except RecursionError:
        verdict = {"excess": "nests or calls itself too deeply"}
    except MemoryError:
        verdict = {"excess": f"takes more than {MEMORY_BYTES >> 30} GB of memory"}
    json.dump(verdict, sys.stdout)


if __name__ == "__main__":
    main()
