"""Where a request may go: addresses, URLs, and the hosts that a tenant allows. What is read here is what is connected
to; it must not know how a request travels, and it looks nothing up.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.engine.errors import Rejected

PORTS = {"http": 80, "https": 443}


class Target(msgspec.Struct, frozen=True):
    """A URL, taken apart once; what is checked here is what is connected to."""

    scheme: str
    host: str
    port: int
    path: str
    """Path and query, as they go on the wire."""

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.netloc}"


# ---- Addresses -----------------------------------------------------------------------------------------------------

# The first network that holds an address names it.
_NOT_PUBLIC = {
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    "cloud metadata": ("fd00:ec2::254/128", "168.63.129.16/32"),
    "unique local": ("fc00::/7",),
    "unspecified": ("0.0.0.0/8", "::/128"),
    "link-local (cloud metadata)": ("169.254.0.0/16", "fe80::/10"),
    "carrier-grade NAT": ("100.64.0.0/10",),
    "benchmarking": ("198.18.0.0/15", "2001:2::/48"),
    "documentation": ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "IPv4-mapped": ("::ffff:0:0/96",),
    "IPv4-translated": ("::ffff:0:0:0/96",),
    "IPv4-compatible": ("::/96",),
    "NAT64": ("64:ff9b::/96", "64:ff9b:1::/48"),
    "6to4": ("192.88.99.0/24", "2002::/16"),
    "Teredo": ("2001::/32",),
    "site-local": ("fec0::/10",),
    # The rest of what IANA's registries of special purposes hold, wide rather than narrow.
    "reserved": (
        "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "240.0.0.0/4", "2001::/23",
        "2620:4f:8000::/48",
    ),
}  # fmt: skip
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_FORBIDDEN: list[tuple[_Network, str]] = [
    (ipaddress.ip_network(network), word) for word, networks in _NOT_PUBLIC.items() for network in networks
]
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NEVER_PUBLIC = (".localhost", ".localdomain", ".local", ".internal", ".home.arpa")
_OPENED = {"loopback", "private", "unique local"}  # what `private_hosts` opens; metadata services stay closed


def why_not_public(address: str) -> str | None:
    """What kind of address it is, if it is none that a request may go to; None for a public one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "malformed"
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.scope_id is not None:
        return "zoned"
    for network, word in _FORBIDDEN:
        if parsed.version == network.version and parsed in network:
            return word
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed not in _GLOBAL_UNICAST:
            return "reserved"
        if (int(parsed) >> 32) & 0xFCFF_FFFF == 0x0000_5EFE:  # ISATAP: an IPv4 address behind any prefix
            return "ISATAP"
    return None


def refuse_if_not_public(address: str, whose: str, private: bool) -> None:
    kind = why_not_public(address)
    if kind is not None and not (private and kind in _OPENED):
        raise Rejected(f"{address}{whose} is not public ({kind}): requests leave only to public addresses")


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def may_be_public(host: str) -> bool:
    """Whether a name can stand for a public host at all, as far as that is seen without looking it up."""
    return "." in host and not f".{host}".endswith(_NEVER_PUBLIC)


