"""What the supervisor's tests share: a real HTTPS operator, a pod's files, and the supervisor as a process."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from halo_api.report import Answer, Deadline, Outcome, Report
from halo_api.run_file import DIGEST_VARIABLE, RunFile, digest_of

PATIENCE = 180.0

# The supervisor with the command of a test's role in the place of the trainer's.
RUNNER = """
import collections, json, logging, sys, time
from pathlib import Path
from halo_supervisor.paths import Paths
from halo_supervisor.supervise import supervise
places, command = json.loads(sys.argv[1]), json.loads(sys.argv[2])
logging.basicConfig(level=logging.INFO, format="supervisor: %(message)s", stream=sys.stderr)
clock, wall, read = time.monotonic, time.time, collections.Counter()
if Path("clock").exists():
    def clock():
        text = Path("clock").read_text()
        read[text] += 1
        Path("clock-read.new").write_text(json.dumps([text, read[text]]))
        Path("clock-read.new").rename("clock-read")
        return float(text)
    wall = clock
paths = Paths(**{name: Path(place) for name, place in places.items()})
sys.exit(supervise(paths, lambda run: command, clock, wall))
"""

# What a role's script can use: it writes reports as the trainer does.
ROLE_PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
REPORT = Path({report!r})
def say(**parts):
    new = REPORT.with_suffix(".new")
    new.write_text(json.dumps({{"runUid": "uid-1", "attempt": 1}} | parts))
    new.rename(REPORT)
def checkpoint(step):
    return {{"step": step, "uri": f"pvc://a/s{{step}}", "digest": "sha256:" + "0" * 64, "at": "2026-01-01T00:00:00Z"}}
def outcome(result, reason, **more):
    return {{"result": result, "reason": reason, "message": "the role's own word"}} | more
def until(path):
    while not Path(path).exists():
        time.sleep(0.01)
"""


class Operator:
    """A real HTTPS server that takes pushes; `answer` decides what each gets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[Report] = []
        self.tokens: list[str] = []
        self.answer: Callable[[Report], Answer | int] = lambda report: Answer(acknowledged=True)
        self._arrived = threading.Condition()
        operator = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                report = Report.model_validate_json(self.rfile.read(int(self.headers["Content-Length"])))
                answer = operator._take(report, self.headers["Authorization"])
                self.send_response(answer if isinstance(answer, int) else 200)
                self.end_headers()
                if not isinstance(answer, int):
                    self.wfile.write(answer.model_dump_json(by_alias=True, exclude_none=True).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.new_certificate()
        self._server.socket = self._context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def new_certificate(self) -> None:
        """Serve a certificate of a new authority, and write the authority where the pod reads it."""
        ca, leaf = certificate(self.folder)
        self._context.load_cert_chain(leaf)
        ca.replace(self.folder / "ca.crt")

    def wait_for(self, what: Callable[[list[Report]], bool]) -> list[Report]:
        """Wait until the reports so far fulfil a condition."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: what(self.reports), PATIENCE), self.reports
            return list(self.reports)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, report: Report, token: str) -> Answer | int:
        with self._arrived:
            answer = self.answer(report)
            self.reports.append(report)
            self.tokens.append(token)
            self._arrived.notify_all()
            return answer


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed authority that is also the server's certificate; return (authority, chain with key)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "halo-operator")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    ca, leaf = folder / "ca.new", folder / "leaf.pem"
    ca.write_bytes(public)
    leaf.write_bytes(public + private)
    return ca, leaf


