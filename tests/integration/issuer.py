"""An issuer of tokens for tests: keys, tokens, and a web server that serves both as OAuth servers do.

In: claims. Out: signed tokens, a JSON Web Key Set as a file and at a URL, a token endpoint of client credentials.
"""

import json
import time
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Self
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

CLIENT, SECRET = "app", "planted-secret"


class Issuer:
    """`keys` is the file of the present public keys."""

    def __init__(self, place: Path) -> None:
        self.keys = place / "jwks.json"
        self.private: dict[str, Any] = {}
        self.user = "alice"
        self.lifetime_s = 300.0
        self.asked = 0
        """How many tokens the server has issued."""
        self.status = 200
        self.instead = b""
        """What the server answers at another path instead of a token."""
        self.add("first")

    def add(self, name: str, *, is_rsa: bool = True) -> None:
        """Sign with a new key from now on."""
        self.private[name] = (
            rsa.generate_private_key(65537, 2048)
            if is_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        self.write()

    def remove(self, name: str) -> None:
        del self.private[name]
        self.write()

    def write(self) -> None:
        self.keys.write_text(json.dumps({"keys": [self.public(name) for name in self.private]}))

    def public(self, name: str) -> dict[str, Any]:
        key = self.private[name].public_key()
        is_rsa = isinstance(key, rsa.RSAPublicKey)
        jwk = (RSAAlgorithm if is_rsa else ECAlgorithm).to_jwk(key, as_dict=True)
        return jwk | {"kid": name, "use": "sig"}

    def pem(self, name: str) -> bytes:
        """Return a public key as PEM text."""
        return (
            self.private[name]
            .public_key()
            .public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def claims(self, **more: Any) -> dict[str, Any]:
        now = time.time()
        found = {
            "sub": self.user,
            "iat": now,
            "exp": now + self.lifetime_s,
            "iss": "issuer",
            "aud": ["kafka"],
        }
        return {name: value for name, value in (found | more).items() if value is not None}

    def token(
        self, key: str = "first", headers: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        private = self.private[key]
        algorithm = "RS256" if isinstance(private, rsa.RSAPrivateKey) else "ES256"
        named = {"kid": key} | (headers or {})
        return jwt.encode(self.claims(**claims), private, algorithm, headers=named)

    def __enter__(self) -> Self:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(issuer.status, issuer.keys.read_bytes())

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                login = b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
                if self.headers["Authorization"] != f"Basic {login}" or form["grant_type"] != [
                    "client_credentials"
                ]:
                    self.answer(401, b"{}")
                    return
                if self.path == "/other":
                    self.answer(200, issuer.instead)
                    return
                issuer.asked += 1
                token = issuer.token(scope=" ".join(form.get("scope", [])))
                body = json.dumps({"access_token": token, "expires_in": issuer.lifetime_s})
                self.answer(issuer.status, body.encode())

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
