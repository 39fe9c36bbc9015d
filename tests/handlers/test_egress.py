"""The one way out: where a request may go, and how we know whether it left."""

import asyncio
import gzip
import ipaddress
import logging
import socket
import ssl
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.effects import known_from
from holdfast.engine.egress import entry_of, target_of, why_not_public
from holdfast.engine.errors import NotApplied, Rejected
from holdfast.handlers.egress import (
    Answer,
    Egress,
    OutcomeUnknown,
    Request,
    resolve_name,
)
from tests.handlers.support import (
    PUBLIC,
    PUBLIC_TOO,
    Dials,
    Exchange,
    Names,
    answering,
    certificate_for,
    serving,
)

AUTHORITIES = ssl.create_default_context()
EVERYTHING = ("*", "http://*", "*:8080", "http://*:8080")
NAMES: dict[str, Any] = {
    "pay.example.org": [PUBLIC],
    "two.example.org": [PUBLIC, PUBLIC_TOO],
    "six.example.org": ["2606:2800:21f:cb07:6820:80da:af6b:8b2c"],
    "one-bad.example.org": [PUBLIC, "127.0.0.1"],
    "bad-first.example.org": ["10.0.0.1", PUBLIC],
    "six-bad.example.org": [PUBLIC, "::1"],
    "loopback.example.org": ["127.0.0.1"],
    "private.example.org": ["192.168.1.7"],
    "metadata.example.org": ["169.254.169.254"],
    "mapped.example.org": ["::ffff:10.0.0.1"],
    "nat64.example.org": ["64:ff9b::a00:1"],
    "zoned.example.org": ["fe80::1%eth0"],
    "zoned-public.example.org": ["2606:2800:21f::1%eth0"],
    "junk.example.org": ["not an address"],
    "cgnat.example.org": ["100.64.0.1"],
}


def a_request(url: str, method: str = "GET", **more: Any) -> Request:
    return Request(method=method, url=url, **more)


async def send(egress: Egress, url: str, allowed: Sequence[str] = EVERYTHING, **more: Any) -> Answer:
    return await egress.send(a_request(url, **more), tenant_id="acme", allowed=allowed)


