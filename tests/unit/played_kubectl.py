"""A kubectl whose API server is a folder and whose pods are processes: what a pod is asked, the real `halo-trainer` does here.

STATE has objects/KIND/NAME.json and claims/CLAIM/; `plan.json` says what goes wrong: {"refuse": {KIND: words}, "cut": [bytes
of each stream], "hang": true, "pending": status}. Used as a program: `played_kubectl.py STATE ARGUMENTS`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Played:
    """The cluster in a folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        (state / "objects").mkdir(parents=True, exist_ok=True)

    def put(self, kind: str, name: str, body: dict[str, Any]) -> None:
        path = self.path(kind, name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"metadata": {}} | body))

    def path(self, kind: str, name: str) -> Path:
        plural = kind.split(".")[0].lower()
        return self.state / "objects" / (plural if plural.endswith("s") else f"{plural}s") / f"{name}.json"

    def all(self, kind: str) -> dict[str, dict[str, Any]]:
        found = sorted(self.path(kind, "x").parent.glob("*.json"))
        return {path.stem: json.loads(path.read_text()) for path in found}

    def plan(self, **what: Any) -> None:
        (self.state / "plan.json").write_text(json.dumps(what))

    def on_path(self, monkeypatch: Any) -> Played:
        """Be the kubectl of this process and its children."""
        bin_ = self.state / "bin"
        bin_.mkdir()
        (bin_ / "kubectl").write_text(f'#!/bin/sh\nexec {sys.executable} -S {__file__} {self.state} "$@"\n')
        (bin_ / "kubectl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
        folders = (str(ROOT), *(str(ROOT / name) for name in ("operator", "supervisor", "trainer_image")))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
        return self

    def run(self, arguments: list[str]) -> int:
        while arguments and arguments[0] in ("--namespace", "--context"):
            arguments = arguments[2:]
        verb, *rest = arguments
        names = [word for word in rest if not word.startswith("-")]
        if verb == "config":
            print("team-a", end="")
            return 0
        if verb == "get":
            return self.get(names)
        if verb == "create":
            return self.create("--dry-run=server" in rest)
        if verb == "delete":
            if words := self.planned("refuse", {}).get(names[0].capitalize()):
                return self.error(f"Error from server (Forbidden): {words}")
            self.path(*names[:2]).unlink(missing_ok=True)
            return 0
        assert verb == "exec"
        return self.execute(names[0], rest[rest.index("--") + 1 :])

    def get(self, names: list[str]) -> int:
        # The last word is json, of -o.
        kind, *name = names[:-1] if names[-1] == "json" else names
        if not name:
            print(json.dumps({"items": list(self.all(kind).values())}))
            return 0
        path = self.path(kind, name[0])
        if not path.exists():
            return self.error(f'Error from server (NotFound): {kind} "{name[0]}" not found')
        print(path.read_text())
        return 0

    def create(self, dry: bool) -> int:
        body = json.loads(sys.stdin.read())
        kind, name = body["kind"], body["metadata"]["name"]
        if self.path(kind, name).exists():
            return self.error(f'Error from server (AlreadyExists): {kind} "{name}" already exists')
        if dry:
            return 0
        if words := self.planned("refuse", {}).get(kind):
            return self.error(f"Error from server (Forbidden): {words}")
        if kind == "Pod":
            running = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
            body["status"] = self.planned("pending", running)
            with (self.state / "pods.jsonl").open("a") as log:
                log.write(json.dumps(body) + "\n")
        self.put(kind, name, body)
        return 0

    def execute(self, pod: str, command: list[str]) -> int:
        body = json.loads(self.path("pod", pod).read_text())
        program, *arguments = command
        assert program == "halo-trainer"
        root = self.state / "mounts" / pod
        root.mkdir(parents=True, exist_ok=True)
        named = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in body["spec"]["volumes"][1:]}
        for mount in body["spec"]["containers"][0]["volumeMounts"][1:]:
            at = root / Path(mount["mountPath"]).relative_to("/volumes")
            if not at.exists():
                at.symlink_to(self.state / "claims" / named[mount["name"]], target_is_directory=True)
        (self.state / "tmp").mkdir(exist_ok=True)
        run = [sys.executable, "-m", "halo_trainer", *arguments, "--volumes", str(root)]
        env = os.environ | {"TMPDIR": str(self.state / "tmp")}
        cuts = self.planned("cut", [])
        if arguments[1] == "send" and (cuts or self.planned("hang", False)):
            return self.cut(run, env, cuts)
        code = subprocess.call(run, env=env)
        return self.error(f"command terminated with exit code {code}") if code else 0

    def cut(self, run: list[str], env: dict[str, str], cuts: list[int]) -> int:
        with subprocess.Popen(run, env=env, stdout=subprocess.PIPE) as process:
            assert process.stdout
            data = process.stdout.read()
        sys.stdout.buffer.write(data[: cuts[0] if cuts else 700])
        sys.stdout.buffer.flush()
        if not cuts:
            (self.state / "hangs").touch()
            time.sleep(600)
        self.plan(cut=cuts[1:])
        return self.error("error: unexpected EOF")

    def planned(self, what: str, default: Any) -> Any:
        path = self.state / "plan.json"
        return json.loads(path.read_text()).get(what, default) if path.exists() else default

    def error(self, words: str) -> int:
        print(words, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(Played(Path(sys.argv[1])).run(sys.argv[2:]))
