"""People who come with a token of somebody we trust: a real issuer on the loopback, its keys, and forgers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.api.support import Api, House, wait_until

ANN = "ann@example.org"
AUDIENCE = "holdfast"


class Issuer:
    """An OIDC provider as far as we need one: its discovery document and its keys."""

    def __init__(self) -> None:
        self.private: dict[str, tuple[str, Any]] = {
            "rsa": ("RS256", rsa.generate_private_key(public_exponent=65537, key_size=2048)),
            "ec": ("ES256", ec.generate_private_key(ec.SECP256R1())),
            "ed": ("EdDSA", ed25519.Ed25519PrivateKey.generate()),
        }
        self.published = ["rsa", "ec"]
        self.asked: list[str] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                found: Any = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
                if self.path == "/keys":
                    found = {"keys": [issuer.jwk(name) for name in issuer.published]}
                raw = json.dumps(found).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def jwk(self, name: str) -> dict[str, Any]:
        algorithm, private = self.private[name]
        found: dict[str, Any] = json.loads(
            jwt.get_algorithm_by_name(algorithm).to_jwk(private.public_key())  # type: ignore[attr-defined]
        )
        return {**found, "kid": name, "use": "sig", "alg": algorithm}

    def claims(self, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        return {
            "iss": self.url, "aud": AUDIENCE, "sub": "ann-1", "iat": now, "exp": now + 600,
            "preferred_username": "ann", "email": "ann@example.org", "email_verified": True, "roles": ["viewer"],
            "org": "acme", **more,
        }  # fmt: skip

    def token(self, name: str = "rsa", header: dict[str, Any] | None = None, **more: Any) -> str:
        algorithm, private = self.private[name]
        claims = {key: value for key, value in self.claims(**more).items() if value is not None}
        return jwt.encode(claims, private, algorithm, headers={"kid": name, **(header or {})})

    def public_pem(self) -> bytes:
        public: bytes = self.private["rsa"][1].public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )  # fmt: skip
        return public


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    found = Issuer()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def one_house(tmp_path: Path) -> Iterator[House]:
    """For what does not depend on the database."""
    found = House(f"sqlite:///{tmp_path / 'api.db'}", tmp_path)
    yield found
    found.close()


def settings(issuer: Issuer, **more: str) -> dict[str, str]:
    return {
        "HOLDFAST_OIDC_ISSUER": issuer.url, "HOLDFAST_OIDC_AUDIENCE": AUDIENCE, "HOLDFAST_OIDC_TENANT_CLAIM": "org",
        **more,
    }  # fmt: skip


def test_a_token_of_the_issuer_opens_what_its_roles_may_and_nothing_else_does(house: House, issuer: Issuer) -> None:
    url = house.serve(env=settings(issuer))
    admin = Api(url, house.key("admin", "acme"))

    def status(token: str, operation: str = "GET /workflow/me") -> int:
        return Api(url, token)(operation).status_code

    # who comes
    for name in ("rsa", "ec"):
        me = Api(url, issuer.token(name)).ok("GET /workflow/me")
        assert (me["tenant_id"], me["name"], me["kind"], me["roles"]) == ("acme", ANN, "human", ["viewer"])
    assert status(issuer.token(), "POST /workflow/bulk") == 403
    assert Api(url, issuer.token(roles=["admin", "emperor"])).ok("GET /workflow/me")["roles"] == ["admin"]
    assert Api(url, issuer.token(roles=[])).ok("GET /workflow/me")["capabilities"] == []
    assert Api(url, issuer.token(groups=["b", "a"])).ok("GET /workflow/me")["groups"] == ["a", "b"]
    assert Api(url, issuer.token(aud=["other", AUDIENCE])).ok("GET /workflow/me")["name"] == ANN
    people = [one for one in admin.ok("GET /workflow/principals")["items"] if one["subject"]]
    assert [(one["name"], one["issuer"], one["subject"], one["roles"]) for one in people] == [
        (ANN, issuer.url, "ann-1", [])  # one, however often she came; her roles are the issuer's to say
    ]
    # another person of the same name is another person
    other = Api(url, issuer.token(sub="ann-2")).ok("GET /workflow/me")
    assert other["name"].startswith("ann-2 at ") and other["principal_id"] != people[0]["id"]
    # what people may write about themselves names nobody
    third = Api(url, issuer.token(sub="eve", email="root@example.org", email_verified=False)).ok("GET /workflow/me")
    assert third["name"].startswith("eve at ")
    # another tenant's token is another tenant's, also with the same subject
    beta = Api(url, issuer.token(org="beta")).ok("GET /workflow/me")
    assert beta["tenant_id"] == "beta" and beta["principal_id"] != people[0]["id"]

    # who does not come
    now = int(time.time())
    head, body = part({"alg": "none", "typ": "JWT"}), part(issuer.claims())
    confused = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{body}"
    forged = hmac.new(issuer.public_pem(), confused.encode(), hashlib.sha256).digest()
    good = issuer.token()
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    refused = {
        "another audience": issuer.token(aud="somebody"), "no audience": issuer.token(aud=None),
        "another issuer": issuer.token(iss="https://evil.example"), "no issuer": issuer.token(iss=None),
        "expired": issuer.token(exp=now - 120), "no end": issuer.token(exp=None),
        "not yet": issuer.token(nbf=now + 600), "issued later": issuer.token(iat=now + 600),
        "no subject": issuer.token(sub=None), "alg none": f"{head}.{body}.",
        "key confusion": f"{confused}.{base64.urlsafe_b64encode(forged).decode().rstrip('=')}",
        "unknown kid": issuer.token(header={"kid": "nobody"}), "no kid": jwt.encode(issuer.claims(), stranger, "RS256"),
        "another's key under our kid": jwt.encode(issuer.claims(), stranger, "RS256", headers={"kid": "rsa"}),
        "the wrong key of ours": issuer.token("ec", header={"kid": "rsa"}), "unpublished": issuer.token("ed"),
        "cut": good[:-4], "no signature": good.rpartition(".")[0] + ".", "changed": f"{head}.{good.partition('.')[2]}",
        "a claim changed": ".".join([good.split(".")[0], part(issuer.claims(roles=["admin"])), good.split(".")[2]]),
        "no tenant": issuer.token(org=None), "a strange tenant": issuer.token(org="x' or 1"),
        "a tenant that is no text": issuer.token(org=["acme"]), "a subject with NUL": issuer.token(sub="a\x00b"),
        "a long subject": issuer.token(sub="x" * 300), "its own key": issuer.token(
            header={"jwk": issuer.jwk("ed"), "kid": "new"}
        ),
        "a key elsewhere": issuer.token(header={"jku": "http://127.0.0.1:1/keys", "kid": "new"}),
        "three dots": "...", "nothing": "..", "words": "a.b.c",
        "critical": issuer.token(header={"crit": ["x"], "x": 1}),
    }  # fmt: skip
    for why, token in refused.items():
        assert status(token) == 401, why
    assert status(good) == 200

    # a person who was put out stays out, whatever the issuer says
    admin.ok(f"PATCH /workflow/principals/{people[0]['id']}", {"status": "disabled"}, if_match="*")
    wait_until(lambda: status(issuer.token(roles=["admin"])) == 401, "a disabled person")
    assert status(issuer.token(org="beta")) == 200
    assert status(issuer.token(sub="ann-2", email="ann@example.org")) == 200


def test_keys_that_are_rotated_are_found_and_old_ones_are_left(one_house: House, issuer: Issuer) -> None:
    """A token with a key nobody knows makes the server ask its issuer, but not for every such token."""
    published = issuer.published
    issuer.published = ["rsa"]
    url = one_house.serve(env=settings(issuer))
    try:
        assert Api(url, issuer.token("rsa"))("GET /workflow/me").status_code == 200
        before = len(issuer.asked)
        for _ in range(20):
            assert Api(url, issuer.token("rsa", header={"kid": uuid4().hex}))("GET /workflow/me").status_code == 401
        assert len(issuer.asked) <= before + 2  # discovery and keys, once
        issuer.published = ["ed"]
        wait_until(lambda: Api(url, issuer.token("ed"))("GET /workflow/me").status_code == 200, "the new key")
        assert Api(url, issuer.token("rsa"))("GET /workflow/me").status_code == 401
    finally:
        issuer.published = published


def test_an_issuer_that_is_down_locks_nobody_else_out(one_house: House, issuer: Issuer) -> None:
    env = settings(issuer, HOLDFAST_OIDC_ISSUER="http://127.0.0.1:9")
    url = one_house.serve(env=env)
    assert Api(url, issuer.token(iss="http://127.0.0.1:9"))("GET /workflow/me").status_code == 401
    assert Api(url, one_house.key())("GET /workflow/me").status_code == 200


def served_or_not(house: House, *words: str, env: dict[str, str] | None = None) -> tuple[str | None, str]:
    """The URL, or what the server said instead of listening."""
    server = house.run("server", "--port", "0", *words, env=env)
    wait_until(
        lambda: server.process.poll() is not None or server.said(r"listening on (http\S+)"), server.log.read_text
    )
    return server.said(r"listening on (http\S+)"), server.log.read_text()


def test_the_server_listens_to_others_only_if_somebody_could_show_who_they_are(
    one_house: House, issuer: Issuer
) -> None:
    one_house.cli("principals", "create", "ann", "--role", "viewer")  # a person without a key opens nothing
    url, said = served_or_not(one_house, "--host", "0.0.0.0")
    assert url is None and "API key" in said and "HOLDFAST_OIDC_ISSUER" in said
    url, said = served_or_not(one_house, "--host", "0.0.0.0", env=settings(issuer))
    assert url, said
    # an issuer without an audience would let in whoever has any token of it
    env = settings(issuer)
    del env["HOLDFAST_OIDC_AUDIENCE"]
    url, said = served_or_not(one_house, env=env)
    assert url is None and "oidc_audience" in said
    for algorithms in ("RS256,HS512",):
        url, said = served_or_not(one_house, env=settings(issuer, HOLDFAST_OIDC_ALGORITHMS=algorithms))
        assert url is None and "oidc_algorithms" in said
    one_house.key()
    secret = uuid4().hex
    url, said = served_or_not(one_house, "--host", "0.0.0.0", env={"HOLDFAST_METRICS_KEY": secret})
    assert url, said
    url = url.replace("0.0.0.0", "127.0.0.1")
    # what is open on the loopback is not, where others can reach it
    assert Api(url, None)("GET /metrics").status_code == 401
    assert Api(url, "wrong")("GET /metrics").status_code == 401
    assert Api(url, secret)("GET /metrics").status_code == 200
    # They are of all tenants: nobody's role in one of them opens them.
    assert Api(url, one_house.key("admin"))("GET /metrics").status_code == 401
    assert Api(url, secret)("GET /workflow/me").status_code == 401
    assert Api(url, None)("GET /livez").status_code == 200
