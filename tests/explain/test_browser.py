"""The page of `fedrift explain` in a browser: every algorithm, every step, without an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedrift.explain import explain
from tests.support.browsers import PHONE, Opened, browser, needs_browser
from tests.support.explained import TRAINS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]
pytestmark = needs_browser


@pytest.fixture(scope="module")
def scaffold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return explain("scaffold", tmp_path_factory.mktemp("explain") / "page.html", rounds=3).path


def opened(page: Page, path: Path) -> Opened:
    """The page when its stage is drawn."""
    found = Opened(page, path)
    page.wait_for_selector("[data-chart=stage] .contourlayer path")
    return found


@pytest.mark.parametrize("name", TRAINS)
def test_every_moment_of_every_algorithm_draws(browser: Browser, tmp_path: Path, name: str) -> None:
    page = browser.new_page()
    found = opened(page, explain(name, tmp_path / "page.html", rounds=3).path)
    moments = page.evaluate("data.frames.length")
    assert page.evaluate("view.at") == page.evaluate("data.opens")
    page.evaluate("press('first')")
    said: set[str] = set()
    for moment in range(moments):
        assert page.evaluate("view.at") == moment
        said.add(page.inner_text("#heading"))
        assert page.inner_text("#words")
        assert page.locator("[data-chart=stage] .shapelayer path").count()
        page.evaluate("press('next')")
    assert len(said) == moments
    page.locator("[data-chart=progress]").scroll_into_view_if_needed()
    page.wait_for_selector("[data-chart=progress] .scatterlayer .trace")
    assert found.complaints == found.from_afar == []
    page.close()


def test_buttons_keys_slider_and_layers(browser: Browser, scaffold: Path) -> None:
    page = browser.new_page()
    found = opened(page, scaffold)
    assert "Round 2, local step" in page.inner_text("#heading")  # its correction is at work
    assert page.locator("[data-chart=stage] .annotation").count() > 4
    page.click("[data-go=first]")
    page.click("[data-go=next]")
    page.click("[data-go=next]")
    assert "local step 2" in page.inner_text("#heading")
    page.keyboard.press("ArrowLeft")  # with the button still in focus
    assert "local step 1" in page.inner_text("#heading")
    page.keyboard.press("End")
    assert page.evaluate("view.at === data.frames.length - 1")
    page.keyboard.press("Home")
    page.click("[data-go=next]")
    page.click("[data-go=round]")
    assert page.inner_text("#heading") == "Round 2"
    page.fill("#slider", "12")
    assert page.evaluate("view.at") == 12
    arrows = "[data-chart=stage] .annotation"
    before = page.locator(arrows).count()
    page.click("button[data-layer=Linear]")
    page.wait_for_function(f"() => document.querySelectorAll('{arrows}').length < {before}")
    assert page.get_attribute("button[data-layer=Linear]", "aria-pressed") == "false"
    page.click("[data-go=play]")
    page.wait_for_function("() => view.at > 13")
    assert page.get_attribute("[data-go=play]", "aria-label") == "Pause"
    page.click("[data-go=play]")
    assert page.evaluate("view.timer") is None
    assert found.complaints == found.from_afar == []
    page.close()


def test_an_axis_of_loss_has_several_marks(browser: Browser, tmp_path: Path) -> None:
    path = explain("fedavg", tmp_path / "page.html").path  # which stays within a factor of ten
    page = browser.new_page()
    found = opened(page, path)
    page.locator("[data-chart=progress]").scroll_into_view_if_needed()
    page.wait_for_selector("[data-chart=progress] .ytick text")
    assert page.locator("[data-chart=progress] .ytick text").count() >= 2
    assert found.complaints == []
    page.close()


def test_the_theme_switches(browser: Browser, scaffold: Path) -> None:
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    found = opened(page, scaffold)
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    assert found.complaints == found.from_afar == []
    context.close()


def test_a_phone_shows_it_without_scrolling_sideways(browser: Browser, scaffold: Path) -> None:
    context = browser.new_context(
        viewport={"width": PHONE, "height": 844}, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    found = opened(page, scaffold)
    page.click("[data-go=next]")
    assert not found.overflows
    assert found.complaints == found.from_afar == []
    context.close()
