"""Write the demo's data: the running interpreter's own standard library as "describe this callable as JSON"
chats.

Real text that is on every machine and that nobody wrote for this purpose. Each row asks for the JSON record
of one function or class (module, name, required and optional parameters, summary); every field can be read
off the question, so an answer can be checked field by field. Same interpreter, same bytes. No network.

Other kinds show other methods of training: `rewards` gives two chats in three a chatty answer and the
reward 0, the others the reward 1; `preferences` makes each right answer the chosen one of a pair.

    python examples/pydoc.py [--out data/raw/pydoc.jsonl] [--kind chats|rewards|preferences]
"""

import argparse
import importlib
import inspect
import json
import pkgutil
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.core.jsonl import write_rows

TASK = "Describe this Python callable as JSON."
# importing these opens windows or browsers, prints, or brings thousands of tables; distutils may be
# setuptools' own
SKIPPED = {
    "antigravity",
    "distutils",
    "encodings",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "this",
    "tkinter",
    "turtle",
    "turtledemo",
}
DOC_CHARACTERS = 480  # rows have 130 tokens on average and 300 at most
SUMMARY_CHARACTERS = 160
MAX_PARAMETERS = 8
MAX_DEFAULT_CHARACTERS = 20


class _Dots:
    """Stands for a default that has no short, stable spelling (an object's address, a path, a set's
    order).
    """

    def __repr__(self) -> str:
        return "..."


def modules() -> Iterator[ModuleType]:
    """The standard library's public modules that import here, top level first, then packages' parts, by
    name.
    """
    tops = [module for name in sorted(sys.stdlib_module_names - SKIPPED) if (module := _import(name))]
    parts = [
        found.name
        for top in tops
        if hasattr(top, "__path__")
        for found in pkgutil.walk_packages(top.__path__, top.__name__ + ".", onerror=lambda name: None)
    ]
    yield from tops
    yield from filter(None, map(_import, sorted(set(parts))))


def _import(name: str) -> ModuleType | None:
    if any(part.startswith("_") or part in SKIPPED for part in name.split(".")):
        return None
    try:
        module = importlib.import_module(name)
    except ImportError:  # another platform's module, or one this interpreter was built without
        return None
    file = getattr(module, "__file__", None)
    folders = {Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")}
    ours = file is None or any(folder in Path(file).resolve().parents for folder in folders)
    return module if ours and "site-packages" not in str(file) else None


def callables() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """(module, name, object) of every public function and class, each object once, where it is first met."""
    met: dict[int, object] = {}  # holds the objects too, so that no id is used again
    for module in modules():
        own = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__
        ]
        for name in sorted(set(getattr(module, "__all__", own))):
            value = getattr(module, name, None)
            if callable(value) and not name.startswith("_") and id(value) not in met:
                met[id(value)] = value
                yield module.__name__, name, value


def signature(value: Callable[..., Any]) -> inspect.Signature | None:
    """The signature without annotations and with unstable defaults as `...`; None where it is unknown,
    private or long.
    """
    try:
        found = inspect.signature(value)
    except (ValueError, TypeError):  # written in C, without a text signature
        return None
    parameters = list(found.parameters.values())
    if len(parameters) > MAX_PARAMETERS or any(parameter.name.startswith("_") for parameter in parameters):
        return None
    plain = [
        parameter.replace(annotation=parameter.empty, default=stable_default(parameter.default))
        for parameter in parameters
    ]
    return inspect.Signature(plain)


def stable_default(default: Any) -> Any:
    """`default` if it is a short constant that is the same in every run, else something spelled `...`."""
    if default is inspect.Parameter.empty:
        return default
    constant = type(default) in (type(None), bool, int, float, str, bytes)
    return (
        default
        if constant and len(repr(default)) <= MAX_DEFAULT_CHARACTERS and "/" not in repr(default)
        else _Dots()
    )


