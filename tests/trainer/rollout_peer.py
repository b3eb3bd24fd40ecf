"""A rollout server for tests: a real language model behind real HTTP, with a guard beside it, that fails when it is told to.

The model is a table of next-token logits, another for each policy, so that every log-probability can be computed again; or
whatever `logits` is given, such as a transformer. It samples by the request's seed alone.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from halo_api.rollouts import Policy, PolicyAnswer, ServerAddress

VOCABULARY = 384
# version of a policy, tokens so far → logits of the next token
Logits = Callable[[int, Sequence[int]], np.ndarray]


def table(version: int, tokens: Sequence[int]) -> np.ndarray:
    """Return the logits of a model that looks at the last two tokens."""
    before = tokens[-2] if len(tokens) > 1 else 0
    return np.random.default_rng([version, before, tokens[-1]]).normal(size=VOCABULARY) * 2


def log_probs_of(
    logits: Logits, version: int, prompt: Sequence[int], answer: Sequence[int], temperature: float
) -> list[float]:
    """Return the log-probability of each answered token, as a trainer would compute it."""
    tokens, found = list(prompt), []
    for token in answer:
        found.append(float(_log_softmax(logits(version, tokens) / temperature)[token]))
        tokens.append(token)
    return found


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def policy(version: int, serving: str = "unmerged", attempt: int = 1) -> Policy:
    """Return a policy; version 0 is the base."""
    adapter = {"uri": f"pvc://artifacts/policies/s{version}", "digest": "sha256:" + "0" * 64, "files": []}
    return Policy.model_validate(
        {
            "version": version, "attempt": attempt, "name": f"run-a{attempt}-s{version}", "serving": serving,
            "adapter": adapter if version else None,
        }
    )  # fmt: skip


class Peer:
    """One incarnation of a server; `faults` holds what befalls the next requests, one each."""

    def __init__(self, server: int = 0, incarnation: int = 1, logits: Logits = table) -> None:
        self.logits = logits
        # What a model says to a prompt, in place of a sampled answer.
        self.script: Callable[[list[int]], list[int] | None] = lambda prompt: None
        self.faults: deque[str] = deque()
        self.put_faults: deque[str] = deque()
        # Befalls every request, as long as it is set.
        self.broken: str | None = None
        self.requests: list[dict[str, Any]] = []
        self.puts: list[Policy] = []
        self.policy: Policy | None = None
        self.most = self._now = 0
        self.held = threading.Event()
        self._lock = threading.Lock()
        self._doors = [_Door(self, port) for port in ("serve", "guard")]
        serve, guard = (door.server_address[1] for door in self._doors)
        self.address = ServerAddress(
            server=server, incarnation=incarnation, host="127.0.0.1", serve_port=serve, guard_port=guard
        )
        for door in self._doors:
            threading.Thread(target=door.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End as a killed pod does: no more connections, and those there are broken."""
        self.held.set()
        for door in self._doors:
            door.kill()

    @property
    def connections(self) -> int:
        """How many were made to sample."""
        return self._doors[0].accepted

    def complete(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer a request."""
        with self._lock:
            self.requests.append(body)
            self._now += 1
            self.most = max(self.most, self._now)
            fault = self.broken or (self.faults.popleft() if self.faults else None)
        try:
            return self._complete(body, fault)
        finally:
            with self._lock:
                self._now -= 1

    def _complete(self, body: dict[str, Any], fault: str | None) -> tuple[int, bytes]:
        if fault == "hang":
            self.held.wait()
        served = self.policy
        if fault in ("reset", "hang"):
            raise ConnectionAbortedError
        if fault and fault.isdigit():
            return int(fault), b'{"error": {"message": "told to"}}'
        if served is None or body["model"] != served.model:
            return 404, b'{"error": {"message": "the model does not exist"}}'
        if "prompt_logprobs" in body:
            return 200, json.dumps({"choices": [self._score(body["prompt"], served)]}).encode()
        choice = self._sample(body, served)
        reply = {"model": body["model"], "choices": [choice]}
        log_probs = choice["logprobs"]["token_logprobs"]
        match fault:
            case "nan":
                log_probs[-1] = float("nan")
            case "none":
                log_probs[-1] = None
            case "impossible":
                log_probs[0] = -9999.0
            case "short":
                del log_probs[-1]
            case "alien":
                choice["token_ids"][0] = VOCABULARY
            case "prompt":
                choice["prompt_token_ids"][0] += 1
            case "model":
                reply["model"] = "another"
            case "abort":
                choice["finish_reason"] = "abort"
            case "runs on":
                choice["token_ids"].insert(0, body["stop_token_ids"][0])
                log_probs.insert(0, -1.0)
        content = json.dumps(reply).encode()
        return 200, content[: len(content) // 2] if fault == "truncated" else content

    def _sample(self, body: dict[str, Any], served: Policy) -> dict[str, Any]:
        prompt, random = list(body["prompt"]), np.random.default_rng(body["seed"])
        scripted = self.script(prompt)
        tokens, answer, log_probs = list(prompt), [], []
        while len(answer) < body["max_tokens"] and not (answer and answer[-1] in body["stop_token_ids"]):
            scores = _log_softmax(self.logits(served.version, tokens) / body["temperature"])
            drawn = int(random.choice(len(scores), p=np.exp(scores))) if scripted is None else scripted[len(answer)]
            answer.append(drawn)
            tokens.append(drawn)
            log_probs.append(float(scores[drawn]))
        return {
            "prompt_token_ids": prompt,
            "token_ids": answer,
            "logprobs": {"token_logprobs": log_probs},
            "finish_reason": "stop" if answer[-1] in body["stop_token_ids"] else "length",
        }

    def _score(self, prompt: list[int], served: Policy) -> dict[str, Any]:
        told = [
            {str(token): {"logprob": value}}
            for at, token in enumerate(prompt[1:], 1)
            for value in log_probs_of(self.logits, served.version, prompt[:at], [token], 1.0)
        ]
        return {"prompt_logprobs": [None, *told]}

    def guard(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer as the guard."""
        if path == "/ready":
            return (200, b"") if self.policy else (503, b"no policy")
        if method == "PUT":
            fault = self.put_faults.popleft() if self.put_faults else None
            if fault == "hang":
                self.held.wait()
            if fault in ("reset", "hang"):
                raise ConnectionAbortedError
            asked = Policy.model_validate_json(body)
            if fault:
                return int(fault), PolicyAnswer(policy=self.policy, problem="told to").model_dump_json().encode()
            self.puts.append(asked)
            self.policy = asked
        return 200, PolicyAnswer(policy=self.policy, seconds=0.1).model_dump_json(by_alias=True).encode()


class _Door(ThreadingHTTPServer):
    """One port of a peer."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, peer: Peer, port: str) -> None:
        self.peer, self.port = peer, port
        self._open: set[socket.socket] = set()
        self.accepted = 0
        super().__init__(("127.0.0.1", 0), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        found = super().get_request()
        self._open.add(found[0])
        self.accepted += 1
        return found

    def kill(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in self._open:
            _reset(connection)


def _reset(connection: socket.socket) -> None:
    """Close a connection as a dead process does: with RST."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
    connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Door

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        peer = self.server.peer
        try:
            if self.server.port == "serve":
                status, content = peer.complete(json.loads(body))
            else:
                status, content = peer.guard(self.command, self.path, body)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except (ConnectionError, OSError):
            self.close_connection = True
            _reset(self.connection)

    do_GET = do_PUT = do_POST = _answer

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            return


def ids(*values: int) -> array[int]:
    """Return token ids."""
    return array("i", values)
