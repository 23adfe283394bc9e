"""The pictures in README and docs, taken in Chromium from the pages of a finished project.

    python benchmarks/pictures.py [PROJECT]   # by default the project in this folder

Reads reports/{index,data,labels,parity}.html below PROJECT and writes docs/{report,data,labels,parity}.png. A
page that is missing ends it before any picture is written. Needs Debian's `chromium` (or Chrome) in PATH and
the package playwright, which `make dev` installs.
"""

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.places import PROJECT
from pipeline.core.publish import publishing

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Picture:
    """A page below reports/, the picture of it below docs/, and how much of it is seen, in CSS pixels."""

    page: str
    picture: str
    width: int
    height: int


PICTURES = (
    Picture("index.html", "report.png", 1280, 1480),
    Picture("labels.html", "labels.png", 1280, 1010),
    Picture("data.html", "data.png", 1200, 900),
    Picture("parity.html", "parity.png", 1112, 473),
)


def take(project: Path, docs: Path) -> list[Path]:
    """Write all pictures of the pages of `project` into `docs`, and return their paths.

    Ends with a sentence if a page or the browser is missing.
    """
    from playwright.sync_api import sync_playwright

    pages = {one: project / "reports" / one.page for one in PICTURES}
    missing = [str(page) for page in pages.values() if not page.is_file()]
    if missing:
        raise SystemExit(f"{missing[0]} is missing: run `snakemake`, which makes it")
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        raise SystemExit("chromium is missing: install Debian's package of that name")
    made = []
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=browser_path, args=options)
        for one, file in pages.items():
            page = browser.new_page(viewport={"width": one.width, "height": one.height}, color_scheme="light")
            page.goto(file.resolve().as_uri())
            with publishing(docs / one.picture) as aside:
                page.screenshot(path=aside, type="png")
            page.close()
            made.append(docs / one.picture)
        browser.close()
    return made


def main() -> None:
    """Take the pictures of the project that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("project", nargs="?", type=Path, default=Path(), metavar="PROJECT")
    for picture in take(parser.parse_args().project, PROJECT / "docs"):
        print(picture)


if __name__ == "__main__":
    main()
