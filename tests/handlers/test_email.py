"""EMAIL tasks over a real SMTP server: what is sent, and what every failure says about whether it was."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from email import message_from_bytes
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.policy import SMTP as WIRE
from email.utils import getaddresses
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP as Server
from aiosmtpd.smtp import AuthResult
from aiosmtplib import SMTP
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.effects import known_from
from holdfast.engine.errors import BadInput, NotApplied, Rejected
from holdfast.engine.tasks import TaskInfo
from holdfast.handlers.email import EmailHandler, OutcomeUnknown, SmtpMail, read_address
from holdfast.handlers.mailbox import FileMailbox, MailNotFound

KEY = "0192f3c4-1111-7222-8333-944445555666"
MONDAY = 1_792_396_800.0
DROP, HANG = object(), object()

# For 127.0.0.1 and localhost alone; it guards nothing.
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUQTkw/v9fJCWh+/GttCynCKClqsIwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNjA1MzEwMFoYDzIxMjYxMDIz
MDUzMTAwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATsOiMWZXjHEXQlOPvE58r3XxryOlAT9nW42GUIclZUbbkeRUblOePo
5/k0fK7MeMn1UMdkHxB1/zR5yF9/stkfo28wbTAdBgNVHQ4EFgQUjmGTsMztZL9u
0NJJ8D232XETBY0wHwYDVR0jBBgwFoAUjmGTsMztZL9u0NJJ8D232XETBY0wDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIhAJJZUBPcX5fUxMSTCTheTeDwjhVwI4PSMtWqDEcznd8MAiAa
TDUdycD+bpDXv9B7eWeMNmPcH09CbExTUhO5CQekyQ==
-----END CERTIFICATE-----
"""
PRIVATE_KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgb1dbEAIxHHnK8M0C
nqjJ7CAai36QHhd2iAoYHn/iqNehRANCAATsOiMWZXjHEXQlOPvE58r3XxryOlAT
9nW42GUIclZUbbkeRUblOePo5/k0fK7MeMn1UMdkHxB1/zR5yF9/stkf
-----END PRIVATE KEY-----
"""


def a_task(**options: Any) -> TaskInfo:
    changed = {name: options.pop(name) for name in ("idempotency_key", "not_after", "input") if name in options}
    said = {"to": "ada@example.org", "subject": "Hello", "text": "Hi {{name}}"} | options
    fields = {
        "tenant_id": "default", "instance_id": "ins_1", "task_id": "tsk_1", "workflow": "orders", "version": 1,
        "type": "EMAIL", "name": "confirm", "attempt": 1, "idempotency_key": KEY, "input": {"name": "Ada"},
    }  # fmt: skip
    return TaskInfo(**(fields | changed), options={name: value for name, value in said.items() if value is not None})


class Kept:
    """A `Mail` that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[EmailMessage, str, list[str]]] = []

    async def send(
        self, message: EmailMessage, sender: str, recipients: list[str], not_after: float | None = None
    ) -> dict[str, Any]:
        self.sent.append((message, sender, recipients))
        return {"accepted": recipients, "refused": {}, "response": "250 kept"}


def composed(task: TaskInfo) -> EmailMessage:
    """The message as its reader gets it."""
    letter = EmailHandler(Kept(), default_sender="Shop <shop@example.com>", clock=lambda: MONDAY).compose(task)
    return parsed(letter.message.as_bytes())


def parsed(raw: bytes) -> EmailMessage:
    return message_from_bytes(raw, _class=EmailMessage, policy=WIRE)


def body(message: EmailMessage, kind: str) -> str:
    part = message.get_body((kind,))
    assert part is not None
    return str(part.get_content())


# -- the server


