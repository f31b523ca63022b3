"""Frames between the engine and its ranks: a kind, a length, and a pickle (protocol 5)."""

from __future__ import annotations

import pickle
import socket
import struct
from enum import IntEnum
from typing import Any

HEADER = struct.Struct("<BQ")
READ_BYTES = 1 << 18


class Kind(IntEnum):
    START = 0
    """Engine to rank, first: (entry, args)."""
    MESSAGE = 1
    """Either way: whatever the engine or the entry sends."""
    CLOSE = 2
    """Engine to rank, last."""
    HELLO = 3
    """Rank to engine, first: (rank, pid, parent's pid)."""
    ERROR = 4
    """Rank to engine, last: (a SplashError or None, text)."""
    ENDED = 5
    """Rank to engine, last: the entry returned although the job was not closed."""


def frame(kind: Kind, message: Any = None) -> bytes:
    payload = pickle.dumps(message, protocol=5)
    return HEADER.pack(kind, len(payload)) + payload


class Reader:
    """Cuts what comes from a socket into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> tuple[Kind, Any] | None:
        """The next whole frame, if there is one."""
        if len(self._buffer) < HEADER.size:
            return None
        kind, length = HEADER.unpack_from(self._buffer)
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            message = pickle.loads(view[HEADER.size : end])
        del self._buffer[:end]
        return Kind(kind), message


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end, as the kernel knows it: an abstract socket has no permissions of its own."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", raw)[1]
