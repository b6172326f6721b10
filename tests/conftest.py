"""The order of the tests."""


def pytest_collection_modifyitems(items):
    """The longest first, so that nobody waits for it at the end."""
    items.sort(key=lambda item: "test_killing" not in item.nodeid)
