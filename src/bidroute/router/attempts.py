"""Why an attempt at a worker came to nothing, and what the client is told if it was the last."""

from __future__ import annotations

from dataclasses import dataclass

from bidroute.router.answer import Answer
from bidroute.router.openai_errors import error_body, error_event
from bidroute.router.tickets import Failure


@dataclass(slots=True, eq=False)
class AttemptError(Exception):
    """A worker did not serve the request: why, and what to tell the client if this was the last attempt.

    `body` and `answer` are what the worker itself said, where it did. `detail` is for logs: no text of a worker or a
    client goes there. `reached` False: the worker never had the request.
    """

    failure: Failure
    detail: str
    status: int
    code: str = "worker_failed"
    body: bytes | None = None
    answer: Answer | None = None
    reached: bool = True

    @property
    def can_retry(self) -> bool:
        """Whether another worker may do better."""
        return self.failure is not Failure.CLIENT

    def text(self) -> bytes:
        """The body of an answer that says so."""
        return self.body if self.body is not None else error_body(self.status, self.detail, self.code)

    def event(self) -> bytes:
        """The same as the last event of a stream."""
        if self.body is not None:
            return b"data: " + self.body.replace(b"\n", b" ") + b"\n\n"
        return error_event(self.status, self.detail, self.code)


class HungError(TimeoutError):
    """The worker's engine stands still, and has for `silent_s`."""

    def __init__(self, silent_s: float) -> None:
        super().__init__()
        self.silent_s = silent_s


class ClientGoneError(Exception):
    """The client closed its connection, or reads nothing any more."""


def kind_of(status: int) -> Failure:
    """What an HTTP status of a worker says about it."""
    if status in (429, 503):
        return Failure.BACK_PRESSURE
    return Failure.CLIENT if 400 <= status < 500 else Failure.FAULT


def broken(problem: BaseException, reached: bool = True) -> AttemptError:
    """A connection that was refused, or broke."""
    detail = f"the connection to the worker failed ({type(problem).__name__})"
    return AttemptError(Failure.FAULT, detail, 502, reached=reached)


def keeps_no_kv() -> AttemptError:
    """A prefill worker that answered well, but gave nothing to fetch the KV with."""
    return AttemptError(Failure.FAULT, "the prefill worker gave no kv_transfer_params; is it a KV producer?", 502)


def stalled(seconds: float) -> AttemptError:
    """A worker that went silent."""
    return AttemptError(Failure.STALLED, f"the worker made no progress for {seconds:g} s", 504, "worker_stalled")


def refused(answer: Answer, body: bytes) -> AttemptError:
    """A worker that answered with an error; should it be the last, the client gets it as it is."""
    status = answer.status
    failure, detail = kind_of(status), f"the worker answered with status {status}"
    if status < 400:  # a redirect, which no worker should send
        return AttemptError(failure, detail, 502)
    return AttemptError(failure, detail, status, body=body, answer=answer)


def failed_stream(status: int, payload: bytes) -> AttemptError:
    """An error event inside a stream that began well."""
    return AttemptError(kind_of(status), f"the worker's stream ended in an error ({status})", status, body=payload)
