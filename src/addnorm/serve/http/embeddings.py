"""`POST /v1/embeddings`: vectors of texts, as numbers or in base64."""

from array import array
from base64 import b64encode
from collections.abc import Sequence
from sys import byteorder

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from addnorm.serve.http.generation import usage_of, whole
from addnorm.serve.http.schemas import EmbeddingsRequest
from addnorm.serve.http.served import models_of, unless_gone
from addnorm.web.errors import WebError

router = APIRouter()


@router.post("/v1/embeddings", summary="Embed texts")
async def embeddings(body: EmbeddingsRequest, request: HttpRequest) -> Response:
    """Embed texts, given as strings or as ids."""
    served = models_of(request)[body.model]
    if not served.ready.embeds:
        raise WebError(400, f"{served.name} has no vectors of texts", param="model")
    result = await unless_gone(request, served.apply("/v1/embeddings", body.input, field="input"))
    packed = body.encoding_format == "base64"
    vectors = [
        {"object": "embedding", "index": i, "embedding": base64_of(vector) if packed else vector}
        for i, vector in enumerate(result.outputs)
    ]
    return whole(
        body, {"object": "list", "data": vectors, "model": served.name, "usage": usage_of(result)}
    )


def base64_of(vector: Sequence[float]) -> str:
    """The numbers as little-endian float32 in base64."""
    numbers = array("f", vector)
    if byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers.tobytes()).decode()
