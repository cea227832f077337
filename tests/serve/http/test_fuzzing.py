"""Random requests by the description of the API: no fault of the server, none slow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

MODELS = {
    "/v1/chat/completions": ["fake", "caller", "plain"],
    "/v1/responses": ["fake", "caller"],
    "/classify": ["classes"],
    "/predict": ["rows"],
    "/tag": ["tagger"],
    "/tokenize": ["fake", "caller"],
    "/translate": ["translator", "denoiser"],
}
"""The models that answer at an endpoint; `fake` answers at every other."""

PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/translate",
    "/classify",
    "/tag",
    "/predict",
    "/tokenize",
)
"""Those that take a body: each has minutes of its own."""

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
                body["properties"]["model"] = {"enum": MODELS.get(path, ["fake"])}
    return schema


def check_requests(
    url: str, folder: Path, schema: dict[str, Any], n: int, seconds: int, phases: str
) -> None:
    """Ask `n` random requests of each operation; each is answered within these seconds."""
    file = folder / "openapi.json"
    file.write_text(json.dumps(schema))
    words = ["run", file, "--url", url, "--max-examples", n, "--checks", ",".join(CHECKS)]
    words += ["--phases", phases, "--generation-deterministic", "--max-response-time", seconds]
    words += ["--suppress-health-check", "all", "--no-color"]
    command = [str(Path(sys.executable).with_name("schemathesis")), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_no_request_is_a_fault_of_the_server(
    url: str, client: httpx.Client, tmp_path: Path
) -> None:
    phases = "examples,coverage,fuzzing,stateful"
    check_requests(url, tmp_path, described(client), 50, 5, phases)  # tests share the cores
    assert client.get("/health").status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", [*PATHS, "others", "in turn"])
def test_nor_is_one_of_thousands(path: str, url: str, client: httpx.Client, tmp_path: Path) -> None:
    """2,000 of each operation, and as many series of requests to any of them."""
    schema, phases = described(client), "examples,coverage,fuzzing"
    if path == "in turn":
        phases = "stateful"
    else:
        names = schema["paths"].keys() - PATHS if path == "others" else {path}
        schema["paths"] = {name: schema["paths"][name] for name in sorted(names)}
    check_requests(url, tmp_path, schema, 2000, 2, phases)
    assert client.get("/health").status_code == 200
