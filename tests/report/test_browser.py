"""The page in a browser: it opens from disk, draws, switches axis and theme, without an error."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from fedrift.report import write
from fedrift.report.methods import Working
from fedrift.report.selection import Labelled
from tests.support.browsers import PHONE, Opened, browser, needs_browser
from tests.support.product import run_record as results
from tests.support.run_folders import grid, run_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]
pytestmark = needs_browser
NASTY = "<img src=x onerror=alert(1)><b>bold</b>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    runs = grid(root / "runs")
    run_folder(runs / "diverged", algorithm="fedsam", alpha=0.1, status="diverged", level=0.3)
    nasty = results.load(run_folder(root / "nasty", algorithm="fednova", alpha=0.1))
    return write([runs, Labelled(nasty, NASTY)], root / "report.html").files[0]


class Report(Opened):
    """The page of a report."""

    def draw_all(self) -> None:
        for chart in self.page.query_selector_all(".chart"):
            chart.evaluate("chart => chart.scrollIntoView()")
            self.page.wait_for_function("chart => chart.querySelector('svg.main-svg')", arg=chart)

    def title_of_x(self) -> str:
        found = self.page.query_selector("[data-chart=curve] .xtitle")
        return "" if found is None else str(found.text_content())


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Report]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    yield Report(context.new_page(), report)
    context.close()


def test_it_opens_draws_everything_and_asks_for_nothing(opened: Report) -> None:
    opened.draw_all()
    assert opened.complaints == []
    assert opened.from_afar == []
    assert opened.page.locator("figure b, figure img[src=x]").count() == 0
    assert NASTY in opened.page.locator("#leaders").inner_text()


def test_the_axis_switches(opened: Report) -> None:
    page = opened.page
    opened.draw_all()
    assert opened.title_of_x() == "round"
    for value, title in (
        ("bytes", "sent, down and up"),
        ("gradients", "gradient"),
        ("seconds", "sec"),
    ):
        page.click(f"button[data-set=x][data-value={value}]")
        page.wait_for_timeout(100)
        assert title in opened.title_of_x()
    page.click("button[data-set=y][data-value=loss]")
    page.click("button[data-set=seeds][data-value=true]")
    page.wait_for_timeout(100)
    assert "loss" in str(page.text_content("[data-chart=curve] .ytitle"))
    assert opened.complaints == []


def test_the_legend_hides_a_method(opened: Report) -> None:
    page = opened.page
    opened.draw_all()
    before = page.locator("[data-chart=curve] .scatterlayer .trace").count()
    page.click("#curves button[data-method='1']")
    page.wait_for_timeout(100)
    assert page.locator("[data-chart=curve] .scatterlayer .trace").count() < before
    assert page.get_attribute("#curves button[data-method='1']", "aria-pressed") == "false"
    assert page.get_attribute("#clients button[data-method='1']", "aria-pressed") == "false"
    assert opened.complaints == []


def test_the_theme_switches_and_is_kept(opened: Report) -> None:
    page = opened.page
    opened.draw_all()
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    page.click("#theme")
    assert page.evaluate(colour) == "rgb(20, 24, 29)"
    page.reload()
    page.wait_for_selector("html[data-ready=true]")
    assert page.evaluate(colour) == "rgb(20, 24, 29)"
    assert opened.complaints == []


def test_tables_sort_and_filter(opened: Report) -> None:
    page = opened.page
    page.click("#leaders th:has-text('accuracy') button")
    texts = [str(t).split()[0] for t in page.locator("#leaders td:nth-child(4)").all_inner_texts()]
    numbers = [float(t) for t in texts if t != "(X)"]
    assert numbers == sorted(numbers, reverse=True)
    assert texts[-1] == "(X)"
    page.select_option("#leader-setting", label="dirichlet 1")
    assert page.locator("#leaders tbody tr:visible").count() == 3
    assert opened.complaints == []


def test_commands_are_copied(browser: Browser, report: Path) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    found = Report(context.new_page(), report)
    found.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    found.page.click("button[data-copies=singly]")
    found.page.wait_for_selector("button:has-text('Copied')")
    assert found.page.evaluate("navigator.clipboard.readText()").startswith("fedrift run fedavg ")
    assert found.complaints == []
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(
    browser: Browser, report: Path, scheme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(
        viewport={"width": PHONE, "height": 844},
        color_scheme=scheme,
        has_touch=True,
        is_mobile=True,
    )
    found = Report(context.new_page(), report)
    found.draw_all()
    assert not found.overflows
    assert found.complaints == []
    context.close()


def test_a_wide_picture_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    drawn = io.BytesIO()
    plt.imsave(drawn, [[0.0] * 1100] * 20)

    def explain(_: Sequence[str]) -> list[Working]:
        return [Working("FedAvg", ("It averages.",), drawn.getvalue())]

    page = write(grid(tmp_path / "runs"), tmp_path / "report.html", explain=explain).files[0]
    size = {"width": PHONE, "height": 844}
    context = browser.new_context(viewport=size, is_mobile=True)  # type: ignore[reportArgumentType]
    found = Report(context.new_page(), page)
    found.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert found.page.locator("#workings img").is_visible()
    assert not found.overflows
    context.close()


BROKEN = """() => [...document.querySelectorAll("#runs td.word, #runs tbody th")]
.filter((cell) => {
  const name = cell.textContent, words = document.createRange();
  if (/[\\s\\/-]/.test(name) || name.length > 20 || !cell.offsetWidth) return false;
  words.selectNodeContents(cell);
  return words.getClientRects().length > 1;
}).map((cell) => cell.textContent)"""  # single words on several lines


def test_words_of_a_table_stay_whole(opened: Report) -> None:
    opened.page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert opened.page.evaluate(BROKEN) == []


def test_curves_can_be_smoothed_filtered_and_held_against_a_target(opened: Report) -> None:
    page = opened.page
    opened.draw_all()
    first = page.locator("[data-chart=curve]").first
    line = ".scatterlayer .trace:nth-child(2) .js-line"
    before = first.locator(line).get_attribute("d")
    page.select_option("#smooth", "5")
    page.wait_for_timeout(100)
    assert first.locator(line).get_attribute("d") != before
    assert page.locator("[data-chart=curve] .annotation").count() == 0
    page.check("#target")
    assert "target " in str(first.locator(".annotation").text_content())
    page.fill("#target-at", "33")
    assert "target 33.0 %" in str(first.locator(".annotation").text_content())
    page.fill("#only", "scaf")
    page.wait_for_timeout(100)
    assert 0 < first.locator(".scatterlayer .trace").count() <= 2
    page.check("#log-x")
    page.check("#log-y")
    page.click("button[data-set=y][data-value=both]")
    page.wait_for_timeout(100)
    titles = first.locator(".ytitle, .y2title").all_text_contents()
    assert titles == ["test accuracy", "test loss"]
    assert opened.complaints == []


def test_hidden_columns_are_shown_when_they_are_chosen(opened: Report) -> None:
    page = opened.page
    column = "#leaders th:has-text('best round')"
    assert not page.is_visible(column)
    pick = page.locator("#leaderboard .pick")
    pick.locator("summary").click()
    pick.get_by_label("best round").check()
    assert page.is_visible(column)
    cells = page.locator("#leaders tbody tr").first.locator("td:visible, th:visible")
    assert cells.count() == 8
    assert opened.complaints == []


def test_rounds_have_whole_ticks_however_far_one_zooms(opened: Report) -> None:
    opened.draw_all()
    for kind in ("curve", "classes"):
        page = opened.page
        page.evaluate(
            "kind => Plotly.relayout(document.querySelector(`[data-chart=${kind}]`), "
            "{'xaxis.range[0]': 2, 'xaxis.range[1]': 4})",
            kind,
        )
        page.wait_for_timeout(200)
        ticks = page.locator(f"[data-chart={kind}] .xtick text").all_text_contents()
        assert len(ticks) == len({*ticks}) >= 2 and all("." not in tick for tick in ticks)


def test_print_shows_a_picture_of_every_chart_that_nobody_touched(opened: Report) -> None:
    opened.page.emulate_media(media="print")
    shown = opened.page.locator(".still svg").count()
    assert shown == opened.page.locator(".chart").count()
    assert opened.page.locator(".still svg:visible").count() == shown
    assert opened.complaints == []


def test_print_shows_a_chart_as_the_reader_changed_it(opened: Report) -> None:
    opened.draw_all()
    opened.page.click("button[data-set=x][data-value=bytes]")
    opened.page.emulate_media(media="print")
    assert opened.page.locator("[data-chart=curve] svg.main-svg:visible").count() > 0
    assert opened.page.locator("#curves .still svg:visible").count() == 0
    opened.page.pdf(format="A4")
    assert opened.complaints == []
