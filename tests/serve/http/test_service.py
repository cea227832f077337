"""What a server says of itself."""

import threading
import time

import httpx
from tests.serve.servers import serving

import addnorm


def test_models_are_listed(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    names = [model["id"] for model in listed["data"]]
    assert listed["object"] == "list"
    assert names[:2] == ["fake", "slow"]
    assert client.get("/v1/models/slow").json() == listed["data"][1]
    assert client.get("/v1/models/slew").status_code == 404


def test_the_root_names_the_models_and_their_endpoints(client: httpx.Client) -> None:
    root = client.get("/").json()
    assert root["server"] == f"AddNorm {addnorm.__version__}"
    assert root["models"]["fake"] == "/v1/completions"


def test_probes(client: httpx.Client) -> None:
    for path in ("/health", "/livez", "/readyz"):
        assert client.get(path).status_code == 200
    assert client.get("/version").json() == {"version": addnorm.__version__}


def test_tokens_of_a_text(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"prompt": "Hallo"}).json()
    assert tokens["token_strs"] == ["<bos>", *"Hallo"]
    assert tokens["count"] == 6
    plain = client.post("/tokenize", json={"prompt": "Hallo", "add_special_tokens": False}).json()
    assert plain["tokens"] == tokens["tokens"][1:]
    assert client.post("/tokenize", json={}).status_code == 400


def test_figures_are_counted(client: httpx.Client) -> None:
    def figure(name: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    names = ("addnorm_prompt_tokens_total", "addnorm_generation_tokens_total")
    before = [figure(f'{name}{{model_name="fake"}}') for name in names]
    body = {"prompt": "Hallo", "max_tokens": 9, "model": "fake"}
    usage = client.post("/v1/completions", json=body).json()["usage"]
    after = [figure(f'{name}{{model_name="fake"}}') for name in names]
    added = [b - a for a, b in zip(before, after, strict=True)]
    assert added == [usage["prompt_tokens"], usage["completion_tokens"]]
    assert figure('addnorm_request_success_total{finished_reason="length",model_name="fake"}') >= 1
    assert figure("addnorm_time_to_first_token_seconds_count") >= 1
    assert figure('addnorm_num_preemptions{model_name="fake"}') == 3
    assert figure('addnorm_num_near_ties{model_name="fake"}') == 2


def test_a_large_text_keeps_nobody_waiting(url: str) -> None:
    """While texts of almost 4 MB are refused, the server says that it lives."""
    large = "a b" * 1_300_000
    bodies = {
        "/v1/completions": {"prompt": large},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": large}]},
        "/tokenize": {"prompt": large},
    }
    errors: list[dict[str, str]] = []

    def send() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            for path, body in bodies.items():
                response = client.post(path, json=body)
                assert response.status_code == 400
                errors.append(response.json()["error"])

    sending = threading.Thread(target=send)
    sending.start()
    waits: list[float] = []
    with httpx.Client(base_url=url, timeout=60) as client:
        while sending.is_alive():
            start = time.monotonic()
            assert client.get("/livez").status_code == 200
            waits.append(time.monotonic() - start)
            time.sleep(0.01)
    sending.join()
    assert max(waits) < 0.5
    assert [error["param"] for error in errors] == ["prompt", "messages", "prompt"]
    assert all("3,900,000 characters" in error["message"] for error in errors)
    assert all("at most 512 tokens" in error["message"] for error in errors)


def test_a_late_answer_is_counted_as_refused() -> None:
    with (
        serving("late?task=classification&endpoint=/classify&delay=0.6", timeout=0.1) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert client.post("/classify", json={"text": "a"}).status_code == 504
        figures = client.get("/metrics").text
        assert 'requests_rejected_total{model_name="late",reason="timeout"} 1.0' in figures
        assert "addnorm_request_success_total{" not in figures
