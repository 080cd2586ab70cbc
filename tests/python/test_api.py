"""The engine from Python: train, generate, evaluate, Run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch

import augur
from conftest import ROOT, run_augur

MODEL = ROOT / "models" / "tiny"
SMALL = {
    "run": {"threads": 1, "device": "cpu"},
    "model": {"path": MODEL, "precision": "fp32"},
    "data": {"train": ["task:sort:count=64:seed=11"]},
    "reward": {"verifier": "exact"},
    "rollout": {"prompts": 4, "group": 4, "max_tokens": 16, "support": 8},
    "train": {"steps": 3, "lr": 1e-4},
    "eval": {"files": ["task:sort:count=4:seed=12"], "samples": 4, "every": 0},
    "log": {"console": False, "tensorboard": False, "tokens": 2},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> augur.Run:
    return augur.train(SMALL, f"run.dir={tmp_path_factory.mktemp('run')}")


def test_flags_that_take_true_or_false_take_both():
    assert augur.api._flags({"thinking": True, "greedy": True}) == ["--thinking=true", "--greedy"]
    assert augur.api._flags({"thinking": False, "greedy": False, "top_k": None}) == ["--thinking=false"]
    (rollout,) = augur.generate(MODEL, ["1 2 ="], thinking=False, max_tokens=1, threads=1, device="cpu")
    assert len(rollout["tokens"]) == 1


def test_training_from_a_dict_is_training_from_its_file(run, tmp_path):
    run_augur("train", run.path / "config.yaml", f"run.dir={tmp_path}/again")
    again = augur.Run(tmp_path / "again")
    for mine, theirs in zip(run.history, again.history, strict=True):
        assert {k: v for k, v in mine.items() if k[:7] not in ("timing_", "perf/ti", "perf/th", "perf/cp")} == {
            k: v for k, v in theirs.items() if k[:7] not in ("timing_", "perf/ti", "perf/th", "perf/cp")
        }


def test_a_run_tells_its_figures(run):
    assert [line["step"] for line in run.history] == [0, 1, 2, 3] and run.step == 3 and run.finished
    assert run.stopped_by is None
    assert run.metrics["val-core/sort/acc/mean@4"] == run.history[-1]["val-core/sort/acc/mean@4"]
    assert run.metrics["actor/pg_loss"] == run.history[-1]["actor/pg_loss"]
    assert (run.model_path / "model.safetensors").exists()
    kept = run.tokens(step=2)
    assert len(kept) == 2 and all({"id", "text", "ratio", "keep"} <= set(token) for token in kept[0]["tokens"])
    page = run.report()
    assert os.fspath(page) == str(run.path / "report.html")
    assert page._repr_html_().startswith("<iframe sandbox=")


def test_a_run_is_finished_when_its_last_step_is(tmp_path):
    run = augur.train(SMALL, f"run.dir={tmp_path / 'run'}")
    assert run.finished
    with pytest.raises(ZeroDivisionError):
        augur.train(SMALL, "train.steps=9", f"run.dir={tmp_path / 'run'}", on_step=lambda metrics: 1 / 0)
    assert run.step == 4 and not run.finished
    assert augur.train(SMALL, "train.steps=5", f"run.dir={tmp_path / 'run'}").finished
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1 2 =", "answer": "1 2"}\n')
    config = tmp_path / "sft.yaml"
    config.write_text(f"model: {{path: {MODEL}}}\ndata: {{train: [{rows}]}}\nsft: {{steps: 2, batch: 1}}\n")
    run_augur("sft", config, f"run.dir={tmp_path / 'sft'}", "run.threads=1", "run.device=cpu")
    assert augur.Run(tmp_path / "sft").finished and augur.Run(tmp_path / "sft").step == 2


def test_what_a_run_lacks_is_named(run, tmp_path):
    with pytest.raises(augur.Error, match="holds no tokens of step 9; steps 1 to 3 have"):
        run.tokens(step=9)
    with pytest.raises(augur.Error, match="is no run directory"):
        augur.Run(tmp_path)
    with pytest.raises(augur.Error, match="global_step_3: is a checkpoint; name the run"):
        augur.Run(run.path / "checkpoints" / "global_step_3")
    with pytest.raises(augur.Error, match="is the directory of a run, not a model; name .*/model"):
        augur.generate(run, "1 2 =")


def test_each_step_is_seen_with_its_metrics(tmp_path):
    seen, numbered = [], []
    run = augur.train(SMALL, f"run.dir={tmp_path}/one", on_step=seen.append)
    assert seen == run.history[1:]
    augur.train(SMALL, f"run.dir={tmp_path}/two", on_step=lambda step, metrics: numbered.append((step, len(metrics))))
    assert [step for step, _ in numbered] == [1, 2, 3] and numbered[0][1] > 20


def test_an_exception_of_on_step_ends_the_run_saved_and_is_raised(tmp_path, capfd):
    def fail(step: int, metrics: dict) -> None:
        raise ZeroDivisionError(f"at {step}")

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError, match="at 1"):
        augur.train(SMALL, f"run.dir={tmp_path}", "train.steps=50", on_step=fail)
    assert augur.Run(tmp_path).step == 1 and (tmp_path / "checkpoints" / "global_step_1").is_dir()
    assert "stopped by a callback after step 1 of 50; saved" in capfd.readouterr().out
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # Python's own handler is back


def test_the_engine_does_not_run_inside_its_own_callback(tmp_path):
    with pytest.raises(augur.Error, match="^augur generate: cannot run inside a callback of the run under way"):
        augur.train(SMALL, f"run.dir={tmp_path}", on_step=lambda metrics: augur.generate(MODEL, "1 2 ="))
    assert augur.Run(tmp_path).step == 1
    assert len(augur.generate(MODEL, "1 2 =", max_tokens=2, threads=1)) == 1


def test_a_model_that_was_removed_is_made_from_a_checkpoint_or_not_at_all(run, tmp_path):
    copy = augur.Run(shutil.copytree(run.path, tmp_path / "copy"))
    shutil.rmtree(copy.path / "model")
    with pytest.raises(augur.Error, match="augur export RUN OUT"):
        _ = copy.model_path
    run_augur("export", copy.path, copy.path / "model")
    assert len(augur.generate(copy.model_path, "1 2 =", max_tokens=2, threads=1)) == 1
    for gone in ("model", "checkpoints"):
        shutil.rmtree(copy.path / gone)
    with pytest.raises(augur.Error, match="its model and checkpoints were removed"):
        _ = copy.model_path


def test_ctrl_c_saves_and_the_same_call_goes_on(tmp_path):
    def interrupt(step: int, metrics: dict) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    run = augur.train(SMALL, f"run.dir={tmp_path}", "train.steps=4", on_step=interrupt)
    assert (run.stopped_by, run.step, run.finished) == ("SIGINT", 2, False)
    with pytest.raises(augur.Error, match="no model yet, it stands at step 2"):
        _ = run.model_path
    run = augur.train(SMALL, f"run.dir={tmp_path}", "train.steps=4")
    assert (run.stopped_by, run.step, run.finished) == (None, 4, True)


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_ctrl_c_before_anything_has_begun_is_a_keyboard_interrupt(command, tmp_path):
    """While the reward function's file is still being loaded."""
    begun, slow = tmp_path / "begun", tmp_path / "slow.py"
    slow.write_text(
        f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(6)\n\n"
        "def score(completions, **columns):\n    return [1.0] * len(completions)\n"
    )

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        if command == "train":
            augur.train(SMALL, f"run.dir={tmp_path / 'run'}", reward=f"{slow}:score")
        else:
            augur.evaluate(MODEL, "task:sort:count=4:seed=12", samples=4, threads=1, reward=f"{slow}:score")
    thread.join()
    assert time.monotonic() - before < 5


