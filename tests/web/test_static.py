"""The files of the viewer's page: what is other people's is what they published, and ours can be inlined into one file."""

import hashlib
import json
import re
from itertools import combinations
from math import dist
from pathlib import Path

import peergrad.web

STATIC = Path(peergrad.web.__file__).parent / "static"
INDEX = (STATIC / "index.html").read_text()
SCRIPTS = re.findall(r'^<script defer src="static/([\w/.-]+)"></script>$', INDEX, re.MULTILINE)
STYLES = re.findall(r'^<link rel="stylesheet" href="static/([\w/.-]+)">$', INDEX, re.MULTILINE)
OURS = [name for name in SCRIPTS if not name.startswith("vendor/")]


def test_vendored_files_are_those_of_the_manifest():
    manifest = json.loads((STATIC / "vendor" / "manifest.json").read_text())
    there = {path.name for path in (STATIC / "vendor").iterdir()} - {"manifest.json"}
    assert there == set(manifest)
    for name, about in manifest.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == about["sha256"], name
        assert f"{about['package']}.LICENSE" in manifest


def test_every_file_is_on_the_page_once():
    there = {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.suffix in (".js", ".css")}
    assert there == {*SCRIPTS, *STYLES}
    assert len(SCRIPTS) == len(set(SCRIPTS))
    assert INDEX.count("<script") == len(SCRIPTS)
    assert INDEX.count("stylesheet") == len(STYLES)


def test_no_file_would_end_the_element_it_is_inlined_into():
    for name in (*SCRIPTS, *STYLES):
        text = (STATIC / name).read_text().lower()
        assert not re.search(r"</script|</style|<!--", text), name


def test_nothing_of_ours_makes_markup_or_code_from_text():
    dangerous = (
        r"(inner|outer|insertAdjacent)HTML|dangerouslySet|srcdoc|document\.write|eval\(|new Function|setTimeout\([\"'`]"
    )
    for name in OURS:
        assert not re.search(dangerous, (STATIC / name).read_text()), name


def test_a_module_takes_only_what_those_before_it_offer():
    lib = (STATIC / "lib.js").read_text()
    offered = set(re.findall(r"\b(h|render|Fragment|html|Plot)\b", lib))
    offered |= {"useState", "useEffect", "useMemo", "useRef", "useCallback", "useErrorBoundary"}
    for name in OURS[1:]:
        text = (STATIC / name).read_text()
        taken = {word for group in re.findall(r"const \{ ([^}]*) \} = pg;", text) for word in group.split(", ")}
        taken |= set(re.findall(r"\bpg\.(\w+)", text))
        assert taken <= offered, (name, taken - offered)
        offered |= {word for group in re.findall(r"Object\.assign\(pg, \{ ([^}]*) \}\)", text) for word in group.split(", ")}


def test_texts_can_be_read_on_their_ground_light_and_dark():
    base = (STATIC / "base.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6}|\d+ \d+ \d+)", block)) for block in base.split("@media")[:2]
    )
    for scheme in (light, light | dark):
        colours = {name: _rgb(value) for name, value in scheme.items()}
        inks = ["ink", "soft", "link", "good", "bad", "plus", "minus", *(f"s{i}" for i in range(6))]
        for ink in inks:
            for ground in ("paper", "panel"):
                assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        for ground in ("grid", "hover", "zero"):
            assert _contrast(colours["ink"], colours[ground]) >= 4.5, ground
        for heat in ("plus", "minus"):  # the deepest shade behind words
            mixed = tuple(0.42 * a + 0.58 * b for a, b in zip(colours[heat], colours["panel"], strict=True))
            assert _contrast(colours["ink"], mixed) >= 4.5, heat


# How colours look without one of the three kinds of cones: Machado, Oliveira and Fernandes 2009, on linear light.
SEEN_BY = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def test_colours_of_curves_and_seats_are_told_apart_by_the_colour_blind():
    """In CIELAB, where 2.3 is a difference that can just be seen."""
    base = (STATIC / "base.css").read_text()
    for scheme in base.split("@media")[:2]:
        colours = [_rgb(value) for value in re.findall(r"--s\d: (#[0-9a-f]{6})", scheme)]
        assert len(colours) == 6
        for who, cones in SEEN_BY.items():
            for one, other in combinations(colours, 2):
                assert dist(_lab(one, cones), _lab(other, cones)) > 14, (who, one, other)


def _lab(colour, cones):
    light = [_linear(part / 255) for part in colour]
    seen = [min(1, max(0, sum(by * part for by, part in zip(row, light, strict=True)))) for row in cones]
    to_xyz = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728))  # white is 1, 1, 1
    x, y, z = (sum(by * part for by, part in zip(row, seen, strict=True)) for row in to_xyz)
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _rgb(value):
    if " " in value:
        return tuple(map(int, value.split()))
    digits = value[1:] if len(value) == 7 else "".join(2 * one for one in value[1:])
    return tuple(int(digits[at : at + 2], 16) for at in (0, 2, 4))


def _contrast(one, other):
    """As WCAG counts it; AA asks for 4.5."""
    light = [
        sum(by * _linear(part / 255) for by, part in zip((0.2126, 0.7152, 0.0722), c, strict=True)) for c in (one, other)
    ]
    return (max(light) + 0.05) / (min(light) + 0.05)


def _linear(share):
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
