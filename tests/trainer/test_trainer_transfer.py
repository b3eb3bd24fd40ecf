"""`transfer`: what a pod gives of a claim and takes onto it, as processes, against streams and links that mean harm."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from halo_api.adapter import AdapterFile
from halo_api.digests import bytes_digest, files_digest
from halo_api.file_stream import line_of

FILES = {"adapter_config.json": b"{}", "more/weights.safetensors": bytes(range(256)) * 9}


def listed(files: dict[str, bytes]) -> list[AdapterFile]:
    return [AdapterFile(path=path, sha256=bytes_digest(data), size=len(data)) for path, data in sorted(files.items())]


DIGEST = files_digest(listed(FILES))
KEPT = f"sha256-{DIGEST.removeprefix('sha256:')}"


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT) as made:
        for info, data in members:
            made.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def member(
    path: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(path)
    info.size, info.type, info.linkname = len(data), kind, link
    return info, data


GOOD = tar(*(member(path, data) for path, data in FILES.items()))


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    for claim in ("store/adapters", "inbox/theirs/more", "tmp"):
        (tmp_path / claim).mkdir(parents=True)
    for path, data in FILES.items():
        (tmp_path / "inbox" / "theirs" / path).write_bytes(data)
    return tmp_path


def transfer(volumes: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "halo_trainer", "transfer", *arguments, "--volumes", str(volumes)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(volumes / "tmp")}
    return subprocess.run(command, input=stdin, capture_output=True, env=env, timeout=120)


def receive(volumes: Path, stream: bytes, wanted: dict[str, bytes] = FILES) -> subprocess.CompletedProcess[bytes]:
    to = ("--store", "pvc://store/adapters", "--digest", DIGEST)
    return transfer(volumes, "receive", *to, stdin=line_of(listed(wanted)) + stream)


def there(volumes: Path) -> dict[str, bytes]:
    """Every file of the volumes but those of the inbox."""
    places = (volumes / "store", volumes / "tmp")
    return {p.relative_to(volumes).as_posix(): p.read_bytes() for at in places for p in at.rglob("*") if p.is_file()}


def test_what_is_sent_is_received_kept_and_discarded(volumes: Path) -> None:
    sent = transfer(volumes, "send", "--source", "pvc://inbox/theirs", stdin=line_of(listed(FILES)))
    assert sent.returncode == 0, sent.stderr
    for new in (True, False):
        done = receive(volumes, sent.stdout)
        assert json.loads(done.stdout) == {"uri": f"pvc://store/adapters/{KEPT}", "new": new}, done.stderr
        assert there(volumes) == {f"store/adapters/{KEPT}/{path}": data for path, data in FILES.items()}
    done = transfer(volumes, "discard", "--store", "pvc://store/adapters", "--digest", DIGEST)
    assert done.returncode == 0, done.stderr
    assert list((volumes / "store" / "adapters").iterdir()) == []


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (tar(member("../../out", b"{}")), b"found '../../out' of 2 bytes, which is no file that was asked for"),
        (tar(member("/etc/cron.d/x", b"{}")), b"which is no file that was asked for"),
        (tar(member("adapter_config.json", kind=tarfile.SYMTYPE, link="/etc")), b"which is no file that was asked for"),
        (tar(member("adapter_config.json", kind=tarfile.LNKTYPE, link="/etc")), b"which is no file that was asked for"),
        (tar(member("adapter_config.json", kind=tarfile.CHRTYPE)), b"which is no file that was asked for"),
        (tar(member("more", kind=tarfile.DIRTYPE)), b"which is no file that was asked for"),
        (tar(member("adapter_config.json", b"{ }")), b"of 3 bytes, which is no file that was asked for"),
        (tar(member("adapter_config.json", b"{}"), member("adapter_config.json", b"{}")), b"which is no file that was"),
        (GOOD[:1500], b"the stream ended early"),
        (tar(member("a", bytes(3 << 20), kind=tarfile.XHDTYPE)), b"found more bytes than were asked for"),
        (b"", b"the stream ended early"),
    ],
)
def test_a_stream_that_means_harm_leaves_nothing(stream: bytes, says: bytes, volumes: Path) -> None:
    done = receive(volumes, stream)
    assert (done.returncode, done.stdout) == (1, b"")
    assert says in done.stderr
    assert there(volumes) == {}


def test_other_bytes_and_other_lists_leave_nothing(volumes: Path) -> None:
    changed = tar(*(member(path, data[::-1]) for path, data in FILES.items()))
    for stream, wanted, says in (
        (changed, FILES, b"after the copy, which is not what was to be kept"),
        (tar(member("adapter_config.json", b"{}")), {"adapter_config.json": b"{}"}, b"found files with sha256:"),
        (GOOD, FILES | {"../x": b""}, b"found the path '../x', which leads out"),
    ):
        done = receive(volumes, stream, wanted)
        assert done.returncode == 1
        assert says in done.stderr
        assert there(volumes) == {}


def test_what_lies_on_a_claim_is_adopted_as_it_was_looked_at(volumes: Path) -> None:
    where = ("adopt", "--source", "pvc://inbox/theirs", "--store", "pvc://store/adapters", "--digest", DIGEST)
    done = transfer(volumes, *where, stdin=line_of(listed(FILES)))
    assert done.returncode == 0, done.stderr
    assert len(there(volumes)) == 2
    (volumes / "inbox" / "theirs" / "adapter_config.json").write_bytes(b"{ }")
    done = transfer(volumes, *where, stdin=line_of(listed(FILES)))
    assert b"found no file of 2 bytes at pvc://inbox/theirs any more" in done.stderr


def test_no_link_leads_out_of_a_claim(volumes: Path) -> None:
    (volumes / "secret").write_bytes(b"{}")
    (volumes / "inbox" / "theirs" / "adapter_config.json").unlink()
    (volumes / "inbox" / "theirs" / "adapter_config.json").symlink_to(volumes / "secret")
    (volumes / "inbox" / "out").symlink_to(volumes)
    sent = transfer(volumes, "send", "--source", "pvc://inbox/theirs", stdin=line_of(listed(FILES)))
    with tarfile.open(fileobj=io.BytesIO(sent.stdout)) as found:
        assert found.getnames() == ["more/weights.safetensors"]
    asked = line_of(listed({"secret": b"{}"}))
    for source in ("pvc://inbox/out", "pvc://inbox/../out", "pvc://../inbox"):
        done = transfer(volumes, "send", "--source", source, stdin=asked)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"leads out of the claims of this pod" in done.stderr


def test_holding_ends_with_the_pod(volumes: Path) -> None:
    command = [sys.executable, "-m", "halo_trainer", "transfer", "hold"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
