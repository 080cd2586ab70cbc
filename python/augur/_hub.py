"""Finds models and data sets of the Hugging Face hub, in the local cache first: `python _hub.py KIND ID [REVISION]`.

Writes one JSON object to descriptor 3: {"path", "revision"} of a snapshot, or {"fault", "remedy"}. A branch that is in
the cache is taken as the cache has it; a revision that is not there is fetched through huggingface_hub.
"""

import json
import os
import re
import sys
from pathlib import Path

# What the engine reads of each kind.
PATTERNS = {
    "models": ["*.json", "*.safetensors", "tokenizer*", "*.jinja"],
    "datasets": ["*.parquet", "*.jsonl", "*.json"],
}


def cache_directory() -> Path:
    home = (
        os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"
    )
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")  # its name until 2023
    return Path(hub or Path(home) / "hub").expanduser()


def in_cache(kind: str, name: str, revision: str) -> Path | None:
    """The snapshot directory of a revision, which is a commit or a branch; None where the cache has none."""
    folder = cache_directory() / f"{kind}--{name.replace('/', '--')}"
    ref = folder / "refs" / revision
    snapshot = folder / "snapshots" / (ref.read_text().strip() if ref.is_file() else revision)
    return snapshot if snapshot.is_dir() and _is_whole(kind, snapshot) else None


def _is_whole(kind: str, snapshot: Path) -> bool:
    """Whether the engine finds what it reads: downloads that were cut off leave a part."""
    if kind == "datasets":
        return any(path.is_file() for path in _data_files(snapshot))
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


def _data_files(snapshot: Path) -> list[Path]:
    return [path for pattern in ("*.parquet", "*.jsonl") for path in sorted(snapshot.rglob(pattern))]


def missing_file(snapshot: Path) -> str | None:
    """A file of the data set that the cache lacks, by a link that leads nowhere or by its number: of
    train-00000-of-00002.parquet there are two."""
    files = _data_files(snapshot)
    for path in files:
        if not path.is_file():
            return path.name
        numbered = re.fullmatch(r"(.*-)(\d{5})(-of-)(\d{5})(\..*)", path.name)
        for number in range(int(numbered[4]) if numbered else 0):
            other = path.with_name(f"{numbered[1]}{number:05d}{numbered[3]}{numbered[4]}{numbered[5]}")
            if other not in files:
                return other.name
    return None


def find(kind: str, name: str, revision: str) -> dict:
    snapshot = in_cache(kind, name, revision)
    if snapshot is None:
        expected = "config.json, tokenizer.json and *.safetensors" if kind == "models" else "*.parquet or *.jsonl"
        place = cache_directory() / f"{kind}--{name.replace('/', '--')}" / "snapshots" / "COMMIT"
        what = f"the revision {revision} " if revision != "main" else ""
        if kind == "models" and not what:
            what = "is no directory here and "
        missing = f"{what}is not in the cache, which would hold {expected} in {place}"
        try:
            from huggingface_hub import snapshot_download

            kind_name = {"models": "model", "datasets": "dataset"}[kind]
            snapshot = Path(
                snapshot_download(name, repo_type=kind_name, revision=revision, allow_patterns=PATTERNS[kind])
            )
        except ImportError:
            return {"fault": missing, "remedy": f"pip install huggingface_hub in {sys.executable}, or put them there"}
        except Exception as error:  # its own, httpx's, OSError: all mean that it cannot be had
            reason = " ".join(str(error).split())[:300]
            return {"fault": f"{missing}, and cannot be fetched: {reason}", "remedy": "connect, or put them there"}
    if kind == "datasets" and (file := missing_file(snapshot)):
        print(f"augur: warning: hf://{name}: the cache lacks {file}; what is there is read", file=sys.stderr)
    return {"path": str(snapshot), "revision": snapshot.name}


if __name__ == "__main__":
    found = find(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "main")
    with open(3, "w") as out:
        out.write(json.dumps(found) + "\n")
