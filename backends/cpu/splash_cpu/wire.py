"""Frames between the engine and its ranks: a kind, a length, and a pickle (protocol 5)."""

from __future__ import annotations

import pickle
import socket
import struct
from enum import IntEnum
from typing import Any

HEADER = struct.Struct("<BQ")
READ_BYTES = 1 << 16


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


KINDS = tuple(Kind)


def frame(kind: Kind, message: Any = None) -> bytes:
    payload = pickle.dumps(message, protocol=5)
    return HEADER.pack(kind, len(payload)) + payload


class Reader:
    """Cuts what comes from a socket into frames, in one buffer that grows with the largest of them."""

    def __init__(self) -> None:
        self._buffer = bytearray(READ_BYTES)
        self._start = self._filled = 0
        """What has come and is not taken yet lies between the two."""

    def read(self, connection: socket.socket) -> bool:
        """Take what the socket has; False at its end."""
        if self._filled == len(self._buffer):
            self._make_room()
        count = connection.recv_into(memoryview(self._buffer)[self._filled :])
        self._filled += count
        return count > 0

    def take(self) -> tuple[Kind, Any] | None:
        """The next whole frame, if there is one."""
        payload = self._start + HEADER.size
        if self._filled < payload:
            return None
        kind, length = HEADER.unpack_from(self._buffer, self._start)
        if self._filled < payload + length:
            return None
        message = pickle.loads(memoryview(self._buffer)[payload : payload + length])
        self._start = payload + length
        if self._start == self._filled:
            self._start = self._filled = 0
        return KINDS[kind], message

    def _make_room(self) -> None:
        """Move what is left to the front; double the buffer if nothing was in front of it."""
        left = self._buffer[self._start : self._filled]
        if self._start == 0:
            self._buffer += bytes(len(self._buffer))
        self._buffer[: len(left)] = left
        self._start, self._filled = 0, len(left)


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end, as the kernel knows it: an abstract socket has no permissions of its own."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", raw)[1]