# Each is refused, in words, before anybody is dialled. All hosts and both schemes are allowed here, so that nothing
# but the rule in question stands in the way.
REFUSED = [
    # Addresses, as they are
    ("http://127.0.0.1/", "loopback"),
    ("http://127.0.0.1:80/", "loopback"),
    ("http://127.8.9.10/", "loopback"),
    ("http://0.0.0.0/", "unspecified"),
    ("http://0.1.2.3/", "unspecified"),
    ("http://10.0.0.1/", "private"),
    ("http://10.255.255.255/", "private"),
    ("http://172.16.0.1/", "private"),
    ("http://172.31.255.254/", "private"),
    ("http://192.168.0.1/", "private"),
    ("http://169.254.169.254/latest/meta-data/", "metadata"),
    ("http://169.254.170.2/v2/credentials", "metadata"),
    ("http://168.63.129.16/metadata", "metadata"),
    ("http://100.64.0.1/", "carrier-grade NAT"),
    ("http://100.100.100.200/latest/meta-data/", "carrier-grade NAT"),
    ("http://100.127.255.255/", "carrier-grade NAT"),
    ("http://192.0.0.192/opc/v2/", "reserved"),
    ("http://198.18.0.1/", "benchmarking"),
    ("http://198.19.255.255/", "benchmarking"),
    ("http://192.0.2.1/", "documentation"),
    ("http://198.51.100.1/", "documentation"),
    ("http://203.0.113.1/", "documentation"),
    ("http://192.88.99.1/", "6to4"),
    ("http://224.0.0.1/", "multicast"),
    ("http://239.255.255.255/", "multicast"),
    ("http://240.0.0.1/", "reserved"),
    ("http://255.255.255.255/", "reserved"),
    ("http://[::1]/", "loopback"),
    ("http://[::]/", "unspecified"),
    ("http://[0:0:0:0:0:0:0:1]/", "loopback"),
    ("http://[::ffff:127.0.0.1]/", "IPv4-mapped"),
    ("http://[::ffff:7f00:1]/", "IPv4-mapped"),
    (f"http://[::ffff:{PUBLIC}]/", "IPv4-mapped"),
    ("http://[::ffff:0:127.0.0.1]/", "IPv4-translated"),
    ("http://[::127.0.0.1]/", "IPv4-compatible"),
    ("http://[64:ff9b::7f00:1]/", "NAT64"),
    ("http://[64:ff9b::127.0.0.1]/", "NAT64"),
    ("http://[64:ff9b:1::10.0.0.1]/", "NAT64"),
    ("http://[2002:7f00:1::]/", "6to4"),
    ("http://[2002:a00:1::1]/", "6to4"),
    ("http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/", "Teredo"),
    ("http://[2001:10::1]/", "reserved"),
    ("http://[2001:2::1]/", "benchmarking"),
    ("http://[2001:db8::1]/", "documentation"),
    ("http://[3fff::1]/", "documentation"),
    ("http://[2606:2800:21f:cb07:0:5efe:7f00:1]/", "ISATAP"),
    ("http://[2606:2800:21f:cb07:200:5efe:10.0.0.1]/", "ISATAP"),
    ("http://[fe80::1]/", "link-local"),
    ("http://[fe80::5efe:127.0.0.1]/", "link-local"),
    ("http://[fec0::1]/", "site-local"),
    ("http://[fc00::1]/", "unique local"),
    ("http://[fd12:3456:789a::1]/", "unique local"),
    ("http://[fd00:ec2::254]/latest/meta-data/", "metadata"),
    ("http://[ff02::1]/", "multicast"),
    ("http://[100::1]/", "reserved"),
    ("http://[4000::1]/", "reserved"),
    # Addresses in disguise
    ("http://127.1/", "in disguise"),
    ("http://127.0.1/", "in disguise"),
    ("http://2130706433/", "in disguise"),
    ("http://0x7f000001/", "in disguise"),
    ("http://0X7F000001/", "in disguise"),
    ("http://0x7f.0x0.0x0.0x1/", "in disguise"),
    ("http://0x7f.0.0.1/", "in disguise"),
    ("http://0177.0.0.1/", "in disguise"),
    ("http://0177.0x0.0.01/", "in disguise"),
    ("http://017700000001/", "in disguise"),
    ("http://127.0.0.01/", "in disguise"),
    ("http://127.0.0.0x1/", "in disguise"),
    ("http://127.0.0.256/", "in disguise"),
    ("http://10.0.0.0.1/", "in disguise"),
    ("http://1.0x/", "in disguise"),
    ("http://127.0.0.1./", "ends in a dot"),
    ("http://pay.example.org./", "ends in a dot"),
    ("http://127.0.0.1../", "ends in a dot"),
    ("http://pay..example.org/", "not a host name"),
    ("http://.pay.example.org/", "not a host name"),
    ("http://-pay.example.org/", "not a host name"),
    ("http://pay.example.org,127.0.0.1/", "not a host name"),
    ("http://pay.example.org;127.0.0.1/", "not a host name"),
    ("http://$(id).example.org/", "not a host name"),
    (f"http://{'a' * 64}.example.org/", "not a host name"),
    (f"http://{'a.' * 130}org/", "not a host name"),
    ("http://127.0.0.1%2e/", "percent-encoded"),
    ("http://%31%32%37.0.0.1/", "percent-encoded"),
    ("http://%6c%6f%63alhost/", "percent-encoded"),
    ("http://pay.example.org%00.evil.org/", "percent-encoded"),
    ("http://[fe80::1%25eth0]/", "zone"),
    ("http://[fe80::1%eth0]/", "zone"),
    ("http://１２７.0.0.1/", "not ASCII"),  # fullwidth digits
    ("http://127。0。0。1/", "not ASCII"),  # ideographic full stops
    ("http://127．0．0．1/", "not ASCII"),  # fullwidth full stops
    ("http://127｡0｡0｡1/", "not ASCII"),  # halfwidth ideographic full stops
    ("http://①②⑦.0.0.1/", "not ASCII"),
    ("http://ⓛocalhost/", "not ASCII"),
    ("http://loc\u00adalhost/", "not ASCII"),  # a soft hyphen
    ("http://٠.0.0.0/", "not ASCII"),  # an Arabic digit
    ("http://pay.example。org/", "not ASCII"),
    ("http://bücher.example/", "xn--"),
    # Names that mean this machine or its network
    ("http://localhost/", "not a public host"),
    ("http://LOCALHOST/", "not a public host"),
    ("http://a.localhost/", "not a public host"),
    ("http://localhost.localdomain/", "not a public host"),
    ("http://printer.local/", "not a public host"),
    ("http://metadata.google.internal/", "not a public host"),
    ("http://router.home.arpa/", "not a public host"),
    ("http://intranet/", "not a public host"),
    ("http://metadata/", "not a public host"),
    # Names with an address that is not public
    ("https://loopback.example.org/", "loopback"),
    ("https://private.example.org/", "private"),
    ("https://metadata.example.org/", "metadata"),
    ("https://mapped.example.org/", "IPv4-mapped"),
    ("https://nat64.example.org/", "NAT64"),
    ("https://zoned.example.org/", "zoned"),
    ("https://zoned-public.example.org/", "zoned"),
    ("https://junk.example.org/", "malformed"),
    ("https://cgnat.example.org/", "carrier-grade NAT"),
    ("https://one-bad.example.org/", "127.0.0.1, one of the addresses of one-bad.example.org"),
    ("https://bad-first.example.org/", "10.0.0.1"),
    ("https://six-bad.example.org/", "::1"),
    # Users, backslashes, and other tricks with what is the host
    ("http://pay.example.org@127.0.0.1/", "user or a password"),
    ("http://pay.example.org:80@127.0.0.1/", "user or a password"),
    ("http://user:password@pay.example.org/", "user or a password"),
    ("http://@127.0.0.1/", "user or a password"),
    ("http://pay.example.org\\@127.0.0.1/", "backslash"),
    ("http://127.0.0.1\\@pay.example.org/", "backslash"),
    ("http:\\\\127.0.0.1/", "backslash"),
    ("http://127.0.0.1\\.pay.example.org/", "backslash"),
    ("http://pay.example.org /", "space"),
    (" http://pay.example.org/", "space"),
    ("http://pay.example.org/\r\nX-Evil: 1", "control character"),
    ("http://pay.example.org\t/", "control character"),
    ("ht\ntp://127.0.0.1/", "control character"),
    ("http://127.0.0.1\x00.pay.example.org/", "control character"),
    ("http://pay.example.org\u2028/", "control character"),
    ("http://127.0.0.1#@pay.example.org/", "loopback"),
    ("http://127.0.0.1?@pay.example.org/", "loopback"),
    ("http://[::1]pay.example.org/", "cannot be read"),
    ("http://pay.example.org[::1]/", "cannot be read"),
    ("http://[::1/", "cannot be read"),
    ("http://::1/", "cannot be read"),
    ("http://[]/", "not an IPv6 address"),
    ("http://[127.0.0.1]/", "not an IPv6 address"),
    ("http://[v1.fe80]/", "not an IPv6 address"),
    ("http://[::1]:80:80/", "cannot be read"),
    # Ports
    ("https://pay.example.org:22/", "may not call port 22"),
    ("https://pay.example.org:6379/", "may not call port 6379"),
    ("https://pay.example.org:0/", "port"),
    ("https://pay.example.org:65536/", "port"),
    ("https://pay.example.org:99999999/", "port"),
    ("https://pay.example.org:/", "port"),
    ("https://pay.example.org:0443/", "port"),
    ("https://pay.example.org:+443/", "cannot be read"),
    ("https://pay.example.org:४४३/", "not ASCII"),
    # What is no web address at all
    ("", "not complete"),
    ("pay.example.org", "not complete"),
    ("//pay.example.org/", "not complete"),
    ("/path", "not complete"),
    ("http:", "not complete"),
    ("http:/127.0.0.1/", "not complete"),
    ("http:127.0.0.1/", "not complete"),
    ("http:///127.0.0.1/", "not complete"),
    ("http://", "no host"),
    ("https://?x=1", "no host"),
    ("https://:443/", "no host"),
    ("ftp://pay.example.org/", "scheme"),
    ("file:///etc/passwd", "not complete"),
    ("file://pay.example.org/etc/passwd", "scheme"),
    ("gopher://127.0.0.1:6379/_FLUSHALL", "scheme"),
    ("ws://pay.example.org/", "scheme"),
    ("unix://pay.example.org/run/docker.sock", "scheme"),
    ("data:text/plain,hello", "not complete"),
    ("jar:http://127.0.0.1!/", "not complete"),
]