class Inbox:
    """Keeps what it accepts. `answers` says what happens at a command instead: a reply, DROP, HANG, or a function."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.kept: list[tuple[str, list[str], bytes]] = []
        self.seen: list[str] = []

    async def at(self, server: Any, command: str, argument: str = "") -> Any:
        self.seen.append(f"{command} {argument}".strip())
        answer = self.answers.get(command)
        if callable(answer):
            answer = answer(argument)
        if answer is DROP:
            server.transport.abort()
        if answer is DROP or answer is HANG:
            await asyncio.Event().wait()
        return answer

    async def handle_EHLO(self, server: Any, session: Any, envelope: Any, hostname: str, replies: list[str]) -> Any:
        answer = await self.at(server, "EHLO", hostname)
        session.host_name = hostname
        return [answer] if answer else replies

    async def handle_HELO(self, server: Any, session: Any, envelope: Any, hostname: str) -> Any:
        session.host_name = hostname
        return await self.at(server, "HELO", hostname) or "250 mx"

    async def handle_MAIL(self, server: Any, session: Any, envelope: Any, address: str, options: list[str]) -> Any:
        answer = await self.at(server, "MAIL", f"{address} {' '.join(options)}")
        envelope.mail_from = address
        return answer or "250 OK"

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: list[str]) -> Any:
        answer = await self.at(server, "RCPT", address)
        if answer is None or answer.startswith("2"):
            envelope.rcpt_tos.append(address)
        return answer or "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> Any:
        answer = await self.at(server, "CONTENT")
        if answer is None or answer.startswith("2"):
            self.kept.append((envelope.mail_from, envelope.rcpt_tos, envelope.content))
        return answer or "250 queued as 17"

    def only(self) -> EmailMessage:
        [(_, _, raw)] = self.kept
        return parsed(raw)


class Answering(Server):
    async def smtp_DATA(self, arg: str) -> None:
        answer = await self.event_handler.at(self, "DATA")
        if answer:
            await self.push(answer)
        else:
            await super().smtp_DATA(arg)


Serve = Callable[..., Any]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(inbox, …)` starts a server on loopback and returns its port."""
    servers: list[asyncio.Server] = []

    async def start(inbox: Inbox, *, ssl_context: ssl.SSLContext | None = None, **options: Any) -> int:
        def protocol() -> Server:
            return Answering(inbox, **({"hostname": "mx", "enable_SMTPUTF8": True} | options))

        servers.append(await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, ssl=ssl_context))
        return int(servers[-1].sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()


@pytest.fixture
async def serve_raw() -> AsyncIterator[Serve]:
    """`await serve_raw(script)` starts a server that is no SMTP server but the script."""
    servers: list[asyncio.Server] = []
    talking: set[asyncio.Task[None]] = set()

    async def start(script: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> int:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            talking.add(task)
            # The client may leave at any point of the script, and the end of the test ends one that waits.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await script(reader, writer)
            writer.transport.abort()

        servers.append(await asyncio.start_server(talk, "127.0.0.1", 0))
        return int(servers[-1].sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()
    for task in talking:
        task.cancel()
    await asyncio.gather(*talking, return_exceptions=True)


def handler(port: int, clock: Callable[[], float] = lambda: MONDAY, **options: Any) -> EmailHandler:
    mail = SmtpMail(f"smtp://127.0.0.1:{port}", clock=clock, **options)
    return EmailHandler(mail, default_sender="Shop <shop@example.com>", clock=clock)


async def failure(sending: Any) -> BaseException:
    """What the sending raised, which must never look like a connection that was not opened."""
    with pytest.raises((NotApplied, Rejected, OutcomeUnknown)) as raised:
        await sending
    return raised.value


# -- what is sent


async def test_a_message_is_sent_and_its_receipt_returned(serve: Serve) -> None:
    port = await serve(inbox := Inbox())
    result = await handler(port)(
        a_task(
            to=["Ada <ada@example.org>", "bob@example.org"],
            cc="carol@example.org",
            bcc=["dan@example.org", "ada@example.org"],
            reply_to="help@example.com",
            html="<p>Hi {{name}}</p>",
            headers={"X-Order": "17"},
        )
    )
    everyone = ["ada@example.org", "bob@example.org", "carol@example.org", "dan@example.org"]
    message_id = f"<{KEY}@example.com>"
    assert result == {
        "message_id": message_id, "accepted": everyone, "refused": {}, "response": "250 queued as 17"
    }  # fmt: skip
    [(sender, recipients, raw)] = inbox.kept
    assert (sender, recipients) == ("shop@example.com", everyone)
    message = parsed(raw)
    assert message.items() == [
        ("From", "Shop <shop@example.com>"),
        ("To", "Ada <ada@example.org>, bob@example.org"),
        ("Cc", "carol@example.org"),
        ("Reply-To", "help@example.com"),
        ("Subject", "Hello"),
        ("Date", "Mon, 19 Oct 2026 08:00:00 +0000"),
        ("Message-ID", message_id),
        ("X-Order", "17"),
        ("MIME-Version", "1.0"),
        ("Content-Type", message["Content-Type"]),
    ]
    assert message.get_content_type() == "multipart/alternative"
    assert body(message, "plain") == "Hi Ada\r\n"
    assert body(message, "html") == "<p>Hi Ada</p>\r\n"
    assert b"dan@" not in raw


async def test_every_attempt_sends_the_same_bytes(serve: Serve) -> None:
    port = await serve(inbox := Inbox())
    task = a_task(html="<p>{{name}}</p>")
    first = await handler(port)(task)
    second = await handler(port)(task)
    assert first["message_id"] == second["message_id"]
    assert inbox.kept[0] == inbox.kept[1]


def test_another_key_is_another_message() -> None:
    assert composed(a_task(idempotency_key="other"))["Message-ID"] == "<other@example.com>"
    assert composed(a_task(**{"from": "x@other.example"}))["Message-ID"] == f"<{KEY}@other.example>"


@pytest.mark.parametrize("key", ["a b", "a@b", "<a>", "a\r\nBcc: x@y.z", "é", "", ".", "x" * 129])
def test_a_key_that_no_message_id_can_hold_is_hashed(key: str) -> None:
    message_id = composed(a_task(idempotency_key=key))["Message-ID"]
    local = message_id.removeprefix("<").removesuffix("@example.com>")
    assert len(local) == 64 and int(local, 16)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "text/plain"),
        ({"text": None, "html": "<p>x</p>"}, "text/html"),
        ({"html": "<p>x</p>"}, "multipart/alternative"),
    ],
)
def test_the_kind_of_a_message_follows_from_what_it_holds(options: dict[str, Any], kind: str) -> None:
    assert composed(a_task(**options)).get_content_type() == kind