# ---- URLs ----------------------------------------------------------------------------------------------------------

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>/*)(?P<authority>[^/?#]*)(?P<rest>[^#]*)", re.ASCII)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]*))?\Z", re.ASCII)
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z", re.ASCII)
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)\Z", re.ASCII)
BROKEN = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029\ud800-\udfff]")


def target_of(url: str, query: Sequence[tuple[str, str]] = ()) -> Target:
    """The URL, strictly read: what two parsers could read differently is refused."""
    if BROKEN.search(url):
        raise Rejected("the URL holds a space, a control character or a backslash: write it percent-encoded")
    found = _URL.match(url)
    if not found or found["slashes"] != "//":
        raise Rejected("the URL is not complete: write it as https://host/path")
    scheme = found["scheme"].lower()
    if scheme not in PORTS:
        raise Rejected(f"the URL's scheme is {scheme!r}: only https, and http where it is allowed, can be called")
    authority = found["authority"]
    if "@" in authority:
        raise Rejected("the URL holds a user or a password (…@host): put credentials into a header, as a secret")
    if "%" in authority:
        raise Rejected("the URL's host is percent-encoded or has a zone: write the plain host name")
    if not authority.isascii():
        raise Rejected("the URL's host is not ASCII: write it in its xn--… form")
    parts = _AUTHORITY.match(authority)
    if not parts:
        raise Rejected("the URL's host cannot be read: write it as host, host:port or [IPv6 address]:port")
    host = _host(parts["host"].lower())
    port = parts["port"]
    if port is not None and not (re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) <= 65535):
        raise Rejected(f"the URL's port is {port!r}: expected a number from 1 to 65535")
    rest = found["rest"] if found["rest"].startswith("/") else f"/{found['rest']}"
    if query:
        rest += ("&" if "?" in rest else "?") + "&".join(f"{_form(name)}={_form(value)}" for name, value in query)
    return Target(scheme, host, int(port) if port else PORTS[scheme], _percent(_NOT_IN_PATH, rest))


_NOT_IN_PATH = re.compile(rb"[^A-Za-z0-9/?%:@!$&'()*+,;=~._-]")
_NOT_IN_FORM = re.compile(rb"[^A-Za-z0-9 ~._-]")


def _form(text: str) -> str:
    return _percent(_NOT_IN_FORM, text).replace(" ", "+")


def _percent(others: re.Pattern[bytes], text: str) -> str:
    return others.sub(lambda found: b"%%%02X" % found[0][0], text.encode()).decode()


def _host(host: str) -> str:
    if not host:
        raise Rejected("the URL has no host: write it as https://host/path")
    if host.startswith("["):
        try:
            return ipaddress.IPv6Address(host[1:-1]).compressed
        except ValueError:
            raise Rejected(f"the URL's host {host} is not an IPv6 address") from None
    if host.endswith("."):
        raise Rejected(f"the URL's host {host!r} ends in a dot: write it without")
    if len(host) > 253 or not _NAME.match(host):
        raise Rejected(f"the URL's host {host[:253]!r} is not a host name")
    if _NUMBER.match(host.rpartition(".")[2]):
        # A name never ends in a number, so this is an IPv4 address; 127.1, 0x7f000001 and 0177.0.0.1 are too,
        # for some resolvers. We take the one spelling that has one meaning.
        try:
            return ipaddress.IPv4Address(host).compressed
        except ValueError:
            raise Rejected(
                f"the URL's host {host!r} is an IPv4 address in disguise: write it as four decimal numbers"
            ) from None
    return host


# ---- Who may call what ---------------------------------------------------------------------------------------------

_ENTRY = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\*|(?:\*\.)?[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?/?\Z",
    re.ASCII | re.IGNORECASE,
)


class Entry(msgspec.Struct, frozen=True):
    """One allowed host: `api.example.org`, `*.example.org`, `*`, `http://…` for plain HTTP too, `…:8443`."""

    host: str
    port: int | None
    plain: bool

    def names(self, host: str) -> bool:
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and len(host) >= len(self.host)
        return self.host in ("*", host)

    def allows(self, target: Target) -> bool:
        if target.scheme == "http" and not self.plain:
            return False
        ports = PORTS.values() if self.port is None else (self.port,)
        return self.names(target.host) and target.port in ports


def entry_of(text: str) -> Entry | None:
    """None: it cannot be read, so it allows nothing."""
    found = _ENTRY.match(text.strip())
    if not found:
        return None
    host = found["host"].lower()
    if host.startswith("["):
        try:
            host = ipaddress.IPv6Address(host[1:-1]).compressed
        except ValueError:
            return None
    return Entry(host, int(found["port"]) if found["port"] else None, (found["scheme"] or "").lower() == "http")


def why_not_allowed(target: Target, allowed: Iterable[str], tenant_id: str, private: bool) -> str | None:
    """`private`: the operator opened this host for private addresses, so `*` (any public host) does not mean it."""
    entries = {text: entry_of(text) for text in allowed}
    usable = [entry for entry in entries.values() if entry is not None and not (private and entry.host == "*")]
    if any(entry.allows(target) for entry in usable):
        return None
    host = f"[{target.host}]" if ":" in target.host else target.host
    wanted = ("http://" if target.scheme == "http" else "") + host
    if target.port not in PORTS.values():
        wanted += f":{target.port}"
    if not any(entry.names(target.host) for entry in usable):
        problem = f"host {host} is not among the hosts that tenant {tenant_id!r} may call"
    elif target.scheme == "http" and not any(entry.plain and entry.names(target.host) for entry in usable):
        problem = f"tenant {tenant_id!r} may not call host {host} by plain http"
    else:
        problem = f"tenant {tenant_id!r} may not call port {target.port} of host {host}"
    unread = [repr(text) for text, entry in entries.items() if entry is None]
    hint = f" (it holds {', '.join(unread)}, which cannot be read)" if unread else ""
    return f"{problem}: add {wanted!r} to the tenant's setting http_hosts{hint}"
