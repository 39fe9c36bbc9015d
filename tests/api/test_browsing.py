"""What a person does with a browser, in a real one: log in by the link, read and try the API, and keep others out."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Iterator
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from holdfast import Holdfast
from holdfast.api.auth import Sender, sender_of
from holdfast.app import api_keys
from holdfast.app.audit import By
from tests.api.support import Api, House, Running, wait_until
from tests.support.browser import Faults

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.asyncio(loop_scope="session")
OUR_NAME, THEIR_NAME = "shop.test", "evil.test"  # of no secure context, so that no Sec-Fetch-Site is sent to them


class Dev(NamedTuple):
    url: str
    link: str  # as printed
    house: House

    def named(self, host: str) -> str:
        """The same server by another name."""
        return f"http://{host}:{urlsplit(self.url).port}"

    async def new_link(self, site: str = "") -> str:
        async with Holdfast(self.house.database) as hf:
            ends = hf.service.store.now() + 600_000_000
            made = await api_keys.create(
                hf.service, "default", "dev", name="link", kind="login", expires_at=ends, by=By("the tests")
            )
        return f"{site or self.url}/login?key={made.key}"

    def instances(self) -> int:
        key = (self.house.folder / ".holdfast" / "dev-key").read_text().strip()
        return len(Api(self.url, key).ok("GET /workflow/instances")["items"])


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """What `holdfast dev` prints and serves."""
    folder = tmp_path_factory.mktemp("dev")
    house = House(f"sqlite:///{folder / 'dev.db'}", folder, migrated=True)
    process = Running(
        folder / "dev.log", "dev", "--app", "tests.api.app:hf", "--database", house.database, "--port", "0", cwd=folder
    )
    house.processes.append(process)
    try:
        link = wait_until(lambda: process.said(r"(http\S+/login\?key=\S+)"), process.log.read_text)
        yield Dev(link.partition("/login")[0], link, house)
    finally:
        house.close()


@pytest_asyncio.fixture(loop_scope="session")
async def logged_in(page: Page, dev: Dev) -> AsyncIterator[Page]:
    await log_in(page, await dev.new_link())
    yield page


async def log_in(page: Page, link: str) -> None:
    await page.goto(link)
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url("**/docs")


# -- the way in


async def test_the_printed_link_logs_a_browser_in_once(dev: Dev, context: BrowserContext) -> None:
    page = await context.new_page()
    await page.goto(dev.link)
    assert await context.cookies() == [], "looking at the link does nothing"
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url(f"{dev.url}/docs")
    assert "Logged in as dev" in await page.inner_text("body")
    [cookie] = await context.cookies()
    assert (cookie["name"], cookie["path"], cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (
        "holdfast_session", "/", True, "Strict", False,
    )  # fmt: skip
    assert await page.evaluate("document.cookie") == "", "no script reads it"

    await context.clear_cookies()
    await page.goto(dev.link)
    async with page.expect_response("**/login") as answered:
        await page.get_by_role("button", name="Log in").click()
    assert (await (await answered.value).all_headers())["content-type"].startswith("text/html")
    assert (await answered.value).status == 401
    text = await page.inner_text("body")
    assert "You are not logged in" in text and "This login link was used" in text and "holdfast dev" in text
    assert await context.cookies() == []


async def test_a_name_on_a_plain_network_works_too(dev: Dev, page: Page) -> None:
    """Where browsers send no Sec-Fetch-Site, the form's Origin has to tell."""
    site = dev.named(OUR_NAME)
    await page.goto(await dev.new_link(site))
    async with page.expect_request("**/login") as posted:
        await page.get_by_role("button", name="Log in").click()
    headers = await (await posted.value).all_headers()
    assert ("sec-fetch-site" in headers, headers["origin"]) == (False, site)
    await page.wait_for_url(f"{site}/docs")
    assert "Logged in as dev" in await page.inner_text("body")


async def test_behind_a_proxy_the_public_address_is_ours_and_the_cookie_is_for_https_only(dev: Dev) -> None:
    inside = Api(dev.house.serve(env={"HOLDFAST_PUBLIC_URL": "https://pay.test"}), None)
    word = (await dev.new_link()).partition("key=")[2]

    def press(origin: str) -> tuple[int, str]:
        answer = inside.client.post("/login", data={"key": word}, headers={"Origin": origin, "Host": "inside:8700"})
        return answer.status_code, answer.headers.get("set-cookie", "")

    assert press("https://evil.test") == press("http://pay.test") == press("null") == (403, "")
    status, cookie = press("https://pay.test")
    assert status == 303 and cookie.partition("; ")[2] == "Path=/; HttpOnly; SameSite=Strict; Max-Age=43200; Secure"


