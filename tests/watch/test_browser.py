"""The page of running and finished runs in a browser: it grows, stops a run, and shows no HTML of
strangers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedrift.watch.server import WatchServer
from tests.support.browsers import PHONE, browser, needs_browser, sync_api
from tests.watch.test_folders import add, folder, row

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser"]
pytestmark = needs_browser
expect = sync_api.expect
NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WatchServer]:
    add(folder(tmp_path, NASTY), "rounds.jsonl", row(1), row(2))
    with WatchServer(tmp_path) as opened:
        threading.Thread(target=opened.serve_forever, daemon=True).start()
        yield opened
        opened.shutdown()


def open_page(browser: Browser, server: WatchServer, **options: object) -> tuple[Page, list[str]]:
    page = browser.new_context(**options).new_page()  # type: ignore[reportArgumentType]
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(server.address)
    page.wait_for_selector("html[data-ready=true]")
    return page, complaints


def test_curves_grow_and_new_runs_appear(
    browser: Browser, server: WatchServer, tmp_path: Path
) -> None:
    page, complaints = open_page(browser, server)
    assert page.locator("#chart polyline").count() == 1
    assert NASTY in page.locator(".run .name").inner_text()
    assert page.locator("img").count() == 0
    before = page.locator("#chart polyline").get_attribute("points")
    add(tmp_path / NASTY, "rounds.jsonl", row(3), row(4))
    add(folder(tmp_path, "another"), "rounds.jsonl", row(1), row(2))
    expect(page.locator(".run")).to_have_count(2, timeout=15_000)
    expect(page.locator("#chart polyline")).to_have_count(2)
    assert before != page.locator("#chart polyline").last.get_attribute("points")
    page.select_option("#axis", "bytes")
    page.select_option("#measure", "loss")
    assert page.locator("#chart polyline").count() == 2
    page.fill("#search", "another")
    expect(page.locator(".run")).to_have_count(1)
    assert complaints == []


def test_the_title_says_what_runs_and_axes_of_logarithms_have_round_marks(
    browser: Browser, server: WatchServer, tmp_path: Path
) -> None:
    add(tmp_path / NASTY, "rounds.jsonl", row(3) | {"loss": 3.4e24})
    page, complaints = open_page(browser, server)
    assert page.title().endswith(f" · {tmp_path.name} · fedrift watch")
    assert "3.4e+24" in page.locator(".run .figures").inner_text()
    page.check("#log")
    marks = page.locator("#chart svg text[text-anchor=end]").all_text_contents()
    assert len(marks) >= 2 and len(set(marks)) == len(marks)
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_need_not_scroll_sideways(
    browser: Browser, server: WatchServer, scheme: str
) -> None:
    size = {"width": PHONE, "height": 800}
    page, complaints = open_page(browser, server, viewport=size, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert complaints == []


def test_the_button_ends_a_run_as_an_interrupt_would(
    browser: Browser, server: WatchServer, tmp_path: Path
) -> None:
    out = tmp_path / "long"
    command = [sys.executable, "-m", "fedrift", "run", "fedavg", "--data", "digits", "--rounds"]
    command += ["100000", "--workers", "0", "--out", str(out), "--quiet"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        page, complaints = open_page(browser, server)
        page.on("dialog", lambda dialog: dialog.accept())
        page.wait_for_selector("button.stop:not([hidden])", timeout=60_000)
        expect(page.locator(".run .cohort").first).to_be_visible(timeout=60_000)
        page.locator("button.stop:not([hidden])").click()
        assert process.wait(60) == 130
        page.wait_for_selector(".warning:not([hidden])", timeout=15_000)
        assert "fedrift resume" in page.locator(".warning:not([hidden])").first.inner_text()
        assert complaints == []


PAINTED = """() => {
  const all = document.getElementById("cells");
  const dots = all.getContext("2d").getImageData(0, 0, all.width, all.height).data;
  const kinds = new Set();
  for (let i = 0; i < dots.length; i += 4)
    if (dots[i + 3] === 255) kinds.add(`${dots[i]},${dots[i + 1]},${dots[i + 2]}`);
  return [kinds.size, kinds.has("213,94,0")];
}"""  # colours on the canvas, and whether one is that of a visit now


def test_every_client_has_a_bar_of_its_loss(
    browser: Browser, server: WatchServer, tmp_path: Path
) -> None:
    page, complaints = open_page(browser, server)
    assert page.locator("#clients").is_hidden()
    lines = ({"round": r, "client": [r, r + 1], "loss": [1.0 / r, 2.0 / r]} for r in (1, 2))
    add(tmp_path / NASTY, "training.jsonl", *lines)
    expect(page.locator("#told")).to_contain_text("Round 2: 2 visited; 3 of 4", timeout=15_000)
    colours, is_marked = page.evaluate(PAINTED)
    assert colours >= 3 and is_marked
    box = page.locator("#cells").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60 + 2 * 60, box["y"] + 140)  # the third bar
    expect(page.locator("#pointed")).to_have_text("client 2: loss 0.5 in round 2, visited twice")
    assert complaints == []


@pytest.mark.parametrize("width", [1200, PHONE])
def test_ten_thousand_clients_are_cells(
    browser: Browser, server: WatchServer, tmp_path: Path, width: int
) -> None:
    who = list(range(10_000))
    line = {"client": who, "loss": [1 + (i % 100) / 100 for i in who]}
    news = {"round": 2, "client": [5, 9_999], "loss": [1.0, 1.0]}
    add(tmp_path / NASTY, "training.jsonl", {"round": 1, **line}, news)
    size = {"width": width, "height": 800}
    page, complaints = open_page(browser, server, viewport=size)
    expect(page.locator("#told")).to_contain_text("Round 2: 2 visited; 10000 of 10000")
    colours, is_marked = page.evaluate(PAINTED)
    assert colours > 50 and is_marked
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#cells").evaluate("e => e.clientHeight") < 400
    assert complaints == []


STROKES = "() => [...document.querySelectorAll('#chart polyline')].map((line) => line.style.stroke)"


def test_a_method_has_one_colour_and_a_key(
    browser: Browser, server: WatchServer, tmp_path: Path
) -> None:
    page, complaints = open_page(browser, server)
    assert page.locator("#chart .keys").count() == 0, "one method: its runs are told apart"
    for name in ("m1", "m2", "m3"):
        path = folder(tmp_path, name)
        spec = (path / "spec.toml").read_text()
        known = next(line for line in spec.splitlines() if line.startswith("algorithm"))
        (path / "spec.toml").write_text(spec.replace(known, 'algorithm = "feddyn"'))
        add(path, "rounds.jsonl", row(1), row(2))
    expect(page.locator("#chart polyline")).to_have_count(4, timeout=15_000)
    strokes = page.evaluate(STROKES)
    assert len(set(strokes)) == 2 and max(map(strokes.count, strokes)) == 3
    assert "feddyn" in page.locator("#chart .keys").inner_text()
    assert page.locator("#chart .keys span").count() == 2 and not complaints


def test_runs_of_every_method_are_drawn_before_anybody_chose(
    browser: Browser, server: WatchServer, tmp_path: Path
) -> None:
    for i in range(12):
        path = folder(tmp_path, f"run{i:02}")
        spec = (path / "spec.toml").read_text()
        known = next(line for line in spec.splitlines() if line.startswith("algorithm"))
        if i == 11:
            (path / "spec.toml").write_text(spec.replace(known, 'algorithm = "feddyn"'))
        add(path, "rounds.jsonl", row(1), row(2))
    page, _ = open_page(browser, server)
    expect(page.locator("#chart polyline")).to_have_count(12)
    assert "12 of 13 runs are drawn" in page.locator("#chart").inner_text()
    assert "feddyn" in page.locator("#chart .keys").inner_text()


def test_a_curve_that_was_seen_to_grow_stays_when_its_run_ends(
    browser: Browser, server: WatchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [folder(tmp_path, f"run{i:02}") for i in range(16)]
    for path in paths:
        add(path, "rounds.jsonl", row(1), row(2))
    running: list[Path] = [paths[-1]]
    monkeypatch.setattr(
        "fedrift.watch.folders.writer_of", lambda path, _: 4711 if path in running else None
    )
    page, complaints = open_page(browser, server)
    drawn = page.locator("#chart polyline title", has_text="run15")
    expect(drawn).to_have_count(1)
    running[:] = paths[:12]
    (paths[-1] / "summary.json").write_text('{"status": "done"}')
    expect(page.locator(".run.done")).to_have_count(1, timeout=15_000)
    expect(drawn).to_have_count(1)
    assert page.locator("#chart polyline").count() == 13
    page.get_by_label("draw run15").uncheck()
    expect(drawn).to_have_count(0)
    assert complaints == []


def test_colours_are_those_of_the_report_and_other_runs_stand_apart(
    browser: Browser, server: WatchServer, tmp_path: Path
) -> None:
    for name, method in (("c/runs/a", "feddyn"), ("c/runs/b", "scaffold")):
        path = folder(tmp_path, name)
        spec = (path / "spec.toml").read_text()
        known = next(line for line in spec.splitlines() if line.startswith("algorithm"))
        (path / "spec.toml").write_text(spec.replace(known, f'algorithm = "{method}"'))
        add(path, "rounds.jsonl", row(1), row(2))
    (tmp_path / "c/compare.toml").write_text('algorithms = ["scaffold", "feddyn"]\n')
    page, complaints = open_page(browser, server)
    first = page.locator(".run", has_text="scaffold").locator(".swatch")
    assert first.evaluate("one => getComputedStyle(one).backgroundColor") == "rgb(0, 114, 178)"
    assert page.locator(".others").inner_text() == "Single runs"
    assert complaints == []


def test_an_empty_folder_says_how_to_begin(browser: Browser, tmp_path: Path) -> None:
    with WatchServer(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page, complaints = open_page(browser, server)
        assert page.locator("#state").inner_text() == "no run yet"
        assert f"--out {tmp_path.name}/first" in page.locator("#empty").inner_text()
        assert not page.locator("#measure").is_visible() and complaints == []
        server.shutdown()


def test_a_long_comparison_is_a_heading_and_rows_that_unfold(
    browser: Browser, server: WatchServer, tmp_path: Path
) -> None:
    for seed in range(40):
        path = folder(tmp_path, f"long/runs/fedavg-s{seed:02}")
        add(path, "rounds.jsonl", row(1), row(2))
        (path / "summary.json").write_text('{"status": "done"}')
    (tmp_path / "long/compare.toml").write_text('algorithms = ["fedavg"]\nseeds = 50\n')
    page, complaints = open_page(browser, server)
    assert page.locator(".comparison").inner_text().split() == (
        "long comparison: 40 of 50 runs done".split()
    )
    assert page.locator(".run.done").count() == 30
    page.get_by_role("button", name="show 10 more that are done").click()
    expect(page.locator(".run.done")).to_have_count(40)
    assert complaints == []
