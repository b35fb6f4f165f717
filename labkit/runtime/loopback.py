"""The loopback interface: ranks of one machine meet there, and no host name is looked up."""

from __future__ import annotations

import socket


def interface() -> str | None:
    """Its name (``lo``, ``lo0``), or None where the system does not say."""
    try:
        names = [name for _, name in socket.if_nameindex()]
    except (AttributeError, OSError):
        return None
    return next((n for n in names if n in ("lo", "lo0")), None)