@pytest.mark.parametrize(("url", "words"), REFUSED, ids=[ascii(url)[:60] for url, _ in REFUSED])
async def test_a_request_that_must_not_leave_is_refused_and_nobody_is_dialled(url: str, words: str) -> None:
    dials = Dials()
    with pytest.raises(Rejected) as refused:
        await send(Egress(resolve=Names(NAMES), connect=dials), url)
    assert words in str(refused.value)
    assert dials.dialled == []


@pytest.mark.parametrize(
    ("url", "dialled"),
    [
        ("https://pay.example.org", (PUBLIC, 443)),
        ("HTTPS://PAY.EXAMPLE.ORG/", (PUBLIC, 443)),
        ("https://pay.example.org:443/a?b#c", (PUBLIC, 443)),
        ("http://pay.example.org/", (PUBLIC, 80)),
        ("http://pay.example.org:8080/", (PUBLIC, 8080)),
        (f"https://{PUBLIC}/", (PUBLIC, 443)),
        ("https://six.example.org/", ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", 443)),
        ("https://[2606:2800:021f:CB07::1]/", ("2606:2800:21f:cb07::1", 443)),
        ("https://pay.example.org/@127.0.0.1/", (PUBLIC, 443)),
        ("https://pay.example.org?u=http://127.0.0.1@x", (PUBLIC, 443)),
    ],
    ids=ascii,
)
async def test_a_public_host_is_dialled_at_its_checked_address(url: str, dialled: tuple[str, int]) -> None:
    dials = Dials()
    with pytest.raises(NotApplied, match="was not sent: ConnectionRefusedError: nobody"):
        await send(Egress(resolve=Names(NAMES), connect=dials, ssl_context=AUTHORITIES), url)
    assert dials.dialled == [dialled]


@given(st.ip_addresses())
def test_nothing_that_python_calls_not_global_is_public_for_us(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert why_not_public(str(address)) is not None


@given(
    st.ip_addresses(v=4), st.sampled_from(["::ffff:", "::", "64:ff9b::", "64:ff9b:1::", "fe80::5efe:", "2606::5efe:"])
)
def test_an_ipv4_address_inside_an_ipv6_one_is_never_public(address: ipaddress.IPv4Address, before: str) -> None:
    assert why_not_public(f"{before}{address}") is not None


@given(st.text(max_size=60), st.sampled_from(["https://", "http://", "http:", ""]))
def test_any_text_is_a_target_or_refused(text: str, before: str) -> None:
    try:
        target = target_of(before + text)
    except Rejected:
        return
    assert target.host.isascii() and target.path.isascii() and target.path.startswith("/")
    assert not set(target.host + target.path) & set(" \r\n\t\\@%") - set("@%")
    assert not set(target.host) & set("@%/?#")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(texts, texts), max_size=4))