def test_the_data_of_a_template_is_the_input_unless_data_is_given() -> None:
    assert composed(a_task(subject="For {{name}}"))["Subject"] == "For Ada"
    assert composed(a_task(subject="For {{name}}", data={"name": "Bob"}))["Subject"] == "For Bob"
    assert composed(a_task(subject="For {{name}}", text="x", data={"name": "<Bob> & 'co'"}))["Subject"] == (
        "For <Bob> & 'co'"
    )


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_a_script_in_the_data_is_text_in_the_page() -> None:
    data = {"name": "<script>alert(1)</script>", "link": 'x" onclick="alert(1)'}
    message = composed(a_task(html='<p><a href="{{link}}">{{name}}</a></p>', data=data))
    assert Tags(body(message, "html")).tags == ["p", "a"]
    assert "<script>alert(1)</script>" in body(message, "plain")


async def test_a_unicode_subject_and_name_need_no_unicode_server(serve: Serve) -> None:
    port = await serve(inbox := Inbox(), enable_SMTPUTF8=False)
    subject, name = "Größe ✓ " * 20 + "支払", "Éva, the great 💶"
    await handler(port)(a_task(subject=subject, text="Grüße", to=[f'"{name}" <eva{n}@example.org>' for n in range(20)]))
    assert inbox.kept[0][2].isascii()
    message = inbox.only()
    assert message["Subject"] == subject
    assert [(one.display_name, one.addr_spec) for one in message["To"].addresses] == [
        (name, f"eva{n}@example.org") for n in range(20)
    ]
    assert body(message, "plain") == "Grüße\r\n"
    assert not any("SMTPUTF8" in seen for seen in inbox.seen)


@pytest.mark.parametrize(
    "options",
    [
        {"to": "jörg@example.org"},
        {"bcc": "jörg@example.org"},
        {"reply_to": "jörg@example.org"},
        {"from": "a@bücher.de"},
    ],
)
async def test_a_unicode_address_needs_a_server_that_knows_them(serve: Serve, options: dict[str, str]) -> None:
    knows = await serve(inbox := Inbox())
    await handler(knows)(a_task(**options))
    assert "SMTPUTF8" in inbox.seen[1] and inbox.seen[1].startswith("MAIL")
    if "bcc" not in options:
        assert next(iter(options.values())).encode() in inbox.kept[0][2]

    does_not = await serve(inbox := Inbox(), enable_SMTPUTF8=False)
    error = await failure(handler(does_not)(a_task(**options)))
    assert isinstance(error, Rejected) and "SMTPUTF8" in str(error)
    assert not any(seen.startswith("MAIL") for seen in inbox.seen)


async def test_lines_that_look_like_smtp_stay_content(serve: Serve) -> None:
    port = await serve(inbox := Inbox())
    text = ".\n..\nfirst\r.\rsecond\n.\nMAIL FROM:<x@y.z>\n.hidden\r\n.\r\nFrom me\nend"
    await handler(port)(a_task(text=text))
    assert [seen.split()[0] for seen in inbox.seen] == ["EHLO", "MAIL", "RCPT", "DATA", "CONTENT"]
    assert body(inbox.only(), "plain").split("\r\n") == [
        *text.replace("\r\n", "\n").replace("\r", "\n").split("\n"),
        "",
    ]


async def test_the_content_ends_once_and_last(serve_raw: Serve) -> None:
    rest = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await scripted("220 mx", "250 mx", "250 ok", "250 ok")(reader, writer)
        writer.write(b"354 go\r\n")
        content = await reader.readuntil(b"\r\n.\r\n")
        writer.write(b"250 done\r\n")
        rest.set_result((content, await reader.read()))

    await handler(await serve_raw(listen))(a_task(text="one\n.\ntwo"))
    content, after = await rest
    assert content.endswith(b"\r\n\r\none\r\n..\r\ntwo\r\n.\r\n")
    assert after == b"QUIT\r\n"


async def test_long_and_large_bodies_arrive(serve: Serve) -> None:
    port = await serve(inbox := Inbox())
    big = "x" * 5000 + "\n" + ("line é\n" * 100_000)
    await handler(port)(a_task(text="{{big}}", data={"big": big}))
    assert body(inbox.only(), "plain") == big.replace("\n", "\r\n")


plain = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=150)
tricky = st.sampled_from(["=?utf-8?q?=0D=0ABcc=3A_x@y.z?=", "=?", "?=", "x@y.z, ", "<x@y.z>", '"', "\\", "  ", ": "])
phrases = st.lists(tricky | plain, max_size=4).map("".join).map(lambda text: text[:200].strip())


