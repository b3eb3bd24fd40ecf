"""A short-lived pod in the user's own namespace, for what only a pod can do: read and write a claim.

It is deleted at the end, however that comes; were this program killed outright, the pod ends by itself.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, BinaryIO, cast

from halo_api.run_file import VOLUMES_FOLDER
from halo_cli.kubectl import MISSING, CliError, Kubectl, NotThere, Object, failure_of

CLIENT_CONFIG_MAP = "halo-operator-client"
CONTAINER = "transfer"
USER_ID = 65532
LIFE_SECONDS = 7200
LOOK_SECONDS = 0.5
SCRATCH_ROOM = 64 << 20
# A pod that waits for one of these waits for a person.
HOPELESS = ("InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError")
ENDING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Settings:
    """What the installation tells everybody: the image of pods, and where adapters go by default."""

    image: str
    pull_policy: str
    claim: str | None = None


@dataclass(frozen=True)
class Asked:
    """What is to be said of the pod on the command line."""

    image: str | None = None
    timeout: int = 300
    system: str = "halo-system"


@dataclass(frozen=True)
class State:
    """How a pod is: it runs, or waits, or never will run, and why."""

    runs: bool = False
    over: bool = False
    why: str = ""


@dataclass(frozen=True)
class Pipes:
    """The two ends of a command in the pod."""

    stdin: BinaryIO
    stdout: BinaryIO


@dataclass
class VolumePod:
    """The pod, as long as the block lasts."""

    kubectl: Kubectl
    settings: Settings
    # claim → whether it is only read
    claims: Mapping[str, bool]
    timeout: int
    note: Callable[[str], None]
    scratch: int = 0
    name: str = field(default_factory=lambda: f"halo-transfer-{secrets.token_hex(4)}")

    def __enter__(self) -> VolumePod:
        for claim in self.claims:
            self._find(claim)
        self._handlers = {number: signal.signal(number, interrupt) for number in ENDING}
        refused = True
        try:
            create(self.kubectl, pod(self.name, self.settings, self.claims, self.scratch))
            refused = False
            self._wait()
        except BaseException:
            # It may be there all the same, as when the answer was lost; that it was not deleted is no news then.
            self._leave(quiet=refused)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave()

    @contextlib.contextmanager
    def process(self, *arguments: str) -> Iterator[Pipes]:
        """Run `halo-trainer transfer` in the pod; what it says when it fails is the error."""
        where = ("exec", "--stdin", self.name, "--container", CONTAINER, "--")
        command = self.kubectl.command(*where, "halo-trainer", "transfer", *arguments)
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            pipes = Pipes(cast(BinaryIO, process.stdin), cast(BinaryIO, process.stdout))
            broken = False
            try:
                try:
                    yield pipes
                    pipes.stdin.close()
                except BrokenPipeError:
                    broken = True
                while pipes.stdout.read(1 << 20):
                    pass
                if process.wait() != 0 or broken:
                    errors.seek(0)
                    raise CliError(complaint(errors.read().decode(errors="replace")))
            finally:
                process.kill()
                process.wait()
                for pipe in (pipes.stdin, pipes.stdout):
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def ask(self, *arguments: str, feed: Callable[[BinaryIO], None] | None = None) -> bytes:
        """Run it, give it what `feed` writes, and return what it answers."""
        with self.process(*arguments) as pipes:
            if feed:
                feed(pipes.stdin)
            pipes.stdin.close()
            return pipes.stdout.read()

    def _find(self, claim: str) -> None:
        try:
            self.kubectl.get("persistentvolumeclaim", claim)
        except NotThere:
            raise self.kubectl.absent("PersistentVolumeClaim", claim, "pvc") from None

    def _wait(self) -> None:
        end, said = time.monotonic() + self.timeout, ""
        while not (state := state_of(self.kubectl.get("pod", self.name))).runs:
            if state.over:
                raise CliError(f"pod {self.name}: {state.why}")
            if time.monotonic() > end:
                raise CliError(f"pod {self.name} did not run within {self.timeout} s (--timeout): {state.why}")
            if state.why != said:
                self.note(f"pod {self.name}: {state.why}")
                said = state.why
            time.sleep(LOOK_SECONDS)

    def _leave(self, quiet: bool = False) -> None:
        """Delete the pod; a second Ctrl-C does not stop that."""
        numbers = (signal.SIGINT, *ENDING)
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            command = self.kubectl.command("delete", "pod", self.name, "--ignore-not-found", "--now", "--wait=false")
            done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
            if done.returncode != 0 and not quiet:
                self.note(f"pod {self.name} was not deleted, and ends by itself: {failure_of(done.stderr)}")
        finally:
            for number, handler in (before | self._handlers).items():
                signal.signal(number, handler)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Take the end of a session for what Ctrl-C is."""
    raise KeyboardInterrupt