def test_a_query_is_written_as_everybody_writes_it(query: list[tuple[str, str]]) -> None:
    path = target_of("https://example.org/a?b=ü%20&c", query).path
    assert path == "/a?b=%C3%BC%20&c" + (f"&{urlencode(query)}" if query else "")


# ---- Which hosts a tenant may call


@pytest.mark.parametrize(
    ("allowed", "url", "words"),
    [
        ([], "https://pay.example.org/", "add 'pay.example.org' to the tenant's setting http_hosts"),
        (["other.example.org"], "https://pay.example.org/", "tenant 'acme' may call: add 'pay.example.org'"),
        (["example.org"], "https://pay.example.org/", "add 'pay.example.org'"),
        (["*.pay.example.org"], "https://pay.example.org/", "add 'pay.example.org'"),
        (["*.ample.org"], "https://pay.example.org/", "add 'pay.example.org'"),
        (["pay.example.org"], "http://pay.example.org/", "by plain http: add 'http://pay.example.org'"),
        (["*"], "http://pay.example.org/", "by plain http: add 'http://pay.example.org'"),
        (["pay.example.org"], "https://pay.example.org:8443/", "port 8443 of host pay.example.org"),
        (["pay.example.org"], "https://pay.example.org:8443/", "add 'pay.example.org:8443'"),
        (["pay.example.org:8443"], "https://pay.example.org/", "port 443 of host pay.example.org"),
        (["http://pay.example.org"], "http://pay.example.org:8080/", "add 'http://pay.example.org:8080'"),
        (
            ["http://pay.example.org/v1"],
            "https://pay.example.org/",
            "example.org/v1', which cannot be read",
        ),
        (["ftp://pay.example.org"], "https://pay.example.org/", "cannot be read"),
        (["pay.*.org", "p*"], "https://pay.example.org/", "'pay.*.org', 'p*', which cannot be read"),
        (["[zz]", "[::1::]"], "https://pay.example.org/", "'[zz]', '[::1::]', which cannot be read"),
        ([PUBLIC], "https://pay.example.org/", "add 'pay.example.org'"),
        (["pay.example.org"], f"https://{PUBLIC}/", f"add '{PUBLIC}'"),
        (["pay.example.org"], "https://[2606:2800::1]/", "add '[2606:2800::1]'"),
    ],
)
async def test_a_host_the_tenant_does_not_name_is_refused_with_what_to_add(
    allowed: list[str], url: str, words: str
) -> None:
    names, dials = Names(NAMES), Dials()
    with pytest.raises(Rejected) as refused:
        await send(Egress(resolve=names, connect=dials), url, allowed)
    assert words in str(refused.value)
    assert dials.dialled == []
    assert names.asked == []  # a look-up of a name is a message to whoever owns it


@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        ("pay.example.org", "https://pay.example.org/"),
        (" Pay.Example.Org ", "https://pay.example.org/"),
        ("https://pay.example.org/", "https://pay.example.org/"),
        ("*.example.org", "https://pay.example.org/"),
        ("*.org", "https://pay.example.org/"),
        ("*", "https://pay.example.org/"),
        ("http://pay.example.org", "http://pay.example.org/"),
        ("http://pay.example.org", "https://pay.example.org/"),
        ("http://*", "http://pay.example.org/"),
        ("pay.example.org:8443", "https://pay.example.org:8443/"),
        (PUBLIC, f"https://{PUBLIC}/"),
        ("[2606:2800:0::1]", "https://[2606:2800::1]/"),
    ],
)
async def test_a_host_the_tenant_names_is_dialled(allowed: str, url: str) -> None:
    dials = Dials()
    with pytest.raises(NotApplied):
        await send(Egress(resolve=Names(NAMES), connect=dials, ssl_context=AUTHORITIES), url, [allowed])
    assert len(dials.dialled) == 1


