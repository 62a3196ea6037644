"""The scanner sees the same events however the stream is cut."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bidroute.router.sse import SseScanner, Usage
from tests.router.fakes import DONE, USAGE_EVENT, chunk

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
NASTY = chunk('data: [DONE] "usage": {"error": 1}\n\n')


def scanned(pieces: list[bytes], hide: bool = False) -> tuple[bytes, SseScanner]:
    scanner = SseScanner(hide)
    return b"".join(scanner.feed(piece) for piece in pieces), scanner


def test_counts_content_and_reads_usage() -> None:
    stream = [ROLE, chunk("a"), chunk("b") + chunk("c"), USAGE_EVENT, DONE]
    passed, scanner = scanned(stream)
    assert passed == b"".join(stream)
    assert scanner.usage == Usage(7, 5)
    assert scanner.output_tokens == 5  # as usage says; three chunks were seen
    assert scanner.done


def test_hides_the_usage_chunk_only() -> None:
    with_content = b'data: {"choices":[{"text":"x"}],"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n'
    passed, scanner = scanned([chunk("a"), with_content, USAGE_EVENT + DONE], hide=True)
    assert passed == chunk("a") + with_content + DONE
    assert scanner.usage == Usage(7, 5)


def test_text_that_looks_like_events_is_text() -> None:
    passed, scanner = scanned([chunk("a"), NASTY, NASTY], hide=True)
    assert passed == chunk("a") + NASTY + NASTY
    assert (scanner.output_tokens, scanner.done, scanner.error, scanner.usage) == (3, False, None, None)


def test_nothing_passes_after_an_error() -> None:
    error = b'data: {"error": {"message": "no", "code": 429}}\n\n'
    passed, scanner = scanned([chunk("a") + error + chunk("b"), chunk("c")])
    assert passed == chunk("a")
    assert scanner.error is not None
    assert scanner.error.status == 429
    assert json.loads(scanner.error.payload)["error"]["message"] == "no"


def test_comments_and_other_line_ends() -> None:
    stream = b': ping\r\n\r\nevent: x\r\ndata: {"choices":[{}]}\r\n\r\n\ndata: {"choices":[{}]}\n\n'
    passed, scanner = scanned([stream])
    assert passed == stream
    assert scanner.output_tokens == 2


def test_a_broken_off_event_is_kept_back() -> None:
    passed, scanner = scanned([chunk("a"), chunk("b")[:-1]])
    assert passed == chunk("a")
    assert scanner.rest() == chunk("b")[:-1]


PLAIN = [
    ROLE,
    chunk("a"),
    chunk("é"),
    NASTY,
    chunk("x").replace(b"\n", b"\r\n"),
    b": ping\n\n",
    b"\n",
    b"data: junk\n\n",
]
TOLD = [USAGE_EVENT, DONE, b'data: {"choices":[],"usage":null}\n\n', b'data: {"error":{"code":"500"}}\n\n']
EVENTS = st.lists(st.sampled_from(PLAIN + TOLD), max_size=12)


@given(EVENTS, st.lists(st.integers(0, 600), max_size=20), st.booleans())
def test_any_cutting_gives_the_same(events: list[bytes], cuts: list[int], hide: bool) -> None:
    stream = b"".join(events)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(places)]
    passed, scanner = scanned([piece for piece in pieces if piece], hide)
    whole, once = scanned([stream] if stream else [], hide)
    assert passed.replace(b"\n", b"") == whole.replace(b"\n", b"")
    for name in ("output_tokens", "usage", "done", "events"):
        assert getattr(scanner, name) == getattr(once, name), name
    assert (scanner.error is None) == (once.error is None)
    if once.error is None and not hide:
        assert passed + scanner.rest() == stream
