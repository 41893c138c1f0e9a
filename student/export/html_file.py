"""Writes a student as one HTML file that runs in a browser without a server: the engine, the student and the page."""

import json
import zlib
from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from pipeline.files import write_text_alone
from student.page.compose import compose, hashes

FOOTER = "Texts stay on this page: it sends no requests, and its content security policy forbids them."
CHARSET = '<meta charset="utf-8">\n'
CHUNK_BYTES = 2**16
STRATEGIES = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE)
ZLIB_START, LAST_BLOCK = b"\x78\xda", b"\x03\x00"


def write_html(content: bytes, name: str, path: Path, text_columns: Sequence[Sequence[str]] = ()) -> None:
    """Writes the file.

    Args:
        content: the student's file for the engine, with one task.
        name: the student's name in the page.
        path: the file.
        text_columns: the names that the column of each text may have in a file that is dropped on the page.
    """
    facts = json.dumps({"name": name, "textColumns": [list(names) for names in text_columns]}).replace("<", "\\u003c")
    data = f'<script id="api">{_api()}</script>\n'
    data += f'<script id="facts" type="application/json">{facts}</script>\n'
    data += f'<script id="student" type="text/plain">{_packed(content)}</script>\n'
    html = compose("distill export", _file("export", "local.js"), FOOTER, data)
    # The policy allows only the scripts of this file and no request, so texts cannot leave the page.
    policy = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": hashes(html, "style"),
        "script-src": f"{hashes(html, 'script')} 'wasm-unsafe-eval'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    text = "; ".join(f"{part} {value}" for part, value in policy.items())
    tag = f'<meta http-equiv="Content-Security-Policy" content="{text}">\n'
    # The policy must stand before the first script, and browsers want the character set first of all.
    write_text_alone(path, html.replace(CHARSET, CHARSET + tag, 1))


def _api() -> str:
    """Returns the function that opens a student, with the engine in it."""
    # The page is no module, because programs take the function out of it.
    student = _file("engine", "node/student.js").replace("export class Student", "class Student")
    engine = _packed(files("student.engine").joinpath("node/engine.wasm").read_bytes())
    return _file("export", "open_student.js").replace("{{ student }}", student).replace("{{ engine }}", engine)


def _packed(content: bytes) -> str:
    return b64encode(compressed(content)).decode()


def compressed(content: bytes) -> bytes:
    """Returns a zlib stream, which browsers decompress by themselves.

    Rounded numbers have few values in no order. Searching them for repetitions makes the stream longer, so each chunk
    is compressed in the way that suits it best.
    """
    chunks = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
    blocks = [min((_blocks(chunk, strategy) for strategy in STRATEGIES), key=len) for chunk in chunks]
    return b"".join([ZLIB_START, *blocks, LAST_BLOCK, zlib.adler32(content).to_bytes(4, "big")])


def _blocks(chunk: bytes, strategy: int) -> bytes:
    # Raw blocks that end at a whole byte, so they can follow each other.
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, strategy)
    return stream.compress(chunk) + stream.flush(zlib.Z_FULL_FLUSH)


def _file(folder: str, name: str) -> str:
    return files(f"student.{folder}").joinpath(name).read_text(encoding="utf-8").rstrip("\n")