def test_an_entry_that_cannot_be_read_is_none() -> None:
    assert entry_of("a b") is None
    assert entry_of("") is None


# ---- The opening for tests and dev


async def test_a_private_host_is_reached_only_if_it_is_opened_and_named() -> None:
    async with serving(answering(204)) as server:
        here = f"127.0.0.1:{server.port}"
        opened = Egress(private_hosts={here})
        assert (await send(opened, server.url, [f"http://{here}"])).status == 204
        with pytest.raises(Rejected, match="loopback"):
            await send(Egress(), server.url, [f"http://{here}"])
        with pytest.raises(Rejected, match="http_hosts"):  # `*` means any public host
            await send(opened, server.url, ["*", "http://*", f"http://*:{server.port}"])
        with pytest.raises(Rejected, match="loopback"):  # another port is another host
            await send(Egress(private_hosts={"127.0.0.1:1"}), server.url, [f"http://{here}"])
        assert server.connections == 1


async def test_an_opened_name_may_lead_to_private_addresses_and_never_to_a_metadata_service() -> None:
    names = Names({"box": ["192.168.0.9", "fd00::1"], "cloud": ["169.254.169.254"], "ec2": ["fd00:ec2::254"]})
    dials = Dials()
    egress = Egress(private_hosts={"box", "cloud", "ec2"}, resolve=names, connect=dials)
    with pytest.raises(NotApplied):
        await send(egress, "http://box/", ["http://box"])
    assert dials.dialled == [("192.168.0.9", 80), ("fd00::1", 80)]
    for host in ("cloud", "ec2"):
        with pytest.raises(Rejected, match="metadata"):
            await send(egress, f"http://{host}/", [f"http://{host}"])
    assert len(dials.dialled) == 2


@pytest.mark.parametrize("text", ["*", "*.example.org", "a b", ""])
def test_an_opening_names_single_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="private_hosts"):
        Egress(private_hosts={text})


# ---- Resolved once, connected to what was checked


async def test_a_name_that_changes_its_address_is_asked_once() -> None:
    names = Names({"pay.example.org": [[PUBLIC], ["127.0.0.1"]]})
    async with serving(answering(200, b"ok")) as server:
        dials = Dials(server.port)
        answer = await send(Egress(resolve=names, connect=dials), "http://pay.example.org/")
        assert answer.body == b"ok"
        assert server.seen[0].header("host") == "pay.example.org"
    assert names.asked == ["pay.example.org"]
    assert dials.dialled == [(PUBLIC, 80)]


async def test_the_second_address_is_tried_when_the_first_does_not_answer() -> None:
    async with serving(answering(200)) as server:
        reached = Dials(server.port)

        async def connect(address: str, port: int, timeout: float) -> httpcore.AsyncNetworkStream:
            if address == PUBLIC:
                raise httpcore.ConnectTimeout
            return await reached(address, port, timeout)

        assert (await send(Egress(resolve=Names(NAMES), connect=connect), "http://two.example.org/")).status == 200
    assert reached.dialled == [(PUBLIC_TOO, 80)]


async def test_the_usual_resolver_gives_plain_addresses() -> None:
    assert await resolve_name("127.0.0.1", 80) == ["127.0.0.1"]


async def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(answering(200)) as proxy, serving(answering(200, b"direct")) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        answer = await send(Egress(resolve=Names(NAMES), connect=Dials(server.port)), "http://pay.example.org/")
        assert answer.body == b"direct"
        assert proxy.connections == 0


# ---- What left, and what did not


async def known(egress: Egress, url: str = "http://pay.example.org/", **more: Any) -> tuple[str, str]:
    """What the engine makes of the failure, and its words."""
    with pytest.raises(Exception) as failed:
        await send(egress, url, **more)
    assert failed.value.__cause__ is None and failed.value.__context__ is None
    return known_from(failed.value), str(failed.value)


async def test_a_name_nobody_knows_means_nothing_was_sent() -> None:
    names = Names({"pay.example.org": socket.gaierror(socket.EAI_NONAME, "Name or service not known")})
    what, words = await known(Egress(resolve=names, connect=Dials()))
    assert what == "not_applied"
    assert "http://pay.example.org was not sent: gaierror" in words


async def test_a_name_without_an_address_means_nothing_was_sent() -> None:
    assert (await known(Egress(resolve=Names({"pay.example.org": []}), connect=Dials())))[0] == "not_applied"


async def test_a_refused_connection_means_nothing_was_sent() -> None:
    async with serving(answering(200)) as server:
        port = server.port
    what, words = await known(Egress(resolve=Names(NAMES), connect=Dials(port)))
    assert what == "not_applied"
    assert "ConnectionRefusedError" in words


