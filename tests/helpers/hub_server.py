"""A Hugging Face hub on this machine: data sets only, all in memory, with the addresses that huggingface_hub calls."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"


class Refused(Exception):
    """A status and the hub's name of the error."""


class Repo:
    """Commits by their hash, and what the branches stand for."""

    def __init__(self, private: bool) -> None:
        self.private = private
        self.commits: dict[str, Files] = {}
        self.branches: dict[str, str] = {}
        self.commit("main", {".gitattributes": b"*.parquet filter=lfs\n"})

    def commit(self, branch: str, files: Files) -> str:
        sha = hashlib.sha1(f"{branch} {len(self.commits)}".encode(), usedforsecurity=False).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        return sha

    def resolve(self, revision: str) -> str:
        sha = self.branches.get(revision, revision)
        if sha not in self.commits:
            raise Refused(404, "RevisionNotFound")
        return sha


class Hub(ThreadingHTTPServer):
    """The server; ``log`` has the method, the path and the bytes sent of every request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reset()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reset(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.objects: Files = {}
        self.log: list[tuple[str, str, int]] = []
        self.refused: str | None = None  # part of the paths that shall fail

    def uploads(self) -> list[str]:
        return [path for method, path, _ in self.log if method == "PUT"]

    def files(self, repo: str, revision: str = "main") -> Files:
        found = self.repos[repo]
        return found.commits[found.resolve(revision)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def handle_request(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self.body()
        self.server.log.append((self.command, path, len(body)))
        try:
            if self.server.refused is not None and self.server.refused in path:
                raise Refused(403, "Forbidden")
            for pattern, action in ROUTES.items():
                if match := re.fullmatch(pattern, f"{self.command} {path}"):
                    self.reply(action(self, body, **match.groupdict()))
                    return
            raise Refused(404, f"NoRoute {self.command} {path}")
        except Refused as error:
            status, code = error.args
            told = {"error": code, "url": f"{self.server.url}/there/already"}
            self.reply(told, status, {"X-Error-Code": code, "X-Error-Message": code})

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def reply(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, stop = int(wanted[1]), int(wanted[2] or len(data) - 1) + 1
            status, data = 206, data[start:stop]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), "ETag": '"x"', **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def repo(self, name: str) -> Repo:
        if name not in self.server.repos:
            raise Refused(404, "RepoNotFound")
        return self.server.repos[name]

    def create(self, body: bytes) -> Any:
        wanted = json.loads(body)
        assert wanted["type"] == "dataset"
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.server.repos:
            raise Refused(409, "Conflict")
        self.server.repos[name] = Repo(wanted.get("private", wanted.get("visibility") == "private"))
        return {"url": f"{self.server.url}/datasets/{name}", "id": name}

    def branch(self, _: bytes, repo: str, branch: str) -> Any:
        found = self.repo(repo)
        if branch in found.branches:
            raise Refused(409, "Conflict")
        found.branches[branch] = found.branches["main"]
        return {}

    def info(self, _: bytes, repo: str, revision: str | None = None) -> Any:
        found = self.repo(repo)
        return {"id": repo, "sha": found.resolve(revision or "main"), "private": found.private, "siblings": []}

    def tree(self, _: bytes, repo: str, revision: str, folder: str | None = None) -> Any:
        return [entry(path, data) for path, data in self.below(repo, revision, folder).items()]

    def below(self, repo: str, revision: str, folder: str | None) -> Files:
        found = self.repo(repo)
        files = found.commits[found.resolve(revision)]
        inside = {path: data for path, data in files.items() if path.startswith(f"{folder}/") or not folder}
        if not inside:
            raise Refused(404, "EntryNotFound")
        return inside

    def preupload(self, body: bytes, repo: str, revision: str) -> Any:
        found = self.repo(repo)
        there = found.commits[found.resolve(revision)]
        files = [
            {"path": path, "uploadMode": mode(path), "shouldIgnore": False, "oid": oid(path, there.get(path))}
            for path in (file["path"] for file in json.loads(body)["files"])
        ]
        return {"files": files}

    def batch(self, body: bytes, repo: str) -> Any:
        objects = json.loads(body)["objects"]
        for wanted in objects:
            if wanted["oid"] not in self.server.objects:
                wanted["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{wanted['oid']}"}}
        return {"transfer": "basic", "objects": objects}

    def upload(self, body: bytes, sha256: str) -> Any:
        assert hashlib.sha256(body).hexdigest() == sha256
        self.server.objects[sha256] = body
        return {}

    def commit(self, body: bytes, repo: str, revision: str) -> Any:
        found = self.repo(repo)
        files = dict(found.commits[found.branches[revision]])
        for line in body.splitlines():
            key, value = (json.loads(line)[name] for name in ("key", "value"))
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
        sha = found.commit(revision, files)
        return {"success": True, "commitOid": sha, "commitUrl": f"{self.server.url}/datasets/{repo}/commit/{sha}"}

    def resolve(self, _: bytes, repo: str, revision: str, file: str) -> Any:
        found = self.repo(repo)
        files = found.commits[found.resolve(revision)]
        if file not in files:
            raise Refused(404, "EntryNotFound")
        return files[file]


def mode(path: str) -> str:
    return "lfs" if path.endswith(".parquet") else "regular"


def oid(path: str, data: bytes | None) -> str | None:
    """What the hub names a file by: large ones by their SHA-256, others as git does."""
    if data is None:
        return None
    if mode(path) == "lfs":
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0%s" % (len(data), data), usedforsecurity=False).hexdigest()


def entry(path: str, data: bytes) -> dict[str, Any]:
    values: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": oid("", data)}
    if mode(path) == "lfs":
        values["lfs"] = {"oid": oid(path, data), "size": len(data), "pointerSize": 130}
    return values


ROUTES: dict[str, Callable[..., Any]] = {
    r"POST /api/repos/create": Handler.create,
    r"POST /api/validate-yaml": lambda *_: {"errors": [], "warnings": []},
    rf"POST /api/datasets/{REPO}/branch/(?P<branch>.+)": Handler.branch,
    rf"GET /api/datasets/{REPO}(/revision/(?P<revision>.+))?": Handler.info,
    rf"GET /api/datasets/{REPO}/tree/(?P<revision>[^/]+)(/(?P<folder>.+))?": Handler.tree,
    rf"POST /api/datasets/{REPO}/preupload/(?P<revision>.+)": Handler.preupload,
    rf"POST /datasets/{REPO}\.git/info/lfs/objects/batch": Handler.batch,
    r"PUT /lfs/(?P<sha256>\w+)": Handler.upload,
    rf"POST /api/datasets/{REPO}/commit/(?P<revision>.+)": Handler.commit,
    rf"(GET|HEAD) /datasets/{REPO}/resolve/(?P<revision>[^/]+)/(?P<file>.+)": Handler.resolve,
}
