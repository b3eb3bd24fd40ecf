"""The family of an adapter as an SVG: a card an adapter, one below the other, each indented below its parent."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from halo_cli.lineage_tree import Family, Key, Member, short

# Of a monospaced letter; textLength makes a viewer with another font keep to it, so that no card is too small.
LETTER = {14: 8.6, 12: 7.4}
MARGIN, INDENT, HEIGHT, GAP, PADDING = 16, 36, 58, 14, 14
# State of an adapter → fill and border of its card.
COLOURS = {
    "yes": ("#e6f4ea", "#1e7e34"),
    "no": ("#fdecea", "#b3261e"),
    "not yet": ("#fff8e1", "#8d6e00"),
    "imported": ("#e8f0fe", "#1a56c4"),
    "gone": ("#f3f3f3", "#767676"),
    "replaced": ("#f3f3f3", "#767676"),
}


def drawn(family: Family, asked: str) -> str:
    """Return the SVG."""
    at = {member.key: (MARGIN + INDENT * member.depth, row) for row, member in enumerate(family.members)}
    widths = {member.key: width(member) for member in family.members}
    right = max(at[key][0] + widths[key] for key in at) + MARGIN
    bottom = MARGIN + len(at) * (HEIGHT + GAP) - GAP + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right:g} {bottom}" width="{right:g}" height="{bottom}" '
        'font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" role="img">',
        f"<title>Lineage of {escape(asked)}</title>",
        f'<rect width="{right:g}" height="{bottom}" fill="#ffffff"/>',
        *(elbow(at[member.parent], at[member.key]) for member in family.members if member.parent in at),
        *(card(member, at[member.key], widths[member.key]) for member in family.members),
        "</svg>",
    ]
    return "\n".join(parts)


def elbow(parent: tuple[int, int], child: tuple[int, int]) -> str:
    """Return the line from below a parent's card to the left side of its child's."""
    x, start, end = parent[0] + INDENT // 2, top(parent[1]) + HEIGHT, top(child[1]) + HEIGHT // 2
    return f'<path d="M {x} {start} V {end} H {child[0]}" fill="none" stroke="#767676" stroke-width="1.5"/>'


def card(member: Member, at: tuple[int, int], wide: float) -> str:
    """Return an adapter's card: its name, and below it what is known."""
    x, y = at[0], top(at[1])
    fill, border = COLOURS[member.verified.partition(" (")[0]]
    dashes = "" if member.adapter else ' stroke-dasharray="5 4"'
    said = [letters(x, y + 24, 14, member.key.name, "bold"), letters(x, y + 44, 12, facts(member), "normal")]
    return (
        f'<g><title>{escape(full(member))}</title><rect x="{x}" y="{y}" width="{wide:g}" height="{HEIGHT}" rx="6" '
        f'fill="{fill}" stroke="{border}" stroke-width="{3 if member.asked else 1.2}"{dashes}/>{"".join(said)}</g>'
    )


def letters(x: int, y: int, size: int, said: str, weight: str) -> str:
    """Return a text that is exactly as wide as it was counted."""
    return (
        f'<text x="{x + PADDING}" y="{y}" font-size="{size}" font-weight={quoteattr(weight)} fill="#1f1f1f" '
        f'textLength="{len(said) * LETTER[size]:g}" lengthAdjust="spacingAndGlyphs">{escape(said)}</text>'
    )


def width(member: Member) -> float:
    """Return how wide a card must be."""
    return 2 * PADDING + max(len(member.key.name) * LETTER[14], len(facts(member)) * LETTER[12])


def facts(member: Member) -> str:
    """Return what stands below the name."""
    spec = member.adapter.spec if member.adapter else None
    made = spec.trained_by if spec else None
    parts = [
        f"{spec.base.name}@{spec.base.revision}" if spec else "",
        f"run {made.name}, step {made.step}" if made else "",
        {"yes": "verified", "not yet": "not verified yet"}.get(
            member.verified, member.verified.replace("no (", "NOT verified (")
        ),
        f"digest {short(member.key.digest)}",
        f"receipt {short(member.key.receipt)}" if member.key.receipt else "",
    ]
    return " · ".join(part for part in parts if part)


def full(member: Member) -> str:
    """Return what a pointer over the card shows: the digests whole."""
    key: Key = member.key
    return f"{key.name}\ndigest {key.digest}\nreceipt {key.receipt or 'none'}"


def top(row: int) -> int:
    """Return where a row begins."""
    return MARGIN + row * (HEIGHT + GAP)
