"""Errors as the OpenAI API has them: `{"error": {"message", "type", "param", "code"}}`."""

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse

from addnorm.config import problem_of
from addnorm.errors import choices, closest, in_json, some_of

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
"""The word for a status; of every other it is `invalid_request_error`."""

WORTH_A_RETRY = frozenset({429, 503})
"""After any other error a client gains nothing by the same request."""


class WebError(Exception):
    """An error response: its status, its message, and the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the response, or of an event in a stream."""
        kind = TYPES.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """The response; OpenAI's SDK obeys its `x-should-retry`."""
        retry = "true" if self.status in WORTH_A_RETRY else "false"
        headers = {"x-should-retry": retry, **self.headers}
        return JSONResponse(self.body, self.status, headers)


def of_validation(error: RequestValidationError) -> WebError:
    """The error for an invalid body, about its first problem.

    A field of two forms has an error for each: the deepest is the likeliest to be meant. Where none
    is deeper, the message names all forms.
    """
    problems = error.errors()
    first = max(problems, key=lambda problem: len(problem["loc"]))
    place = [part for part in first["loc"] if part not in ("body", "query", "path")]
    if first["type"] == "json_invalid":
        return WebError(400, f"the body is not JSON: {first['ctx']['error']}", code="invalid_json")
    if not place and first["type"] in ("missing", "model_attributes_type"):
        return WebError(400, "the body is not a JSON object sent as Content-Type: application/json")
    param, given = _dotted(place), first["input"]
    if first["type"] == "missing":
        names = islice(given, MOST_NAMES) if isinstance(given, dict) else ()
        near = closest(str(place[-1]), names)
        hint = "" if near is None else f": {in_json(near)} is not a field"
        return WebError(400, f"{param} is missing{hint}", param=param)
    if not param:
        return about(_problem(first))
    spelt = in_json(given) if isinstance(given, float | int | str) else ""
    value = f" = {spelt}" if 0 < len(spelt) <= MOST_SHOWN else ""
    types = dict.fromkeys(each["type"] for each in problems if _dotted(each["loc"][1:]) == param)
    problem = _problem(first)
    if FORMS.keys() >= types.keys():
        problem = f"must be {' or '.join(FORMS[each] for each in types)}"
    return WebError(400, f"{param}{value}: {problem}", param=param)


FORMS: Mapping[Any, str] = {
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a JSON object",
    "model_type": "a JSON object",
    "model_attributes_type": "a JSON object",
}
"""The form that a value lacks, by the type of the error."""


def _problem(error: Mapping[str, Any]) -> str:
    """Describe the problem with a value; a list is counted no further than its limit."""
    limits = error.get("ctx", {})
    match error["type"]:
        case "too_long":
            given = f", not {limits['actual_length']}" if limits["actual_length"] else ""
            return f"must have at most {limits['max_length']} items{given}"
        case "too_short":
            least = limits["min_length"]
            return "must not be empty" if least == 1 else f"must have at least {least} items"
        case "literal_error":
            return f"must be {limits['expected']}".replace("'", '"')
        case "extra_forbidden":
            return "no such field"
        case _:
            return problem_of(cast(ErrorDetails, error))


MOST_NAMES = 100
"""The most names among which one like that of a missing field is looked for."""

MOST_SHOWN = 40
"""The most characters of a value that a message repeats."""

MOST_PATH = 100
"""The most characters of a path that a message repeats."""

FIELD = re.compile(r"`?([a-z_.]+)`?(?: =|:| is not| needs)")
"""The field that a message of ours begins with."""


def about(message: str) -> WebError:
    """The error for a request, about the field with which its message begins."""
    field = FIELD.match(message)
    return WebError(400, message, param=field[1] if field else None)


def _dotted(place: list[Any]) -> str:
    """The path of a field, without pydantic's names for members of unions: `messages.0.content`.

    Those hold brackets, such as `list[int]`, or are types, such as `str`.
    """
    parts = [str(part) for part in place if isinstance(part, int) or _is_field(part)]
    return ".".join(parts)


def _is_field(part: str) -> bool:
    return part not in {"str", "int", "float", "bool", "dict"} and not any(c in part for c in "[(-")


def of_http(error: HTTPException, request: HttpRequest) -> WebError:
    """The error for an unknown path or method, or an unreadable body."""
    path, message = request.url.path[:MOST_PATH], str(error.detail)
    paths: dict[str, Any] = request.app.openapi()["paths"]
    if error.status_code == 404:
        message = f"no path {in_json(path)}.{choices(path, paths, in_json)}"
    elif error.status_code == 405 and path in paths:
        message = f"{path} takes {some_of(map(str.upper, paths[path]))}, not {request.method}"
    return WebError(error.status_code, message, headers=error.headers)
