"""Download one file from a web server or an S3 store.

An earlier attempt is resumed if the file is still the same.
"""

import re
from pathlib import Path

from pipeline.config.sections.places import Url
from pipeline.core.errors import ConfigError, DataError, MachineError, QuenchError, ToolError
from pipeline.core.extra_packages import install_command
from pipeline.core.publish import need_disk
from pipeline.core.text import safe
from pipeline.core.units import size_text
from pipeline.stages.base.pinned_file import Coming, of_store, of_web

VERSION = "version"  # file next to the part, with the server's version of the file


def fetch_file_at(place: Url, part: Path, name: str) -> None:
    """Write the file at an address to `part`; `name` is its future name. Raises `QuenchError`."""
    noted = part.with_name(VERSION)
    version = noted.read_text(encoding="utf-8") if noted.exists() else ""

    def check(coming: Coming) -> None:
        if coming.type.partition(";")[0].strip() in ("text/html", "application/xhtml+xml"):
            raise DataError(
                "Q-GET-014",
                f"{place} gives a web page, not a file: take the address of the file itself (on GitHub: Raw)",
            )
        if coming.packing == "gzip" and not name.endswith(("gz", "GZ")):
            raise ConfigError(
                "Q-GET-002", f"{place} arrives packed by gzip: give it a name that ends in .gz with --to"
            )
        size = "of unknown size" if coming.bytes is None else f"{size_text(coming.bytes)} to fetch"
        print(f"get: {place}: {size}", flush=True)
        need_disk(part.parent, coming.bytes or 0)
        noted.write_text(coming.version, encoding="utf-8")

    pieces = of_store if place.url.startswith("s3:") else of_web
    with part.open("ab") as stream:
        if not version:  # Without a version, nobody knows whether the rest belongs to it.
            stream.truncate(0)
        try:
            for piece in pieces(place.url, stream.tell(), check, version):
                if piece is None:
                    stream.truncate(0)
                else:
                    stream.write(piece)
        except QuenchError:
            raise
        except ImportError as error:
            raise ToolError(
                "Q-GET-015", f"{place} needs a package that is not installed: `{install_command('s3')}`"
            ) from error
        except Exception as error:  # Each library has its own exceptions.
            if isinstance(error, OSError) and error.errno and error.filename == str(part):
                raise
            raise _refusal(error, place) from error


def _refusal(error: Exception, place: Url) -> QuenchError:
    """Return the error of a library as one for the user, without secrets of an address."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403) or isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
        return DataError(
            "Q-GET-010",
            f"{place} may not be read: check the address and the store's keys in the environment, or fetch "
            "the file by hand into data/raw",
        )
    if status in (404, 410) or isinstance(error, FileNotFoundError):
        return DataError("Q-GET-011", f"{place} is not there: correct the address")
    if status == 429:
        return MachineError(
            "Q-GET-012", f"{place}: the server asks to wait (429): run the same command again later"
        )
    message = re.sub(r"\w+://[^\s'\"]+", str(place), str(error).replace(place.url, str(place)))
    reason = safe(" ".join(message.split()), 200) or type(error).__name__
    return MachineError(
        "Q-GET-013",
        f"{place} can't be fetched ({reason}): check the address and the network, then run the same command "
        "again; it resumes where it stopped",
    )
