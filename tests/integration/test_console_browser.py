"""The web console in a real browser: headless Chromium looks at each page, light, dark and on a phone.

No page runs a foreign script, scrolls sideways, shows small text, breaks a number, or asks another server. Keys alone
reach everything; without JavaScript everything works but freshness.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.broker_process import BrokerProcess
from tests.compat.tools import cannot_be_had
from tests.integration.console_cluster import apart, filled_broker
from tests.integration.console_crowd import IMAGE, LONG, RIGHT_TO_LEFT, crowded_cluster
from tests.integration.console_process import Console, console_process

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.wire.records import BatchBuilder

pytestmark = [pytest.mark.big, pytest.mark.timeout(600)]
INSTALL_TIMEOUT_S = 540
WAIT_MS = 30_000
SMALLEST_PX = 12
OF_THE_CLUSTER = (
    "/quorum",
    "/acls",
    "/quotas",
    "/reassignments",
    "/transactions",
    "/pipelines",
    "/metrics",
    "/settings?q=log",
)
PATHS = (
    "/",
    "/brokers",
    "/brokers/1",
    "/topics",
    "/topics/orders",
    "/topics/orders/alter",
    "/topics/orders/delete",
    "/topics/orders/messages?format=json",
    "/topics/hostile/messages",
    "/topics/hostile/messages?format=hex",
    "/topics/empty/messages",
    "/topics/gone",
    "/new-topic",
    "/groups",
    "/groups/billing",
    "/groups/a%2Fb%20%3Cx%3E",
    "/tier?topic=orders",
    *OF_THE_CLUSTER,
)
CROWDED = (
    "/",
    "/brokers",
    *(f"/brokers/{node}" for node in (1, 2, 3)),
    "/topics?internal=yes",
    "/tier",
    f"/topics/{LONG}",
    f"/topics/{LONG}/messages",
    "/topics/moving/alter",
    "/topics/moving/delete-records",
    "/groups",
    f"/groups/{quote(IMAGE, safe='')}",
    f"/groups/{quote(IMAGE, safe='')}/reset",
    f"/groups/{quote(IMAGE, safe='')}/delete",
    f"/groups/{quote(RIGHT_TO_LEFT)}",
    f"/groups/{quote(RIGHT_TO_LEFT)}/delete",
    *OF_THE_CLUSTER,
)
LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 780}, "color_scheme": "light"},
}
SMALL_TEXT = """() => [...document.querySelectorAll("body *")].filter((one) =>
  [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())
  && one.getClientRects().length && parseFloat(getComputedStyle(one).fontSize) < SMALLEST
).map((one) => one.outerHTML.slice(0, 80))""".replace("SMALLEST", str(SMALLEST_PX))
CONTRAST = """() => {
  const light = (color) => {
    const [r, g, b] = color.match(/[0-9.]+/g).map((one) => one / 255)
      .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("body *")].filter((one) =>
    [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())
    && one.getClientRects().length && one.tagName !== "OPTION" && !one.closest("svg, header, .skip")
  ).map((one) => {
    const [above, below] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => b - a);
    return [(above + 0.05) / (below + 0.05), one.outerHTML.slice(0, 80)];
  }).filter(([ratio]) => ratio < 4.5);
}"""


BROKEN_NUMBERS = """() => [...document.querySelectorAll("td, dd, figcaption strong")].filter((one) => {
  const number = one.childElementCount ? one.firstElementChild.textContent : one.textContent;
  if (!one.getClientRects().length || !/^[\\s\\d.,e+]*\\d[\\s\\d.,e+]*$/.test(number)) return false;
  const range = document.createRange();
  range.selectNodeContents(one.firstElementChild || one);
  const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top)));
  const card = one.closest(".fact, .card, td").getBoundingClientRect();
  return lines.size > 1 || range.getBoundingClientRect().right > card.right;
}).map((one) => one.outerHTML.slice(0, 120))"""
BROKEN_DUMPS = """() => [...document.querySelectorAll(".main .hex")].filter((one) =>
  one.scrollHeight > 1.5 * parseFloat(getComputedStyle(one).lineHeight) * one.textContent.trim().split("\\n").length
).map((one) => one.textContent.slice(0, 80))"""
UNREACHED = """() => [...document.querySelectorAll("main :is(a[href], button, input, select, textarea, summary)")]
  .filter((one) => one.type !== "hidden" && !one.disabled && one.getClientRects().length && !one.dataset.reached)
  .map((one) => one.outerHTML.slice(0, 120))"""


def chromium() -> str:
    """Debian's Chromium; installed by root, like the Java of `scripts/setup.sh`. Skips where it is not available."""
    found = shutil.which("chromium")
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        install = "apt-get -q update && apt-get -q install -y --no-install-recommends chromium"
        subprocess.run(
            ["sh", "-c", install],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        found = shutil.which("chromium")
    if found is None:
        cannot_be_had("chromium", "apt-get install chromium")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with filled_broker(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture(scope="module")
def console(broker: BrokerProcess) -> Iterator[Console]:
    options = ("--tier", broker.bucket_url, "--allow-changes")
    with console_process(broker.directory / "console", broker.address, *options) as started:
        yield started


@contextmanager
def page_of(browser: Browser, console: Console, look: Mapping[str, Any]) -> Iterator[Page]:
    """A page that may ask this console alone, and whose script never fails."""
    context = browser.new_context(
        base_url=console.url, timezone_id="Europe/Berlin", **{"locale": "en-GB", **look}
    )
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda line: (
            wrong.append(line.text)
            if line.type == "error" and "status of" not in line.text and "ERR_CONN" not in line.text
            else None
        ),
    )
    page.on(
        "request",
        lambda asked: wrong.append(asked.url) if not asked.url.startswith(console.url) else None,
    )
    yield page
    context.close()
    assert wrong == []


@pytest.fixture
def opened(console: Console, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    look = {**LOOKS["light"], **getattr(request, "param", {})}
    with page_of(browser, console, look) as page:
        yield page


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    place = tmp_path_factory.mktemp("crowded")
    with crowded_cluster(place) as crowd:
        options = [word for one in crowd.monitors for word in ("--monitor", one)]
        with console_process(
            place / "console", crowd.address, "--allow-changes", *options
        ) as started:
            yield started


def check_looks(page: Page, path: str) -> None:
    page.goto(path)
    expect(page.locator("h1")).to_have_count(1)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), path
    assert page.evaluate(SMALL_TEXT) == [], path
    assert page.evaluate(CONTRAST) == [], path
    assert page.evaluate(BROKEN_NUMBERS) == [], path
    assert page.evaluate(BROKEN_DUMPS) == [], path
    assert page.title() != "owned"
    assert "\u202e" not in page.inner_text("html") + page.title(), path


@pytest.mark.parametrize("opened", LOOKS.values(), ids=LOOKS, indirect=True)
def test_every_page_fits_its_window_with_text_that_can_be_read(opened: Page) -> None:
    for path in PATHS:
        check_looks(opened, path)


@pytest.mark.parametrize("opened", [LOOKS["phone"]], ids=["phone"], indirect=True)
def test_a_value_has_the_whole_width_of_a_phone(opened: Page) -> None:
    opened.goto("/topics/orders/messages?limit=1")
    value, row = (opened.locator(one).first for one in ("#records .value.main", "#records tr"))
    inner, outer = value.bounding_box(), row.bounding_box()
    assert inner is not None
    assert outer is not None
    assert inner["width"] > outer["width"] * 0.9


@pytest.mark.parametrize("opened", [{"locale": "en-US"}], ids=["long times"], indirect=True)
def test_a_line_of_a_dump_is_whole_beside_its_columns(opened: Page) -> None:
    opened.goto("/topics/orders/messages?format=hex&limit=1")
    assert opened.locator("#records .main .hex").first.evaluate(
        "one => one.scrollWidth <= one.clientWidth"
    )


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_hostile_names_long_names_and_twenty_digits_fit_each_page_as_text(
    crowded: Console, browser: Browser, look: Mapping[str, Any]
) -> None:
    with page_of(browser, crowded, look) as page:
        for path in CROWDED:
            check_looks(page, path)


def test_each_of_these_pages_has_its_rows_and_its_json(crowded: Console) -> None:
    for path in CROWDED:
        bare, mark, query = path.partition("?")
        assert crowded.json(("/overview" if bare == "/" else bare) + ".json" + mark + query)
    rows = {
        "transactions": "transactions",
        "quorum": "replicas",
        "reassignments": "moves",
        "acls": "acls",
        "quotas": "quotas",
        "pipelines": "queries",
        "metrics": "monitors",
    }
    for page, name in rows.items():
        assert crowded.json(f"/{page}.json")[name], page
    assert crowded.json("/acls.json")["users"]
    assert crowded.json("/tier.json")["configured"].endswith("/bucket")


def test_keys_alone_reach_everything_on_each_page(crowded: Console, browser: Browser) -> None:
    with page_of(browser, crowded, LOOKS["light"]) as page:
        for path in CROWDED:
            page.goto(path)
            page.locator("#main").focus()
            for _ in range(
                page.locator("main :is(a, button, input, select, textarea)").count() + 9
            ):
                page.keyboard.press("Tab")
                page.evaluate("document.activeElement.dataset.reached = '1'")
            assert page.evaluate(UNREACHED) == [], path
        sections = page.locator("nav a").count()
        reached = set()
        for letter in "obtgxqrauilms":
            page.goto("/topics/moving")
            page.keyboard.press("g")
            page.keyboard.press(letter)
            page.wait_for_url(lambda url: not url.endswith("/moving"))
            reached.add(page.locator("nav [aria-current]").inner_text())
        assert len(reached) == sections


def test_times_are_the_viewers_with_utc_on_hover(opened: Page) -> None:
    opened.goto("/topics/orders/messages?limit=1")
    shown = opened.locator("#records time").first
    utc = shown.get_attribute("title") or ""
    assert utc.endswith("Z")
    hour = (int(utc[11:13]) + 1) % 24  # Berlin in winter
    summer = (hour + 1) % 24
    assert f" {hour:02}:" in shown.inner_text() or f" {summer:02}:" in shown.inner_text()


def test_keys_alone_reach_a_record(opened: Page) -> None:
    opened.goto("/")
    opened.keyboard.press("Tab")
    expect(opened.get_by_text("Skip to the page")).to_be_focused()
    opened.keyboard.press("g")
    opened.keyboard.press("t")
    expect(opened.locator("h1")).to_have_text("Topics")
    opened.keyboard.press("/")
    expect(opened.locator("input[name=q]")).to_be_focused()
    opened.keyboard.type("orde")
    opened.keyboard.press("Enter")
    opened.wait_for_url("**/topics?q=orde*")
    opened.locator("tbody a").first.focus()
    opened.keyboard.press("Enter")
    opened.get_by_role("link", name="Records", exact=True).focus()
    opened.keyboard.press("Enter")
    expect(opened.locator("h1")).to_have_text("Records of orders")
    first = opened.locator("#records tr").first.get_attribute("data-offset")
    opened.keyboard.press("n")
    opened.wait_for_url("**until=*")
    assert opened.locator("#records tr").first.get_attribute("data-offset") != first
    opened.keyboard.press("p")
    expect(opened.locator("#records tr").first).to_have_attribute("data-offset", str(first))


def produce(address: str, value: bytes) -> None:
    async def send() -> None:
        async with await Client.connect(TcpNetwork(), address) as client:
            builder = BatchBuilder()
            builder.add(None, value, int(time.time() * 1000))
            await client.produce("empty", 0, builder.build())

    apart(send())


async def topic_of(address: str, name: str, *, is_deleted: bool = False) -> None:
    async with await Client.connect(TcpNetwork(), address) as client:
        if is_deleted:
            await client.delete_topics([name])
        else:
            await client.create_topics([NewTopic(name, 1, 1)])


def test_following_shows_new_records_as_text_through_a_killed_broker(
    opened: Page, broker: BrokerProcess
) -> None:
    opened.goto("/topics/empty/messages")
    opened.locator("#follow").press("Enter")
    expect(opened.locator("#follow")).to_have_text("Stop following")
    produce(broker.address, b"<script>document.title='owned'</script>")
    expect(opened.locator("#records")).to_contain_text("document.title='owned'")
    broker.kill()
    expect(opened.locator("#following")).to_contain_text("it is asked again", timeout=WAIT_MS)
    broker.start()
    produce(broker.address, b"second")
    expect(opened.locator("#records tr").first).to_contain_text("second", timeout=2 * WAIT_MS)
    expect(opened.locator("#records tr")).to_have_count(2)
    assert "owned" not in opened.title()


async def produce_numbered(address: str, topic: str, count: int) -> None:
    async with await Client.connect(TcpNetwork(), address) as client:
        builder = BatchBuilder()
        for number in range(count):
            builder.add(None, b"%d" % number, int(time.time() * 1000))
        await client.produce(topic, 0, builder.build())


def test_following_keeps_the_newest_thousand_records(opened: Page, broker: BrokerProcess) -> None:
    apart(topic_of(broker.address, "busy"))
    opened.goto("/topics/busy/messages?limit=500")
    opened.locator("#follow").press("Enter")
    apart(produce_numbered(broker.address, "busy", 1_300))
    rows = opened.locator("#records tr")
    expect(rows.first).to_have_attribute("data-offset", "1299")
    expect(opened.locator("#following")).to_have_text("Following: 1000 records are shown.")
    assert rows.count() == 1_000
    assert rows.last.get_attribute("data-offset") == "300"
    apart(topic_of(broker.address, "busy", is_deleted=True))


def test_following_a_topic_that_is_deleted_ends_with_its_name(
    opened: Page, broker: BrokerProcess
) -> None:
    apart(topic_of(broker.address, "short"))
    opened.goto("/topics/short/messages")
    opened.locator("#follow").press("Enter")
    expect(opened.locator("#following")).to_contain_text("Following")
    apart(topic_of(broker.address, "short", is_deleted=True))
    expect(opened.locator("#following")).to_have_text(
        "topic short does not exist: following ended."
    )
    expect(opened.locator("#following")).to_be_in_viewport()
    expect(opened.locator("#follow")).to_have_text("Follow")


def test_a_page_that_is_watched_says_that_the_broker_is_gone_and_recovers(
    opened: Page, broker: BrokerProcess
) -> None:
    opened.goto("/topics")
    expect(opened.locator("h1")).to_have_text("Topics")
    broker.kill()
    expect(opened.locator("main")).to_contain_text("start the brokers of", timeout=WAIT_MS)
    broker.start()
    expect(opened.locator("h1")).to_have_text("Topics", timeout=2 * WAIT_MS)


def test_what_is_unfolded_stays_so_while_its_page_stays_fresh(opened: Page) -> None:
    opened.goto("/tier?topic=orders")
    opened.locator("summary", has_text="Manifests").press("Enter")
    table = opened.get_by_role("columnheader", name="Next offset to archive")
    expect(table).to_be_visible()
    opened.evaluate("document.querySelector('main h1').id = 'stale'")
    expect(opened.locator("#stale")).to_have_count(0, timeout=WAIT_MS)
    expect(table).to_be_visible()
    expect(opened.locator("summary", has_text="Manifests")).to_be_focused()
    expect(opened.locator("details[open]")).to_have_count(1)


@pytest.mark.parametrize(("password", "status"), [("planted-pass", 200), ("guessed", 401)])
def test_a_browser_asks_for_the_login_and_gets_no_cookie(
    browser: Browser, broker: BrokerProcess, tmp_path: Path, password: str, status: int
) -> None:
    logins = tmp_path / "logins"
    logins.write_text("viewer:planted-pass\n")
    logins.chmod(0o600)
    with console_process(tmp_path / "console", broker.address, "--logins", str(logins)) as guarded:
        given: Any = {"username": "viewer", "password": password}
        with page_of(browser, guarded, {"http_credentials": given}) as page:
            answer = page.goto("/topics")
            assert answer is not None
            assert answer.status == status
            assert page.context.cookies() == []
            assert ("orders" in page.content()) == (status == 200)


NO_SCRIPT: dict[str, Any] = {"java_script_enabled": False}


@pytest.mark.parametrize("opened", [{}, NO_SCRIPT], ids=["script", "no script"], indirect=True)
def test_a_topic_is_created_and_deleted_by_keys_with_and_without_script(opened: Page) -> None:
    opened.goto("/new-topic")
    expect(opened.locator("input[name=name]")).to_be_focused()
    opened.keyboard.type("by-hand")
    opened.keyboard.press("Enter")
    expect(opened.locator("main")).to_contain_text("What will happen")
    opened.get_by_role("button", name="Do it").press("Enter")
    expect(opened.locator("h1")).to_have_text("by-hand")
    opened.get_by_role("link", name="Delete the topic").press("Enter")
    expect(opened.locator("input[name=confirm]")).to_be_focused()
    opened.keyboard.type("by-mistake")
    opened.keyboard.press("Enter")
    expect(opened.locator("main")).to_contain_text("nothing was deleted")
    opened.goto("/topics/by-hand/delete")
    expect(opened.locator("input[name=confirm]")).to_be_focused()
    opened.keyboard.type("by-hand")
    opened.keyboard.press("Enter")
    expect(opened.locator("h1")).to_have_text("Topics")
    expect(opened.locator("main")).not_to_contain_text("by-hand")