AFTER_CTRL_C = """
import os, signal, sys, time
import augur
from test_api import SMALL

def step(metrics):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1.2)  # a second signal would end the process
    raise ZeroDivisionError

try:
    augur.train(SMALL, "run.dir=" + sys.argv[1], on_step=step)
except ZeroDivisionError:
    print("raised at step", augur.Run(sys.argv[1]).step)
"""


def test_what_on_step_raises_after_ctrl_c_is_raised(tmp_path):
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests' / 'python'}"}
    done = subprocess.run(
        [sys.executable, "-c", AFTER_CTRL_C, tmp_path], capture_output=True, text=True, env=environment
    )
    assert done.stdout.endswith("\nraised at step 1\n"), done.stderr


def test_errors_have_the_words_of_the_command_line(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("model:\n  path: m\ntrain:\n  stepz: 1\n")
    done = run_augur("train", config, check=False)
    with pytest.raises(augur.Error) as raised:
        augur.train(config)
    assert done.stderr == f"augur: {raised.value}\n"
    with pytest.raises(augur.Error, match="^config: unknown key 'train.stepz'; did you mean 'train.steps'"):
        augur.train(SMALL | {"train": {"stepz": 1}})
    with pytest.raises(augur.Error, match="^train.steps=-1: train.steps is -1, out of range"):
        augur.train(SMALL, "train.steps=-1")
    with pytest.raises(augur.Error, match="unknown flag '--sample=2'; did you mean '--samples'"):
        augur.generate(MODEL, ["1"], sample=2)
    with pytest.raises(augur.Error, match="none: not a directory; give the directory"):
        augur.evaluate(tmp_path / "none", "task:sort:count=2")


def test_a_dict_may_be_flat_or_nested():
    flat = {f"{section}.{key}": value for section, keys in SMALL.items() for key, value in keys.items()}
    with pytest.raises(augur.Error, match="train.minibatch is 3 prompts"):
        augur.train(flat | {"mask": "clip", "mask.delta": 0.5, "train.minibatch": 3})


def test_what_python_programs_hold_may_stand_in_a_dict(tmp_path):
    config = SMALL | {"run.dir": tmp_path / "run", "train": {"steps": numpy.int64(0), "lr": numpy.float32(0.5)}}
    rule = augur.MaskRule(proximity="tv", delta=0.25, ratio_cap=4)
    augur.train(config | {"mask": rule, "data.train": ("task:sort:count=64:seed=11",)})
    saved = (tmp_path / "run" / "config.yaml").read_text()
    for line in ("proximity: tv", "delta: 0.25", "ratio_cap: 4", "lr: 0.5", "steps: 0"):
        assert f"\n  {line}\n" in saved
    augur.train({"mask.clip_low": 0.3, "mask": "clip"} | config, f"run.dir={tmp_path / 'other'}")
    assert "\n  clip_low: 0.3\n" in (tmp_path / "other" / "config.yaml").read_text()
    for given, message in [({"lr": object()}, "^config: Object of type object"), ({3: 4}, "unknown key 'train.3'")]:
        with pytest.raises(augur.Error, match=message):
            augur.train(SMALL | {"train": given})
    with pytest.raises(augur.Error, match="^3: is not of the form key=value"):
        augur.train(SMALL, 3)
    with pytest.raises(augur.Error, match="^on_step: 3 is no function"):
        augur.train(SMALL, on_step=3)


def test_a_relative_path_is_one_of_the_callers_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sections = {key: value for key, value in SMALL.items() if key != "model"}
    (tmp_path / "base.yaml").write_text(f"model: {{path: {MODEL}, precision: fp32}}\n")
    run = augur.train(sections | {"extends": "base.yaml", "train": {"steps": 1}}, "run.dir=run")
    monkeypatch.chdir("/")
    assert run.step == 1 and run.metrics and (run.model_path / "config.json").exists()


def test_a_callback_may_have_defaults(tmp_path):
    seen = []
    augur.train(SMALL, f"run.dir={tmp_path}", on_step=lambda metrics, kept=seen: kept.append(metrics["step"]))
    assert seen == [1, 2, 3]


def test_generation_equals_the_command_and_feeds_the_masks(tmp_path):
    prompts = ["5 3 8 1 9 2 7 4 6 0 =", "1 2 ="]
    rollouts = augur.generate(
        MODEL, prompts, samples=3, top_logprobs=5, max_tokens=8, seed=7, precision="fp32", device="cpu", threads=1
    )
    flags = "--samples 3 --top-logprobs 5 --max-tokens 8 --seed 7 --precision fp32 --device cpu --threads 1".split()
    words = [word for prompt in prompts for word in ("--prompt", prompt)]
    run_augur("generate", MODEL, *words, *flags, "--output", tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").open()]
    assert len(rollouts) == 6
    for mine, theirs in zip(rollouts, lines, strict=True):
        assert {k: mine[k] for k in ("prompt", "sample", "tokens", "text", "logprobs")} == {
            k: theirs[k] for k in ("prompt", "sample", "tokens", "text", "logprobs")
        }
        assert mine["support_ids"].dtype == torch.int32 and mine["support_ids"].tolist() == theirs["support_ids"]
    one = rollouts[0]
    rule = augur.MaskRule.preset("predictive-kl-aggregated")
    advantages = torch.ones(len(one["tokens"]))
    decision = augur.decide(rule, one["support_logprobs"], one["support_logprobs"], advantages, vocab_size=272)
    assert bool(decision.keep.all()) and torch.allclose(decision.ratio, advantages)


def test_prompts_may_be_tokens_and_conversations():
    (text,) = augur.generate(MODEL, "1 2 =", max_tokens=4, greedy=True, threads=1)
    (tokens,) = augur.generate(MODEL, [text["prompt_tokens"]], max_tokens=4, greedy=True, threads=1)
    assert tokens["tokens"] == text["tokens"]
    (chat,) = augur.generate(
        MODEL, [[{"role": "user", "content": "1 2 ="}]], max_tokens=4, greedy=True, threads=1, chat_format="chatml"
    )
    assert len(chat["prompt_tokens"]) > len(text["prompt_tokens"])


def test_prompts_may_come_in_any_shape():
    options = {"max_tokens": 4, "greedy": True, "threads": 1}
    texts = augur.generate(MODEL, ["1 2 =", "3 4 ="], **options)
    ids = [text["prompt_tokens"] for text in texts]
    tokens = [text["tokens"] for text in texts]
    for prompts in ((p for p in ("1 2 =", "3 4 =")), ids, iter(ids), torch.tensor(ids), [numpy.array(i) for i in ids]):
        assert [rollout["tokens"] for rollout in augur.generate(MODEL, prompts, **options)] == tokens
    assert [rollout["tokens"] for rollout in augur.generate(MODEL, ids[1], **options)] == tokens[1:]
    conversation = [{"role": "user", "content": "1 2 ="}]
    (chat,) = augur.generate(MODEL, conversation, chat_format="chatml", **options)
    assert (
        chat["prompt_tokens"]
        == augur.generate(MODEL, [conversation], chat_format="chatml", **options)[0]["prompt_tokens"]
    )
    (chat,) = augur.generate(MODEL, conversation[0], chat_format="chatml", **options)
    assert (
        chat["prompt_tokens"]
        == augur.generate(MODEL, conversation, chat_format="chatml", **options)[0]["prompt_tokens"]
    )
    assert [rollout["tokens"] for rollout in augur.generate(MODEL, ids, top_logprobs=None, **options)] == tokens
    assert augur.generate(MODEL, [], **options) == []
    with pytest.raises(augur.Error, match="^prompts:2: token ids and texts cannot be mixed"):
        augur.generate(MODEL, ["1 2 =", ids[0]], **options)
    with pytest.raises(augur.Error, match="^prompts: Object of type object"):
        augur.generate(MODEL, [object()], **options)


def test_a_prompt_that_fails_says_why(capfd):
    whole, failed = augur.generate(MODEL, ["1 2 =", "1 " * 400], max_tokens=4, top_logprobs=5, threads=1)
    assert whole["finish_reason"] != "failed" and failed["finish_reason"] == "failed"
    assert failed["error"].startswith("prompts:2: the prompt has 401 tokens")
    assert failed["support_ids"].shape == failed["support_logprobs"].shape == (0, 6)
    said = capfd.readouterr().err
    assert said.count("augur: prompts:2: the prompt has 401 tokens") == 1 and "prompts.jsonl" not in said


def test_evaluation_equals_the_command(tmp_path, capfd):
    options = {"samples": 4, "max_tokens": 16, "seed": 3, "threads": 1}
    report = augur.evaluate(MODEL, "task:sort:count=4:seed=12", **options)
    flags = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), value)]
    run_augur("eval", MODEL, "--data", "task:sort:count=4:seed=12", *flags, "--json", tmp_path / "report.json")
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert capfd.readouterr().out == ""
    augur.evaluate(MODEL, "task:sort:count=4:seed=12", table=True, **options)
    assert "avg@4" in capfd.readouterr().out
    rows = [{"prompt": "1 2 =", "answer": "1 2"}, {"prompt": "", "answer": "1"}]
    report = augur.evaluate(MODEL, rows, verifier="exact", **options)
    assert report["overall"]["prompts"] == 1
    assert report["failed"] == ["data:2: the prompt is empty; remove the row or fill it"]
    said = capfd.readouterr().err
    assert said.count("augur: data:2: the prompt is empty") == 1 and "data.jsonl" not in said
    one = augur.evaluate(
        MODEL, {"prompt": "1 2 =", "answer": "1 2", "level": numpy.int64(3)}, verifier="exact", **options
    )
    assert one["overall"]["prompts"] == 1
    part = torch.utils.data.Subset([*rows, *rows], range(1))  # has __getitem__ and no __iter__
    assert augur.evaluate(MODEL, part, verifier="exact", **options)["overall"]["prompts"] == 1
    with pytest.raises(augur.Error, match="^data: is a int"):
        augur.evaluate(MODEL, 3)
    with pytest.raises(augur.Error, match="^data: holds nothing to evaluate on"):
        augur.evaluate(MODEL, [])
    with pytest.raises(augur.Error, match="^data:2: rows and files cannot be mixed"):
        augur.evaluate(MODEL, ["task:sort:count=4", rows[0]])
    with pytest.raises(augur.Error, match="^data:1: 3 is no data"):
        augur.evaluate(MODEL, [3])
    assert traceback.format_exception_only(augur.Error("x")) == ["augur.Error: x\n"]


