"""The rules about the code itself: which room may include which, and where torch may appear."""

import re

import pytest

from conftest import ROOT

# In this order each room may include itself and those before it.
ROOMS = (
    "base mask trajectory family formats text data reward config metrics kernels ops model rollout eval train analysis "
    "report cli"
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


def test_decode_attention_reads_nothing_by_loads_that_ignore_the_kernel_before_it():
    """__ldg promises memory that nobody writes meanwhile; the preceding kernel, still running, writes the new token."""
    kernels = list((ROOT / "src" / "kernels" / "decode").glob("decode_attention*"))
    assert len(kernels) >= 3
    assert [path.name for path in kernels if "__ldg(" in path.read_text()] == []


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


FOLDERS = "src tests python bench recipes tools docs".split()
FIGURES = "mask reward rollout".split()  # rooms whose names also begin those of figures: mask/outside
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def files_named_in(text: str) -> list[str]:
    """Paths from the root or from src/, and sources by their names alone."""
    rooms = [room for room in ROOMS if room not in FIGURES]
    path = rf"(?:(?:{'|'.join(FOLDERS + rooms)})/[\w./*-]*[\w*/]|(?:{'|'.join(FIGURES)})/[\w./*-]+\.\w+)"
    source = r"(?!x\.|x_)[a-z_0-9]+\.(?:h|cc|cu)"
    words = [word.rstrip(".:") for word in re.split(r"[\s`()\[\],;|]+", text)]
    return [word for word in words if re.fullmatch(rf"{path}|{source}", word)]


def exists(name: str) -> bool:
    """Without an extension a name stands for the files that begin with it: kernels/decode/packed_gemm."""
    places = [ROOT, ROOT / "src"] if "/" in name else [ROOT / "src"]
    pattern = name.rstrip("/") if "/" in name else f"**/{name}"
    return any(next(place.glob(p), None) for place in places for p in (pattern, f"{pattern}.*"))


def test_the_rule_about_named_files_itself_can_fail():
    assert sum(len(files_named_in(page.read_text())) for page in GUIDES) > 150
    text = "`kernels/decode/packed_gemm`, `ops/none`, `mask/outside`, `mask/none.h`, `bench/none.py -x`, (`none.cc`)."
    missing = [name for name in files_named_in(text) if not exists(name)]
    assert missing == ["ops/none", "mask/none.h", "bench/none.py", "none.cc"]


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_files_that_the_guides_name_exist(page):
    assert [name for name in files_named_in(page.read_text()) if not exists(name)] == []


def test_words_are_the_fields_own():
    """predict, barrier, corrupt, preempt; overlap, next to, with or against."""
    old = re.compile(r"\b(foret[eo]l[ld]\w*|spoil\w*|meetings?|gives? way|hand's reach|besides?)\b", re.I)
    files = [p for folder in ("src", "python", "docs") for p in (ROOT / folder).rglob("*")]
    texts = {p: p.read_text() for p in files if p.suffix in {".h", ".cc", ".cu", ".py", ".md", ".js"}}
    assert [f"{p}: {word}" for p, text in texts.items() for word in old.findall(text)] == []
