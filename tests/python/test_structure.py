"""The rules about the code itself: which room may include which, and where torch may appear."""

import re

import pytest

from conftest import ROOT

# In this order each room may include itself and those before it.
ROOMS = (
    "base mask formats text data reward config metrics kernels ops model rollout eval train analysis report cli"
).split()
FIRST_WITH_TORCH = "ops"
TORCH = re.compile(r'#include\s+[<"](torch|ATen|c10)/')
INCLUDE = re.compile(r'#include\s+"([a-z_]+)/[^"]+"')

SOURCES = sorted(p for p in (ROOT / "src").rglob("*") if p.suffix in {".h", ".cc", ".cu"})


def violations(room: str, text: str) -> list[str]:
    allowed = ROOMS[: ROOMS.index(room) + 1]
    found = [f"includes room {name}" for name in INCLUDE.findall(text) if name not in allowed]
    if ROOMS.index(room) < ROOMS.index(FIRST_WITH_TORCH) and TORCH.search(text):
        found.append("includes a torch header")
    return found


def test_there_are_sources_and_every_folder_is_a_room():
    assert len(SOURCES) > 20
    assert {p.relative_to(ROOT / "src").parts[0] for p in SOURCES} <= set(ROOMS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_includes_only_rooms_above_it(path):
    assert violations(path.relative_to(ROOT / "src").parts[0], path.read_text()) == []


def test_the_rule_itself_can_fail():
    assert violations("mask", '#include "kernels/head/decide.h"\n') == ["includes room kernels"]
    assert violations("kernels", "#include <ATen/core/Tensor.h>\n") == ["includes a torch header"]
    assert violations("ops", '#include <torch/library.h>\n#include "mask/rule.h"\n') == []


def test_cmake_knows_the_same_rooms_in_the_same_order():
    declared = re.findall(r"augur_room\((\w+)", (ROOT / "CMakeLists.txt").read_text())
    assert declared == ROOMS


def test_no_argument_of_a_command_is_named_with_an_equals_sign():
    """Newer versions of CLI11 end the program at such a name."""
    named = re.compile(r'add_(?:option|flag)\(\s*"([^"]*)"')
    sources = [p for p in SOURCES if p.relative_to(ROOT / "src").parts[0] == "cli"]
    assert [name for p in sources for name in named.findall(p.read_text()) if "=" in name] == []


def test_tests_lie_in_the_folders_of_what_they_test():
    sources = {p.parent.relative_to(ROOT / "src") for p in SOURCES}
    tests = [p.relative_to(ROOT / "tests") for p in (ROOT / "tests").rglob("*.cc") if p.name != "main.cc"]
    assert [str(p) for p in tests if p.parts[0] != "fuzz" and p.parent not in sources] == []


def test_the_guide_lists_every_room_in_order():
    guide = (ROOT / "docs" / "development.md").read_text().split("## Where a change goes")[0]
    assert re.findall(r"^\| `(\w+)` \|", guide, re.M) == ROOMS


@pytest.mark.parametrize("page", ["glossary.md", "development.md"])
def test_files_that_the_guides_name_exist(page):
    text = (ROOT / "docs" / page).read_text()
    rooms = "|".join(ROOMS)
    named = re.findall(rf"`((?:src|tests|(?:{rooms}))/[\w./]+\.\w+)`", text)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists() and not (ROOT / "src" / name).exists()] == []


def test_words_are_the_fields_own():
    """predict, barrier, corrupt, preempt: the glossary has them."""
    old = re.compile(r"\b(foret[eo]l[ld]\w*|spoil\w*|meetings?|gives? way|hand's reach)\b", re.I)
    files = [p for folder in ("src", "python", "docs") for p in (ROOT / folder).rglob("*")]
    texts = {p: p.read_text() for p in files if p.suffix in {".h", ".cc", ".cu", ".py", ".md", ".js"}}
    assert [f"{p}: {word}" for p, text in texts.items() for word in old.findall(text)] == []
