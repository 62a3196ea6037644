"""Runs inside the Vidur simulator; where it is not installed these tests are not even read (make test-vidur)."""

import logging
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("vidur") else ["test_*.py"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Vidur logs every arrival, and pytest would keep it all."""
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)
