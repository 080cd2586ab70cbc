"""Finds models and data sets of the Hugging Face hub through huggingface_hub, in its cache first.

    python _hub.py model NAME REVISION        -> {"path", "revision"} of a snapshot
    python _hub.py dataset NAME REVISION REST -> {"files", "revision"}: the data files that hf://NAME/REST stands for

Writes one JSON object to descriptor 3, or {"fault", "remedy"}. A branch that is in the cache stays at the commit that
the cache has; what a data set lacks of that commit is fetched. Its configurations and splits are those that its
README.md declares, and otherwise follow from the names of files and folders.
"""

import glob
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

MODEL_FILES = ["*.json", "*.safetensors", "tokenizer*", "*.jinja"]
READABLE = (".parquet", ".jsonl")
SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
NUMBERED = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\..*)")


class Fault(Exception):
    """An error for the user: what failed, and what to do."""


@dataclass
class Configuration:
    """One of a data set's README: the files of each split as patterns, or those below a folder."""

    name: str
    splits: dict[str, list[str]]
    folder: str = ""
    default: bool = False


def reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def cached(kind: str, name: str, revision: str) -> Path | None:
    """The snapshot's directory, with all of its files or a part; None where the cache has none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=[], local_files_only=True)
        )
    except LocalEntryNotFoundError:
        return None


def fetch(kind: str, name: str, revision: str, patterns: list[str], missing: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=patterns))
    except Exception as error:  # its own, httpx's, OSError: all mean that it cannot be had
        raise Fault(f"{missing}, and cannot be fetched: {reason(error)}", "connect, or put them there") from error


def not_cached(kind: str, name: str, revision: str, expected: str) -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    place = Path(HF_HUB_CACHE) / f"{kind}s--{name.replace('/', '--')}" / "snapshots" / "COMMIT"
    what = f"the revision {revision} " if revision != "main" else ""
    if kind == "model" and not what:
        what = "is no directory here and "
    return f"{what}is not in the cache, which would hold {expected} in {place}"


def is_whole(snapshot: Path) -> bool:
    """Whether the engine finds what it reads of a model: downloads that were cut off leave a part."""
    if (snapshot / "adapter_config.json").is_file() and not (snapshot / "config.json").is_file():
        return (snapshot / "adapter_model.safetensors").is_file()
    if not all((snapshot / name).is_file() for name in ("config.json", "tokenizer.json")):
        return False
    index = snapshot / "model.safetensors.index.json"
    if not index.is_file():
        return any(path.is_file() for path in snapshot.glob("*.safetensors"))
    try:
        files = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        return False
    return all((snapshot / file).is_file() for file in files)


def find_model(name: str, revision: str) -> dict:
    snapshot = cached("model", name, revision)
    if snapshot is None or not is_whole(snapshot):
        missing = not_cached("model", name, revision, "config.json, tokenizer.json and *.safetensors")
        snapshot = fetch("model", name, revision, MODEL_FILES, missing)
    return {"path": str(snapshot), "revision": snapshot.name}


def listing(name: str, snapshot: Path) -> tuple[list[str], bool]:
    """The names of a data set's files, and whether they are all that the hub has of the commit."""
    from huggingface_hub import HfApi

    try:  # as of the download; since huggingface_hub 1.30
        from huggingface_hub import get_cached_repo_tree

        return [file.path for file in get_cached_repo_tree(name, repo_type="dataset", revision=snapshot.name)], True
    except Exception:
        pass
    try:
        info = HfApi().repo_info(name, repo_type="dataset", revision=snapshot.name, timeout=10)
        return [file.rfilename for file in info.siblings or []], True
    except Exception:
        paths = [path for path in snapshot.rglob("*") if path.is_symlink() or path.is_file()]
        return [path.relative_to(snapshot).as_posix() for path in paths], False


