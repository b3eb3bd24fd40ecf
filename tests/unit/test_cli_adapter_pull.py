"""kubectl halo adapter pull: whole and verified or not at all, whatever happens to the claim, the way or the person."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from halo_api.adapter import AdapterSpec
from halo_api.digests import bytes_digest
from halo_api.receipt import RECEIPT_ANNOTATION
from halo_cli.__main__ import main
from halo_cli.adapter_pull import Verdict, Wanted, Wrong, verdict_of
from halo_cli.volume_pod import State, complaint, state_of
from halo_operator.signing import sign
from tests.unit.builders_receipt import KEY, OTHER_KEY, adapter, contents, folder, statement
from tests.unit.builders_receipt import files as files_of
from tests.unit.played_kubectl import Played

PLACE = "uid-1/a1/adapter"
OWN = sign(statement(), KEY)


def published(text: bytes | None = OWN, **spec: Any) -> dict[str, Any]:
    """An Adapter as the operator makes it."""
    meta: dict[str, Any] = {"name": "run", "namespace": "team"}
    body = adapter(contents()).to_json()
    if text:
        meta["annotations"] = {RECEIPT_ANNOTATION: text.decode()}
        body["receipt"] = {"digest": bytes_digest(text), "uri": "pvc://halo-artifacts/run/receipt.json"}
    return {"metadata": meta, "spec": body | spec}


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """A cluster with one adapter on its claim, and this process below its folder."""
    played = Played(tmp_path / "cluster").on_path(monkeypatch)
    client = {"trainerImage": "trainer:1", "trainerImagePullPolicy": "Never", "artifactsClaim": "halo-artifacts"}
    played.put("configmap", "halo-operator-client", {"data": client})
    played.put("configmap", "halo-operator-receipt-keys", {"data": {f"{KEY.key_id}.pem": KEY.public_pem}})
    played.put("persistentvolumeclaim", "halo-artifacts", {})
    played.put("adapter", "run", published())
    for path, data in contents().items():
        file = on_claim(played) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return played


def on_claim(played: Played) -> Path:
    return played.state / "claims" / "halo-artifacts" / PLACE


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def pull(*more: str) -> int:
    return main(["adapter", "pull", "run", "out", *more])


def nothing_is_left(played: Played) -> bool:
    return os.listdir(".") == [] and played.all("pods") == {}


def test_files_receipt_and_key_arrive_and_verify(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull() == 0
    out = capsys.readouterr().out
    assert out.startswith("pulled: 3 files, ")
    assert f"verified: team/run after step 100, 3 files, signed by key {KEY.key_id}\n" in out
    assert "public.pem came from this cluster with the files, so that it proves nothing to whom you hand them on" in out
    assert files(Path("out")) == contents() | {"receipt.json": OWN, "public.pem": KEY.public_pem.encode()}
    assert os.listdir(".") == ["out"]
    assert main(["receipt", "verify", "--offline", "--key", "out/public.pem", "out"]) == 0
    (pod,) = (json.loads(line) for line in (played.state / "pods.jsonl").read_text().splitlines())
    assert [v["persistentVolumeClaim"] for v in pod["spec"]["volumes"][1:]] == [
        {"claimName": "halo-artifacts", "readOnly": True}
    ]
    assert (pod["spec"]["containers"][0]["image"], pod["spec"]["activeDeadlineSeconds"]) == ("trainer:1", 7200)
    assert played.all("pods") == {}


def test_what_is_there_already_is_verified_and_not_fetched_again(played: Played) -> None:
    assert pull() == 0
    (played.state / "pods.jsonl").unlink()
    assert pull() == 0
    assert not (played.state / "pods.jsonl").exists()


@pytest.mark.parametrize("there", ["out/mine.txt", "out/adapter_config.json", "out"])
def test_a_folder_of_something_else_stays_as_it_is(
    there: str, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(there).parent.mkdir(exist_ok=True)
    Path(there).write_text("mine")
    assert pull() == 2
    assert "not pulled: out: found " in capsys.readouterr().err
    assert Path(there).read_text() == "mine"


def test_an_empty_folder_is_filled(played: Played) -> None:
    Path("out").mkdir()
    assert pull() == 0
    assert len(files(Path("out"))) == 5


def cut(place: Path) -> None:
    (place / "adapter_model.safetensors").write_bytes(contents()["adapter_model.safetensors"][:7])


def change(place: Path) -> None:
    (place / "adapter_config.json").write_bytes(contents()["adapter_config.json"].replace(b"16", b"61"))


def remove(place: Path) -> None:
    (place / "tokenizer" / "vocab.txt").unlink()


def lead_away(place: Path) -> None:
    """The pod's own files are none of the claim."""
    (place / "adapter_config.json").rename(place.parents[4] / "elsewhere")
    (place / "adapter_config.json").symlink_to(place.parents[4] / "elsewhere")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (cut, "adapter_model.safetensors: Truncated: found 7 bytes of 200"),
        (change, "adapter_config.json: Changed: found sha256:"),
        (remove, "tokenizer/vocab.txt: Missing: not found"),
    ],
)
def test_what_was_done_on_the_claim_is_said_and_not_pulled(
    harm: Any, says: str, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(on_claim(played))
    assert pull() == 1
    assert f"NOT VERIFIED  {says}" in capsys.readouterr().out
    assert nothing_is_left(played)


def test_a_link_out_of_the_claim_is_not_followed(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    lead_away(on_claim(played))
    assert pull() == 2
    assert "before adapter_config.json was here" in capsys.readouterr().err
    assert nothing_is_left(played)


KEYS = {KEY.key_id: KEY.public_pem}


def judged(body: dict[str, Any], keys: dict[str, str] = KEYS, folder_: Path | None = None) -> Verdict:
    text = (body["metadata"].get("annotations") or {}).get(RECEIPT_ANNOTATION)
    wanted = Wanted(body, AdapterSpec.model_validate(body["spec"]), text and text.encode(), keys)
    return verdict_of(wanted, folder_ or Path("nowhere"), files_of(contents()))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (published(sign(statement(), OTHER_KEY)), "receipt.signatures.keyid: UnknownKey"),
        (published(sign(statement(2, "other", "uid-2"), KEY)), "receipt: OtherAdapter: it is of team/other"),
        (published(receipt={"digest": "sha256:" + "0" * 64, "uri": "pvc://a/b"}), "spec.receipt.digest: OtherAdapter"),
        (published(OWN.replace(b'"sig":"', b'"sig":"AAAA')), "WrongSignature"),
        (published(b"{}"), "receipt: BadEnvelope"),
        (published(rank=8), "spec.rank: Changed: found 8"),
        (published(None, files=adapter(contents(2)).to_json()["files"]), "adapter_model.safetensors: Changed"),
    ],
)
def test_what_a_receipt_does_not_prove_is_said(body: dict[str, Any], says: str) -> None:
    with pytest.raises(Wrong) as caught:
        judged(body)
    assert any(says in str(finding) for finding in caught.value.findings)


