"""Which headers pass through the router, in each direction."""

from __future__ import annotations

from collections.abc import Mapping

from multidict import CIMultiDict, CIMultiDictProxy

REQUEST_ID = "x-request-id"
WORKER = "x-bidroute-worker"

# They speak of one connection, not of the message (RFC 9110 section 7.6.1); the router frames each side anew.
_HOP_BY_HOP = frozenset(
    ("connection", "content-length", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection")
) | {"te", "trailer", "transfer-encoding", "upgrade"}
# Compressed answers could not be followed, so none are asked for.
_NOT_TO_WORKERS = _HOP_BY_HOP | {"host", "expect", "accept-encoding"}
_MAX_REQUEST_ID = 128


def request_headers(
    client: CIMultiDictProxy[str], worker: Mapping[str, str], request_id: str, keep_key: bool
) -> CIMultiDict[str]:
    """What goes to a worker: the client's headers, then the worker's own in place of those of the same name.

    Without `keep_key` the client's Authorization stays here: it is a key for this router.
    """
    passed = _passing(client, _NOT_TO_WORKERS)
    if not keep_key:
        passed.popall("Authorization", None)
    for name, value in worker.items():
        passed[name] = value
    passed[REQUEST_ID] = request_id
    return passed


def response_headers(worker: CIMultiDictProxy[str], worker_name: str, request_id: str) -> CIMultiDict[str]:
    """What goes to the client: the worker's headers, the request's id and the worker's name."""
    passed = _passing(worker, _HOP_BY_HOP)
    passed[REQUEST_ID] = request_id
    passed[WORKER] = worker_name
    return passed


def own_headers(request_id: str, worker_name: str | None = None) -> CIMultiDict[str]:
    """Headers of an answer with a JSON body of the router's own."""
    headers = CIMultiDict({"Content-Type": "application/json", REQUEST_ID: request_id})
    if worker_name is not None:
        headers[WORKER] = worker_name
    return headers


def usable_request_id(given: str | None) -> bool:
    """Whether a client's request id may be used: short, printable ASCII, nothing that could break a log or a header."""
    return given is not None and 0 < len(given) <= _MAX_REQUEST_ID and given.isascii() and given.isprintable()


def _passing(headers: CIMultiDictProxy[str], dropped: frozenset[str]) -> CIMultiDict[str]:
    named = headers.getall("Connection", ())
    if named:
        dropped = dropped | {name.strip().lower() for value in named for name in value.split(",")}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)
