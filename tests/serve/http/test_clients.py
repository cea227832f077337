"""The clients that people have: OpenAI's, llm, LangChain's, and the bytes of open-webui."""

import asyncio
import json
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types.responses import FunctionToolParam
from tests.data.chat_templates import TOOLS

pytestmark = pytest.mark.long

HELLO: Any = [{"role": "user", "content": "Hallo"}]
BERN = '{"city": "Bern"}'


@pytest.fixture
def sdk(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_openai_completions(sdk: openai.OpenAI) -> None:
    whole = sdk.completions.create(model="fake", prompt="Hallo", max_tokens=9, logprobs=2)
    pieces = sdk.completions.create(model="fake", prompt="Hallo", max_tokens=9, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 9
    assert whole.choices[0].logprobs is not None


def test_openai_chat(sdk: openai.OpenAI) -> None:
    create = sdk.chat.completions.create
    whole = create(model="fake", messages=HELLO, max_completion_tokens=9, logprobs=True)
    stream = create(
        model="fake",
        messages=HELLO,
        max_completion_tokens=9,
        stream=True,
        stream_options={"include_usage": True},
    )
    *pieces, last = stream
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == whole.choices[0].message.content
    assert last.choices == []
    assert last.usage == whole.usage


def test_openai_responses(sdk: openai.OpenAI) -> None:
    whole = sdk.responses.create(model="fake", input="Hallo", max_output_tokens=9)
    with sdk.responses.stream(model="fake", input="Hallo", max_output_tokens=9) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert whole.status == "incomplete"


def test_openai_calls_of_functions(sdk: openai.OpenAI) -> None:
    tool = cast(FunctionToolParam, {"type": "function", **TOOLS[0]["function"], "strict": None})
    whole = sdk.responses.create(model="caller", input="Rain?", tools=[tool])
    message, *calls = whole.output
    assert message.type == "message"
    assert [call.arguments for call in calls if call.type == "function_call"] == [BERN] * 2
    with sdk.responses.stream(model="caller", input="Rain?", tools=[tool]) as stream:
        streamed = stream.get_final_response()
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]
    assert streamed.output_text == whole.output_text


def test_openai_embeddings_and_models(sdk: openai.OpenAI) -> None:
    vectors = sdk.embeddings.create(model="fake", input=["abc", "de"])
    assert [vector.embedding for vector in vectors.data] == [[3.0, 0.5], [2.0, 0.5]]
    assert sdk.models.list().data[0].id == "fake"
    assert sdk.models.retrieve("slow").id == "slow"


def test_openai_errors(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match='Did you mean "fake"'):
        sdk.completions.create(model="fale", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="fake", messages=HELLO, tools=[{}])  # pyright: ignore
    assert caught.value.param == "tools"
    with pytest.raises(openai.InternalServerError):
        sdk.completions.create(model="fake", prompt="nan")


def test_openai_async(url: str) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as sdk:

            async def ask() -> str:
                stream = await sdk.chat.completions.create(
                    model="slow", messages=HELLO, max_tokens=5, stream=True
                )
                return "".join([p.choices[0].delta.content or "" async for p in stream])

            return await asyncio.gather(*(ask() for _ in range(8)))

    assert {*asyncio.run(run())} == {"Der schnelle br"}


def test_langchain(url: str) -> None:
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    facts: Any = {"base_url": f"{url}/v1", "api_key": "none"}
    model = ChatOpenAI(model="fake", max_tokens=9, **facts)
    whole = model.invoke("Hallo").content
    assert "".join(str(piece.content) for piece in model.stream("Hallo")) == whole
    texts = OpenAIEmbeddings(model="fake", check_embedding_ctx_length=False, **facts)
    assert texts.embed_documents(["abc", "de"]) == [[3.0, 0.5], [2.0, 0.5]]


def test_llm(url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    from llm.default_plugins.openai_models import Chat

    model = Chat("fake", model_name="fake", api_base=f"{url}/v1")
    for stream in (False, True):
        response = model.prompt("Hallo", key="none", stream=stream, max_tokens=9)
        assert response.text().startswith("Der schnelle")


def test_the_bytes_of_open_webui(client: httpx.Client) -> None:
    """A chat with the fields that it adds, and its list of models."""
    body = {
        "stream": True,
        "model": "fake",
        "messages": [
            {"role": "system", "content": "Kurz."},
            {"role": "user", "content": [{"type": "text", "text": "Hallo"}]},
        ],
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "frequency_penalty": 0.1,
        "seed": 1,
        "stop": ["\n\n"],
        "logit_bias": {},
        "metadata": {"chat_id": "x"},
        "files": None,
    }
    headers = {"X-OpenWebUI-User-Id": "1", "Accept": "*/*", "Content-Type": "application/json"}
    content = json.dumps(body, ensure_ascii=False).encode()
    answer = client.post("/v1/chat/completions", content=content, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert '"usage":{"prompt_tokens"' in answer.text
    assert [model["id"] for model in client.get("/v1/models").json()["data"]]