async def test_who_logs_out_is_out(dev: Dev, logged_in: Page) -> None:
    [cookie] = await logged_in.context.cookies()
    await logged_in.get_by_role("button", name="Log out").click()
    await logged_in.get_by_text("Nobody is logged in").wait_for()
    assert await logged_in.context.cookies() == []
    kept = Api(dev.url, None)("GET /workflow/me", cookie=f"{cookie['name']}={cookie['value']}")
    assert kept.status_code == 401, "the session has ended, not only its cookie"


async def test_the_root_leads_somewhere(dev: Dev, page: Page) -> None:
    await page.goto(dev.url)
    assert "Nobody is logged in" in await page.inner_text("body")
    await page.get_by_role("link", name="The API").click()
    await page.wait_for_url(f"{dev.url}/docs")


# -- others


class Foreign(BaseHTTPRequestHandler):
    pages: dict[str, str]

    def do_GET(self) -> None:
        body = self.pages.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def foreign() -> Iterator[ThreadingHTTPServer]:
    """Another site: a server of its own on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Foreign,), {"pages": {}}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def form(action: str, *, key: str = "") -> str:
    """A form that looks like JSON when it is sent, as far as a form can."""
    field = (
        f'<input name="key" value="{key}">' if key else """<input name='{"definition_key":"quick","x":"' value='"}'>"""
    )
    kind = "" if key else ' enctype="text/plain"'
    return f'<form method="post" action="{action}"{kind}>{field}<button>Win</button></form>'


@pytest.mark.parametrize("sandboxed", [False, True], ids=["a form", "a sandboxed frame"])
@pytest.mark.parametrize("host", ["127.0.0.1", THEIR_NAME], ids=["another port", "another name"])
@pytest.mark.parametrize("secure", [True, False], ids=["to loopback", "to a name"])
async def test_a_form_of_another_site_is_refused(
    dev: Dev,
    page: Page,
    foreign: ThreadingHTTPServer,
    secure: bool,
    host: str,
    sandboxed: bool,
    faults: Faults,
) -> None:
    """Another port of the same host is the same site for cookies, so there the session does come along."""
    faults.expected = re.compile("frame-ancestors")  # what a frame is answered is not shown in it
    ours = dev.url if secure else dev.named(OUR_NAME)
    theirs = f"http://{host}:{foreign.server_port}"
    link = await dev.new_link(ours)
    await log_in(page, await dev.new_link(ours))
    before = dev.instances()
    for path, key in (("/workflow/instances", ""), ("/logout", ""), ("/login", link.partition("key=")[2])):
        written = form(f"{ours}{path}", key=key)
        if sandboxed:
            written = (
                f'<iframe sandbox="allow-forms" srcdoc="{written.replace("&", "&amp;").replace(chr(34), "&quot;")}">'
            )
        foreign.RequestHandlerClass.pages[f"/{path.strip('/')}"] = written  # type: ignore[attr-defined]
        await page.goto(f"{theirs}/{path.strip('/')}")
        where = page.frame_locator("iframe") if sandboxed else page
        async with page.expect_response(f"{ours}{path}") as answered:
            await where.get_by_role("button", name="Win").click()
        sent = await (await answered.value).request.all_headers()
        assert sent["origin"] == ("null" if sandboxed else theirs)
        assert (sent.get("sec-fetch-site") in ("same-site", "cross-site")) == secure
        expected = (401, 403) if path.startswith("/workflow") and "cookie" not in sent else (403,)
        assert (await answered.value).status in expected, (path, sent)
    assert dev.instances() == before
    await page.goto(f"{ours}/docs")
    assert "Logged in as dev" in await page.inner_text("body"), "nobody was logged out, or in as somebody else"
    await log_in(page, link)  # and the link of theirs was not used up


@pytest.mark.parametrize(
    ("site", "origin", "public_url", "sender"),
    [
        ("same-origin", "null", None, Sender.US),
        ("same-origin", None, None, Sender.US),
        ("same-site", "http://shop.test:8700", None, Sender.OTHERS),
        ("cross-site", "null", None, Sender.OTHERS),
        ("cross-site", None, None, Sender.OTHERS),
        ("none", "http://shop.test:8700", None, Sender.US),
        ("none", "null", None, Sender.OTHERS),
        (None, "http://shop.test:8700", None, Sender.US),
        (None, "null", None, Sender.OTHERS),
        (None, "http://shop.test:8701", None, Sender.OTHERS),
        (None, "http://[x", None, Sender.OTHERS),
        (None, "https://pay.test", "https://pay.test/", Sender.US),
        (None, "https://pay.test:443", "https://pay.test", Sender.US),
        (None, "http://pay.test", "https://pay.test", Sender.OTHERS),
        (None, "https://evil.test", "https://pay.test", Sender.OTHERS),
        (None, None, None, Sender.UNSAID),
    ],
)
async def test_who_sent_a_request_follows_from_what_no_page_can_change(
    site: str | None, origin: str | None, public_url: str | None, sender: Sender
) -> None:
    headers = {"host": "shop.test:8700", "sec-fetch-site": site, "origin": origin}
    assert sender_of({name: value for name, value in headers.items() if value is not None}, public_url) is sender


# -- the API, to read and to try


async def try_it(page: Page, operation: str, body: str = "", **fields: str) -> tuple[str, str, str]:
    """Fill in an operation's form and send it: status, headers and body, as they are shown."""
    details = page.locator(f"details#{operation}")
    if await details.get_attribute("open") is None:
        await details.locator("summary").click()
    for name, value in fields.items():
        await details.locator(f"input[name={name}]").fill(value)
    if body:
        await details.locator("textarea").fill(body)
    await details.get_by_role("button", name="Send").click()
    await details.locator(".status").filter(has_text=re.compile(r"\d{3}")).wait_for()
    await details.locator(".stop").wait_for(state="hidden")
    return (
        await details.locator(".status").inner_text(),
        await details.locator(".headers").inner_text(),
        await details.locator(".body").inner_text(),
    )