async def test_a_connection_that_takes_too_long_means_nothing_was_sent() -> None:
    async def connect(address: str, port: int, timeout: float) -> httpcore.AsyncNetworkStream:
        await asyncio.Event().wait()
        raise AssertionError

    what, words = await known(Egress(resolve=Names(NAMES), connect=connect), timeout_seconds=0.05)
    assert what == "not_applied"
    assert "longer than 0.05 s" in words


async def test_a_resolver_that_takes_too_long_means_nothing_was_sent() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    assert (await known(Egress(resolve=resolve, connect=Dials()), timeout_seconds=0.05))[0] == "not_applied"


async def test_a_call_found_late_just_before_its_first_byte_is_not_sent() -> None:
    now = [1000.0]
    async with serving(answering(200)) as server:
        dials = Dials(server.port)

        async def connect(address: str, port: int, timeout: float) -> httpcore.AsyncNetworkStream:
            stream = await dials(address, port, timeout)
            now[0] = 1060.0  # connecting took a minute
            return stream

        egress = Egress(resolve=Names(NAMES), connect=connect, now=lambda: now[0])
        what, words = await known(egress, not_after=1030.0)
        assert (what, "late" in words) == ("not_applied", True)
        now[0] = 1000.0
        assert (await send(egress, "http://pay.example.org/", not_after=1061.0)).status == 200
        assert len(server.seen) == 1


async def test_a_server_that_hangs_up_at_once_leaves_the_outcome_unknown() -> None:
    async def hang_up(exchange: Exchange) -> None:
        exchange.writer.transport.abort()

    async with serving(hang_up) as server:
        what, words = await known(Egress(resolve=Names(NAMES), connect=Dials(server.port)))
    assert what == "unknown"
    assert "was sent and no whole answer came back" in words


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 402 No\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\na",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000,
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
    ids=lambda written: repr(written[-40:]),
)
async def test_less_than_a_whole_answer_leaves_the_outcome_unknown(written: bytes) -> None:
    async def half(exchange: Exchange) -> None:
        await exchange.read()
        await exchange.write(written)

    async with serving(half) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port))
        assert (await known(egress, method="POST", content=b"{}"))[0] == "unknown"
        assert server.connections == 1  # and nothing is repeated behind our back


async def test_an_answer_that_takes_too_long_leaves_the_outcome_unknown() -> None:
    async def stall(exchange: Exchange) -> None:
        await exchange.read()
        await exchange.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nslow")
        await server.released.wait()

    async with serving(stall) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port))
        what, words = await known(egress, timeout_seconds=1.0)
    assert what == "unknown"
    assert "longer than 1 s" in words


class Refusing(httpcore.AsyncNetworkStream):
    """A stream that raises the error the engine takes for "never connected", after bytes were handed to it."""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        raise ConnectionRefusedError("from deep inside")

    async def aclose(self) -> None:
        raise OSError("closing fails too")


async def test_what_was_sent_decides_and_not_the_name_of_the_error() -> None:
    async def connect(address: str, port: int, timeout: float) -> httpcore.AsyncNetworkStream:
        return Refusing()

    what, words = await known(Egress(resolve=Names(NAMES), connect=connect))
    assert what == "unknown"
    assert "ConnectionRefusedError" in words


async def test_a_cancelled_call_closes_its_connection() -> None:
    gone = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        await exchange.read()
        reached.set()
        await exchange.reader.read()
        gone.set()

    reached = asyncio.Event()
    async with serving(wait) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port))
        call = asyncio.create_task(send(egress, "http://pay.example.org/"))
        await reached.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await gone.wait()


async def test_each_request_has_a_connection_of_its_own() -> None:
    async def keep(exchange: Exchange) -> None:
        await exchange.read()
        await exchange.answer(200, b"ok", connection="keep-alive")
        await exchange.reader.read()

    async with serving(keep) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port))
        for _ in range(3):
            assert (await send(egress, "http://pay.example.org/")).body == b"ok"
        assert server.connections == 3
    assert [exchange.header("connection") for exchange in server.seen] == ["close"] * 3


# ---- TLS


async def test_tls_is_spoken_with_the_name_to_the_checked_address(tmp_path: Path) -> None:
    theirs, ours = certificate_for("pay.example.org", tmp_path)
    asked: list[str | None] = []
    theirs.sni_callback = lambda socket_, name, context: asked.append(name)
    async with serving(answering(200, b"ok"), context=theirs) as server:
        dials = Dials(server.port)
        egress = Egress(resolve=Names(NAMES), connect=dials, ssl_context=ours)
        assert (await send(egress, "https://pay.example.org/")).body == b"ok"
        assert server.seen[0].header("host") == "pay.example.org"
    assert asked == ["pay.example.org"]
    assert dials.dialled == [(PUBLIC, 443)]