def test_the_adapters_own_configuration_is_held_to_its_receipt(tmp_path: Path) -> None:
    assert judged(published(), folder_=folder(tmp_path)).unsure is None


def test_what_can_not_be_told_is_no_verdict() -> None:
    assert (
        judged(published(None, trainedBy=None)).words[0].startswith("no receipt: it was imported; the files are those")
    )
    assert judged(published(None)).unsure == "Adapter run has none, though the run run made it"
    with pytest.raises(Wrong, match=r"^$"):
        judged(published(), {})


def test_without_the_keys_files_come_and_nothing_is_claimed(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.path("configmap", "halo-operator-receipt-keys").unlink()
    assert pull() == 2
    assert files(Path("out")) == contents() | {"receipt.json": OWN}
    said = capsys.readouterr()
    assert "verified" not in said.out
    assert "its receipt was not checked: ConfigMap halo-operator-receipt-keys of namespace halo-system" in said.err


def test_a_connection_that_ends_is_taken_up_again(played: Played) -> None:
    played.plan(cut=[1600, 1600])
    assert pull() == 0
    assert len(files(Path("out"))) == 5


def test_one_that_brings_nothing_is_given_up(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.plan(cut=[0, 0, 0])
    assert pull() == 2
    assert (
        "the connection to the pod ended early before adapter_config.json was here; try again"
        in capsys.readouterr().err
    )
    assert nothing_is_left(played)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_whoever_ends_it_the_pod_and_the_half_folder_go(number: signal.Signals, played: Played) -> None:
    played.plan(hang=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "halo_cli", "adapter", "pull", "run", "out"],
        stderr=subprocess.DEVNULL,
        # A shell's background jobs, as these tests may be, ignore Ctrl-C and hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (played.state / "hangs").exists():
        assert process.poll() is None
        time.sleep(0.05)
    assert len(played.all("pods")) == 1
    process.send_signal(number)
    assert process.wait(60) == 130
    assert nothing_is_left(played)


def test_who_may_make_no_pod_is_told_that_alone(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    """And not that a pod, which never was, could not be deleted."""
    played.plan(refuse={"Pod": "you may only look"})
    assert pull() == 2
    assert capsys.readouterr().err.splitlines() == ["not pulled: Error from server (Forbidden): you may only look"]


def test_a_trainer_that_does_not_know_the_verb_is_older() -> None:
    stderr = "usage: halo-trainer …\nhalo-trainer transfer: error: argument WHAT: invalid choice: 'metrics' (choose from 'hold')\ncommand terminated with exit code 2\n"
    assert complaint(stderr).startswith("the operator's trainer image is older than this kubectl halo; ")
    assert (
        complaint("halo-trainer: found no such folder\ncommand terminated with exit code 1\n") == "found no such folder"
    )


def test_no_path_leads_out_of_the_folder(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    body = published(None, trainedBy=None)
    body["spec"]["files"][0]["path"] = "../../.profile"
    played.put("adapter", "run", body)
    assert pull() == 2
    assert "found the path '../../.profile', which leads out of the adapter's folder" in capsys.readouterr().err
    assert nothing_is_left(played)


def waiting(reason: str) -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "words"}}}]}


