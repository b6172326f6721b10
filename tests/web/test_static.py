"""The files of the viewer's page: what is other people's is what they published, and ours can be inlined into one file."""

import hashlib
import json
import re
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
