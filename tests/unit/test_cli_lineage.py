"""kubectl halo lineage: the tree of what is there, gone, replaced or forged, in three forms, and its exit codes."""

from __future__ import annotations

import itertools
import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from halo_api.receipt import RECEIPT_ANNOTATION
from halo_cli.__main__ import main
from halo_cli.lineage import there
from halo_cli.lineage_svg import drawn
from halo_cli.lineage_tree import Namespace
from halo_operator.plan.freeze import freeze
from halo_operator.signing import sign
from tests.unit import builders as b
from tests.unit.builders_receipt import KEY, statement

Object = dict[str, Any]


def sha(letter: str) -> str:
    return f"sha256:{letter * 64}"


def adapter(name: str, of: str | None = None, line: str | None = None, verified: str = "True", **spec: Any) -> Object:
    """An Adapter whose digest is of its name's last letter, and its receipt of the same in 0; `line`: ancestors, by letter."""
    own = name[-1]
    facts = {
        "base": {"name": "smol", "revision": "rev-0001"}, "rank": 16, "alpha": 32, "uri": f"pvc://store/adapters/{own}",
        "digest": sha(own), "files": [{"path": "adapter_model.safetensors", "sha256": sha(own), "size": 1}],
        "trainedBy": {"kind": "TrainingJob", "name": name, "uid": f"uid-{own}", "step": 200},
        "receipt": {"digest": receipt(own)},
    }  # fmt: skip
    if of:
        facts["parent"] = {"name": f"v-{of}", "digest": sha(of)}
    told = {
        "type": "Verified",
        "status": verified,
        "reason": "Changed" if verified == "False" else "Verified",
        "message": "x",
    }
    told |= {"observedGeneration": 1, "lastTransitionTime": "2026-11-29T11:00:00Z"}
    ancestors = [{"name": f"v-{one}", "digest": sha(one), "receipt": receipt(one)} for one in line or of or ""]
    status = {"conditions": [told], "lineage": ancestors}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": facts | spec, "status": status}


def receipt(letter: str) -> str:
    return f"sha256:{letter}{'0' * 63}"


