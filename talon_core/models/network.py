"""Whether anything answers at an address, found out before a library waits through its timeouts and retries."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

SECONDS_UNTIL_SILENT = 2.0
"""So long a connection may take; one packet may be lost in that time and sent again."""

PORTS = {"https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}


def knock(url: str) -> threading.Event:
    """Connect to an address, or to the proxy that is set for it, without waiting for it.

    Returns:
        It is set as soon as anything answers, if only that there is no such name, or nobody at this port.
    """
    answered = threading.Event()
    threading.Thread(target=_connect_to_all, args=(*_address(url), answered), daemon=True).start()
    return answered


def _address(url: str) -> tuple[str, int]:
    found = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(found.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(found.hostname or ""):
        found = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return found.hostname or "", found.port or PORTS.get(found.scheme, 80)


def _connect_to_all(host: str, port: int, answered: threading.Event) -> None:
    """Connect to each address of a name at the same time: those of one kind may lead nowhere."""
    try:
        addresses = {each[4] for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, ValueError):
        answered.set()
        return
    for address in addresses:
        threading.Thread(target=_connect_to, args=(address[:2], answered), daemon=True).start()


def _connect_to(address: tuple[str, int], answered: threading.Event) -> None:
    try:
        socket.create_connection(address, timeout=SECONDS_UNTIL_SILENT).close()
    except TimeoutError:
        return
    except OSError:
        pass
    answered.set()