async def test_an_answer_cut_off_inside_tls_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.read()
        exchange.writer.transport.abort()

    theirs, ours = certificate_for("pay.example.org", tmp_path)
    async with serving(cut, context=theirs) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port), ssl_context=ours)
        assert (await known(egress, "https://pay.example.org/"))[0] == "unknown"


async def test_a_certificate_for_another_name_means_nothing_was_sent(tmp_path: Path) -> None:
    theirs, ours = certificate_for("other.example.org", tmp_path)
    async with serving(answering(200), context=theirs) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port), ssl_context=ours)
        what, words = await known(egress, "https://pay.example.org/")
        assert (what, server.seen) == ("not_applied", [])
    assert "certificate" in words


async def test_a_certificate_nobody_vouches_for_means_nothing_was_sent(tmp_path: Path) -> None:
    theirs, _ = certificate_for("pay.example.org", tmp_path)
    async with serving(answering(200), context=theirs) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port))  # the usual authorities
        what, words = await known(egress, "https://pay.example.org/")
        assert (what, server.seen) == ("not_applied", [])
    assert "certificate" in words


async def test_tls_to_a_server_that_speaks_plain_http_means_nothing_was_sent() -> None:
    async def plain(exchange: Exchange) -> None:
        await exchange.reader.read(1)
        await exchange.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(plain) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port), ssl_context=AUTHORITIES)
        what, words = await known(egress, "https://pay.example.org/")
    assert (what, "SSL" in words) == ("not_applied", True)


async def test_a_server_that_hangs_up_during_the_handshake_means_nothing_was_sent() -> None:
    async def hang_up(exchange: Exchange) -> None:
        await exchange.reader.read(1)
        exchange.writer.transport.abort()

    async with serving(hang_up) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port), ssl_context=AUTHORITIES)
        assert (await known(egress, "https://pay.example.org/"))[0] == "not_applied"


# ---- Bodies


async def fetch(body: bytes, limit: int = 1000, **headers: str) -> Answer:
    async with serving(answering(200, body, **headers)) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port))
        return await send(egress, "http://pay.example.org/", max_response_bytes=limit)


async def test_a_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    assert (await fetch(b"a" * 1000)).body == b"a" * 1000
    assert (await fetch(b"a" * 1001)).problem == "its body is larger than max_response_bytes = 1,000"


async def test_an_endless_body_is_left_as_soon_as_it_is_too_large() -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.read()
        await exchange.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await exchange.write(b"400\r\n" + b"a" * 0x400 + b"\r\n")

    async with serving(endless) as server:
        answer = await send(Egress(resolve=Names(NAMES), connect=Dials(server.port)), "http://pay.example.org/")
    assert answer.problem is not None and answer.body == b""


async def test_a_packed_body_is_measured_unpacked() -> None:
    assert (await fetch(gzip.compress(b"a" * 1000), content_encoding="gzip")).body == b"a" * 1000
    assert (await fetch(gzip.compress(b"a" * 500) * 2, content_encoding="GZIP")).body == b"a" * 1000
    assert (await fetch(b"", content_encoding="gzip")).body == b""
    too_large = "its body is larger than max_response_bytes = 1,000"
    assert (await fetch(gzip.compress(b"a" * 1001), content_encoding="x-gzip")).problem == too_large
    assert (await fetch(gzip.compress(b"a" * 501) * 2, content_encoding="gzip")).problem == too_large
    assert (await fetch(gzip.compress(b"") * 100, content_encoding="gzip")).problem == too_large


