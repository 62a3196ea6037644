"""Errors in the form that OpenAI clients understand, as an answer's body and as an event inside a stream."""

from __future__ import annotations

import msgspec

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def error_type(status: int) -> str:
    """OpenAI's word for this kind of HTTP status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def error_body(status: int, message: str, code: str | None = None, param: str | None = None) -> bytes:
    """The JSON body `{"error": {"message", "type", "param", "code"}}`; `code` is a word for machines."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": error_type(status), "param": param, "code": code}}
    )


def error_event(status: int, message: str, code: str | None = None) -> bytes:
    """The same as one event of a stream that cannot go on."""
    return b"data: " + error_body(status, message, code) + b"\n\n"
