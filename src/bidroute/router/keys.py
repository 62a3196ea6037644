"""Bearer keys, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable


class BearerKeys:
    """The keys that are let in; no keys, nobody."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def know(self, authorization: str | None) -> bool:
        """Whether an Authorization header carries one of them, in a time that does not depend on which, nor on how
        much of it is right."""
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        known = False
        for ours in self._digests:
            known |= hmac.compare_digest(ours, digest)
        return known and scheme.lower() == "bearer"
