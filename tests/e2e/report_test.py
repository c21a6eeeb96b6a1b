"""The page of `patchbench status page`: well formed, self-contained, escaped, and as a browser shows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from answers import PROGRAM, ROOT  # noqa: E402

KNOWN = set(
    "html head meta title style body h1 h2 h3 p nav section a b i span div dl dt dd table thead tbody tr th td code svg g "
    "line text circle rect path figure figcaption".split()
)
INLINE = set("a b i span code svg".split())
HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(2)>\"' & \\u0007"


def page_of(tmp_path: Path, root: Path = ROOT) -> str:
    out = tmp_path / "page.html"
    words = [PROGRAM, "status", "page", "--committed", "-o", out]
    done = subprocess.run(words, env=os.environ | {"PATCHBENCH_ROOT": str(root)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out.read_text()


def parsed(page: str) -> ElementTree.Element:
    """The page as XML: what is not closed, nested wrongly or escaped badly fails here."""
    head, _, body = page.partition("\n")
    assert head == "<!DOCTYPE html>"
    return ElementTree.fromstring(body)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(tmp_path_factory.mktemp("page"))


def test_is_well_formed_and_of_known_elements(page: str) -> None:
    tree = parsed(page)
    assert {e.tag for e in tree.iter()} <= KNOWN
    for p in tree.iter("p"):
        assert {c.tag for c in p} <= INLINE, "a paragraph holds text alone"


def test_has_no_scripts_and_loads_nothing(page: str) -> None:
    tree = parsed(page)
    for e in tree.iter():
        assert not [name for name in e.attrib if name.startswith("on")], e.attrib
        assert not {"src", "srcset", "data", "action", "{http://www.w3.org/1999/xlink}href"} & set(e.attrib)
        if "href" in e.attrib:
            assert e.tag == "a" and re.match(r"#|https://github\.com/[\w.-]+/[\w.-]+/issues/\d+$", e.attrib["href"]), e.attrib
    assert "url(" not in page and "@import" not in page
    policy = next(e for e in tree.iter("meta") if e.get("http-equiv") == "Content-Security-Policy")
    assert policy.get("content") == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_link_inside_the_page_resolves(page: str) -> None:
    tree = parsed(page)
    ids = [e.attrib["id"] for e in tree.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids))
    links = [e.attrib["href"][1:] for e in tree.iter("a") if e.attrib["href"].startswith("#")]
    assert len(links) > 100 and set(links) <= set(ids)


def test_shows_each_pack_and_what_was_measured(page: str) -> None:
    tree = parsed(page)
    text = "".join(tree.itertext())
    for manifest in sorted(ROOT.glob("packs/*/manifest.json")):
        document = json.loads(manifest.read_text())
        section = next(e for e in tree.iter("section") if e.get("id") == f"p-{document['slug']}")
        inside = " ".join("".join(section.itertext()).split())
        for row in document["scope"]:
            assert " ".join(row["claim"].split()) in inside
        assert document["filing"]["risk"] in inside and document["lifecycle"]["retire_when"] in inside
    assert "0.3.0-0.5.2 reduction_ignored" in text and "first good 0.8.2" in text


def test_a_state_is_told_by_sign_and_word_too(page: str) -> None:
    signs: dict[str, set[str]] = {}
    for e in parsed(page).iter():
        css = e.get("class", "").split()
        if css[:1] == ["cell"]:
            assert e.get("title") and e.get("title").count(": ") >= 1
            signs.setdefault(css[1], set()).add(e[0].text[0])
    assert len(signs) >= 4 and all(len(s) == 1 for s in signs.values())
    assert len({next(iter(s)) for s in signs.values()}) == len(signs)


def hostile_root(tmp_path: Path) -> Path:
    """A copy of the packs whose texts try to leave their places."""
    root = tmp_path / "root"
    for folder in ("packs", "env"):
        shutil.copytree(ROOT / folder, root / folder)
    path = root / "packs/liger_flce_none_bwd/manifest.json"
    document = json.loads(path.read_text())
    hostile = json.loads(f'"{HOSTILE.replace(chr(34), chr(92) + chr(34))}"')
    document["title"] = document["filing"]["risk"] = document["lifecycle"]["retire_when"] = hostile
    document["scope"][0]["claim"] = document["mitigation"]["exactness"] = hostile
    document["filing"]["thread"] = "javascript:alert(1)/x#1"
    path.write_text(json.dumps(document))
    return root


def test_texts_cannot_leave_their_places(tmp_path: Path) -> None:
    page = page_of(tmp_path, hostile_root(tmp_path))
    tree = parsed(page)
    assert {e.tag for e in tree.iter()} <= KNOWN
    assert "alert(1)</script>" in "".join(tree.itertext()), "the text is shown as text"
    assert not [e for e in tree.iter("a") if "javascript" in e.attrib["href"]]
