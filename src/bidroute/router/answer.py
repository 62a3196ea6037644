"""Read a worker's HTTP/1.1 answer from pieces of any size. Pure: no I/O, and nothing is decoded that only passes."""

from __future__ import annotations

_MAX_HEAD_BYTES = 256 * 1024
_MAX_LINE_BYTES = 4096  # of a chunk's size, or a trailer
_HEXADECIMAL = b"0123456789abcdefABCDEF"
_BODILESS = (204, 304)
# Framing and connection, which each hop settles for itself (RFC 9110 section 7.6.1).
_HOP_BY_HOP = frozenset(
    (b"connection", b"content-length", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer")
) | {b"transfer-encoding", b"upgrade"}


class BadAnswerError(Exception):
    """The worker's bytes are no HTTP answer, or could be read in two ways."""


class Answer:
    """One answer. `feed` takes bytes off the wire and gives back those of the body.

    `head_lines` are the header lines that may pass on, as they were, with their names in lower case beside them.
    `framed` says whether the body's end is marked, rather than being the connection's end.
    """

    __slots__ = (
        "_chunked",
        "_closing_line",
        "_held",
        "_left",
        "_trailer",
        "complete",
        "content_type",
        "framed",
        "head_lines",
        "keep_alive",
        "reason",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0  # 0 until the head is there
        self.reason = b""
        self.head_lines: list[tuple[bytes, bytes]] = []
        self.content_type = b""
        self.framed = True
        self.keep_alive = True
        self.complete = False
        self._held = b""  # bytes of an element that is not whole yet
        self._chunked = False
        self._left = 0  # bytes still to come of the body or the chunk; below 0: until the connection ends
        self._closing_line = False  # a chunk's closing line break is due
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """Bytes of the body in there. Raises BadAnswerError."""
        if not self.status:
            data = self._head(self._held + data)
            if not self.status:
                return b""
            self._held = b""
        if self._chunked:
            return self._chunks(self._held + data if self._held else data)
        if self._left < 0:
            return data
        if len(data) > self._left:
            raise BadAnswerError("bytes beyond the end of the body")
        self._left -= len(data)
        self.complete = self._left == 0
        return data

    def end(self) -> None:
        """The connection ended. Raises EOFError where something is missing."""
        if self.status and self._left < 0 and not self._chunked:
            self.complete = True
        if not self.complete:
            raise EOFError

    def _head(self, data: bytes) -> bytes:
        """Read the head if it is whole; the bytes after it."""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _MAX_HEAD_BYTES:
                    raise BadAnswerError("the head is too long")
                self._held = data
                return b""
            lines = data[:end].split(b"\r\n")
            data = data[end + 4 :]
            version, _, rest = lines[0].partition(b" ")
            if b"\n" in rest or b"\r" in rest:
                raise BadAnswerError("a line break in the status line")
            status = rest[:3]
            if version not in (b"HTTP/1.1", b"HTTP/1.0") or not status.isdigit() or rest[3:4].strip():
                raise BadAnswerError("no HTTP status line")
            if not status.startswith(b"1"):
                break
            if status == b"101":
                raise BadAnswerError("the worker switched protocols")
        self.reason, self.keep_alive = rest[4:], version == b"HTTP/1.1"
        self._headers(lines[1:], int(status))
        self.status = int(status)
        return data

    def _headers(self, lines: list[bytes], status: int) -> None:
        length: bytes | None = None
        named: set[bytes] = set()
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name.split() != [name] or b"\n" in line or b"\r" in line:
                raise BadAnswerError("a malformed header")
            name = name.lower()
            if name not in _HOP_BY_HOP:
                self.head_lines.append((name, line))
                if name == b"content-type":
                    self.content_type = value.strip()
            elif name == b"content-length":
                if length is not None and length != value.strip():
                    raise BadAnswerError("two different lengths")
                length = value.strip()
            elif name == b"transfer-encoding":
                if self._chunked or value.strip().lower() != b"chunked":
                    raise BadAnswerError("an unknown transfer encoding")
                self._chunked = True
            elif name == b"connection":
                named |= {token.strip().lower() for token in value.split(b",")}
        if b"close" in named:
            self.keep_alive = False
        if named - {b"close", b"keep-alive"}:
            self.head_lines = [(name, line) for name, line in self.head_lines if name not in named]
        self._framing(length, status)

    def _framing(self, length: bytes | None, status: int) -> None:
        if status in _BODILESS:
            self._chunked, self.complete = False, True
        elif self._chunked:
            if length is not None:
                raise BadAnswerError("both a length and a transfer encoding")
        elif length is None:
            self._left, self.framed, self.keep_alive = -1, False, False
        elif not length.isdigit():
            raise BadAnswerError("a malformed length")
        else:
            self._left = int(length)
            self.complete = self._left == 0

    def _chunks(self, data: bytes) -> bytes:
        """The content of the chunks in there; what is left of an unfinished element is held."""
        pieces, at, size = [], 0, len(data)
        while True:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._closing_line = True
            if self._closing_line:
                if size - at < 2:
                    break
                if data[at : at + 2] != b"\r\n":
                    raise BadAnswerError("a chunk longer than its size")
                at += 2
                self._closing_line = False
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                if size - at > _MAX_LINE_BYTES:
                    raise BadAnswerError("a chunk's size is too long")
                break
            line = data[at:line_end]
            at = line_end + 2
            if self._trailer:
                if not line:
                    self._finish(at == size)
                    break
            else:
                self._left = _chunk_size(line)
                self._trailer = self._left == 0
        self._held = data[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _finish(self, clean: bool) -> None:
        if not clean:
            raise BadAnswerError("bytes beyond the end of the body")
        self.complete = True


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].rstrip()
    if not digits or len(digits) > 16 or digits.strip(_HEXADECIMAL):
        raise BadAnswerError("a malformed chunk size")
    return int(digits, 16)
