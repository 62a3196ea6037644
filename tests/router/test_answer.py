"""A worker's answer is read the same however it is cut, and read in one way or not at all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidroute.router.answer import Answer, BadAnswerError

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"


def read(*pieces: bytes) -> tuple[bytes, Answer]:
    answer = Answer()
    return b"".join(answer.feed(piece) for piece in pieces), answer


def test_a_length() -> None:
    body, answer = read(HEAD + b"Content-Length: 5\r\nX-A: 1\r\n\r\nhello")
    assert (body, answer.status, answer.reason, answer.complete, answer.keep_alive) == (
        b"hello",
        200,
        b"OK",
        True,
        True,
    )
    assert answer.head_lines == [(b"x-a", b"X-A: 1")]


def test_chunks_with_extensions_and_trailers() -> None:
    body, answer = read(CHUNKED + b"5;x=1\r\nhello\r\n1 \r\n!\r\n0\r\nx-trailer: 1\r\n\r\n")
    assert (body, answer.complete, answer.content_type) == (b"hello!", True, b"text/event-stream")


def test_until_the_connection_ends() -> None:
    body, answer = read(HEAD + b"\r\nhel", b"lo")
    assert (body, answer.complete, answer.framed, answer.keep_alive) == (b"hello", False, False, False)
    answer.end()
    assert answer.complete


@pytest.mark.parametrize("whole", [CHUNKED + b"5\r\nhel", HEAD + b"Content-Length: 5\r\n\r\nhel", HEAD, b"", CHUNKED])
def test_an_end_too_soon(whole: bytes) -> None:
    _, answer = read(whole)
    with pytest.raises(EOFError):
        answer.end()


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_no_body_by_status(status: bytes) -> None:
    assert read(b"HTTP/1.1 " + status + b"\r\n\r\n")[1].complete


def test_interim_answers_are_skipped() -> None:
    body, answer = read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nx-a: 1\r\n\r\n" + CHUNKED + b"0\r\n\r\n")
    assert (body, answer.status, answer.complete) == (b"", 200, True)
    assert answer.head_lines == [(b"content-type", b"Content-Type: text/event-stream")]


def test_headers_of_this_hop_stay() -> None:
    lines = b"Connection: close, X-Mine\r\nx-mine: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\nx-b: 2\r\n"
    _, answer = read(HEAD + lines + b"Content-Length: 0\r\n\r\n")
    assert answer.head_lines == [(b"x-b", b"x-b: 2")]
    assert not answer.keep_alive


BAD = [b"GARBAGE\r\n\r\n", b"HTTP/2 200 OK\r\n\r\n", b"HTTP/1.1 20x OK\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n"]
BAD += [HEAD + line + b"\r\n\r\n" for line in (b"no colon", b": x", b" a: b", b"a : b", b"a: b\nc: d", b"a: b\rc: d")]
BAD += [HEAD + line + b"\r\n\r\n" for line in (b"Content-Length: x", b"Content-Length: -1", b"Transfer-Encoding: gzip")]
BAD += [HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", HEAD + b"Content-Length: 1\r\n\r\nab"]
BAD += [HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 200 O\nK\r\n\r\n", b"x" * 300_000]
BAD += [CHUNKED + chunks for chunks in (b"x\r\n", b"-1\r\n", b"+1\r\na\r\n", b"1\r\nab\r\n", b"0\r\n\r\nmore", b"\r\n")]
BAD += [CHUNKED + chunks for chunks in (b"1_0\r\n", b"0x1\r\n", b"f" * 17 + b"\r\n", b"1" * 5000)]


@pytest.mark.parametrize("data", BAD)
def test_what_could_be_read_in_two_ways_is_not_read(data: bytes) -> None:
    with pytest.raises(BadAnswerError):
        read(data)


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 400), max_size=20), st.booleans()
)
def test_any_cutting_gives_the_same(parts: list[bytes], cuts: list[int], chunked: bool) -> None:
    body = b"".join(parts)
    if chunked:
        data = CHUNKED + b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    else:
        data = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    got, answer = read(*(data[start:end] for start, end in pairwise(places) if start < end))
    assert (got, answer.complete) == (body, True)
