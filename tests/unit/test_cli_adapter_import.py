"""kubectl halo adapter import: an Adapter of files that were looked at first, or one sentence and nothing left behind."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halo_api.adapter import AdapterSpec
from halo_api.digests import files_digest
from halo_api.peft import Lora, Misfit, choose, lora_of, weights_of
from halo_cli.__main__ import main
from halo_cli.adapter_import import Source, base_of, look
from halo_cli.kubectl import CliError
from tests.unit.builders_peft import lora, peft_folder, safetensors
from tests.unit.played_kubectl import Played

REVISION = "b968826d9c46"
NAMES = ["README.md", "adapter_config.json", "adapter_model.safetensors"]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """A cluster with a catalog and claims, and this process beside the folder `mine`."""
    played = Played(tmp_path / "cluster").on_path(monkeypatch)
    client = {"trainerImage": "trainer:1", "trainerImagePullPolicy": "Never", "artifactsClaim": "halo-artifacts"}
    played.put("configmap", "halo-operator-client", {"data": client})
    played.put("basemodel", "qwen3-8b", {"metadata": {"name": "qwen3-8b"}, "spec": {"revision": REVISION}})
    for claim in ("halo-artifacts", "team-store", "inbox"):
        played.put("persistentvolumeclaim", claim, {})
        (played.state / "claims" / claim).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    peft_folder(tmp_path / "mine")
    return played


def take(where: str = "mine", *more: str) -> int:
    return main(["adapter", "import", where, "--name", "theirs", *more])


def stored(played: Played) -> list[str]:
    claims = played.state / "claims"
    return sorted(str(p.relative_to(claims)) for p in claims.rglob("*") if p.is_file() and "inbox" not in p.parts)


def test_a_folder_becomes_an_adapter(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.put("workspace", "workspace", {"spec": {"storage": {"claim": "team-store"}}})
    assert take() == 0
    said = capsys.readouterr()
    assert f"base qwen3-8b at {REVISION}, rank 8, alpha 16" in said.out
    assert "never be a parent" in said.out
    assert "nothing says which revision of qwen3-8b it was trained on; taken for the catalog's" in said.err
    assert "left out: .gitattributes (hidden, or another adapter's receipt)" in said.err
    body = played.all("adapters")["theirs"]
    assert body["metadata"]["labels"]["halo.training/origin"] == "imported"
    spec = AdapterSpec.model_validate(body["spec"])
    assert (spec.trained_by, spec.receipt, spec.parent) == (None, None, None)
    folder = "sha256-" + files_digest(spec.files).removeprefix("sha256:")
    assert spec.uri == f"pvc://team-store/adapters/{folder}"
    assert stored(played) == [f"team-store/adapters/{folder}/{name}" for name in NAMES]
    assert played.all("pods") == {}
    assert list((played.state / "tmp").iterdir()) == []
    # The same bytes under another name share their place.
    assert main(["adapter", "import", "mine", "--name", "again"]) == 0
    assert len(stored(played)) == 3
    # And it comes out as it went in.
    assert main(["adapter", "pull", "theirs", "out"]) == 0
    assert {p.name: p.read_bytes() for p in Path("out").iterdir()} == {n: Path("mine", n).read_bytes() for n in NAMES}


def test_a_folder_of_a_claim_is_read_where_it_lies(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    peft_folder(played.state / "claims" / "inbox" / "theirs", revision=REVISION)
    assert take("pvc://inbox/theirs", "--claim", "halo-artifacts") == 0
    assert len(stored(played)) == 3
    assert "which revision" not in capsys.readouterr().err
    (pod,) = (json.loads(line) for line in (played.state / "pods.jsonl").read_text().splitlines())
    mounted = {v["persistentVolumeClaim"]["claimName"]: v["persistentVolumeClaim"]["readOnly"] for v in pod["spec"]["volumes"][1:]}  # fmt: skip
    assert mounted == {"inbox": True, "halo-artifacts": False}


def test_one_of_a_claim_that_does_not_fit_is_said(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    peft_folder(played.state / "claims" / "inbox" / "theirs", peft_type="LOHA")
    assert take("pvc://inbox/theirs") == 1
    assert "pvc://inbox/theirs: adapter_config.json.peft_type: found 'LOHA'" in capsys.readouterr().err
    assert (stored(played), played.all("pods"), played.all("adapters")) == ([], {}, {})


def test_where_the_adapter_is_refused_nothing_stays(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    """The dry run had let it pass."""
    played.plan(refuse={"Adapter": "somebody was faster"})
    assert take() == 1
    assert "somebody was faster" in capsys.readouterr().err
    assert (stored(played), played.all("pods")) == ([], {})
    played.plan()
    assert take() == 0
    played.plan(refuse={"Adapter": "somebody was faster"})
    # What another Adapter lies on is not taken away from it.
    assert main(["adapter", "import", "mine", "--name", "again"]) == 1
    assert len(stored(played)) == 3


def test_what_is_refused_before_a_pod_is_made(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    played.put("adapter", "taken", {})
    for arguments, says in (
        (["mine", "--name", "taken"], "--name: found taken, which an Adapter here has already"),
        (["mine", "--name", "Mine"], "--name: found 'Mine'; use small letters"),
        (["nothing", "--name", "x"], "nothing: found no such folder"),
        (["hf://a/b", "--name", "x"], "found 'hf://a/b'; fetch it, and name the folder"),
        (
            ["pvc://inbox/../x", "--name", "x"],
            "found 'pvc://inbox/../x'; write a folder of a claim as pvc://CLAIM/PATH",
        ),
        (["mine", "--name", "x", "--base", "llama"], "--base: found 'llama', which is no BaseModel here (qwen3-8b)"),
        (["mine", "--name", "x", "--claim", "none"], "there is no PersistentVolumeClaim none in namespace team-a"),
    ):
        assert main(["adapter", "import", *arguments]) == 1
        assert says in capsys.readouterr().err
    assert not (played.state / "pods.jsonl").exists()


# --- what a folder must be


def add(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(pickle.dumps({}))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "adapter_config.json: found none"),
        (
            lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"),
            "found adapter_model.bin, a pickle",
        ),
        (add("optimizer.pt"), "optimizer.pt: found what is no part of an adapter"),
        (add("my model.json"), "'my model.json': found a name that no Adapter can have"),
        (lambda f: (f / "x.txt").symlink_to("/etc/passwd"), "x.txt: found what is no file of it, or a link"),
        (lambda f: (f / "sub").symlink_to("/etc", target_is_directory=True), "sub: found what is no part"),
        (lambda f: [(f / f"{n}.txt").touch() for n in range(64)], "found 67 files; an Adapter has at most 64"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "adapter_config.json: found no JSON object"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(lora()[:-1]), "found no whole safetensors file"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(pickle.dumps([1])), "found no whole safetensors file"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(safetensors(w=[2, 2])), "found no tensor of a LoRA"),
        (lambda f: peft_folder(f, lora(4)), "found tensors of rank 4, and adapter_config.json.r is 8"),
        (lambda f: peft_folder(f, r=0), "adapter_config.json.r: found 0"),
        (lambda f: peft_folder(f, r=True), "adapter_config.json.r: found True"),
        (lambda f: peft_folder(f, lora_alpha="16"), "adapter_config.json.lora_alpha: found '16'"),
        (lambda f: peft_folder(f, peft_type="IA3"), "adapter_config.json.peft_type: found 'IA3'"),
    ],
)
def test_a_folder_that_does_not_fit_is_one_sentence(harm: Any, says: str, tmp_path: Path) -> None:
    folder = peft_folder(tmp_path / "mine")
    harm(folder)
    with pytest.raises(Misfit) as caught:
        lora_of(look(folder))
    assert says in str(caught.value)


def test_links_to_files_are_followed_as_a_hubs_cache_needs(tmp_path: Path) -> None:
    blobs, snapshot = peft_folder(tmp_path / "blobs"), tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in NAMES:
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert look(snapshot).files == look(blobs).files


def test_what_pulling_added_is_left_out(tmp_path: Path) -> None:
    folder = peft_folder(tmp_path)
    (folder / "receipt.json").write_text("{}")
    (folder / "public.pem").write_text("")
    assert [file.path for file in look(folder).files] == sorted(NAMES)
    assert sorted(look(folder).left_out) == [".gitattributes", "public.pem", "receipt.json"]


def test_ranks_of_a_pattern_belong_to_it(tmp_path: Path) -> None:
    assert lora_of(look(peft_folder(tmp_path, lora(4), rank_pattern={"q_proj": 4}))).rank == 8


def test_a_header_that_lies_is_no_end(tmp_path: Path) -> None:
    for head in (b"", b"\xff" * 8, b"\x02" + bytes(7) + b"[]", b"\x09" + bytes(7) + b'{"a": {}}'):
        with pytest.raises(Misfit, match="found no whole safetensors file"):
            weights_of(head, 100)


def test_hidden_files_are_left_out() -> None:
    assert choose([*NAMES, ".git/config", ".cache/x.pt"]) == (NAMES, [".git/config", ".cache/x.pt"])


# --- what its base is

CATALOG = [
    {"metadata": {"name": "qwen3-8b"}, "spec": {"revision": REVISION}},
    {"metadata": {"name": "smol"}, "spec": {"revision": "abcdef0"}},
]


@pytest.mark.parametrize(
    ("own", "revision", "given", "at", "found"),
    [
        ("Qwen/Qwen3-8B", None, None, None, ("qwen3-8b", REVISION)),
        ("/models/Qwen3-8B/", "main", None, None, ("qwen3-8b", REVISION)),
        ("smol", "abcdef0", None, None, ("smol", "abcdef0")),
        ("/somewhere", None, "smol", "abcdef0", ("smol", "abcdef0")),
        (None, None, "smol", None, ("smol", "abcdef0")),
        ("Qwen/Qwen3-8B", "other", None, REVISION, ("qwen3-8b", REVISION)),
        ("meta/llama", None, None, None, "base_model_name_or_path: found 'meta/llama', which is no BaseModel here"),
        (None, None, None, None, "base_model_name_or_path: found None, which is no BaseModel here"),
        ("Qwen/Qwen3-8B", None, "smol", None, "--base: found smol, but adapter_config.json names Qwen/Qwen3-8B"),
        (
            "Qwen/Qwen3-8B",
            "other",
            None,
            None,
            "adapter_config.json.revision: found other, but BaseModel qwen3-8b is at",
        ),
        ("Qwen/Qwen3-8B", None, None, "other", "--revision: found other, but BaseModel qwen3-8b is at"),
    ],
)
def test_the_base_is_one_of_the_catalog(own: Any, revision: Any, given: Any, at: Any, found: Any) -> None:
    source = Source("mine", "x", given, at)
    if isinstance(found, tuple):
        base = base_of(Lora(8, 16, own, revision), source, CATALOG, lambda _: None)
        assert (base.name, base.revision) == found
        return
    with pytest.raises(CliError) as caught:
        base_of(Lora(8, 16, own, revision), source, CATALOG, lambda _: None)
    assert found in str(caught.value)
