"""Random requests by the description of the API: no fault of the server, none slow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

ENDPOINTS = {"/classify": "classes", "/translate": "translator"}
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


def described(client: httpx.Client) -> dict[str, Any]:
    """The description, with a model in each body that answers for the endpoint."""
    schema = client.get("/openapi.json").json()
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            if "requestBody" in operation:
                media = operation["requestBody"]["content"]["application/json"]
                body = schema["components"]["schemas"][media["schema"]["$ref"].rpartition("/")[2]]
                body["properties"]["model"] = {"enum": [ENDPOINTS.get(path, "fake")]}
    return schema


@pytest.mark.parametrize(
    "n",
    [
        pytest.param(50, marks=pytest.mark.long),
        pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_no_request_is_a_fault_of_the_server(
    n: int, url: str, client: httpx.Client, tmp_path: Path
) -> None:
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(described(client)))
    words = ["run", file, "--url", url, "--max-examples", n, "--checks", ",".join(CHECKS)]
    words += ["--phases", "examples,coverage,fuzzing,stateful", "--generation-deterministic"]
    seconds = 2 if n > 50 else 5  # other tests share the cores, but for the slow ones
    words += ["--max-response-time", seconds, "--suppress-health-check", "all", "--no-color"]
    command = [str(Path(sys.executable).with_name("schemathesis")), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert client.get("/health").status_code == 200
