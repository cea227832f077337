"""The application starts without torch, and its routes are all guarded."""

import subprocess
import sys
from typing import Any

import httpx
from tests.serve.servers import serving

from addnorm.web.access import OPEN


def test_head_is_get_without_the_body(client: httpx.Client) -> None:
    paths: dict[str, Any] = client.get("/openapi.json").json()["paths"]
    for path in (path for path, methods in paths.items() if "get" in methods):
        path = path.replace("{name}", "fake")
        head, get = client.head(path), client.get(path)
        assert (head.status_code, head.content) == (200, b"")
        if path != "/metrics":  # the figures change
            assert head.headers["content-length"] == get.headers["content-length"]
    assert client.head("/v1/models/fact").status_code == 404
    assert client.head("/tokenize").status_code == 405


def test_an_unknown_path_or_method_is_named_with_the_valid_ones(client: httpx.Client) -> None:
    wrong = client.post("/v1/completion", json={}).json()["error"]["message"]
    assert wrong.startswith('no path "/v1/completion". Did you mean "/v1/completions"? Valid: ')
    assert client.get("/v1/completions").json()["error"]["message"] == (
        "/v1/completions takes POST, not GET"
    )
    assert len(client.get("/" + "x" * 5000).json()["error"]["message"]) < 1000


def test_the_web_server_imports_no_torch() -> None:
    script = "import addnorm.serve.http.server, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_every_route_but_probes_needs_the_key() -> None:
    with serving("fake", key="sesame") as url, httpx.Client(base_url=url) as client:
        key = {"authorization": "Bearer sesame"}
        paths: dict[str, Any] = client.get("/openapi.json", headers=key).json()["paths"]
        assert "/v1/completions" in paths
        assert "/metrics" in paths
        for path, methods in [*paths.items(), ("/openapi.json", {"get": {}}), ("/x", {"get": {}})]:
            for method in methods:
                answers = [
                    client.request(method, path, headers=headers, json={}).status_code
                    for headers in (
                        {},
                        {"authorization": "Bearer sesam"},
                        {"authorization": "Basic sesame"},
                        key,
                    )
                ]
                if path in OPEN:
                    assert set(answers) == {200}
                else:
                    assert answers[:3] == [401] * 3
                    assert answers[3] != 401
        host = {"host": "example.org"}  # a proxy in front may keep the name that was asked
        assert client.get("/v1/models", headers={**key, **host}).status_code == 200