@settings(deadline=None, database=None, max_examples=150)
@given(phrases, phrases, phrases)
def test_no_text_changes_who_a_message_is_for_or_adds_a_header(subject: str, name: str, extra: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    message = composed(a_task(subject="{{s}}", text="x", data={"s": subject}, to=f'"{quoted}" <ada@example.org>',
                              headers={"X-Extra": extra}))  # fmt: skip
    assert message.keys() == [
        "From", "To", "Subject", "Date", "Message-ID", "X-Extra", "Content-Type", "Content-Transfer-Encoding",
        "MIME-Version",
    ]  # fmt: skip
    # Not by message["To"]: it puts a space between two encoded words of a name.
    [(encoded, address)] = getaddresses([value for field, value in message.raw_items() if field == "To"])
    assert address == "ada@example.org"
    assert " ".join(str(make_header(decode_header(encoded))).split()) == " ".join(name.split())
    assert " ".join(str(message["Subject"]).split()) == " ".join(subject.split())
    assert " ".join(str(message["X-Extra"]).split()) == " ".join(extra.split())


# -- what is refused before anything is sent

BREAKS = ["\r\nBcc: x@y.z", "\nBcc: x@y.z", "\rBcc: x@y.z", "\0", "\x0b", "\x85", "\u2028", "\ud800"]


@pytest.mark.parametrize(
    "where", ["to", "cc", "bcc", "reply_to", "from", "subject", "header", "in a name", "from data"]
)
@pytest.mark.parametrize("injected", BREAKS, ids=ascii)
async def test_a_line_break_in_a_header_is_refused_in_words(where: str, injected: str) -> None:
    options: dict[str, Any] = {
        "subject": {"subject": f"Hello{injected}"},
        "header": {"headers": {"X-Order": f"17{injected}"}},
        "in a name": {"to": f'"Ada{injected}" <ada@example.org>'},
        "from data": {"subject": "{{s}}", "text": "x", "data": {"s": f"Hello{injected}"}},
    }.get(where, {where: f"ada@example.org{injected}"})
    mail = Kept()
    with pytest.raises(Rejected, match="control character U\\+"):
        await EmailHandler(mail, default_sender="shop@example.com")(a_task(**options))
    assert mail.sent == []


@pytest.mark.parametrize(
    "address",
    [
        "", "ada", "ada@", "@example.org", "a@b@c.d", "ada example.org", "ada@example..org", ".ada@example.org",
        "ada@-example.org", "a@b.c, d@e.f", "a@b.c; d@e.f", "group: a@b.c;", "group:;", "<@r.s:a@b.c>", "a@b.c>",
        "Ada <a@b.c> x", "Ada <a@b.c", "Smith, Ada <a@b.c>", "x@y.z <a@b.c>", "<x@y.z> <a@b.c>", '"a b"@example.org',
        "a@[127.0.0.1]", "a@b.c (comment)", "=?utf-8?q?a?=@b.c", "a\u00a0b@example.org", "a\u202eb@example.org",
        "a b@example.org", "a@exam ple.org", "x" * 65 + "@example.org", "a@" + "x" * 64 + ".org",
        "a@" + "x." * 130 + "org", f"{'n' * 201} <a@b.c>", 17, None, ["a@b.c"], {"a": "b"},
    ],
)  # fmt: skip
def test_what_is_not_one_address_is_refused(address: Any) -> None:
    with pytest.raises(BadInput, match=r"^to"):
        read_address("to", address)


@pytest.mark.parametrize(
    ("address", "name", "spec"),
    [
        ("ada@example.org", "", "ada@example.org"),
        (" ada@localhost ", "", "ada@localhost"),
        ("<ada@example.org>", "", "ada@example.org"),
        ("Ada Lovelace <ada+x@example.org>", "Ada Lovelace", "ada+x@example.org"),
        ('"Lovelace, \\"Ada\\"" <o\'brien@xn--bcher-kva.de>', 'Lovelace, "Ada"', "o'brien@xn--bcher-kva.de"),
        ("Éva <jörg@bücher.de>", "Éva", "jörg@bücher.de"),
    ],
)
def test_an_address_may_have_a_name(address: str, name: str, spec: str) -> None:
    read = read_address("to", address)
    assert (read.display_name, read.addr_spec) == (name, spec)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": []}, "at least one recipient"),
        ({"to": None}, "at least one recipient"),
        ({"to": 17}, "to: expected an address"),
        ({"to": ["a@b.c", None]}, "to: expected an address"),
        ({"cc": "nobody"}, "cc: 'nobody' is not one address"),
        ({"to": ["a@b.c"] * 60, "cc": ["a@b.c"] * 30, "bcc": ["a@b.c"] * 11}, "101 recipients, the limit is 100"),
        ({"subject": None}, "subject: give"),
        ({"subject": ["x"]}, "subject: expected text"),
        ({"subject": "x" * 901}, "900"),
        ({"subject": "{{nope}}"}, "subject, line 1, column 1: nothing in the data is called 'nope'"),
        ({"text": None}, "text, html: give at least one"),
        ({"text": "{{#a}}"}, "text, line 1, column 1: {{#a}} is never closed"),
        ({"html": "{{name.first}}"}, "html, line 1, column 1: nothing in the data is called 'name.first'"),
        ({"html": 17}, "html: expected text"),
        ({"text": "a\0b"}, "text holds a NUL"),
        ({"text": "a\ud800b"}, "half a character"),
        ({"headers": {"Bcc": "x@y.z"}}, "'Bcc' is not allowed"),
        ({"headers": {"X-A\r\nBcc": "x@y.z"}}, "is not allowed"),
        ({"headers": {"X-A:": "1"}}, "is not allowed"),
        ({"headers": {"X-": "1"}}, "is not allowed"),
        ({"headers": {"X-A": 1}}, "X-A is int"),
        ({"headers": ["X-A"]}, "headers: expected an object"),
        ({"headers": {f"X-{n}": "1" for n in range(51)}}, "at most 50"),
        ({"data": 17}, "nothing in the data is called 'name'"),
    ],
)
async def test_options_that_make_no_message_are_refused_before_anything_is_sent(
    options: dict[str, Any], words: str
) -> None:
    mail = Kept()
    with pytest.raises(Rejected) as refused:
        await EmailHandler(mail, default_sender="shop@example.com")(a_task(**options))
    assert words in str(refused.value)
    assert mail.sent == []


