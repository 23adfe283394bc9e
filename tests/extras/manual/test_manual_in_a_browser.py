"""The manual in Chromium, as it is served: no other host is asked, and the search finds settings."""

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

import pytest
from needed import need

from pipeline.extras.manual import site
from pipeline.extras.manual.command import Quiet

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LACKS = [
    name for name, there in (("chromium", CHROMIUM), (site.GENERATOR, find_spec(site.GENERATOR))) if not there
]
pytestmark = [pytest.mark.skipif(bool(LACKS), reason=need(", ".join(LACKS))), pytest.mark.slow]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    handler = partial(Quiet, directory=site.built_site().parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_fit_and_ask_no_other_host(browser: Any, address: str, width: int, scheme: str) -> None:
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index", "stages/train", "settings", "commands", "troubleshooting"):
        page.goto(f"{address}{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    assert asked and [url for url in asked if not url.startswith(address)] == []
    used = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
    assert used == {"light": "default", "dark": "slate"}[scheme]


def test_the_search_finds_a_setting(browser: Any, address: str) -> None:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(f"{address}index.html")
    page.get_by_role("button", name="Search").first.click()
    page.locator("dialog input").first.fill("lora_alpha")
    page.locator("dialog a[href$='#train-lora_alpha']").first.click()
    page.wait_for_url("**/settings.html*")