def parameter_names(found: inspect.Signature) -> tuple[list[str], list[str]]:
    """(required, optional): those without a default, and those with one, `*args` and `**kwargs` with their
    stars.
    """
    required, optional = [], []
    for parameter in found.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            optional.append("*" + parameter.name)
        elif parameter.kind is parameter.VAR_KEYWORD:
            optional.append("**" + parameter.name)
        elif parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            optional.append(parameter.name)
    return required, optional


def summary(doc: str) -> str | None:
    """The first sentence of the first paragraph on one line; None where it is long or only repeats the
    signature.
    """
    paragraph = " ".join(doc.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z\"'`(])", paragraph)[0]
    repeats = re.match(r"[\w.]+\s?\(", sentence) or "->" in sentence
    return None if repeats or not sentence or len(sentence) > SUMMARY_CHARACTERS else sentence


def shortened(doc: str) -> str:
    """At most `DOC_CHARACTERS` of the docstring, cut between words."""
    if len(doc) <= DOC_CHARACTERS:
        return doc
    return doc[: DOC_CHARACTERS - 3].rsplit(None, 1)[0] + "..."


def row(module: str, name: str, value: Callable[..., Any]) -> dict[str, Any] | None:
    """One chat in OpenAI's `messages` form; None where the callable gives no checkable question."""
    doc = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    found = signature(value)
    if not isinstance(doc, str) or found is None:
        return None
    doc = inspect.cleandoc(doc)
    said = summary(doc)
    if said is None:
        return None
    question = f"{TASK}\n\nmodule {module}\n{name}{found}\n\n{shortened(doc)}"
    if re.search(r" at 0x[0-9a-fA-F]+", question):  # an address differs from run to run
        return None
    required, optional = parameter_names(found)
    answer = {"module": module, "name": name, "required": required, "optional": optional, "summary": said}
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": text}]}


def rows() -> Iterator[dict[str, Any]]:
    """Every row, in the order of `callables`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated modules say so when imported
        for module, name, value in callables():
            if made := row(module, name, value):
                yield made


def chatty(record: dict[str, Any]) -> str:
    """The same facts in a style that no program can read."""
    takes = ", ".join(record["required"]) or "nothing"
    return (
        f"Sure! {record['name']} is in the module {record['module']}. It takes {takes}. {record['summary']}"
    )


def swapped(record: dict[str, Any]) -> str:
    """The record with its parameters in the wrong lists, the required ones as optional ones."""
    wrong = record | {"required": record["optional"], "optional": record["required"]}
    return json.dumps(wrong, ensure_ascii=False, separators=(",", ":"))


def rewarded(found: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The chats with rewards: two in three have a chatty answer, and the reward 0."""
    for number, one in enumerate(found):
        question, answer = one["messages"]
        if number % 3:
            answer = answer | {"content": chatty(json.loads(answer["content"]))}
        yield {"messages": [question, answer], "reward": float(number % 3 == 0)}


def preferences(found: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Pairs: the right answer is chosen, one that is chatty or has its parameters swapped is rejected."""
    for number, one in enumerate(found):
        question, answer = one["messages"]
        record = json.loads(answer["content"])
        same = record["required"] == record["optional"]
        rejected = chatty(record) if number % 2 or same else swapped(record)
        yield {
            "prompt": [question],
            "chosen": [answer],
            "rejected": [{"role": "assistant", "content": rejected}],
        }


Rows = Iterator[dict[str, Any]]
KINDS: dict[str, Callable[[Rows], Rows]] = {"chats": iter, "rewards": rewarded, "preferences": preferences}


def main(argv: list[str] | None = None) -> None:
    """Write the rows and say how many."""
    parser = argparse.ArgumentParser(
        description="Write the demo's data from the standard library's own docstrings."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("data/raw/pydoc.jsonl"), metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--kind", choices=KINDS, default="chats", help="default: %(default)s")
    asked = parser.parse_args(argv)
    here = Path(__file__).resolve().parent
    # else "import pydoc" finds this file
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    print(f"{write_rows(asked.out, KINDS[asked.kind](rows()))} rows in {asked.out}")


if __name__ == "__main__":
    main()