def test_a_default_sender_is_checked_at_once() -> None:
    with pytest.raises(BadInput, match="default_sender"):
        EmailHandler(Kept(), default_sender="shop")


# -- what a failure says


@pytest.mark.parametrize("command", ["EHLO", "MAIL", "RCPT", "DATA", "CONTENT"])
@pytest.mark.parametrize(
    ("answer", "known"), [("451 later", "not_applied"), ("421 closing", "not_applied"), ("554 never", "rejected")]
)
async def test_a_refusal_says_whether_to_try_again(serve: Serve, command: str, answer: str, known: str) -> None:
    port = await serve(inbox := Inbox(**{command: answer, "HELO": answer}))
    error = await failure(handler(port)(a_task()))
    assert known_from(error) == known
    assert answer[:3] in str(error) and answer[4:] in str(error)
    assert inbox.kept == []


@pytest.mark.parametrize("command", ["EHLO", "MAIL", "RCPT", "DATA"])
async def test_a_connection_lost_before_the_content_means_nothing_was_sent(serve: Serve, command: str) -> None:
    port = await serve(inbox := Inbox(**{command: DROP}))
    error = await failure(handler(port)(a_task()))
    assert isinstance(error, NotApplied)
    assert inbox.seen[-1].startswith(command)


async def test_a_connection_lost_after_the_content_leaves_it_unknown(serve: Serve) -> None:
    port = await serve(inbox := Inbox(CONTENT=DROP))
    error = await failure(handler(port)(a_task()))
    assert isinstance(error, OutcomeUnknown) and known_from(error) == "unknown"
    assert inbox.seen[-1] == "CONTENT"


@pytest.mark.parametrize("command", ["EHLO", "MAIL", "RCPT", "DATA"])
async def test_a_server_that_falls_silent_before_the_content_was_sent_nothing(serve: Serve, command: str) -> None:
    port = await serve(inbox := Inbox(**{command: HANG}))
    error = await failure(handler(port, command_seconds=0.5)(a_task()))
    assert isinstance(error, NotApplied)
    assert inbox.kept == [] and "CONTENT" not in inbox.seen


async def test_a_server_that_falls_silent_after_the_content_leaves_it_unknown(serve: Serve) -> None:
    port = await serve(Inbox(CONTENT=HANG))
    error = await failure(handler(port, reply_seconds=0.2)(a_task()))
    assert isinstance(error, OutcomeUnknown) and known_from(error) == "unknown"


async def test_some_refused_recipients_are_reported_and_the_others_get_it(serve: Serve) -> None:
    refusals = {"bob@example.org": "550 no such user", "carol@example.org": "450 try later"}
    port = await serve(inbox := Inbox(RCPT=refusals.get))
    result = await handler(port)(a_task(to=["ada@example.org", "bob@example.org"], bcc="carol@example.org"))
    assert result["accepted"] == ["ada@example.org"]
    assert result["refused"] == refusals
    assert [kept[1] for kept in inbox.kept] == [["ada@example.org"]]


@pytest.mark.parametrize(
    ("codes", "known"), [("55", "rejected"), ("44", "not_applied"), ("45", "not_applied"), ("54", "not_applied")]
)
async def test_when_all_are_refused_it_is_for_good_only_if_each_is(serve: Serve, codes: str, known: str) -> None:
    refusals = {f"r{n}@example.org": f"{code}50 no" for n, code in enumerate(codes)}
    port = await serve(inbox := Inbox(RCPT=refusals.get))
    error = await failure(handler(port)(a_task(to=list(refusals))))
    assert known_from(error) == known
    assert "r0@example.org" in str(error)
    assert "DATA" not in inbox.seen


async def test_a_recipient_accepted_with_another_word_than_250_is_accepted(serve: Serve) -> None:
    port = await serve(Inbox(RCPT="252 cannot verify, will try"))
    assert (await handler(port)(a_task()))["accepted"] == ["ada@example.org"]


async def test_a_connection_that_is_never_opened_means_nothing_was_sent() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens there
        error = await failure(handler(taken.getsockname()[1])(a_task()))
    assert isinstance(error, NotApplied) and "connecting" in str(error)


