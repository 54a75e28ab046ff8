"""A small Hugging Face over HTTP: what huggingface_hub asks of one, with faults where a test wants them."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Repositories: name → file → bytes. Files above 1 kB are "large": their ETag is their sha256."""

    repositories: dict[str, dict[str, bytes]]
    cut_once: set[str] = field(default_factory=set)
    """Files whose first answer breaks off in the middle."""
    damaged: dict[str, bytes] = field(default_factory=dict)
    """What is sent in place of a file, under its ETag."""
    gone: set[str] = field(default_factory=set)
    """Files that are listed, but are not there."""
    fetched: list[tuple[str, str | None]] = field(default_factory=list)
    """(file, Range) of every GET of a file."""

    def __enter__(self) -> Hub:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self._answer(with_body=False)

            def do_GET(self) -> None:
                self._answer(with_body=True)

            def _answer(self, *, with_body: bool) -> None:
                path = self.path.partition("?")[0].strip("/")
                if path.startswith("api/models/"):
                    owner, name, *rest = path.removeprefix("api/models/").split("/")
                    self._api(f"{owner}/{name}", rest)
                    return
                owner, name, _, _, *file = path.split("/")
                self._file(f"{owner}/{name}", "/".join(file), with_body)

            def _api(self, repo: str, rest: list[str]) -> None:
                files = hub.repositories.get(repo)
                if files is None:
                    self._refuse("RepoNotFound")
                    return
                body: Any = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in sorted(files)]}
                if rest[:1] == ["tree"]:
                    body = [
                        {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                        for name, data in sorted(files.items())
                    ]
                data = json.dumps(body).encode()
                self._head(200, len(data), {"Content-Type": "application/json"})
                self.wfile.write(data)

            def _file(self, repo: str, name: str, with_body: bool) -> None:
                data = hub.repositories.get(repo, {}).get(name)
                if data is None or name in hub.gone:
                    self._refuse("RepoNotFound" if repo not in hub.repositories else "EntryNotFound")
                    return
                digest = (hashlib.sha256 if len(data) > 1000 else hashlib.sha1)(data).hexdigest()
                headers = {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
                wanted = self.headers.get("Range")
                if not with_body:
                    self._head(200, len(data), headers)
                    return
                hub.fetched.append((name, wanted))
                start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
                sent = hub.damaged.get(name, data)[start:]
                if start:
                    headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
                self._head(206 if start else 200, len(sent), headers)
                if name in hub.cut_once:
                    hub.cut_once.remove(name)
                    self.wfile.write(sent[: len(sent) // 2])
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.close()
                    return
                self.wfile.write(sent)

            def _refuse(self, code: str) -> None:
                self._head(404, 0, {"X-Error-Code": code})

            def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(length)}.items():
                    self.send_header(key, value)
                self.end_headers()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"
