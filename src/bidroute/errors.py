"""Every error that bidroute raises on purpose.

    BidrouteError              base; the command line prints its message on one line and exits with code 2
    ├── ConfigError            a setting is wrong (zero capacity, a NaN weight, an unknown policy name)
    ├── TraceError             a trace cannot be read (malformed row, times out of order, empty)
    ├── NeverFitsError         a request can never run on any device of this fleet
    └── LedgerError            a host broke the event protocol (a lease closed twice, an unknown request)

Messages say what was given, what was expected, and what to do, on one line.
"""

from __future__ import annotations


class BidrouteError(Exception):
    """Base of every error that bidroute raises on purpose."""


class ConfigError(BidrouteError):
    """A setting is wrong: what was given, what was expected, what to do."""


class TraceError(BidrouteError):
    """A trace cannot be read; the message carries file, line and reason."""


class NeverFitsError(BidrouteError):
    """A request can never run on any device of this fleet, so it is refused at once."""


class LedgerError(BidrouteError):
    """A host reported an event that contradicts the ledger."""
