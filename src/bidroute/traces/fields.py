"""Reading single values; a ValueError says which field, what was found and what was expected."""

from __future__ import annotations

import math
from datetime import UTC, datetime

LARGEST_TOKENS = 1_000_000_000
TICKS_PER_S = 10_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def token_count(text: str, column: str, *, least: int) -> int:
    """A whole number of tokens, `least` or more; `374` and `374.0` are both 374."""
    if text.isdecimal():
        tokens = int(text)
        if least <= tokens <= LARGEST_TOKENS:
            return tokens
    value = finite_number(text, column)
    if value > LARGEST_TOKENS:
        raise ValueError(f"{column} is {text}; expected {LARGEST_TOKENS} tokens at most")
    if not value.is_integer():
        raise ValueError(f"{column} is {text!r}; expected a whole number of tokens")
    if value < least:
        raise ValueError(f"{column} is {text}; expected {least} or more tokens")
    return int(value)


def time_s(text: str, column: str) -> float:
    """A time in seconds, 0 or more."""
    value = finite_number(text, column)
    if value < 0:
        raise ValueError(f"{column} is {text}; expected a time of 0 or more")
    return value


def finite_number(text: str, column: str) -> float:
    """Any finite number."""
    try:
        value = float(text.replace("_", "?"))  # Python would take 1_000 for a number
    except ValueError:
        found = repr(text[:40]) if text.strip() else "empty"
        raise ValueError(f"{column} is {found}; expected a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{column} is {text}; expected a finite number")
    return value


def clock_ticks(text: str, column: str) -> int:
    """A date with a time of day, in units of 100 ns; without a time zone it is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{column} is {text[:40]!r}; expected a date and time such as 2023-11-16 18:15:46.68"
        ) from None
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    seconds = since.days * 86_400 + since.seconds
    return seconds * TICKS_PER_S + since.microseconds * 10 + _seventh_decimal(text)


def _seventh_decimal(text: str) -> int:
    """The digit of 100 ns, which `datetime` drops."""
    position = text.find(".") + 7
    return int(text[position]) if 7 <= position < len(text) and text[position].isdecimal() else 0
