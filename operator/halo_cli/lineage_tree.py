"""The family of an adapter, from Adapters as they are: what it descends from, what descends from that, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from halo_api.adapter import AdapterSpec, AdapterStatus, Ancestor
from halo_api.conditions import Condition, ConditionType, condition_of

State = Literal["there", "gone", "replaced"]


class Key(NamedTuple):
    """An adapter version: one of the same name that was made anew is another one."""

    name: str
    digest: str
    receipt: str | None


@dataclass(frozen=True)
class There:
    """An Adapter of the namespace."""

    name: str
    spec: AdapterSpec
    status: AdapterStatus
    # What the receipt that it carries says of its parent's receipt.
    parent_receipt: str | None = None

    @property
    def key(self) -> Key:
        return Key(self.name, self.spec.digest, self.spec.receipt.digest if self.spec.receipt else None)

    @property
    def verified(self) -> Condition | None:
        return condition_of(self.status.conditions, ConditionType.VERIFIED)

    def descends_from(self) -> list[Ancestor]:
        """Return its ancestors as far as it says them itself, its parent first."""
        parent, line = self.spec.parent, self.status.lineage
        if parent is None:
            return []
        if line and (line[0].name, line[0].digest) == (parent.name, parent.digest):
            head = line[0] if line[0].receipt else line[0].model_copy(update={"receipt": self.parent_receipt})
            return [head, *line[1:]]
        return [Ancestor(name=parent.name, digest=parent.digest, receipt=self.parent_receipt)]


@dataclass(frozen=True)
class Line:
    """What an adapter descends from, itself first."""

    keys: tuple[Key, ...]
    # Why it ends where it does, if that is not its beginning.
    ends: Literal["begins", "unknown", "cycle"]


@dataclass(frozen=True)
class Member:
    """One adapter of the family, at its place in the tree."""

    key: Key
    state: State
    depth: int
    # For each generation above whether a further sibling follows: what the lines of a drawn tree need.
    more: tuple[bool, ...]
    parent: Key | None
    adapter: There | None
    asked: bool = False
    ancestor: bool = False

    @property
    def verified(self) -> str:
        """What was found when its files were hashed again, in a word or two."""
        if self.adapter is None:
            return self.state
        found = self.adapter.verified
        if found is not None and found.status == "True":
            return "yes"
        if self.adapter.spec.trained_by is None:
            return "imported"
        return f"no ({found.reason})" if found is not None and found.status == "False" else "not yet"


@dataclass(frozen=True)
class Family:
    """A tree of adapters, oldest first."""

    members: tuple[Member, ...]
    # What is wrong with the adapter that was asked for or its ancestors, and what can't be told of them.
    wrong: tuple[str, ...]
    unknown: tuple[str, ...]


class Namespace:
    """The Adapters of a namespace, to be followed by name and bytes."""

    def __init__(self, adapters: Iterable[There]) -> None:
        self.by_name = {adapter.name: adapter for adapter in adapters}

    def there(self, key: Key) -> There | None:
        found = self.by_name.get(key.name)
        return found if found and found.key == key else None

    def state(self, key: Key) -> State:
        if self.there(key):
            return "there"
        return "replaced" if key.name in self.by_name else "gone"

    def key_of(self, ancestor: Ancestor) -> Key:
        """Return which adapter is meant; where no receipt is said, the bytes decide."""
        found = self.by_name.get(ancestor.name)
        if ancestor.receipt is None and found and found.spec.digest == ancestor.digest:
            return found.key
        return Key(ancestor.name, ancestor.digest, ancestor.receipt)

    def line(self, start: There) -> Line:
        """Follow an adapter's ancestors: each by its own word while it is there, else by its last descendant's that is."""
        keys, said = [start.key], start.descends_from()
        while said:
            key = self.key_of(said[0])
            if key in keys:
                return Line(tuple(keys), "cycle")
            keys.append(key)
            here = self.there(key)
            if here is None and len(said) == 1 and not self._whole(keys):
                return Line(tuple(keys), "unknown")
            said = here.descends_from() if here else said[1:]
        return Line(tuple(keys), "begins")

    def _whole(self, keys: list[Key]) -> bool:
        """Whether the last descendant that is there lists its whole line, not only its parent."""
        last = next(found for key in reversed(keys) if (found := self.there(key)))
        return bool(last.status.lineage)

    def family(self, name: str) -> Family:
        """Return the tree that an adapter belongs to."""
        asked = self.by_name[name]
        line = self.line(asked)
        parents: dict[Key, Key] = {}
        # Its own line first: where adapters contradict each other, it is what was asked for.
        for found in (line, *(self.line(adapter) for adapter in self.by_name.values())):
            for child, parent in zip(found.keys, found.keys[1:], strict=False):
                parents.setdefault(child, parent)
        root = line.keys[-1]
        # A line that turns back to itself has no beginning; it is drawn from where it was left.
        parents.pop(root, None)
        members = [self._member(key, more, parents, asked.key, line) for key, more in _walk(root, _children(parents))]
        return Family(tuple(members), tuple(self._wrong(line)), tuple(self._unknown(line)))

    def _member(self, key: Key, more: tuple[bool, ...], parents: Mapping[Key, Key], asked: Key, line: Line) -> Member:
        return Member(
            key=key,
            state=self.state(key),
            depth=len(more),
            more=more,
            parent=parents.get(key),
            adapter=self.there(key),
            asked=key == asked,
            ancestor=key in line.keys[1:],
        )

    def _wrong(self, line: Line) -> Iterator[str]:
        if line.ends == "cycle":
            yield f"{line.keys[-1].name}: its parents lead back to it, so that somebody forged one of them"
        for key in line.keys:
            here = self.there(key)
            found = here.verified if here else None
            if here and here.spec.trained_by and found and found.status == "False":
                yield f"{key.name}: not verified: {found.reason}: {found.message}"
        for younger, older in zip(line.keys, line.keys[1:], strict=False):
            child, parent = self.there(younger), self.there(older)
            if child and parent and _making(child.spec) != _making(parent.spec):
                yield f"{child.name}: is of {_making(child.spec)}, and its parent {parent.name} of {_making(parent.spec)}"

    def _unknown(self, line: Line) -> Iterator[str]:
        for child, key in zip(line.keys, line.keys[1:], strict=False):
            state = self.state(key)
            if state == "gone":
                yield f"{key.name}: gone: no Adapter of that name is here; {child.name} descends from {_bytes(key)}"
            if state == "replaced":
                other = self.by_name[key.name].key
                yield f"{key.name}: replaced: another adapter has its name now, {_bytes(other)}; {child.name} descends from {_bytes(key)}"
        if line.ends == "unknown":
            yield f"{line.keys[-1].name}: what it descends from itself is not known here"
        for key in line.keys:
            here = self.there(key)
            found = here.verified if here else None
            if here and not here.spec.trained_by:
                yield f"{key.name}: imported: nobody signed how it was trained"
            elif here and (found is None or found.status == "Unknown"):
                yield f"{key.name}: not verified yet"


def short(digest: str | None) -> str:
    """Return the first twelve digits of a digest."""
    return digest.removeprefix("sha256:")[:12] if digest else "-"


def _bytes(key: Key) -> str:
    return f"digest {short(key.digest)}, receipt {short(key.receipt)}"


def _making(spec: AdapterSpec) -> str:
    return f"{spec.base.name}@{spec.base.revision}, rank {spec.rank}, alpha {spec.alpha:g}"


def _children(parents: Mapping[Key, Key]) -> dict[Key, list[Key]]:
    children: dict[Key, list[Key]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    return children


def _walk(root: Key, children: Mapping[Key, list[Key]]) -> Iterator[tuple[Key, tuple[bool, ...]]]:
    """Yield the tree depth first; each has one parent, so that nothing comes twice once the root has none."""
    stack: list[tuple[Key, tuple[bool, ...]]] = [(root, ())]
    while stack:
        key, more = stack.pop()
        yield key, more
        below = sorted(children.get(key, []), key=lambda child: (child.name, child.digest, child.receipt or ""))
        stack += reversed([(child, (*more, child != below[-1])) for child in below])
