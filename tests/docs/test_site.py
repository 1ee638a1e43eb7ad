"""The site builds without a warning, asks nothing of the network, and its search works from a folder."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.docs.pages import PAGES, ROOT

CHROMIUM = shutil.which("chromium")
expect.set_options(timeout=30_000)  # milliseconds; a busy machine renders late
FETCHED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}  # by a browser, unasked


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the built site. A link, an anchor or a page that is not in the navigation would be a warning, and fail."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser_page(site) -> Iterator[tuple[Page, list[str]]]:
    """A browser without a server, and everything that it asks for outside of the site's folder, or complains of."""
    if CHROMIUM is None:
        pytest.skip("no chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, unwanted = browser.new_page(), []
        page.on("request", lambda request: None if request.url.startswith(site.as_uri()) else unwanted.append(request.url))
        page.on("console", lambda message: unwanted.append(message.text))
        page.on("pageerror", lambda error: unwanted.append(str(error)))
        yield page, unwanted
        browser.close()


def test_every_page_is_on_the_site(site):
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    told = {path.relative_to(ROOT).with_suffix(".html").as_posix() for path in PAGES}
    assert built == (told - {"README.html"}) | {"index.html", "404.html"}


def test_no_page_names_another_server_for_a_browser_to_fetch_from(site):
    fetched = [source for path in site.rglob("*.html") for source in sources_in(path.read_text(encoding="utf-8"))]
    for path in site.rglob("*.css"):
        fetched += re.findall(r"(?:@import|url\()\s*[\"']?([^\"')\s]+)", path.read_text(encoding="utf-8"))
    assert any(source.endswith(".css") for source in fetched)
    assert not [source for source in fetched if source.startswith(("http:", "https:", "//"))]


def test_pages_open_from_the_folder_without_a_request_or_an_error(site, browser_page):
    page, unwanted = browser_page
    for name in ("index.html", "docs/vit_tp.html"):  # with pictures, from two folders
        page.goto((site / name).as_uri())
        expect(page.locator("h1").first).to_be_visible()
        assert page.evaluate("[...document.images].every((image) => image.naturalWidth)")
    assert unwanted == []


def test_the_search_works_from_the_folder(site, browser_page):
    page, unwanted = browser_page
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("gather and scatter")
    expect(page.locator(".md-search-result__item").first).to_contain_text("Tensor parallelism, step by step")
    assert unwanted == []


def sources_in(html: str) -> list[str]:
    found = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            values = dict(attrs)
            if tag in FETCHED and values.get("rel") != "canonical":
                found.append(values.get(FETCHED[tag]) or "")

    Reader().feed(html)
    return found