def test_other_threads_go_on_while_the_engine_works():
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.wait(0.001):
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    augur.evaluate(MODEL, "task:sort:count=8:seed=12", samples=4, max_tokens=16, threads=1)
    done.set()
    thread.join()
    assert counted > 10


def test_a_function_may_compute_with_torch_where_the_caller_did_before(tmp_path):
    weight = torch.randn(300, 300)

    def f(completions, **_):
        return [float(torch.isfinite((weight @ weight).sum()))] * len(completions)

    f([""])  # whose threads a fork of this one would wait for
    run = augur.train(SMALL, f"run.dir={tmp_path / 'run'}", "train.steps=1", "reward.timeout_s=5", reward=f)
    assert run.metrics["reward/errors"] == 0 and run.metrics["critic/score/mean"] == 1


def test_training_in_a_fork_of_a_process_that_has_trained_is_refused(run, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks of processes with threads
        child = os.fork()
    if child == 0:
        try:
            augur.train(SMALL, f"run.dir={tmp_path / 'child'}")
        except augur.Error as error:
            os._exit(7 if "cannot run in a fork of a process that has trained" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


IN_A_FORK = """
import os, signal, sys, warnings, augur
warnings.simplefilter("ignore", DeprecationWarning)  # of forks of processes with threads
config, out = eval(sys.argv[1]), sys.argv[2]
def generate():
    return augur.generate(config["model"]["path"], [[1, 2, 3]], max_tokens=4, seed=3, device="cpu", threads=2)
before = generate()
child = os.fork()
if child == 0:
    signal.alarm(100)
    same = generate() == before
    figures = augur.evaluate(config["model"]["path"], "task:sort:count=2", max_tokens=4, device="cpu", threads=2)
    step = augur.train(config, f"run.dir={out}", "run.threads=2", "train.steps=1").step
    os._exit(7 if same and figures and step == 1 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_of_a_process_that_has_generated_generates_evaluates_and_trains(tmp_path):
    config = repr(json.loads(json.dumps(SMALL, default=str)))
    done = subprocess.run([sys.executable, "-c", IN_A_FORK, config, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 7, done.stderr


def test_a_run_is_free_when_it_has_ended_whatever_was_forked_meanwhile(tmp_path):
    sleeping = []

    def fork(metrics):
        if not sleeping:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                sleeping.append(os.fork())
            if sleeping == [0]:
                time.sleep(60)
                os._exit(0)

    try:
        augur.train(SMALL, f"run.dir={tmp_path}", "train.steps=1", on_step=fork)
        assert augur.train(SMALL, f"run.dir={tmp_path}", "train.steps=2").step == 2
    finally:
        os.kill(sleeping[0], signal.SIGKILL)
        os.waitpid(sleeping[0], 0)


@pytest.mark.parametrize("generations", [1, 2])
def test_a_fork_made_within_a_run_is_refused_rather_than_left_waiting_but_reports(generations, tmp_path):
    ends = []

    def in_a_fork(generation: int) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if generation < generations:
            os._exit(in_a_fork(generation + 1))
        try:
            assert augur.Run(tmp_path).report().path.exists()
            augur.generate(MODEL, "1 2 =", max_tokens=1)
        except augur.Error as error:
            os._exit(7 if "in a fork that was made while a call was under way" in str(error) else 1)
        os._exit(2)

    augur.train(SMALL, f"run.dir={tmp_path}", "train.steps=1", on_step=lambda metrics: ends.append(in_a_fork(1)))
    assert ends == [7]


def test_a_function_scores_where_the_ends_of_children_are_ignored(tmp_path):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        run = augur.train(
            SMALL, f"run.dir={tmp_path}", "train.steps=1", reward=lambda completions, **_: [0.5] * len(completions)
        )
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert run.finished and run.metrics["critic/score/mean"] == 0.5


def test_a_line_that_is_being_written_or_damaged_is_left_out(run, tmp_path):
    copy = augur.Run(shutil.copytree(run.path, tmp_path / "copy"))
    with open(copy.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 4, "data"\n' + '{"step": 5, "data": {"quell\u00e9'.encode()[:-1])
    with pytest.warns(UserWarning, match=r"metrics\.jsonl:\d+: is damaged"):
        assert copy.step == 3


def test_adapters_are_what_a_run_with_them_leaves(tmp_path):
    run = augur.train(SMALL | {"lora": {"rank": 2}}, f"run.dir={tmp_path}", "train.steps=1")
    assert run.finished and run.model_path == tmp_path / "adapter"
    assert len(augur.generate(run.model_path, "1 2 =", max_tokens=2)) == 1


def test_gaps_of_a_table_are_null(capfd):
    row = {"prompt": "1 2 =", "answer": "1 2", "w": float("nan"), "deep": [{"v": float("nan")}]}

    def f(completions, w, deep, **_):
        raise ValueError(f"{w} {deep}")

    augur.evaluate(MODEL, [row], samples=1, max_tokens=2, reward=f)
    assert "ValueError: [None] [[{'v': None}]]" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: augur.train(SMALL, "--help"), "is not of the form key=value"),
        (lambda: augur.train(SMALL, "run.dir=a\0b"), "holds a NUL character"),
        (lambda: augur.train({"train": 5, "train.steps": 3}), "config: train: is a section"),
        (lambda: augur.train({"data.train": ["\ud800"]}), "config: 'utf-8' codec"),
        (lambda: augur.generate(MODEL, "1", help=True), "help: is no option here"),
        (lambda: augur.train({"data.train": [{"prompt": "1"}]}), "data.train: names files, and a row is given"),
        (lambda: augur.train(SMALL, reward=[print, print]), "reward: is a list; give one function"),
    ],
)
def test_what_cannot_be_meant_is_an_error(call, said):
    with pytest.raises(augur.Error, match=said):
        call()


def test_a_coroutine_is_no_callback(tmp_path):
    async def on_step(metrics):
        pass

    with pytest.raises(augur.Error, match="is a coroutine"):
        augur.train(SMALL, f"run.dir={tmp_path}", on_step=on_step)


def test_options_may_be_texts_and_sets():
    plain = augur.generate(MODEL, "3 1 =", max_tokens=8, seed=3, top_logprobs=3, stop=["1"])
    other = augur.generate(MODEL, "3 1 =", max_tokens=8, seed=3, top_logprobs="3", stop={"1"})
    assert plain[0]["tokens"] == other[0]["tokens"] and plain[0]["support_ids"].equal(other[0]["support_ids"])


def test_an_empty_prompt_of_tokens_is_named(capfd):
    whole, empty = augur.generate(MODEL, [[1, 2], []], max_tokens=2)
    assert whole["tokens"] and "empty" in empty["error"]


def test_a_call_that_a_callback_waits_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(augur._engine, "_PATIENCE", 0.5)

    def wait(metrics):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(augur.generate, MODEL, "1 2 =", max_tokens=3, threads=1).result()

    with pytest.raises(augur.Error, match="augur generate: a callback of the run under way takes over 0.5 s"):
        augur.train(SMALL, f"run.dir={tmp_path}", on_step=wait)
    assert augur.Run(tmp_path).step == 1
    run = augur.train(SMALL, f"run.dir={tmp_path}")  # it was saved, and the lock is free
    assert run.finished


def test_the_page_of_a_run_in_progress_is_written_at_once(tmp_path):
    pages = []

    def look(metrics):
        pages.append(augur.Run(tmp_path).report().path.read_text(encoding="utf-8"))

    augur.train(SMALL, f"run.dir={tmp_path}", "train.steps=1", on_step=look)
    assert len(pages) == 1 and "unfinished" not in pages[0][:100] and "<html" in pages[0]


def test_damaged_files_of_a_run_are_told_and_left_out(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    with open(copy / "metrics.jsonl", "a") as file:
        file.write('{}\n{"step": "x", "data": {}}\n{"step": 9, "data": 3}\n[1]\n')
    (copy / "config.yaml").write_bytes((copy / "config.yaml").read_bytes() + b"# \xff\n")
    damaged = augur.Run(copy)
    with pytest.warns(UserWarning, match=r"metrics.jsonl:5: is damaged and left out"):
        assert damaged.step == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert damaged.history == run.history and damaged.finished and "step 3" in repr(damaged)
    (copy / "summary.json").write_text('{"steps": "x"}')
    assert repr(damaged) == f"Run({str(copy)!r}, damaged)"
    with pytest.raises(augur.Error, match="summary.json: is damaged"):
        _ = damaged.finished
    (copy / "metrics.jsonl").unlink()
    (copy / "metrics.jsonl").mkdir()
    with pytest.raises(augur.Error, match=r"metrics.jsonl: cannot be read: Is a directory"):
        _ = damaged.metrics


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: augur.train({"run.dir": "runs/a\0b"}), "config: holds a NUL character"),
        (lambda: augur.generate(MODEL, [[1, 2], [3, "x"]], max_tokens=1), "prompts:2: "),
        (lambda: augur.generate(MODEL, b"1 2 ="), "prompts: is a bytes"),
        (lambda: augur.generate("--help", "1 2 ="), "./--help: not a directory"),
        (lambda: augur.generate(MODEL, "1 2 =", top_logprobs=[2]), "top_logprobs: .2. is no number"),
        (lambda: augur.generate(MODEL, "1 2 =", prompt="3 4 ="), "^prompt: augur.generate sets this itself"),
        (lambda: augur.generate(MODEL, "1 2 =", output="a.jsonl"), "^output: augur.generate sets this itself"),
        (lambda: augur.evaluate(MODEL, None), "data: is a NoneType"),
        (lambda: augur.train(""), "config: is empty"),
    ],
)
def test_messages_are_about_what_was_passed(call, said):
    with pytest.raises(augur.Error, match=said):
        call()


@pytest.mark.parametrize("callback", [lambda: None, lambda a, b, c: None])
def test_a_callback_of_other_arguments_is_refused_before_the_first_step(tmp_path, callback):
    with pytest.raises(augur.Error, match="^on_step: .*; give a function of a step's metrics"):
        augur.train(SMALL, f"run.dir={tmp_path}/run", on_step=callback)
    assert not (tmp_path / "run").exists()
