"""Functions of `quench remote` that run on the host. These modules are sent unchanged to `python3 -` there,
followed by one call. They use only the standard library, because the project's code may not be there yet.

Below ~/.cache/quench/remote, which only its owner can read:
    incoming/HASH       a file that rsync is sending
    objects/HASH        a file that arrived and was hashed
    runs/RUN/code       links to objects: the package, as it is at home
    runs/RUN/project    params.yaml and links to train's inputs; train's outputs
    runs/RUN/out/HASH   files on their way home
    runs/RUN/sent       the objects that it was started from
    runs/RUN/alive      a lock that processes of the run hold
    runs/RUN/log, exit  train's output; its exit code

Answers are lines of JSON after MARK: the output of a login shell is ignored.
"""

from pathlib import Path

MODULES = ("files", "runs")  # The order is that of their imports.
# Each module gets its own name, so that they can import each other.
MAKE = """
import sys, types
sys.path[:] = [path for path in sys.path if path]  # or a module of the home folder would hide the library's
for name, text in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
module.main({what!r}, **{given!r})
"""


def script(what: str, given: dict[str, object]) -> str:
    """Return the source that the host's Python runs for `what(**given)`."""
    sources = {
        f"{__name__}.{name}": Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        for name in MODULES
    }
    return MAKE.format(sources=sources, what=what, given=given)