def lineage(bodies: list[Object], where: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Ask a kubectl that has these Adapters."""
    (where / "list.json").write_text(json.dumps({"items": bodies}))
    (where / "kubectl").write_text(f"#!/bin/sh\ncat {where}/list.json\n")
    (where / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{where}:{os.environ['PATH']}")
    return main(["lineage", "--namespace", "team", *arguments])


FAMILY = [
    adapter("v-a"),
    adapter("v-b", "a"),
    adapter("v-c", "b", "ba"),
    adapter("v-d", "b", "ba", verified="Unknown"),
    adapter("v-e", "c", "cba"),
    adapter("v-f", "a", verified="False"),
    adapter("other-9"),
]
TREE = """\
ADAPTER           BASE           RUN  STEP  VERIFIED      DIGEST        RECEIPT
v-a               smol@rev-0001  v-a  200   yes           aaaaaaaaaaaa  a00000000000
├─ v-b            smol@rev-0001  v-b  200   yes           bbbbbbbbbbbb  b00000000000
│  ├─ v-c *       smol@rev-0001  v-c  200   yes           cccccccccccc  c00000000000
│  │  └─ v-e      smol@rev-0001  v-e  200   yes           eeeeeeeeeeee  e00000000000
│  └─ v-d         smol@rev-0001  v-d  200   not yet       dddddddddddd  d00000000000
└─ v-f            smol@rev-0001  v-f  200   no (Changed)  ffffffffffff  f00000000000
"""


def test_the_tree_has_ancestors_siblings_and_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong with a sibling or a child is shown, and no verdict on the line that was asked for."""
    assert lineage(FAMILY, tmp_path, monkeypatch, "v-c") == 0
    said = capsys.readouterr()
    assert [" ".join(line.split()) for line in said.out.splitlines()] == [
        " ".join(x.split()) for x in TREE.splitlines()
    ]
    assert [line.index("smol") for line in said.out.splitlines()[1:]] == 6 * [said.out.index("BASE")]
    assert said.err == ""


def without(letter: str, *more: Object) -> list[Object]:
    return [body for body in FAMILY if body["metadata"]["name"] != f"v-{letter}"] + list(more)


@pytest.mark.parametrize(
    ("bodies", "asked", "code", "says", "row"),
    [
        (without("b"), "c", 2, "v-b: gone: no Adapter of that name is here; v-c descends from digest bbbbbbbbbbbb, receipt b00000000000", "├─ v-b - - - gone bbbbbbbbbbbb"),
        (without("b", adapter("v-b", digest=sha("7"))), "c", 2, "v-b: replaced: another adapter has its name now, digest 777777777777, receipt b00000000000; v-c descends", "v-b - - - replaced"),
        # The same bytes, made again: the receipt that was verified is another's.
        (without("b", adapter("v-b", receipt={"digest": receipt("7")})), "e", 2, "v-b: replaced: another adapter has its name now, digest bbbbbbbbbbbb, receipt 700000000000", "v-b - - - replaced"),
        (FAMILY, "d", 2, "not told: v-d: not verified yet", "v-d * smol@rev-0001"),
        (FAMILY, "f", 1, "wrong: v-f: not verified: Changed: x", "v-f * smol@rev-0001 v-f 200 no (Changed)"),
        (without("c", adapter("v-c", "b", verified="False")), "e", 1, "wrong: v-c: not verified: Changed", "v-c smol"),
        (without("a", adapter("v-a", verified="False", trainedBy=None, receipt=None)), "a", 2, "v-a: imported: nobody signed", "v-a * smol@rev-0001 - - imported aaaaaaaaaaaa -"),
        (without("b", adapter("v-b", "a", rank=8)), "b", 1, "v-b: is of smol@rev-0001, rank 8, alpha 32, and its parent v-a of smol@rev-0001, rank 16", "v-b *"),
        ([{"metadata": {"name": "v-z"}, "spec": {}}], "z", 2, "not told: v-z: can't be read: base: Field required", ""),
        (FAMILY, "nobody", 2, "not told: there is no Adapter v-nobody in namespace team", ""),
    ],
)  # fmt: skip
def test_what_is_gone_replaced_or_wrong_is_told(
    bodies: list[Object], asked: str, code: int, says: str, row: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert lineage(bodies, tmp_path, monkeypatch, f"v-{asked}") == code
    said = capsys.readouterr()
    assert says in said.err
    assert any(row in " ".join(line.split()) for line in said.out.splitlines()) or not row


def test_an_ancestor_that_is_gone_still_joins_its_descendants_to_what_was_before() -> None:
    family = Namespace([there(body) for body in without("b")]).family("v-c")
    assert [(one.key.name, one.depth, one.state) for one in family.members] == [
        ("v-a", 0, "there"), ("v-b", 1, "gone"), ("v-c", 2, "there"), ("v-e", 3, "there"), ("v-d", 2, "there"), ("v-f", 1, "there"),
    ]  # fmt: skip


def test_without_a_status_the_receipt_names_the_parents_receipt() -> None:
    spec = b.spec(parent={"adapter": "v-b"})
    body = adapter("v-c", "b") | {"status": {}}
    body["metadata"]["annotations"] = {
        RECEIPT_ANNOTATION: sign(statement(spec=spec, frozen=freeze(b.world(spec=spec, catalog=b.catalog(parent=b.parent(name="v-b"))))), KEY).decode()
    }  # fmt: skip
    family = Namespace([there(body)]).family("v-c")
    assert [one.key.receipt for one in family.members] == [b.RECEIPT, receipt("c")]
    assert "v-b: what it descends from itself is not known here" in family.unknown


@pytest.mark.parametrize("asked", ["v-a", "v-b", "v-c"])
def test_a_forged_cycle_ends_and_is_named(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = [adapter("v-a", "b"), adapter("v-b", "a"), adapter("v-c", "a", "ab")]
    assert lineage(bodies, tmp_path, monkeypatch, asked) == 1
    said = capsys.readouterr()
    assert "its parents lead back to it, so that somebody forged one of them" in said.err
    assert sorted(line.replace("*", " ").split("v-")[1][0] for line in said.out.splitlines()[1:]) == ["a", "b", "c"]


def test_an_adapter_that_continues_one_of_its_own_name_is_no_cycle() -> None:
    """v-a was deleted, and made anew from its own child."""
    again = adapter("v-a", "b", "ba", digest=sha("7"))
    again["status"]["lineage"][1]["digest"] = sha("a")
    family = Namespace([there(again), there(adapter("v-b", "a"))]).family("v-a")
    assert [(one.key.name, one.state) for one in family.members] == [
        ("v-a", "replaced"),
        ("v-b", "there"),
        ("v-a", "there"),
    ]
    assert not family.wrong


def test_as_json_digests_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lineage(without("b"), tmp_path, monkeypatch, "v-c", "--json") == 2
    found = json.loads(capsys.readouterr().out)
    gone, asked = found["adapters"][1], found["adapters"][2]
    assert gone["parent"] == {"name": "v-a", "digest": sha("a"), "receipt": receipt("a")}
    assert (gone["state"], gone["ancestor"], "base" in gone) == ("gone", True, False)
    assert (asked["asked"], asked["trainedBy"]["step"], asked["verified"]["status"]) == (True, 200, "True")
    assert len(found["unknown"]) == 1


def boxes(svg: str) -> tuple[list[tuple[float, float, float, float]], list[tuple[float, float, float]]]:
    """Return the cards, and the texts with where they begin and how wide they are."""
    root = ET.fromstring(svg)
    within = {"svg": "http://www.w3.org/2000/svg"}
    cards = [
        tuple(float(r.attrib[k]) for k in ("x", "y", "width", "height")) for r in root.findall("svg:g/svg:rect", within)
    ]
    texts = [
        tuple(float(t.attrib[k]) for k in ("x", "y", "textLength")) for t in root.findall("svg:g/svg:text", within)
    ]
    return cards, texts  # type: ignore[return-value]


def test_nothing_overlaps_in_the_drawing_whatever_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = [adapter(f"{'long-name-' * 6}v-a", base={"name": "x" * 60, "revision": "<&\"'>"}), *FAMILY[1:]]
    del long[0]["spec"]["trainedBy"]
    long += [adapter("v-a"), adapter(f"{'w' * 60}-v-1", "e")]
    for asked in ("v-c", long[0]["metadata"]["name"]):
        assert lineage(long, tmp_path, monkeypatch, asked, "--svg", "-") == (0 if asked == "v-c" else 2)
        cards, texts = boxes(capsys.readouterr().out)
        assert len(texts) == 2 * len(cards)
        for (_, y, _, height), (_, following, _, _) in itertools.pairwise(cards):
            assert y + height < following
        for n, (x, y, wide) in enumerate(texts):
            left, top, width, height = cards[n // 2]
            assert left < x
            assert x + wide <= left + width
            assert top < y < top + height
    assert lineage(long, tmp_path, monkeypatch, "v-c", "--svg", str(tmp_path / "line.svg")) == 0
    assert (tmp_path / "line.svg").read_text().startswith("<svg")
    assert lineage(long, tmp_path, monkeypatch, "v-c", "--svg", str(tmp_path / "no" / "line.svg")) == 2


def test_the_drawing_is_the_same_each_time() -> None:
    namespace = Namespace([there(body) for body in FAMILY])
    assert drawn(namespace.family("v-c"), "v-c") == drawn(Namespace(namespace.by_name.values()).family("v-c"), "v-c")
