"""report.html in Chromium: sorting, searching, themes and widths work, without any request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from report.conftest import NASTY

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
wait = pytest.importorskip("selenium.webdriver.support.wait")

PROGRAMS = ("chromium", "chromedriver")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium with an empty profile, which logs its console and every request."""
    found = [shutil.which(name) for name in PROGRAMS]
    if not all(found):
        missing = [name for name, path in zip(PROGRAMS, found, strict=True) if path is None]
        pytest.skip(f"{' and '.join(missing)} not found: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = found[0]
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=found[1])
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: Any, reported: Path) -> Any:
    """The report, freshly loaded on a wide screen with a light theme."""
    show(browser, 1440, "light")
    browser.get((reported / "report.html").as_uri())
    return browser


def show(browser: Any, width: int, scheme: str, media: str = "") -> None:
    wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wanted.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def find(page: Any, selector: str) -> Any:
    return page.find_element("css selector", selector)


def column(page: Any, place: int) -> list[str]:
    """The texts of the visible cells of a column, from top to bottom."""
    script = (
        "return Array.from(document.querySelectorAll('#errors tbody tr')).filter(r => !r.hidden)"
        f".map(r => r.cells[{place}].textContent)"
    )
    return list(page.execute_script(script))


def test_nothing_is_requested_and_the_console_is_empty(page: Any) -> None:
    seen: list[str] = []
    for entry in page.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            # The browser's own first page may still be loading.
            assert url.startswith(("file:", "data:", "chrome:")), url
            seen.append(url)
    assert [url for url in seen if url.endswith("report.html")]
    for button in page.find_elements("css selector", "button"):
        button.click()
    assert page.get_log("browser") == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_clients_can_be_sorted_with_the_mouse_and_with_the_keyboard(page: Any) -> None:
    share = [float(text) for text in column(page, 2)]
    assert share == sorted(share, reverse=True)  # the worst clients come first
    heads = page.find_elements("css selector", "#errors thead th")
    heads[1].find_element("tag name", "button").click()
    values = [float(text.replace(",", "")) for text in column(page, 1)]
    assert values == sorted(values) and len(values) == 12
    states = [head.get_attribute("aria-sort") for head in heads]
    assert states == ["none", "ascending", *["none"] * (len(heads) - 2)]
    heads[1].find_element("tag name", "button").send_keys("\n")
    assert [float(text.replace(",", "")) for text in column(page, 1)] == values[::-1]
    assert heads[1].get_attribute("aria-sort") == "descending"
    heads[0].find_element("tag name", "button").send_keys(" ")
    names = [name for name in column(page, 0) if name.startswith("cell")]
    assert names == [f"cell {i}" for i in range(3, 13)]  # numbers in names count as numbers


def test_clients_can_be_searched(page: Any) -> None:
    search = find(page, ".search input")
    search.send_keys("CELL 1")
    assert sorted(column(page, 0)) == ["cell 10", "cell 11", "cell 12"]
    assert find(page, ".search output").text == "3 rows"
    search.clear()
    search.send_keys("<script>")
    assert column(page, 0) == [NASTY]
    assert find(page, ".search output").text == "1 row"


def test_the_theme_follows_the_system_until_it_is_switched(page: Any) -> None:
    def background() -> str:
        return str(page.execute_script("return getComputedStyle(document.body).backgroundColor"))

    button, light = find(page, "#theme"), background()
    assert light == "rgb(255, 255, 255)" and button.text == "Dark theme"
    show(page, 1440, "dark")
    wait.WebDriverWait(page, 10).until(lambda _: button.text == "Light theme")
    dark = background()
    assert dark != light
    button.click()
    assert background() == light and button.text == "Dark theme"
    show(page, 1440, "light")
    button.click()
    assert background() == dark
    show(page, 1440, "light", "print")
    assert background() == light and not button.is_displayed()


@pytest.mark.parametrize("width", [390, 820, 1440])
def test_every_width_shows_the_whole_page(page: Any, width: int) -> None:
    show(page, width, "light")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    drawings = {kind: find(page, f"svg.{kind}").is_displayed() for kind in ("wide", "narrow")}
    assert drawings == {"wide": width > 600, "narrow": width < 600}
    # Labels of charts are inside their drawing.
    outside = page.execute_script(
        "const out = []; for (const svg of document.querySelectorAll('svg')) {"
        " const box = svg.getBoundingClientRect(); if (!box.width) continue;"
        " for (const text of svg.querySelectorAll('text')) {"
        "  const own = text.getBoundingClientRect();"
        "  if (own.left < box.left - 1 || own.right > box.right + 1"
        "      || own.bottom > box.bottom + 1 || own.top < box.top - 1) out.push(text.textContent);"
        " } } return out"
    )
    assert outside == []


def test_printed_tables_fit_on_the_paper(page: Any) -> None:
    """A4 has 688 pixels between its margins; for a wider table, browsers print everything small."""
    show(page, 688, "light", "print")
    assert page.execute_script("return document.documentElement.scrollWidth") <= 688
    assert find(page, "#errors").is_displayed()
