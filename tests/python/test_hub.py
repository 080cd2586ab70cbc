"""Models and data sets of the Hugging Face hub, from a cache laid out by hand."""

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import ROOT, run_augur

COMMIT, NEWER = "a" * 40, "b" * 40
ROWS = [{"prompt": f"{i} {i + 1} =", "answer": f"{i} {i + 1}"} for i in range(8)]


def lay_out(hub, kind: str, name: str, commit: str, files: dict, ref: str = "main") -> None:
    """A snapshot as huggingface_hub leaves it: blobs, links to them, a ref."""
    folder = hub / f"{kind}--{name.replace('/', '--')}"
    for path, content in files.items():
        blob = folder / "blobs" / f"{abs(hash((commit, path))):x}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = folder / "snapshots" / commit / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / ref).write_text(commit)


def parquet(rows) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def home(tmp_path):
    hub = tmp_path / "hf" / "hub"
    model = {path.name: path.read_bytes() for path in (ROOT / "models" / "tiny").iterdir()}
    lay_out(hub, "models", "someone/tiny", COMMIT, model)
    files = {
        "data/train-00000-of-00002.parquet": parquet(ROWS[:5]),
        "data/train-00001-of-00002.parquet": parquet(ROWS[5:]),
        "data/test-00000-of-00001.parquet": parquet(ROWS[:2]),
        "README.md": b"hello",
    }
    lay_out(hub, "datasets", "someone/sums", COMMIT, files)
    return tmp_path / "hf"


def run(home, *args, check=True, cwd=None):
    return run_augur(*args, check=check, cwd=cwd, environment={"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"})


def prompts(home, name, **options) -> list[str]:
    return [json.loads(line)["prompt"] for line in run(home, "prompts", name, **options).stdout.splitlines()]


def test_a_model_of_the_cache_is_read_as_its_directory(home, tmp_path):
    flags = ["--prompt", "3 1 2 =", "--greedy", "--max-tokens", "8", "--threads", "1"]
    by_path = run(home, "generate", ROOT / "models" / "tiny", *flags).stdout
    for name in ("someone/tiny", f"someone/tiny@{COMMIT}", "someone/tiny@main", "hf://someone/tiny"):
        assert run(home, "generate", name, *flags, cwd=tmp_path).stdout == by_path


def test_data_sets_are_read_by_split_file_and_folder(home):
    everything = [row["prompt"] for row in ROWS]
    assert prompts(home, "hf://someone/sums") == everything
    assert prompts(home, f"hf://someone/sums@{COMMIT}/train") == everything
    assert prompts(home, "hf://someone/sums/test") == everything[:2]
    assert prompts(home, "hf://someone/sums/data/train-00001-of-00002.parquet") == everything[5:]
    assert prompts(home, "hf://someone/sums/data") == everything
    assert prompts(home, "hf://someone/sums/data/test") == everything[:2]
    done = run(home, "prompts", "hf://someone/sums/validation", check=False)
    assert done.returncode == 2 and "has no 'validation'" in done.stderr


def test_branches_that_the_hub_makes_are_read(home, tmp_path):
    files = {"default/train/0000.parquet": parquet(ROWS[:3])}
    lay_out(home / "hub", "datasets", "someone/sums", NEWER, files, ref="refs/convert/parquet")
    for rest in ("", "/default/train"):
        assert prompts(home, f"hf://someone/sums@refs/convert/parquet{rest}") == [row["prompt"] for row in ROWS[:3]]
    model = {path.name: path.read_bytes() for path in (ROOT / "models" / "tiny").iterdir()}
    lay_out(home / "hub", "models", "someone/tiny", NEWER, model, ref="refs/pr/3")
    train(home, tmp_path, "model.path=someone/tiny@refs/pr/3")
    assert f"someone/tiny@{NEWER}" in (tmp_path / "run" / "config.yaml").read_text()
    for revision in ("refs/../x", "refs//x", "refs/pr/"):
        done = run(home, "prompts", f"hf://someone/sums@{revision}", check=False)
        assert done.returncode == 2 and "is no data set of the hub" in done.stderr