@dataclass
class Pod:
    """A pod's files, and the supervisor in it."""

    folder: Path
    operator: Operator
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self, script_text: str, executable: str = sys.executable, **run: Any) -> subprocess.Popen[bytes]:
        """Start the supervisor over a role's script."""
        self.write_run_file(**run)
        (self.folder / "token").write_text("first-token\n")
        script = self.folder / "role.py"
        script.write_text(ROLE_PRELUDE.format(report=str(self.folder / "report.json")) + script_text)
        names = {"run_file": "run.json", "ca": "ca.crt", "deadline": "deadline.json", "report": "report.json"}
        places = {name: str(self.folder / file) for name, file in names.items()}
        places |= {"token": str(self.folder / "token"), "termination_log": str(self.folder / "termination-log")}
        places |= {"born": str(self.folder / "born")}
        command = json.dumps([executable, str(script)])
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNNER, json.dumps(places), command],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | self.environment,
            stderr=subprocess.PIPE,
            cwd=self.folder,
        )
        return self.process

    def write_run_file(self, **run: Any) -> None:
        """Write the run file and put its digest into the environment."""
        text = RunFile.model_validate(
            {
                "role": "train",
                "run": {"kind": "TrainingJob", "namespace": "team", "name": "run", "uid": "uid-1", "attempt": 1},
                "base": {
                    "name": "tiny", "source": "pvc://m/tiny", "revision": "r", "dtype": "fp32", "contextLength": 512
                },
                "data": {"name": "chat", "kind": "chat", "source": "pvc://d/chat.jsonl"},
                "reporting": {
                    "url": f"https://127.0.0.1:{self.operator.port}/reports",
                    "intervalSeconds": 0.2,
                    "finalPushSeconds": 20,
                },
                "graceSeconds": 20,
            }
            | run
        ).canonical()  # fmt: skip
        (self.folder / "run.json").write_text(text)
        self.environment.setdefault(DIGEST_VARIABLE, digest_of(text))

    def set_clock(self, seconds: float, heeded: bool = False) -> None:
        """Set both clocks of the supervisor; first before its start, so that it looks here at all.

        `heeded` waits until it has gone through its loop with that time, and with all that was written before.
        """
        new = self.folder / "clock.new"
        new.write_text(str(seconds))
        new.rename(self.folder / "clock")
        # A turn of the loop reads it at most five times.
        while heeded and not self._read(str(seconds)) > 10:
            assert self.process
            assert self.process.poll() is None
            time.sleep(0.01)

    def _read(self, text: str) -> int:
        found, times = json.loads((self.folder / "clock-read").read_text())
        return int(times) if found == text else 0

    def set_deadline(self, sequence: int, remaining: float) -> None:
        """Write the annotation as the node brings it into the pod."""
        new = self.folder / "deadline.new"
        new.write_text(Deadline(sequence=sequence, remaining_seconds=remaining).model_dump_json(by_alias=True))
        new.rename(self.folder / "deadline.json")

    def wait_for(self, name: str) -> None:
        """Wait until the role has left a file."""
        while not (self.folder / name).exists():
            assert self.process
            assert self.process.poll() is None
            time.sleep(0.01)

    def end(self) -> tuple[int, Outcome, str]:
        """Wait for the supervisor; return its exit code, the termination message and its standard error."""
        assert self.process
        _, errors = self.process.communicate(timeout=PATIENCE)
        message = (self.folder / "termination-log").read_bytes()
        assert len(message) <= 4096
        return self.process.returncode, Outcome.model_validate_json(message), errors.decode()

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def close(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def pod_with_operator(folder: Path) -> Iterator[Pod]:
    operator = Operator(folder)
    pod = Pod(folder, operator)
    try:
        yield pod
    finally:
        pod.close()
        operator.close()


# --- roles, as the supervisor may find them

WORKS = """
def told(*_):
    say(phase="Done", checkpoints=[checkpoint(2), checkpoint(3)], outcome=outcome("Failed", "Interrupted"))
    sys.exit(1)
signal.signal(signal.SIGTERM, told)
say(phase="Working", checkpoints=[checkpoint(2)])
while True:
    time.sleep(60)
"""
PUBLISHES = """
signal.signal(signal.SIGTERM, lambda *_: Path("told to leave").touch())
def publish(*_):
    Path("publishing").touch()
    until("published")
    say(phase="Done", checkpoints=[checkpoint(2)], outcome=outcome("Succeeded", "BudgetReached"))
    sys.exit(0)
signal.signal(signal.SIGUSR1, publish)
say(phase="Working", checkpoints=[checkpoint(2)])
while True:
    time.sleep(60)
"""
STUBBORN = """
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: Path("told").touch())
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGUSR1, signal.SIG_IGN); print(flush=True); time.sleep(600)"], stdout=subprocess.PIPE)
child.stdout.readline()
Path("child.new").write_text(str(child.pid))
Path("child.new").rename("child")
say(phase="Working", checkpoints=[checkpoint(2)])
while True:
    time.sleep(60)
"""
TRAIN = {
    "steps": 9, "batch": 1, "saveSteps": 4, "seed": 0, "lora": {"dataset": "chat"}, "output": "pvc://a/o"
}  # fmt: skip
SUCCEEDS = 'say(phase="Done", checkpoints=[checkpoint(2)], outcome=outcome("Succeeded", "Succeeded"))\n'


def has_checkpoint(step: int) -> object:
    return lambda reports: any(c.step == step for report in reports for c in report.checkpoints)


def is_gone(pid: int) -> bool:
    """Wait for a process to be gone, collected by its new parent too."""
    end = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.01)
    return not Path(f"/proc/{pid}").exists()