UNBOUND = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node has 1 cpu"}


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, State(why="not started yet")),
        ({"conditions": [UNBOUND]}, State(why="Unschedulable: no node has 1 cpu")),
        (waiting("ImagePullBackOff"), State(why="ImagePullBackOff: words")),
        (waiting("ErrImageNeverPull"), State(over=True, why="ErrImageNeverPull: words")),
        ({"containerStatuses": [{"state": {"running": {}}}]}, State(runs=True)),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "the node is full"},
            State(over=True, why="the node is full"),
        ),
    ],
)
def test_what_a_pod_waits_for_is_said(status: dict[str, Any], state: State) -> None:
    assert state_of({"status": status}) == state


def test_a_pod_that_does_not_run_is_given_up(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.plan(pending={"phase": "Pending", "conditions": [UNBOUND]})
    assert pull("--timeout", "1") == 2
    assert "did not run within 1 s (--timeout): Unschedulable: no node has 1 cpu" in capsys.readouterr().err
    assert nothing_is_left(played)


def test_what_is_missing_is_one_sentence(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, name, says in (
        (
            "persistentvolumeclaim",
            "halo-artifacts",
            "there is no PersistentVolumeClaim halo-artifacts in namespace team-a; see kubectl get pvc",
        ),
        ("configmap", "halo-operator-client", "halo-operator-client in namespace halo-system: there is none; name"),
        ("adapter", "run", "there is no Adapter run in namespace team-a; see kubectl get adapters"),
    ):
        played.path(kind, name).unlink()
        assert pull() == 2
        assert says in capsys.readouterr().err
    assert nothing_is_left(played)