@pytest.mark.parametrize("left", ["link", "nothing"])
def test_a_part_of_a_data_set_is_refused_offline(home, left):
    assert run(home, "prompts", "hf://someone/sums").stderr == ""
    (second,) = home.rglob("train-00001-of-00002.parquet")
    second.resolve().unlink()
    if left == "nothing":
        second.unlink()
    done = run(home, "prompts", "hf://someone/sums", check=False)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "hf://someone/sums: the cache lacks data/train-00001-of-00002.parquet, and cannot be fetched" in done.stderr
    assert prompts(home, "hf://someone/sums/test") == [row["prompt"] for row in ROWS[:2]]
    assert len(prompts(home, "hf://someone/sums/data/train-00000-of-00002.parquet")) == 5


def test_files_that_nothing_counts_are_called_unverified_offline(home):
    row = json.dumps(ROWS[0]).encode() + b"\n"
    lay_out(home / "hub", "datasets", "someone/loose", COMMIT, {"train_a.jsonl": row})
    done = run(home, "prompts", "hf://someone/loose")
    assert "hf://someone/loose: unverified: the hub cannot be asked" in done.stderr and done.stderr.count("\n") == 1


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as huggingface_hub asks about one data set."""

    files: dict[str, bytes] = {}
    asked: list[str] = []

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0]
        self.asked.append(path)
        if path.startswith("/api/datasets/someone/loose/revision/"):
            siblings = [{"rfilename": name} for name in self.files]
            self.answer(json.dumps({"id": "someone/loose", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith(f"/api/datasets/someone/loose/tree/{COMMIT}"):
            tree = [{"type": "file", "path": n, "size": len(c), "oid": "0" * 40} for n, c in self.files.items()]
            self.answer(json.dumps(tree).encode())
        elif path.startswith(f"/datasets/someone/loose/resolve/{COMMIT}/"):
            self.answer(self.files[path.split(f"{COMMIT}/")[1]])
        else:
            self.send_error(404)

    def answer(self, content: bytes):
        self.send_response(200)
        for name, value in {"ETag": f'"{len(content)}-{hash(content)}"', "X-Repo-Commit": COMMIT}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_part_of_a_data_set_is_completed_online(home, hub):
    """And no more than what is read is fetched."""
    lines = [json.dumps(row).encode() + b"\n" for row in ROWS]
    Hub.files = {"README.md": b"hello", "train_a.jsonl": lines[0], "train_b.jsonl": lines[1], "test.jsonl": lines[2]}
    lay_out(home / "hub", "datasets", "someone/loose", COMMIT, {"train_a.jsonl": lines[0]})
    environment = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub}
    done = run_augur("prompts", "hf://someone/loose", environment=environment)
    assert [json.loads(line)["prompt"] for line in done.stdout.splitlines()] == [row["prompt"] for row in ROWS[:2]]
    assert "warning" not in done.stderr
    snapshot = home / "hub" / "datasets--someone--loose" / "snapshots" / COMMIT
    assert sorted(path.name for path in snapshot.iterdir()) == ["README.md", "train_a.jsonl", "train_b.jsonl"]
    # From nothing, too; and then the listing that the cache keeps knows what is missing.
    shutil.rmtree(home / "hub" / "datasets--someone--loose")
    done = run_augur("prompts", "hf://someone/loose", environment=environment)
    assert len(done.stdout.splitlines()) == 2
    assert prompts(home, "hf://someone/loose") == [row["prompt"] for row in ROWS[:2]]
    assert run(home, "prompts", "hf://someone/loose").stderr == ""
    (snapshot / "train_b.jsonl").unlink()
    assert "the cache lacks train_b.jsonl" in run(home, "prompts", "hf://someone/loose", check=False).stderr


CONFIGS = """---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: [socratic/train-*, "socratic/more/**"]
  - split: train_sft
    path: socratic/sft.jsonl
  - split: pictures
    path: socratic/*.csv
---
# A data set
"""


def with_configs(home, readme: str, commit: str = COMMIT) -> None:
    places = [
        "main/train-00000-of-00001", "main/test-00000-of-00001", "socratic/train-00000-of-00001",
        "socratic/more/deep/a", "socratic/sft",
    ]  # fmt: skip
    files = {f"{place}.jsonl": json.dumps({"prompt": place, "answer": ""}).encode() + b"\n" for place in places}
    files |= {"README.md": readme.encode(), "socratic/x.csv": b"a,b"}
    lay_out(home / "hub", "datasets", "openai/gsm8k", commit, files)


def test_a_configuration_is_named_where_there_are_several(home):
    with_configs(home, CONFIGS)
    for path, choice in (("", "/main"), ("/train", "/main/train"), ("/train_sft", "/socratic/train_sft")):
        done = run(home, "prompts", f"hf://openai/gsm8k{path}", check=False)
        assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
        assert "the data set has several configurations: main, socratic" in done.stderr
        assert f"name one, e.g. hf://openai/gsm8k{choice}\n" in done.stderr
    assert prompts(home, "hf://openai/gsm8k/main") == ["main/train-00000-of-00001"]
    assert prompts(home, f"hf://openai/gsm8k@{COMMIT}/main/test") == ["main/test-00000-of-00001"]
    assert prompts(home, "hf://openai/gsm8k/socratic") == ["socratic/more/deep/a", "socratic/train-00000-of-00001"]
    assert prompts(home, "hf://openai/gsm8k/socratic/train_sft") == ["socratic/sft"]
    done = run(home, "prompts", "hf://openai/gsm8k/socratic/pictures", check=False)
    assert "stored as .csv, which Augur does not read" in done.stderr
    assert "hf://openai/gsm8k@refs/convert/parquet/socratic/pictures" in done.stderr
    done = run(home, "prompts", "hf://openai/gsm8k/main/dev", check=False)
    assert "the configuration main has no split dev; name one of train, test" in done.stderr


def test_a_default_configuration_needs_no_name(home):
    with_configs(home, CONFIGS.replace("- config_name: socratic\n", "- config_name: socratic\n  default: true\n"))
    assert prompts(home, "hf://openai/gsm8k/train_sft") == ["socratic/sft"]
    assert len(prompts(home, "hf://openai/gsm8k")) == 2
    with_configs(home, CONFIGS.replace("config_name", "name"), NEWER)  # moves the branch
    done = run(home, "prompts", "hf://openai/gsm8k/main")
    assert "its configurations cannot be read" in done.stderr and len(done.stdout.splitlines()) == 1


def test_addresses_may_be_written_as_huggingface_hub_writes_them(home):
    everything = [row["prompt"] for row in ROWS]
    assert prompts(home, "hf://datasets/someone/sums") == everything
    assert prompts(home, f"hf://datasets/someone/sums@{COMMIT}/test") == everything[:2]


def test_no_other_split_is_taken_for_train(home):
    row = json.dumps(ROWS[0]).encode() + b"\n"
    files = {"main/test-00000-of-00001.jsonl": row, "validation/a.jsonl": row, "test/test-0.jsonl": row}
    lay_out(home / "hub", "datasets", "someone/held-out", COMMIT, files)
    for path in ("", "/main"):
        done = run(home, "prompts", f"hf://someone/held-out{path}", check=False)
        assert done.returncode == 2 and "there are files of the split test, and none of train" in done.stderr
        assert f"hf://someone/held-out{path}/test" in done.stderr
    for path in ("main/test", "validation", "test"):
        assert prompts(home, f"hf://someone/held-out/{path}") == [ROWS[0]["prompt"]]


def test_a_folder_without_data_is_named(home):
    lay_out(home / "hub", "datasets", "someone/sums", COMMIT, {"docs/notes.txt": b"x"})
    done = run(home, "prompts", "hf://someone/sums/docs", check=False)
    assert done.returncode == 2 and "the data set has no 'docs'" in done.stderr


def test_a_folder_of_a_data_set_has_splits_of_its_own(home):
    files = {f"{part}/{split}.jsonl": json.dumps({"prompt": f"{part} {split}", "answer": ""}).encode() + b"\n"
             for part in ("main", "hard") for split in ("train", "test")}  # fmt: skip
    lay_out(
        home / "hub", "datasets", "someone/parts", COMMIT, files | {"plain/a.jsonl": b'{"prompt": "a", "answer": ""}\n'}
    )
    done = run(home, "prompts", "hf://someone/parts", check=False)
    assert done.returncode == 2 and "files of the split train in several folders: hard, main" in done.stderr
    assert "name one, e.g. hf://someone/parts/hard\n" in done.stderr
    assert prompts(home, "hf://someone/parts/main") == ["main train"]
    assert prompts(home, "hf://someone/parts/main/test") == ["main test"]
    assert prompts(home, "hf://someone/parts/plain") == ["a"]


def train(home, tmp_path, *changes, check=True):
    settings = [
        "run.threads=1 model.precision=fp32 reward.verifier=exact rollout.prompts=2 rollout.group=2 "
        "rollout.max_tokens=6 train.steps=1 eval.every=0 log.tensorboard=false run.device=cpu"
    ]
    config = tmp_path / "hub.yaml"
    config.write_text('model: {path: someone/tiny}\ndata: {train: ["hf://someone/sums"]}\n')
    words = [*settings[0].split(), f"run.dir={tmp_path / 'run'}", *changes]
    return run(home, "train", config, *words, check=check, cwd=tmp_path)


def test_a_run_keeps_to_the_commit_it_began_with(home, tmp_path):
    train(home, tmp_path)
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"someone/tiny@{COMMIT}" in config and f"hf://someone/sums@{COMMIT}" in config
    # The branch moves on, to a commit whose files are not all there.
    lay_out(home / "hub", "models", "someone/tiny", NEWER, {"config.json": b"{}"})
    train(home, tmp_path, "train.steps=2")
    assert f"someone/tiny@{COMMIT}" in (tmp_path / "run" / "config.yaml").read_text()
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count('"step":2') == 1


@pytest.mark.parametrize(
    ("model", "data", "resume"),
    [
        ("hf://someone/tiny", "hf://datasets/someone/sums", "auto"),
        ("someone/tiny@main", "hf://someone/sums@main", "auto"),
        ("someone/tiny", "hf://someone/sums", "never"),
    ],
)
def test_the_same_command_keeps_to_the_commit_however_it_names_it(home, tmp_path, model, data, resume):
    words = [f"model.path={model}", f"data.train=[{data}]", f"run.resume={resume}"]
    train(home, tmp_path, *words)
    files = {path.name: path.read_bytes() for path in (ROOT / "models" / "tiny").iterdir()}
    lay_out(home / "hub", "models", "someone/tiny", NEWER, files)
    lay_out(home / "hub", "datasets", "someone/sums", NEWER, {"train.parquet": parquet(ROWS)})
    train(home, tmp_path, *words, "train.steps=2")
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"someone/tiny@{COMMIT}" in config and f"hf://someone/sums@{COMMIT}" in config
    assert not list((tmp_path / "run" / "checkpoints").glob("abandoned-*"))
    # Another commit is another configuration.
    done = train(home, tmp_path, *words, f"model.path=someone/tiny@{NEWER}", "run.resume=auto", check=False)
    assert done.returncode == 2 and f"someone/tiny@{NEWER}" in done.stderr


def test_a_snapshot_may_have_any_name(home, tmp_path):
    for kind, name in (("models", "tiny"), ("datasets", "sums")):
        folder = home / "hub" / f"{kind}--someone--{name}"
        (folder / "snapshots" / COMMIT).rename(folder / "snapshots" / "v1")
        (folder / "refs" / "main").write_text("v1")
    train(home, tmp_path)
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "someone/tiny@v1" in config and "hf://someone/sums@v1" in config


@pytest.mark.slow
def test_an_adapter_names_its_base_as_the_hub_does(home, tmp_path):
    train(home, tmp_path, "lora.rank=2")
    adapter = tmp_path / "run" / "adapter"
    named = json.loads((adapter / "adapter_config.json").read_text())
    assert named["base_model_name_or_path"] == "someone/tiny" and named["revision"] == COMMIT
    flags = ["--prompt", "3 1 2 =", "--greedy", "--max-tokens", "8", "--threads", "1"]
    by_name = run(home, "generate", adapter, *flags, cwd=tmp_path).stdout
    named["base_model_name_or_path"], named["revision"] = str(ROOT / "models" / "tiny"), None
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(adapter, elsewhere)
    (elsewhere / "adapter_config.json").write_text(json.dumps(named))
    assert run(home, "generate", elsewhere, *flags, cwd=tmp_path).stdout == by_name
    # An adapter of the hub, of a model of the hub.
    files = ("adapter_config.json", "adapter_model.safetensors")
    lay_out(home / "hub", "models", "someone/lora", COMMIT, {name: (adapter / name).read_bytes() for name in files})
    assert run(home, "generate", "someone/lora", *flags, cwd=tmp_path).stdout == by_name
    train(home, tmp_path, "model.path=someone/lora", f"run.dir={tmp_path / 'further'}")
    config = (tmp_path / "further" / "config.yaml").read_text()
    further = json.loads((tmp_path / "further" / "adapter" / "adapter_config.json").read_text())
    assert further["base_model_name_or_path"] == "someone/tiny" and f'adapter: "someone/lora@{COMMIT}"' in config
    # Named by its own key it is the same, and the run keeps to its commit.
    train(home, tmp_path, "lora.adapter=someone/lora", f"run.dir={tmp_path / 'same'}")
    assert (tmp_path / "same" / "config.yaml").read_text() == config.replace("further", "same")
    weights = [(tmp_path / run / "adapter" / files[1]).read_bytes() for run in ("further", "same")]
    assert weights[0] == weights[1]
    lay_out(home / "hub", "models", "someone/lora", NEWER, {"adapter_config.json": b"{}"})
    train(home, tmp_path, "lora.adapter=someone/lora", f"run.dir={tmp_path / 'same'}", "train.steps=2")
    train(home, tmp_path, "model.path=someone/lora", f"run.dir={tmp_path / 'further'}", "train.steps=2")
    shutil.rmtree(home / "hub" / "models--someone--tiny")
    done = run(home, "generate", adapter, *flags, check=False, cwd=tmp_path)
    assert done.returncode == 2 and "models--someone--tiny/snapshots" in done.stderr


def test_what_is_missing_is_named_with_its_place(home, tmp_path):
    done = run(home, "generate", "someone/other", "--prompt", "1", check=False, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{home}/hub/models--someone--other/snapshots" in done.stderr and "config.json" in done.stderr
    done = run(home, "prompts", "hf://someone/none", check=False)
    assert f"{home}/hub/datasets--someone--none/snapshots" in done.stderr and "*.parquet" in done.stderr
    shutil.rmtree(home / "hub" / "models--someone--tiny" / "blobs")  # a download that was cut off
    assert run(home, "generate", "someone/tiny", "--prompt", "1", check=False, cwd=tmp_path).returncode == 2


def test_a_misspelt_path_is_no_model_of_the_hub(home, tmp_path):
    (tmp_path / "models").mkdir()
    done = run(home, "tokenize", "models/tyni", check=False, cwd=tmp_path)
    assert done.returncode == 2 and "models/tyni: not a directory" in done.stderr


@pytest.mark.parametrize(
    "name", ["hf://someone/sums//train", "hf://someone/sums/../../../x.jsonl", "hf://someone/sums/.."]
)
def test_a_data_set_has_nothing_outside_of_it(home, name):
    (home / "x.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    done = run(home, "prompts", name, check=False)
    assert done.returncode == 2 and f"{name}: is no data set of the hub" in done.stderr


@pytest.mark.parametrize("name", ["hf://someone/tiny/fp16", "hf://someone/tiny@main/fp16", "hf://tiny"])
def test_a_model_is_a_whole_repository(home, name):
    done = run(home, "generate", name, "--prompt", "1", check=False)
    assert done.returncode == 2 and f"{name}: is no model of the hub" in done.stderr


def test_a_damaged_index_in_the_cache_is_passed_over(home):
    snapshot = home / "hub" / "models--someone--tiny" / "snapshots" / COMMIT
    (snapshot / "model.safetensors.index.json").write_text("{")
    done = run(home, "generate", "someone/tiny", "--prompt", "1", "--max-tokens", "1")
    assert done.stderr == ""


def test_a_further_call_in_the_same_process_looks_again(home, tmp_path):
    model = {path.name: path.read_bytes() for path in (ROOT / "models" / "tiny").iterdir()}
    ref = home / "hub" / "models--someone--tiny" / "refs" / "main"
    lay_out(home / "hub", "models", "someone/tiny", NEWER, model)
    ref.write_text(COMMIT)
    script = f"""
import pathlib, augur
def train(name):
    settings = ["train.steps=0", "eval.files=[]", "run.threads=1", "log.console=false", "model.path=someone/tiny"]
    run = augur.train("{ROOT}/recipes/quickstart.yaml", *settings, f"run.dir={tmp_path}/{{name}}")
    return (run.path / "config.yaml").read_text().count("someone/tiny@{NEWER}")
print(train("first"))
pathlib.Path("{ref}").write_text("{NEWER}")
print(train("second"))
"""
    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "1" and "0" in done.stdout.split()


def test_a_revision_that_the_cache_lacks_is_named(home):
    done = run(home, "prompts", "hf://someone/sums@nope", check=False)
    assert done.returncode == 2 and "the revision nope is not in the cache" in done.stderr