def scripted(*replies: str, then: object = DROP, read_content: bool = True) -> Callable[..., Any]:
    """Each reply answers one command, the first greets; the one after 354 answers the content, if that is read."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in replies:
            writer.write(reply.encode("latin-1") + b"\r\n")
            if reply.startswith("354"):
                if not read_content:
                    break
                await reader.readuntil(b"\r\n.\r\n")
            else:
                await reader.readuntil(b"\r\n")
        await writer.drain()
        if then is HANG:
            await asyncio.Event().wait()

    return talk


@pytest.mark.parametrize(
    ("script", "known"),
    [
        (scripted("421 busy"), "not_applied"),
        (scripted("554 no service"), "rejected"),
        (scripted("HTTP/1.1 400 Bad Request"), "not_applied"),
        (scripted(then=DROP), "not_applied"),
        (scripted("220 mx", "250 mx", "250 ok", "250 ok", "250 odd"), "not_applied"),
        (scripted("220 mx", "250 mx", "250 ok", "250 ok", "354 go", "what?"), "unknown"),
        (scripted("220 mx", "250 mx", "250 ok", "250 ok", "354 go", "334 what"), "unknown"),
        (scripted("220 mx", "250 mx", "250 ok", "250 ok", "354 go", "100 what"), "unknown"),
        (scripted("220 mx", "250 mx", "250 ok", "250 ok", "354 go", "25"), "unknown"),
        (scripted("220 mx", "250 mx", "250 ok", "250 ok", "354 go"), "unknown"),
        (scripted("220 mx", "250 mx", "250 ok", "250 ok", "354 go", "450-more\r\n450 later"), "not_applied"),
        (scripted("220 mx", "250 mx", "250 ok", "250 ok", "354 go", "552 too large"), "rejected"),
    ],
)
async def test_odd_servers(serve_raw: Serve, script: Any, known: str) -> None:
    port = await serve_raw(script)
    assert known_from(await failure(handler(port)(a_task()))) == known


async def test_a_server_that_consents_and_hangs_up_may_have_been_too_late(serve_raw: Serve) -> None:
    port = await serve_raw(scripted("220 mx", "250 mx", "250 ok", "250 ok", "354 go", read_content=False))
    error = await failure(handler(port)(a_task()))  # the end of the content was written by then, or it was not
    assert isinstance(error, (NotApplied, OutcomeUnknown))


async def test_a_server_that_does_not_greet_was_sent_nothing(serve_raw: Serve) -> None:
    port = await serve_raw(scripted(then=HANG))
    error = await failure(handler(port, connect_seconds=0.2)(a_task()))
    assert isinstance(error, NotApplied) and "connecting" in str(error)


class Heavy(EmailMessage):
    """More than the buffers between two processes hold."""

    def as_bytes(self, *args: Any, **options: Any) -> bytes:
        return (b"x" * 998 + b"\r\n") * 40_000


async def test_a_connection_lost_within_the_content_means_nothing_was_sent(serve_raw: Serve) -> None:
    async def drop_within(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await scripted("220 mx", "250 mx", "250 ok", "250 ok")(reader, writer)
        writer.write(b"354 go\r\n")
        await reader.readexactly(100_000)

    port = await serve_raw(drop_within)
    error = await failure(SmtpMail(f"smtp://127.0.0.1:{port}").send(Heavy(), "a@b.c", ["d@e.f"]))
    assert isinstance(error, NotApplied) and "sending the content" in str(error)


async def test_content_that_cannot_be_sent_to_its_end_was_not_sent(serve_raw: Serve) -> None:
    given_up, last_words = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def stop_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await scripted("220 mx", "250 mx", "250 ok", "250 ok")(reader, writer)
        writer.write(b"354 go\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await given_up.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        tail = b""
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(1 << 16):
                tail = (tail + chunk)[-10:]
        last_words.set_result(tail)

    port = await serve_raw(stop_reading)
    mail = SmtpMail(f"smtp://127.0.0.1:{port}", content_seconds=0.5)
    error = await failure(mail.send(Heavy(), "a@b.c", ["d@e.f"]))
    assert isinstance(error, NotApplied) and "sending the content" in str(error)
    given_up.set()
    # Neither the end of the content nor a goodbye, which would be content too.
    assert set((await last_words).strip()) <= set(b"x\r\n")


async def test_a_connection_found_lost_when_the_content_is_due_means_nothing_was_sent(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = SMTP.execute_command

    async def and_is_lost(smtp: SMTP, *words: bytes, **options: Any) -> Any:
        reply = await command(smtp, *words, **options)
        if words == (b"DATA",):
            smtp.close()
        return reply

    port = await serve(inbox := Inbox())
    monkeypatch.setattr(SMTP, "execute_command", and_is_lost)
    assert isinstance(await failure(handler(port)(a_task())), NotApplied)
    assert inbox.kept == []


async def test_a_server_that_knows_only_helo_is_spoken_to(serve_raw: Serve) -> None:
    port = await serve_raw(scripted("220 mx", "502 what", "250 mx", "250 ok", "250 ok", "354 go", "250 done"))
    assert (await handler(port)(a_task()))["response"] == "250 done"


async def test_a_success_does_not_depend_on_the_goodbye(serve_raw: Serve) -> None:
    port = await serve_raw(scripted("220 mx", "250 mx", "250 ok", "250 ok", "354 go", "250 done", then=HANG))
    assert (await handler(port)(a_task()))["response"] == "250 done"


async def test_a_servers_words_are_kept_as_clean_text(serve_raw: Serve) -> None:
    port = await serve_raw(
        scripted("220 mx", "250 mx", "250 ok", "250 ok", "354 go", "250-a\0b\xff\r\n250 " + "c" * 600)
    )
    response = (await handler(port)(a_task()))["response"]
    assert response.startswith("250 a b\ufffd ccc") and len(response) == 504


async def test_a_message_larger_than_the_server_takes_is_refused_before_it_is_sent(serve: Serve) -> None:
    port = await serve(inbox := Inbox(), data_size_limit=2000)
    error = await failure(handler(port)(a_task(text="x\n" * 1000)))
    assert isinstance(error, Rejected) and "the mail server takes 2,000" in str(error)
    assert len(inbox.seen) == 1
    await handler(port)(a_task())
    assert "size=" in inbox.seen[2].lower()


# -- not_after


async def test_a_task_found_late_is_not_begun() -> None:
    mail = Kept()
    sending = EmailHandler(mail, default_sender="shop@example.com", clock=lambda: MONDAY)
    error = await failure(sending(a_task(not_after=MONDAY)))
    assert isinstance(error, NotApplied) and "late" in str(error)
    await sending(a_task(not_after=MONDAY + 1))
    assert len(mail.sent) == 1


async def test_a_mail_is_told_until_when_it_may_begin() -> None:
    told: list[float | None] = []

    class Told(Kept):
        async def send(
            self, message: EmailMessage, sender: str, recipients: list[str], not_after: float | None = None
        ) -> dict[str, Any]:
            told.append(not_after)
            return await super().send(message, sender, recipients, not_after)

    await EmailHandler(Told(), default_sender="shop@example.com", clock=lambda: MONDAY)(a_task(not_after=MONDAY + 1))
    assert told == [MONDAY + 1]


@pytest.mark.parametrize(("slow", "last"), [("EHLO", "EHLO"), ("RCPT", "RCPT")])
async def test_time_that_runs_out_on_the_way_stops_it_before_the_content(serve: Serve, slow: str, last: str) -> None:
    now = MONDAY

    def takes_a_minute(argument: str) -> None:
        nonlocal now
        now += 60

    port = await serve(inbox := Inbox(**{slow: takes_a_minute}))
    error = await failure(handler(port, clock=lambda: now)(a_task(not_after=MONDAY + 30)))
    assert isinstance(error, NotApplied) and "late" in str(error)
    assert inbox.seen[-1].startswith(last)


async def test_a_cancelled_sending_leaves_no_content_behind(serve: Serve) -> None:
    reached = asyncio.Event()

    def hang(argument: str) -> object:
        reached.set()
        return HANG

    port = await serve(inbox := Inbox(RCPT=hang))
    sending = asyncio.create_task(handler(port)(a_task()))
    await reached.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert inbox.kept == []


# -- TLS and passwords


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's context, and a client's that trusts it."""
    for name, text in (("cert.pem", CERTIFICATE), ("key.pem", PRIVATE_KEY)):
        (tmp_path / name).write_text(text)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return server, ssl.create_default_context(cadata=CERTIFICATE)


