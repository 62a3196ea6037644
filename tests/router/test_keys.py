import pytest

from bidroute.router.keys import BearerKeys

TOKEN = "a-long-admin-token"


@pytest.mark.parametrize(
    ("header", "matches"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN} ", True),
        (f"Basic {TOKEN}", False),
        (TOKEN, False),
        ("Bearer", False),
        ("Bearer ", False),
        (f"Bearer {TOKEN}x", False),
        ("Bearer \udcff", False),
        (None, False),
    ],
)
def test_bearer(header, matches):
    assert BearerKeys([TOKEN]).know(header) is matches
    assert BearerKeys(["another", TOKEN]).know(header) is matches
    assert not BearerKeys([]).know(header)
