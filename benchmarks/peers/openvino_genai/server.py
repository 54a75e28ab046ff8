"""OpenVINO GenAI's continuous batching behind just enough HTTP: `…server FILE PORT THREADS NAME CONTEXT STREAMS`.

The package has no server of its own. This one does as little as can be (no checks, one piece for each token), so that
what is measured is the pipeline. Standard library only.
"""

from __future__ import annotations

import importlib
import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

genai = importlib.import_module("openvino_genai")
BLOCK = 32
"""Tokens in one KV block on the CPU."""


class Pipeline:
    """One thread steps; others hand in prompts and wait for tokens."""

    def __init__(self, path: str, threads: int, context: int, streams: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = 4 * context // BLOCK
        scheduler.max_num_batched_tokens = 512
        scheduler.max_num_seqs = streams
        scheduler.enable_prefix_caching = True
        self._pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.tokenizer = self._pipeline.get_tokenizer()
        self._new: queue.Queue[tuple[Any, Any, queue.Queue[int | None]]] = queue.Queue()
        self._running: list[tuple[Any, queue.Queue[int | None]]] = []
        self._num_requests = 0
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, text: str, num_tokens: int) -> queue.Queue[int | None]:
        """Token ids, then None."""
        config = genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = self.tokenizer.encode(text, add_special_tokens=False).input_ids
        answer: queue.Queue[int | None] = queue.Queue()
        self._new.put((ids, config, answer))
        return answer

    def _run(self) -> None:
        while True:
            while not self._running or not self._new.empty():
                ids, config, answer = self._new.get()
                self._num_requests += 1
                self._running.append((self._pipeline.add_request(self._num_requests, ids, config), answer))
            self._pipeline.step()
            for handle, answer in list(self._running):
                while handle.can_read():
                    for output in handle.read().values():
                        for token in output.generated_ids:
                            answer.put(int(token))
                if handle.get_status() != genai.GenerationStatus.RUNNING and not handle.can_read():
                    answer.put(None)
                    self._running.remove((handle, answer))


def handler(pipeline: Pipeline, name: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            data = json.dumps({"data": [{"id": name}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            messages = body.get("messages")
            text = body["prompt"] if messages is None else pipeline.tokenizer.apply_chat_template(messages, True)
            answer = pipeline.ask(text, body["max_tokens"])
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            count = 0
            while (token := answer.get()) is not None:
                count += 1
                piece = pipeline.tokenizer.decode([token]) or "\ufffd"
                self._event({"choices": [{"index": 0, "text": piece, "delta": {"content": piece}}]})
            self._event({"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": "length"}]})
            self._event({"choices": [], "usage": {"completion_tokens": count}})
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

        def _event(self, value: Any) -> None:
            self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # with the library's 5, connections of many clients at once are reset
    daemon_threads = True


def main() -> None:
    path, port, threads, name, context, streams = sys.argv[1:]
    pipeline = Pipeline(path, int(threads), int(context), int(streams))
    Server(("127.0.0.1", int(port)), handler(pipeline, name)).serve_forever()


if __name__ == "__main__":
    main()