def passes(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    return AuthResult(success=(data.login, data.password) == (b"shop", b"s3cr3t-word"), handled=False)


@pytest.mark.filterwarnings("ignore:Requiring AUTH")
@pytest.mark.parametrize("url", ["smtp://shop@localhost:{}?starttls=1", "smtps://shop@127.0.0.1:{}"])
async def test_a_password_goes_over_tls(serve: Serve, tls: Any, url: str) -> None:
    server, client = tls
    options = {"tls_context": server} if url.startswith("smtp:") else {"ssl_context": server, "auth_require_tls": False}
    port = await serve(inbox := Inbox(), auth_required=True, authenticator=passes, **options)
    mail = SmtpMail(url.format(port), password=lambda: "s3cr3t-word", tls_context=client)
    await EmailHandler(mail, default_sender="shop@example.com")(a_task(input={"name": "long\n" * 200_000}))
    assert len(inbox.kept) == 1 and len(inbox.kept[0][2]) > 1_000_000

    stranger = SmtpMail(url.format(port), password=lambda: "s3cr3t-word")
    error = await failure(EmailHandler(stranger, default_sender="shop@example.com")(a_task()))
    assert isinstance(error, NotApplied) and "CERTIFICATE_VERIFY_FAILED" in str(error)
    assert len(inbox.kept) == 1


async def test_tls_that_is_asked_for_and_not_offered_is_not_done_without(serve: Serve) -> None:
    port = await serve(inbox := Inbox())
    mail = SmtpMail(f"smtp://127.0.0.1:{port}?starttls=1")
    error = await failure(EmailHandler(mail, default_sender="shop@example.com")(a_task()))
    assert isinstance(error, NotApplied) and "STARTTLS" in str(error)
    assert [seen.split()[0] for seen in inbox.seen] == ["EHLO"]


async def test_a_wrong_password_is_refused_for_good_and_not_repeated_in_words(serve: Serve) -> None:
    port = await serve(Inbox(), authenticator=passes, auth_require_tls=False)
    mail = SmtpMail(f"smtp://shop:wrong-word@127.0.0.1:{port}")
    error = await failure(EmailHandler(mail, default_sender="shop@example.com")(a_task()))
    assert isinstance(error, Rejected) and "AUTH" in str(error)
    assert "wrong-word" not in str(error) + repr(mail)


@pytest.mark.parametrize("answer", ["535 syntax: {}", "454 later: {}"])
async def test_a_server_that_repeats_the_password_does_not_get_it_into_our_words(serve_raw: Serve, answer: str) -> None:
    sent = "AHNob3AAczNjcjN0LXdvcmQ="
    port = await serve_raw(scripted("220 mx", "250-mx\r\n250 AUTH PLAIN", answer.format(sent)))
    mail = SmtpMail(f"smtp://shop@127.0.0.1:{port}", password=lambda: "s3cr3t-word")
    error = await failure(EmailHandler(mail, default_sender="shop@example.com")(a_task()))
    assert known_from(error) == ("rejected" if answer.startswith("5") else "not_applied")
    assert answer[:3] in str(error) and sent not in str(error)
    assert error.__cause__ is None and error.__suppress_context__


async def test_a_password_that_cannot_be_had_means_nothing_was_sent(serve: Serve) -> None:
    def missing() -> str:
        raise KeyError("SMTP_PASSWORD")

    port = await serve(inbox := Inbox(), authenticator=passes, auth_require_tls=False)
    mail = SmtpMail(f"smtp://shop@127.0.0.1:{port}", password=missing)
    error = await failure(EmailHandler(mail, default_sender="shop@example.com")(a_task()))
    assert isinstance(error, NotApplied) and "SMTP_PASSWORD" in str(error)
    assert inbox.kept == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "cannot be read"),
        ("mail.example.org", "cannot be read"),
        ("http://mail.example.org", "cannot be read"),
        ("smtp://", "cannot be read"),
        ("smtp://mail.example.org/inbox", "cannot be read"),
        ("smtp://shop:hush#hush@mail.example.org", "cannot be read"),
        ("smtp://shop:hush/hush@mail.example.org", "cannot be read"),
        ("smtp://mail.example.org:99999", "cannot be read"),
        ("smtp://[::1", "cannot be read"),
        ("smtp://mail.example.org?tls=1", "option"),
        ("smtp://mail.example.org?starttls=yes", "option"),
        ("smtp://mail.example.org?starttls", "cannot be read"),
        ("smtps://mail.example.org?starttls=1", "encrypted from the start"),
        ("smtp://shop:hush@mail.example.org", "unencrypted"),
        ("smtp://shop:hush@mail.example.org?starttls=0", "unencrypted"),
        ("smtps://shop@mail.example.org", "password="),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_without_its_password(url: str, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        SmtpMail(url)
    assert words in str(refused.value) and "hush" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_password_is_given_once() -> None:
    for url in ("smtps://shop:hush@mail.example.org", "smtps://mail.example.org"):
        with pytest.raises(BadInput, match="password="):
            SmtpMail(url, password=lambda: "hush")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("smtp://mail.example.org", "SmtpMail(mail.example.org:25)"),
        ("smtp://shop:a%40b@mail.example.org?starttls=1", "SmtpMail(mail.example.org:587)"),
        ("smtps://shop:hush@mail.example.org/", "SmtpMail(mail.example.org:465)"),
        ("smtp://shop:hush@[::1]:2525", "SmtpMail(::1:2525)"),
    ],
)
def test_a_url_names_the_server(url: str, shown: str) -> None:
    assert repr(SmtpMail(url)) == shown


