"""Which headers pass through the router, in each direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multidict import CIMultiDict

REQUEST_ID = "x-request-id"
WORKER = "x-bidroute-worker"

# Framing and connection, which each hop settles for itself (RFC 9110 section 7.6.1); and what is set anew. Compressed
# answers could not be followed, so none are asked for.
_NOT_TO_WORKERS = frozenset(
    (
        b"connection",
        b"content-length",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
    )
) | {b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host", b"expect", b"accept-encoding", b"x-request-id"}
_NOT_WITH_THE_KEY = _NOT_TO_WORKERS | {b"authorization"}
_MAX_REQUEST_ID = 128


def request_lines(
    client: Sequence[tuple[bytes, bytes]], worker: Mapping[str, str], request_id: str, keep_key: bool
) -> bytes:
    """Header lines for a worker: the client's as they came, then the worker's own in place of those of the same name.

    Without `keep_key` the client's Authorization stays here: it is a key for this router.
    """
    dropped = _NOT_TO_WORKERS if keep_key else _NOT_WITH_THE_KEY
    if worker:
        dropped = dropped | {name.lower().encode() for name in worker}
    lines, named = [], b""
    for name, value in client:
        lower = name.lower()
        if lower not in dropped:
            lines.append(b"%b: %b\r\n" % (name, value))
        elif lower == b"connection":
            named += b"," + value
    if named:
        tokens = {token.strip().lower() for token in named.split(b",")} - {b"keep-alive", b"close"}
        if tokens:
            lines = [line for line in lines if line.partition(b":")[0].lower() not in tokens]
    lines += [f"{name}: {value}\r\n".encode() for name, value in worker.items()]
    lines.append(f"{REQUEST_ID}: {request_id}\r\n".encode())
    return b"".join(lines)


def own_headers(request_id: str, worker_name: str | None = None) -> CIMultiDict[str]:
    """Headers of an answer with a JSON body of the router's own."""
    headers = CIMultiDict({"Content-Type": "application/json", REQUEST_ID: request_id})
    if worker_name is not None:
        headers[WORKER] = worker_name
    return headers


def usable_request_id(given: str | None) -> bool:
    """Whether a client's request id may be used: short, printable ASCII, nothing that could break a log or a header."""
    return given is not None and 0 < len(given) <= _MAX_REQUEST_ID and given.isascii() and given.isprintable()
