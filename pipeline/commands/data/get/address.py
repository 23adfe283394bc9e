"""Parse an address of a data set on the hub, or of a file on a web server or an S3 store."""

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from pipeline.config.sections.places import Url
from pipeline.core.errors import ConfigError
from pipeline.core.text import safe

REPOSITORY = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
ON_HUB = re.compile(rf"({REPOSITORY})(?:@(\S+))?")
HOSTS = ("huggingface.co", "hf.co", "www.huggingface.co")
PAGE = re.compile(rf"/datasets/({REPOSITORY})(?:/tree/([^/]+))?/?")
FILE_PAGE = re.compile(rf"(/datasets/{REPOSITORY}/)blob(/.+)")
PLAIN_NAME = re.compile(r"[^/\\\x00-\x1f]+(?:/[^/\\\x00-\x1f]+)*")


@dataclass(frozen=True)
class OnHub:
    """Data set on the hub at a commit, branch or tag. None is the current commit."""

    repository: str
    revision: str | None


def parsed_address(address: str) -> OnHub | Url:
    """Return the parsed address. Raises `ConfigError` if it is not one."""
    match = ON_HUB.fullmatch(address)
    if match:
        return OnHub(match[1], match[2])
    scheme = address.partition("://")[0]
    if scheme not in ("http", "https", "s3"):
        if Path(address).exists():
            why = "a file of this machine: copy it into data/raw"
        else:
            why = "no address: write OWNER/NAME, OWNER/NAME@COMMIT, https://… or s3://…"
        raise ConfigError("Q-GET-001", f"{safe(address)} is {why}")
    url = urlsplit(address)
    if url.hostname in (*HOSTS, urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname):
        page = PAGE.fullmatch(url.path)
        if page:
            return OnHub(page[1], page[2] and unquote(page[2]))
        address = url._replace(path=FILE_PAGE.sub(r"\1resolve\2", url.path)).geturl()
    return Url(url=address)


def file_name(place: Url) -> str:
    """Return the name of the file at an address, without a query."""
    return unquote(PurePosixPath(urlsplit(place.url).path).name)


def need_plain_name(name: str, option: str) -> str:
    """Return a name below data/raw.

    Raises `ConfigError` unless it is relative, stays below and is not hidden.
    """
    if not PLAIN_NAME.fullmatch(name) or any(part.startswith(".") for part in name.split("/")):
        raise ConfigError(
            "Q-GET-002",
            f"{option} is {safe(name)!r}, which is no name below data/raw: give one that is relative and not "
            "hidden, with --to",
        )
    return name