# -- the mailbox of `dev`


async def test_the_mailbox_shows_what_was_sent(tmp_path: Path) -> None:
    now = MONDAY
    mailbox = FileMailbox(tmp_path / "mail", clock=lambda: now)
    assert mailbox.list() == ()
    sending = EmailHandler(mailbox, default_sender="Shop <shop@example.com>", clock=lambda: now)
    result = await sending(a_task(subject="Größe", html="<b>{{name}}</b>", cc="c@d.e", bcc="dan@example.org"))
    now += 1
    await sending(a_task(idempotency_key="second", to="jörg@example.org"))
    first, second = mailbox.list()
    assert result["accepted"] == ["ada@example.org", "c@d.e", "dan@example.org"]
    assert (first.sender, first.to, first.cc, first.subject) == (
        "Shop <shop@example.com>", "ada@example.org", "c@d.e", "Größe"
    )  # fmt: skip
    assert (first.date, first.text, first.html) == ("Mon, 19 Oct 2026 08:00:00 +0000", "Hi Ada\n", "<b>Ada</b>\n")
    assert first.name.startswith("20261019T080000.000000Z-") and first.name in result["response"]
    assert b"dan@" not in (tmp_path / "mail" / first.name).read_bytes()
    assert (second.to, second.html) == ("jörg@example.org", None)
    assert mailbox.read(first.name) == mailbox.read(first.message_id) == first
    assert mailbox.read(second.message_id) == second


async def test_a_repeat_is_one_message_in_the_mailbox(tmp_path: Path) -> None:
    now = MONDAY
    mailbox = FileMailbox(tmp_path, clock=lambda: now)
    sending = EmailHandler(mailbox, default_sender="shop@example.com", clock=lambda: now)
    await sending(a_task())
    await sending(a_task(idempotency_key="another"))
    now += 3600
    await sending(a_task())
    repeated, another = mailbox.list()
    assert repeated.date == "Mon, 19 Oct 2026 09:00:00 +0000"
    assert another.message_id == "<another@example.com>"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("which", ["", "nothing.eml", "../secret.eml", "<no@such>", "*", "/etc/passwd"])
def test_what_is_not_in_the_mailbox_is_not_read(tmp_path: Path, which: str) -> None:
    (tmp_path / "secret.eml").write_text("Subject: x\n\ny")
    (tmp_path / "mail").mkdir()
    with pytest.raises(MailNotFound, match="in the mailbox"):
        FileMailbox(tmp_path / "mail").read(which)


async def test_a_mailbox_that_cannot_be_written_says_that_nothing_was_sent(tmp_path: Path) -> None:
    (tmp_path / "mail").write_text("a file where the directory should be")
    sending = EmailHandler(FileMailbox(tmp_path / "mail"), default_sender="shop@example.com")
    assert isinstance(await failure(sending(a_task())), NotApplied)
