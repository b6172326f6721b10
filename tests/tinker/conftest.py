import pytest

from peergrad.engines.tinker import connection
from tests.tinker.processes import Processes, Server


@pytest.fixture(scope="session")
def processes(tmp_path_factory):
    made = Processes(tmp_path_factory.mktemp("processes"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def server(processes, tmp_path_factory):
    return Server(processes, tmp_path_factory.mktemp("served"), "--max-models", "64")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "tinker-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A server that dies is missed after two seconds, not half a minute."""
    monkeypatch.setattr(connection, "_HEALTH_S", 0.5)
    monkeypatch.setattr(connection, "_GONE_S", 2.0)
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