async def test_a_bomb_is_never_unpacked() -> None:
    bomb = gzip.compress(bytes(200 << 20))
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    try:
        answer = await fetch(bomb, limit=1 << 20, content_encoding="gzip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.problem is not None
    assert peak < 20 << 20


@pytest.mark.parametrize(
    ("body", "encoding", "words"),
    [
        (b"plain", "gzip", "not the gzip it says it is"),
        (gzip.compress(b"a" * 100)[:-9], "gzip", "ends in the middle"),
        (b"x", "br", "'br', which was not asked for"),
        (b"x", "gzip, gzip", "not asked for"),
    ],
    ids=["not packed", "cut", "br", "twice"],
)
async def test_a_body_that_cannot_be_unpacked_is_a_problem_of_its_own(body: bytes, encoding: str, words: str) -> None:
    problem = (await fetch(body, content_encoding=encoding)).problem
    assert problem is not None and words in problem


# ---- Redirects


def redirecting(location: str, status: int = 302) -> Any:
    return answering(status, location=location)


async def test_a_redirect_is_an_answer_unless_it_is_to_be_followed() -> None:
    async with serving(redirecting("http://two.example.org/")) as server:
        answer = await send(Egress(resolve=Names(NAMES), connect=Dials(server.port)), "http://pay.example.org/")
    assert (answer.status, answer.header("location"), server.connections) == (302, "http://two.example.org/", 1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_followed_redirect_leaves_the_authors_headers_behind_at_another_origin(status: int) -> None:
    async with serving(redirecting("/b?c=1", status), redirecting("//two.example.org/d"), answering(200)) as server:
        dials = Dials(server.port)
        headers = (("Authorization", "secret"), ("Accept", "*/*"))
        answer = await send(
            Egress(resolve=Names(NAMES), connect=dials), "http://pay.example.org/a", headers=headers, follow_redirects=2
        )
    assert (answer.status, answer.origin) == (200, "http://two.example.org")
    assert [exchange.head.split()[1] for exchange in server.seen] == ["/a", "/b?c=1", "/d"]
    assert [exchange.header("authorization") for exchange in server.seen] == ["secret", "secret", None]
    assert [exchange.header("accept") for exchange in server.seen] == ["*/*", "*/*", "*/*"]
    assert [address for address, _ in dials.dialled] == [PUBLIC, PUBLIC, PUBLIC]


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://127.0.0.1/", "loopback"),
        ("//127.0.0.1/", "loopback"),
        ("http://169.254.169.254/latest/meta-data/", "metadata"),
        ("http://[::1]/", "loopback"),
        ("http://2130706433/", "in disguise"),
        ("http://localhost/", "not a public host"),
        ("https://loopback.example.org/", "loopback"),
        ("http://pay.example.org@127.0.0.1/", "user or a password"),
        ("http://pay.example.org:22/", "port 22"),
        ("ftp://pay.example.org/", "scheme"),
        ("file:///etc/passwd", "not complete"),
        ("javascript:alert(1)", "not complete"),
        ("/\\127.0.0.1/", "backslash"),
        ("http://two.example.org/\ta", "control character"),
        ("http://[/", "cannot be read"),
    ],
)
async def test_each_hop_is_checked_anew(location: str, words: str) -> None:
    async with serving(redirecting(location)) as server:
        dials = Dials(server.port)
        egress = Egress(resolve=Names(NAMES), connect=dials)
        with pytest.raises(Rejected) as refused:
            await send(egress, "http://pay.example.org/", follow_redirects=3)
    assert words in str(refused.value)
    assert "redirect" in str(refused.value)
    assert dials.dialled == [(PUBLIC, 80)]


async def test_a_hop_to_a_host_the_tenant_does_not_name_is_refused() -> None:
    async with serving(redirecting("http://two.example.org/")) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port))
        with pytest.raises(Rejected, match=r"add 'http://two\.example\.org' to the tenant's setting http_hosts"):
            await send(egress, "http://pay.example.org/", ["http://pay.example.org"], follow_redirects=1)


async def test_a_name_that_turns_private_between_two_hops_is_refused() -> None:
    names = Names({"pay.example.org": [[PUBLIC], ["127.0.0.1"]]})
    async with serving(redirecting("/again")) as server:
        dials = Dials(server.port)
        with pytest.raises(Rejected, match="loopback"):
            await send(Egress(resolve=names, connect=dials), "http://pay.example.org/", follow_redirects=1)
    assert dials.dialled == [(PUBLIC, 80)]


async def test_a_circle_of_redirects_ends() -> None:
    async with serving(redirecting("/")) as server:
        with pytest.raises(Rejected, match="one more redirect than follow_redirects = 2"):
            await send(
                Egress(resolve=Names(NAMES), connect=Dials(server.port)), "http://pay.example.org/", follow_redirects=2
            )
        assert server.connections == 3


async def test_a_hop_that_cannot_be_reached_means_nothing_was_done() -> None:
    names = Names({**NAMES, "gone.example.org": socket.gaierror("gone")})
    async with serving(redirecting("http://gone.example.org/")) as server:
        egress = Egress(resolve=names, connect=Dials(server.port))
        what, words = await known(egress, follow_redirects=1)
    assert (what, "GET http://gone.example.org was not sent" in words) == ("not_applied", True)


# ---- Discretion


async def test_nothing_of_a_request_is_logged_or_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "httpcore")  # a command that ran in this process before may have raised it
    request = a_request("http://pay.example.org/?k=hush", headers=(("X-Key", "hush"),))
    async with serving(answering(200, b"hush", x_echo="hush")) as server:
        egress = Egress(resolve=Names(NAMES), connect=Dials(server.port))
        answer = await egress.send(request, tenant_id="acme", allowed=EVERYTHING)
    assert answer.header("x-echo") == "hush"
    assert "hush" not in caplog.text + repr(request) + repr(answer)


async def test_other_users_of_httpcore_keep_their_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "httpcore")
    logging.getLogger("httpcore.http11").debug("theirs")
    assert "theirs" in caplog.text


def test_an_unknown_outcome_is_no_kind_of_error_that_says_otherwise() -> None:
    assert known_from(OutcomeUnknown("half")) == "unknown"
    assert not issubclass(OutcomeUnknown, OSError)