def settings_of(kubectl: Kubectl, asked: Asked) -> Settings:
    """Return what the installation says, if it must be asked."""
    try:
        found = kubectl.get("configmap", CLIENT_CONFIG_MAP, "--namespace", asked.system).get("data") or {}
        told = Settings(found["trainerImage"], found["trainerImagePullPolicy"], found.get("artifactsClaim"))
    except (CliError, KeyError) as error:
        if asked.image:
            return Settings(asked.image, "IfNotPresent")
        why = "there is none" if isinstance(error, NotThere) else error
        raise CliError(
            f"ConfigMap {CLIENT_CONFIG_MAP} in namespace {asked.system}: {why}; name the operator's namespace with "
            "--system-namespace, or the trainer's image with --image"
        ) from None
    return Settings(asked.image, "IfNotPresent", told.claim) if asked.image else told


def pod(name: str, settings: Settings, claims: Mapping[str, bool], scratch: int = 0) -> Object:
    """Return the pod, under the *restricted* Pod Security Standard; `scratch` is what it unpacks outside the claims."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/name": "halo",
                "app.kubernetes.io/component": CONTAINER,
                "app.kubernetes.io/managed-by": "kubectl-halo",
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LIFE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            # As the pods of runs, which wrote what is there, and shall read what it writes.
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": CONTAINER,
                    "image": settings.image,
                    "imagePullPolicy": settings.pull_policy,
                    "command": ["halo-trainer", "transfer", "hold"],
                    "env": [{"name": "HOME", "value": "/tmp"}],
                    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "tmp", "mountPath": "/tmp"},
                        *(
                            {"name": f"claim-{i}", "mountPath": f"{VOLUMES_FOLDER}/{claim}", "readOnly": read_only}
                            for i, (claim, read_only) in enumerate(claims.items())
                        ),
                    ],
                }
            ],
            "volumes": [
                {"name": "tmp", "emptyDir": {"sizeLimit": str(scratch + SCRATCH_ROOM)}},
                *(
                    {"name": f"claim-{i}", "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}
                    for i, (claim, read_only) in enumerate(claims.items())
                ),
            ],
        },
    }


def state_of(body: Object) -> State:
    """Return how a pod is."""
    status: dict[str, Any] = body.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        why = (
            status.get("message")
            or status.get("reason")
            or f"found it {status['phase']} before it was asked for anything"
        )
        return State(over=True, why=why)
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        if "running" in state:
            return State(runs=True)
        if waiting := state.get("waiting"):
            reason = waiting.get("reason") or "waiting"
            message = f": {waiting['message']}" if waiting.get("message") else ""
            return State(over=reason in HOPELESS, why=reason + message)
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return State(
                why=f"{condition.get('reason') or 'not scheduled'}: {condition.get('message') or 'no node yet'}"
            )
    return State(why="not started yet")


def create(kubectl: Kubectl, body: Object, *options: str) -> None:
    """Create an object."""
    try:
        done = subprocess.run(
            kubectl.command("create", *options, "-f", "-"), input=json.dumps(body), capture_output=True, text=True
        )
    except FileNotFoundError:
        raise CliError(MISSING) from None
    if done.returncode != 0:
        raise failure_of(done.stderr)


def complaint(stderr: str) -> str:
    """Return what a command in a pod said last, without kubectl's words about its exit code."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("command terminated with")]
    if any("invalid choice" in line for line in own):
        return "the operator's trainer image is older than this kubectl halo; upgrade the operator, or name one with --image"
    return (own or lines or ["the connection to the pod ended early; try again"])[-1].removeprefix("halo-trainer: ")
