"""ShareGPT: conversations as text, without lengths and without times."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar, TextIO

import msgspec
import numpy as np

from bidroute.errors import ConfigError
from bidroute.traces.base import BrokenFileError, ReadOptions, Row, TraceFormat

BYTES_PER_TOKEN = 4
_ASKING = frozenset({"human", "user"})
_ANSWERING = frozenset({"gpt", "chatgpt", "assistant", "bing", "bard"})


class _Turn(msgspec.Struct):
    speaker: str = msgspec.field(name="from")
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Turn]


class ShareGptTrace(TraceFormat):
    """A list of conversations; each gives one request: its first question that has an answer, and that answer.

    Lengths are counted by the user's tokenizer, or estimated as one token per 4 bytes of UTF-8, rounded up.
    Arrivals are Poisson at `rate_per_s`, from `seed`.
    """

    name: ClassVar[str] = "sharegpt"
    unit: ClassVar[str] = "conversation"

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._decode = msgspec.json.Decoder(_Conversation).decode
        self._count = estimated_tokens if options.tokenizer is None else token_counter(options.tokenizer)
        self._random = np.random.default_rng(options.seed)
        self._now_s = 0.0

    @classmethod
    def recognises(cls, head: str) -> bool:
        """It begins with a list."""
        return head.lstrip().startswith("[")

    def records(self, stream: TextIO) -> Iterator[tuple[int, Any]]:
        """The conversations, still encoded, so that one bad one spoils no other."""
        try:
            content = stream.buffer.read().removeprefix(codecs.BOM_UTF8)
            conversations = msgspec.json.decode(content, type=list[msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise BrokenFileError(1, f"not a JSON list of conversations: {error}") from None
        return enumerate(conversations, start=1)

    def row(self, record: Any) -> Row:
        """The first question and answer of a conversation."""
        turns = self._turns(record)
        answer = _answers(turns)[0]
        return self._request(self._count(turns[answer - 1].value), self._count(turns[answer].value))

    def _turns(self, record: msgspec.Raw) -> list[_Turn]:
        try:
            return self._decode(record).conversations
        except msgspec.MsgspecError as error:
            raise ValueError(f"{error}; expected conversations with turns of `from` and `value`") from None

    def _request(self, prompt_tokens: int, output_tokens: int) -> Row:
        if output_tokens < 1:
            raise ValueError("the answer is empty; expected 1 or more tokens")
        self._now_s += float(self._random.exponential(1.0 / self.options.rate_per_s))
        return self._now_s, prompt_tokens, output_tokens


class ShareGptTurns(ShareGptTrace):
    """The same file, where every answer to a question is a request; its prompt is all that was said before it.

    The requests of a conversation follow one another in the order of its turns, at the same Poisson times.
    """

    name: ClassVar[str] = "sharegpt-turns"

    @classmethod
    def recognises(cls, head: str) -> bool:
        """Never: it is taken only where it is named."""
        return False

    def records(self, stream: TextIO) -> Iterator[tuple[int, Any]]:
        """Prompt and output tokens of each request, or what is wrong with a conversation, for `row` to raise."""
        for number, conversation in super().records(stream):
            try:
                requests = self._exchanges(self._turns(conversation))
            except ValueError as problem:
                yield number, problem
            else:
                yield from ((number, request) for request in requests)

    def row(self, record: Any) -> Row:
        """One answer, as a request."""
        if isinstance(record, ValueError):
            raise record
        return self._request(*record)

    def _exchanges(self, turns: list[_Turn]) -> list[tuple[int, int]]:
        tokens = [self._count(turn.value) for turn in turns]
        before = [0, *accumulate(tokens)]
        return [(before[answer], tokens[answer]) for answer in _answers(turns)]


def estimated_tokens(text: str) -> int:
    """One token per 4 bytes of UTF-8, rounded up."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def token_counter(path: Path) -> Callable[[str], int]:
    """Counts with the tokenizer stored at `path`. Raises ConfigError when it or the package is not there."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError("tokenizer: the package `tokenizers` is missing; pip install 'bidroute[tokenizer]'") from None
    try:
        encode = Tokenizer.from_file(str(path)).encode
    except Exception as error:  # the package raises bare Exception
        raise ConfigError(f"tokenizer {path}: {error}; expected a tokenizer.json file") from None
    return lambda text: len(encode(text, add_special_tokens=False).ids)


def _answers(turns: list[_Turn]) -> list[int]:
    """Places of the answers that follow a question; at least one. Raises ValueError when there is none."""
    answers = [
        place
        for place, (asked, answered) in enumerate(pairwise(turns), start=1)
        if asked.speaker in _ASKING and answered.speaker in _ANSWERING
    ]
    if not answers:
        raise ValueError(f"no question followed by an answer in its {len(turns)} turns")
    return answers
