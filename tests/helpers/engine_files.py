"""The header and the numbers of a file for the engine, to change them."""

import json
import struct
from typing import Any

Header = dict[str, Any]


def parts(content: bytes) -> tuple[Header, bytes]:
    """The header of a file, and the bytes behind it."""
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: Header, data: bytes) -> bytes:
    """A file of these two."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data