async def test_every_operation_can_be_tried_from_the_page_after_the_login(dev: Dev, logged_in: Page) -> None:
    status, headers, body = await try_it(logged_in, "read_me")
    assert status.startswith("200") and "content-type: application/json" in headers and '"name": "dev"' in body
    given = '{"definition_key": "quick", "input": {"n": 1.0, "text": "a{b,c: [\\"d"}}'
    status, _, body = await try_it(logged_in, "start_instance", body=given)
    assert status.startswith("201"), body
    [instance] = re.findall(r'"id": "(ins_[0-9a-f]+)"', body)
    status, _, body = await try_it(logged_in, "read_instance", id=instance)
    assert status.startswith("200") and '"n": 1.0' in body and '"a{b,c: [\\"d"' in body, body
    status, _, body = await try_it(logged_in, "list_instances", limit="1", business_key="no such")
    assert status.startswith("200") and '"items": []' in body
    status, headers, body = await try_it(logged_in, "cancel_instance", id="ins_nobody", **{"If-Match": "*"})
    assert status.startswith("404") and "application/problem+json" in headers and '"code": "not-found"' in body


async def test_a_stream_is_shown_as_it_comes_until_it_is_stopped(dev: Dev, logged_in: Page) -> None:
    details = logged_in.locator("details#stream_tenant")
    await details.locator("summary").click()
    await details.get_by_role("button", name="Send").click()
    await details.locator(".status").filter(has_text="200").wait_for()
    await try_it(logged_in, "start_instance", body='{"definition_key": "quick", "input": {"n": 1}}')
    await details.locator(".body").filter(has_text="data:").wait_for()
    await details.get_by_role("button", name="Stop").click()
    await details.locator(".status").filter(has_text="stopped").wait_for()


async def test_who_is_not_logged_in_sees_the_refusal(dev: Dev, page: Page) -> None:
    await page.goto(f"{dev.url}/docs")
    status, _, body = await try_it(page, "read_me")
    assert status.startswith("401") and "nobody is logged in" in body


async def test_the_page_works_without_its_script(dev: Dev, browser: Browser) -> None:
    async with await browser.new_context(java_script_enabled=False) as plain:
        bare = await plain.new_page()
        await log_in(bare, await dev.new_link())
        await bare.locator("details#read_me summary").click()
        assert "curl" in await bare.locator("details#read_me pre").first.inner_text()
        assert not await bare.locator("details#read_me form.try").is_visible()


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({"Host": "shop.test:81"}, "http://shop.test:81"),
        ({"Host": "[::1]:8700"}, "http://[::1]:8700"),
        ({"Host": "x", "X-Forwarded-Host": "evil.test", "X-Forwarded-Proto": "https"}, "http://x"),
    ],
)
async def test_the_lines_for_the_shell_name_the_server_as_it_was_asked(
    dev: Dev, headers: dict[str, str], shown: str
) -> None:
    _name(Api(dev.url, None)("GET /docs", **headers).text, shown)


@pytest.mark.parametrize("host", ["x'>$(reboot)", "x/y", "x y", "<b>"])
async def test_a_host_that_is_none_is_not_shown(dev: Dev, host: str) -> None:
    assert Api(dev.url, None)("GET /docs", Host=host).status_code == 400


async def test_the_lines_for_the_shell_name_the_public_address_where_one_is_set(dev: Dev) -> None:
    url = dev.house.serve(env={"HOLDFAST_PUBLIC_URL": "https://pay.test/"})
    _name(Api(url, None)("GET /docs").text, "https://pay.test")


def _name(page: str, address: str) -> None:
    lines = [unescape(line) for line in re.findall(r"<pre>(curl.*?)</pre>", page, re.S)]
    assert len(lines) > 60
    for line in lines:
        assert line.splitlines()[-1].startswith(f"  {address}/"), line
        assert max(len(part) for part in line.splitlines() if not part.startswith("  -d")) < 100
