"""The page: one file that asks for nothing, in a real browser where the machine has one."""

import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dflash_exp.cli import main
from tests.compare.chromium import Page, browser, find_chromium
from tests.compare.sweeps import ANALYSIS, Job, noisy, sweep_of, write_jobs
from tests.lengths import full_or

ORDERS = {"shuffle": noisy(3, 0.02, 3, 1), "stride_jitter": noisy(2.8, 0.02, 3, 2), "diversity_first": [3.3, 3.4, 3.2]}


def compared(sweep_dir: Path) -> Path:
    assert main(["compare", str(sweep_dir)]) == 0
    return sweep_dir / "compare" / "compare.html"


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compared(sweep_of(tmp_path_factory.mktemp("page") / "test", ORDERS))


class Links(HTMLParser):
    """Whatever a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value and not value.startswith(("#", "data:")):
                self.found.append(value)


def test_the_page_refers_to_nothing_outside_itself(page_path: Path) -> None:
    text = page_path.read_text()
    links = Links()
    links.feed(text)
    assert links.found == [] and "@import" not in text
    assert {url[0] for url in re.findall(r"url\(([^)]*)", text)} == {"#"}


def test_ids_of_inline_figures_are_unique(page_path: Path) -> None:
    referred = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', page_path.read_text()))
    ids = re.findall(r' id="([^"]+)"', page_path.read_text())
    clips = [one for one in ids if one in referred]
    assert clips and len(clips) == len(set(clips))


def test_what_a_run_is_called_cannot_become_markup(tmp_path: Path) -> None:
    jobs = [
        Job(arm, seed, 3.0, overrides=(f"interleave={arm}", f"notes=<script>alert('{arm}')</script>"))
        for arm in ("shuffle", "stride_jitter")
        for seed in range(3)
    ]
    text = compared(write_jobs(tmp_path / "test", jobs)).read_text()
    assert "<script>alert" not in text and "notes=&lt;script&gt;alert" in text


def test_55_runs_make_a_page_under_5_mb(tmp_path: Path) -> None:
    """The time is a bound of its processor seconds; on a machine of its own it is no more by the clock."""
    arms = ("shuffle", "stride_jitter", "diversity_first")
    n_records = full_or(2000, 300)
    widths = [("stride_jitter", {"interleave.jitter_strides": width}) for width in range(8)]
    jobs = [
        Job(
            arm,
            seed,
            3.0 + 0.01 * at,
            n_records=n_records,
            config=more,
            overrides=(f"interleave={arm}", f"width={at}"),
        )
        for at, (arm, more) in enumerate([*((arm, {}) for arm in arms), *widths])
        for seed in range(5)
    ]
    path = write_jobs(tmp_path / "large", jobs, {**ANALYSIS, "baseline": "width=0", "contrast": "width=1"})
    began_s = time.process_time()
    page = compared(path)
    assert time.process_time() - began_s < 20 and page.stat().st_size < 5e6


chromium = pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine")


@chromium
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_the_page_without_an_error_or_a_request(page_path: Path, tmp_path: Path, dark: bool) -> None:
    with browser(tmp_path) as page:
        page.open(page_path, dark=dark)
        assert page.picture().startswith(b"\x89PNG")
        assert [url for url in page.requested if not url.startswith("data:")] == [page_path.resolve().as_uri()]
        assert page.logged == []
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert shade == ("rgb(22, 24, 27)" if dark else "rgb(255, 255, 255)")
        assert page.evaluate("document.querySelectorAll('figure svg').length") == 7
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.printed().startswith(b"%PDF")


def column(page: Page, table: str, n: int) -> list[str]:
    return page.evaluate(f"[...document.querySelectorAll('#{table} tbody td:nth-child({n})')].map(x => x.textContent)")


@chromium
def test_a_table_is_sorted_by_the_column_that_is_clicked(page_path: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        page.open(page_path)
        heads = page.evaluate("[...document.querySelectorAll('#runs th')].map(head => head.textContent)")
        loss = heads.index("probe loss") + 1
        before = column(page, "runs", loss)
        click = f"document.querySelector('#runs th:nth-child({loss}) button').click()"
        page.evaluate(click)
        assert column(page, "runs", loss) == sorted(before, key=float) != before
        page.evaluate(click)
        assert column(page, "runs", loss) == sorted(before, key=float, reverse=True)
        assert page.logged == []
