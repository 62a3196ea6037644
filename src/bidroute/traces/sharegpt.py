"""ShareGPT: conversations as text, without lengths and without times."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, TextIO

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

    def records(self, stream: TextIO) -> Iterator[tuple[int, msgspec.Raw]]:
        """The conversations, still encoded, so that one bad one spoils no other."""
        try:
            content = stream.buffer.read().removeprefix(codecs.BOM_UTF8)
            conversations = msgspec.json.decode(content, type=list[msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise BrokenFileError(1, f"not a JSON list of conversations: {error}") from None
        return enumerate(conversations, start=1)

    def row(self, record: msgspec.Raw) -> Row:
        """The first question and answer of a conversation."""
        try:
            turns = self._decode(record).conversations
        except msgspec.MsgspecError as error:
            raise ValueError(f"{error}; expected conversations with turns of `from` and `value`") from None
        prompt, answer = _first_exchange(turns)
        prompt_tokens, output_tokens = self._count(prompt), self._count(answer)
        if output_tokens < 1:
            raise ValueError("the answer is empty; expected 1 or more tokens")
        self._now_s += float(self._random.exponential(1.0 / self.options.rate_per_s))
        return self._now_s, prompt_tokens, output_tokens


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


def _first_exchange(turns: list[_Turn]) -> tuple[str, str]:
    for asked, answered in pairwise(turns):
        if asked.speaker in _ASKING and answered.speaker in _ANSWERING:
            return asked.value, answered.value
    raise ValueError(f"no question followed by an answer in its {len(turns)} turns")