def as_patterns(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def configurations(readme: Path) -> list[Configuration]:
    """Those of the README's metadata, as the package datasets reads them."""
    from huggingface_hub import metadata_load

    try:
        declared = (metadata_load(readme) or {}).get("configs") or []
        found = []
        for item in declared:
            files, splits = item.get("data_files"), {}
            if isinstance(files, dict):
                splits = {str(split): as_patterns(path) for split, path in files.items()}
            elif isinstance(files, list) and files and isinstance(files[0], dict):
                splits = {str(entry["split"]): as_patterns(entry["path"]) for entry in files}
            elif files:
                splits = {"train": as_patterns(files)}
            folder = str(item.get("data_dir") or "").strip("./")
            found.append(Configuration(str(item["config_name"]), splits, folder, bool(item.get("default"))))
    except Exception as error:  # whatever people write there
        print(f"augur: warning: {readme}: its configurations cannot be read: {reason(error)}", file=sys.stderr)
        return []
    return found


def matches(pattern: str, folder: str) -> Callable[[str], bool]:
    """Whether a name is one that the pattern of a README stands for: ** crosses folders, * does not."""
    pattern = f"{folder}/{pattern}" if folder else pattern.removeprefix("./")
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(special.get(p) or (p if p.startswith("[") else re.escape(p)) for p in pieces)
    return lambda name: re.fullmatch(text, name) is not None


class DataSet:
    """The files of a data set by name, and what an address in it stands for."""

    def __init__(self, name: str, revision: str, names: list[str], configs: list[Configuration]):
        self.name = name
        self.base = f"hf://{name}" + (f"@{revision}" if revision != "main" else "")
        self.names = sorted(names)
        self.data = [name for name in self.names if name.endswith(READABLE)]
        self.configs = {config.name: config for config in configs}

    def address(self, *parts: str) -> str:
        return "/".join([self.base, *(part for part in parts if part)])

    def select(self, rest: str) -> list[str]:
        if rest in self.names:
            return [rest]
        config, split = self._configuration(rest.split("/") if rest else [])
        if config is not None:
            return self._of_configuration(config, split)
        if not rest or any(name.startswith(rest + "/") for name in self.data):
            found = self._below(rest)
        else:
            path = PurePosixPath(rest)
            found = self._of_split("" if path.parent == PurePosixPath(".") else str(path.parent), path.name)
        if not found:
            known = f"; its configurations are {', '.join(self.configs)}" if self.configs else ""
            raise Fault(f"the data set has no '{rest}'{known}", "name a file, a folder or a split that is there")
        return found

    def _configuration(self, parts: list[str]) -> tuple[Configuration | None, str]:
        """The configuration that is meant and the split, "" where none is named; None where a folder is meant."""
        if not self.configs or len(parts) > 2:
            return None, ""
        if parts and parts[0] in self.configs:
            return self.configs[parts[0]], parts[1] if len(parts) > 1 else ""
        split = parts[0] if parts else ""
        holders = [config for config in self.configs.values() if not split or split in config.splits]
        if len(parts) > 1 or not holders:
            return None, ""
        chosen = [c for c in holders if c.default or c.name == "default" or len(self.configs) == 1]
        if not chosen:
            raise Fault(
                f"the data set has several configurations: {', '.join(self.configs)}",
                f"name one, e.g. {self.address(holders[0].name, split)}",
            )
        return chosen[0], split

    def _of_configuration(self, config: Configuration, split: str) -> list[str]:
        if not config.splits:
            return self._of_split(config.folder, split) if split else self._below(config.folder)
        if not split and "train" not in config.splits:
            first = next(iter(config.splits))
            raise Fault(
                f"the configuration {config.name} has the splits {', '.join(config.splits)}, and none of train",
                f"name the one that is meant, e.g. {self.address(config.name, first)}",
            )
        patterns = config.splits.get(split or "train")
        if patterns is None:
            raise Fault(
                f"the configuration {config.name} has no split {split}", f"name one of {', '.join(config.splits)}"
            )
        every = [matches(pattern, config.folder) for pattern in patterns]
        files = [name for name in self.names if any(match(name) for match in every)]
        found = [name for name in files if name.endswith(READABLE)]
        if not found:
            what = f"as {PurePosixPath(files[0]).suffix}, which Augur does not read" if files else "nowhere"
            raise Fault(
                f"the split {split or 'train'} of the configuration {config.name} is stored {what}",
                f"name the hub's own conversion: hf://{self.name}@refs/convert/parquet/"
                f"{config.name}/{split or 'train'}",
            )
        return found

    def _named(self, folder: str, split: str) -> list[str]:
        """Files like data/train-00000-of-00001.parquet, train.jsonl or those in a folder of the split's name."""

        def is_of_split(name: str) -> bool:
            path = PurePosixPath(name)
            return path.stem == split or path.stem.startswith((f"{split}-", f"{split}_")) or path.parent.name == split

        start = f"{folder}/" if folder else ""
        return [name for name in self.data if name.startswith(start) and is_of_split(name.removeprefix(start))]

    def _of_split(self, folder: str, split: str) -> list[str]:
        found = self._named(folder, split)
        places = {}
        for name in found:
            place = PurePosixPath(name).parent
            places.setdefault(str(place.parent if place.name == split else place), name)
        if len(places) > 1:
            some = next(place for place in sorted(places) if place != ".")
            raise Fault(
                f"the data set has files of the split {split} in several folders: {', '.join(sorted(places))}",
                f"name one, e.g. {self.address(some, '' if split == 'train' else split)}",
            )
        return found

    def _below(self, folder: str) -> list[str]:
        """The split train where files are named by split, and all of them where not."""
        if found := self._of_split(folder, "train"):
            return found
        if PurePosixPath(folder).name not in SPLITS:
            for split in SPLITS:
                if self._named(folder, split):
                    raise Fault(
                        f"there are files of the split {split}, and none of train",
                        f"name the split that is meant, e.g. {self.address(folder, split)}",
                    )
        return [name for name in self.data if not folder or name.startswith(f"{folder}/")]


def known_gap(files: list[str]) -> str | None:
    """Of train-00000-of-00002.parquet there are two."""
    for name in files:
        numbered = NUMBERED.fullmatch(name)
        for number in range(int(numbered[3]) if numbered else 0):
            other = f"{numbered[1]}{number:05d}-of-{numbered[3]}{numbered[4]}"
            if other not in files:
                return other
    return None


def find_data(name: str, revision: str, rest: str) -> dict:
    snapshot = cached("dataset", name, revision)
    if snapshot is None:
        missing = not_cached("dataset", name, revision, "*.parquet or *.jsonl")
        snapshot = fetch("dataset", name, revision, ["README.md"], missing)
    names, complete = listing(name, snapshot)
    readme = snapshot / "README.md"
    if "README.md" in names and not readme.is_file():
        with suppress(Fault):  # without it, names of files and folders say as much as they can
            fetch("dataset", name, snapshot.name, ["README.md"], "")
    files = DataSet(name, revision, names, configurations(readme) if readme.is_file() else []).select(rest)
    gap = None if complete or rest in names else known_gap(files)
    if missing := [file for file in files if not (snapshot / file).is_file()] + ([gap] if gap else []):
        what = f"the cache lacks {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        fetch("dataset", name, snapshot.name, [glob.escape(file) for file in missing], what)
        if gap:
            return find_data(name, snapshot.name, rest)
    if not complete and not all(NUMBERED.fullmatch(file) for file in files):
        print(
            f"augur: warning: hf://{name}: unverified: the hub cannot be asked whether the cache holds every file; "
            f"{len(files)} of {name}@{snapshot.name[:7]} {'is' if len(files) == 1 else 'are'} read",
            file=sys.stderr,
        )
    return {"files": [str(snapshot / file) for file in files], "revision": snapshot.name}


def find(kind: str, name: str, revision: str, rest: str = "") -> dict:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        return find_model(name, revision) if kind == "model" else find_data(name, revision, rest)
    except Fault as fault:
        return {"fault": fault.args[0], "remedy": fault.args[1]}
    except ImportError:
        what = "is not a file or directory here; models and data sets of the hub need the package huggingface_hub"
        return {"fault": what, "remedy": f"pip install huggingface_hub in {sys.executable}"}
    except Exception as error:
        return {"fault": f"cannot be looked up in the hub's cache: {reason(error)}", "remedy": "name a local path"}


if __name__ == "__main__":
    found = find(*sys.argv[1:])
    with open(3, "w") as out:
        out.write(json.dumps(found) + "\n")
