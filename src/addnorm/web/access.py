"""Access control: the `Host` and `Origin` of a request, and its key."""

import hmac
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from addnorm.errors import InputError, in_json
from addnorm.files import read_file
from addnorm.web.errors import WebError

LONGEST_KEY = 4096


def is_loopback(host: str) -> bool:
    """Whether a name or address can only be reached from this machine."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def read_key(file: Path) -> str:
    """Read the key in a file, without surrounding white space.

    Raises `InputError` for an empty one.
    """
    try:
        key = read_file(file, LONGEST_KEY).decode("ascii").strip()
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: a key has ASCII characters alone") from error
    if not key or any(char.isspace() for char in key):
        raise InputError(f"{file}: a key is one word, and this file has {len(key.split())}")
    return key


def check_host(host: str, key: str | None) -> None:
    """Raise `InputError` for an address that others can reach, if no key is required."""
    if key is None and not is_loopback(host):
        raise InputError(
            f"`host = {host}`: others would reach it without a key: give `api_key_file`, or listen "
            "on 127.0.0.1"
        )


OPEN = frozenset({"/health", "/livez", "/readyz"})
"""The paths that need no key: a probe has none, and learns nothing but whether we live."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Access:
    """Middleware that rejects unauthorised requests before reading their bodies.

    - Without a key, `Host` must name this machine: a page whose name was rebound to 127.0.0.1 sends
      its own name.
    - A request that changes or computes something has no `Origin`, or that of the server itself.
    - With a key, every path but those of `OPEN` needs `Authorization: Bearer KEY`.
    """

    def __init__(self, app: ASGIApp, key: str | None = None) -> None:
        self._app = app
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request, or pass it on."""
        if scope["type"] == "http" and (error := self._refusal(scope)) is not None:
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> WebError | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._key is None and not is_loopback(_name_of(host)):
            return WebError(
                403, f"Host {in_json(host)}: without a key, only names of this machine are allowed"
            )
        origin = headers.get("origin")
        foreign = origin is not None and not _same_server(urlsplit(origin).netloc, host)
        if foreign and scope["method"] not in SAFE_METHODS:
            return WebError(403, f"Origin {in_json(origin)}: pages of other servers may not ask")
        if self._key is None or scope["path"] in OPEN or self._has_key(headers):
            return None
        return WebError(
            401,
            "the key is missing or wrong: send Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _has_key(self, headers: Headers) -> bool:
        assert self._key is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self._key)  # in constant time
        return same and scheme.lower() == "bearer"


def _same_server(origin: str, host: str) -> bool:
    """Whether two names with ports are equal, or name this machine with equal ports."""
    names = _name_of(origin), _name_of(host)
    ports = [where.removeprefix(name) for where, name in zip((origin, host), names, strict=True)]
    return origin == host or (ports[0] == ports[1] and all(map(is_loopback, names)))


def _name_of(host: str) -> str:
    """The host name in a `Host` header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if ":" in host else host
