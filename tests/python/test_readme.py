"""What the documents show works as it stands there."""

import re
import subprocess
import sys

import pytest

from conftest import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)


def test_the_readmes_example_prints_what_it_says():
    found = blocks((ROOT / "README.md").read_text())
    at = [language for language, _ in found].index("python")
    done = subprocess.run([sys.executable, "-c", found[at][1]], capture_output=True, text=True, cwd=ROOT / "build")
    assert done.returncode == 0, done.stderr
    assert done.stdout == found[at + 1][1]
    assert "masked" in done.stdout and "kept" in done.stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_commands_can_be_typed_as_they_stand(path):
    """The program is build/augur; a block that says augur alone fails in the shell of whoever copies it."""
    lines = [line for _, block in blocks(path.read_text()) for line in block.splitlines()]
    lines += re.findall(r"^    .*", path.read_text(), re.M)
    assert [line for line in lines if re.match(r"\s*augur [a-z]", line)] == []


def test_every_document_is_linked_from_the_readme():
    text = (ROOT / "README.md").read_text()
    assert [p.name for p in DOCUMENTS[1:] if f"(docs/{p.name})" not in text] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []
