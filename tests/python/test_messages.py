"""Nothing silent: what is odd about a model, its data or the machine gets a line with a remedy."""

import json
import os
import pty
import re
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from conftest import PROGRAM, ROOT, run_augur
from train_runs import make_guesser, make_policy, read_lines, small_config, start, write_config


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_policy(tmp_path_factory.mktemp("policy"))


def refused(*args, **kwargs):
    """The one line of a user's error."""
    done = run_augur(*args, check=False, **kwargs)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    return done.stderr


def test_a_tokenizer_far_smaller_than_the_head_is_named(tmp_path, policy):
    wide = tmp_path / "wide"
    shutil.copytree(policy, wide)
    fields = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps(fields | {"vocab_size": 1000}))
    tensors = load_file(wide / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = table.repeat(4, 1)[:1000].contiguous()
    save_file(tensors, wide / "model.safetensors")
    for command in (
        ("train", small_config(tmp_path, wide, train__steps=1)),
        ("generate", wide, "--prompt", "1 2", "--max-tokens", 2),
        ("eval", wide, "--data", "task:sort:count=2", "--verifier", "exact", "--max-tokens", 2),
    ):
        warning = run_augur(*command).stderr
        assert "warning" in warning and "272 tokens" in warning and "1000 rows" in warning, warning
    assert "rows" not in run_augur("generate", policy, "--prompt", "1 2", "--max-tokens", 2).stderr


@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_conversation_that_the_format_cannot_write_is_named_by_its_row(tmp_path, policy, command):
    data = tmp_path / "rows.jsonl"
    user = {"role": "user", "content": "1 2 ="}
    rows = [{"prompt": "3 4 =", "answer": "1"}, {"prompt": [user, user], "answer": "1"}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if command == "train":
        line = refused("train", small_config(tmp_path, policy, data__train=f"[{data}]", data__chat_format="raw"))
    else:
        line = refused("eval", policy, "--data", data, "--chat-format", "raw", "--verifier", "exact")
    assert f"{data}:2: chat: the format raw takes one user message" in line


def test_calls_of_tools_which_no_format_here_writes_are_named_by_their_row(tmp_path, policy):
    data = tmp_path / "rows.jsonl"
    calls = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}]
    data.write_text(json.dumps({"prompt": calls, "answer": "1"}) + "\n")
    line = refused("train", small_config(tmp_path, policy, data__train=f"[{data}]"))
    assert f"{data}:1: message 2 of the prompt: has tool_calls, which are not rendered" in line


def test_an_answer_in_the_prompt_is_named_by_every_command_that_reads_prompts(tmp_path, policy):
    data = tmp_path / "rows.jsonl"
    turns = [{"role": "user", "content": "1 2 ="}, {"role": "assistant", "content": "7"}]
    data.write_text(json.dumps({"messages": turns}) + "\n")
    changes = dict(data__train=f"[{data}]", data__chat_format="chatml", train__steps=0, eval__files="[]")
    flags = ["--chat-format", "chatml", "--max-tokens", 2]
    for command, cut in (
        (("train", small_config(tmp_path, policy, **changes)), "data.cut_answer=true"),
        (("generate", policy, "--data", data, *flags), "--cut-answer"),
        (("eval", policy, "--data", data, *flags, "--verifier", "exact"), "--cut-answer"),
    ):
        done = run_augur(*command, check=False)
        assert done.returncode == 2 and f"{data}:1: the prompt ends with the assistant's message" in done.stderr
        assert "the prompt ends" not in run_augur(*command, cut).stderr


CONVERSATION = [{"role": "user", "content": "1 2 ="}]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("command", ["train", "sft", "eval", "generate"])
def test_the_chat_format_in_use_is_named_and_one_that_is_missing_warned_of(tmp_path, policy, command):
    rows = [{"prompt": CONVERSATION, "answer": "7"}, {"prompt": "3", "answer": "7"}]
    data = write_rows(tmp_path / "rows.jsonl", rows)

    def said(chat_format):
        if command == "train":
            changes = dict(data__train=f"[{data}]", train__steps=0, eval__files="[]", log__console="true")
            config = small_config(tmp_path, policy, **changes)
            return run_augur("train", config, f"data.chat_format={chat_format}", "run.resume=never").stderr
        if command == "sft":
            config = tmp_path / "sft.yaml"
            config.write_text(f"run: {{dir: {tmp_path / 'sft'}, threads: 1}}\nmodel: {{path: {policy}}}\n")
            changes = [f"data.train=[{data}]", f"data.chat_format={chat_format}", "sft.steps=0", "run.resume=never"]
            return run_augur("sft", config, *changes).stderr
        flags = ["--data", data, "--chat-format", chat_format, "--max-tokens", 1]
        return run_augur(command, policy, *flags).stderr

    assert "chat format: chatml; 1 of 2 prompts are plain text\n" in said("chatml")
    assert "no chat template" not in said("chatml") and "no chat template" not in said("raw")
    guessed = said("auto")
    assert "chat format: raw, the model's; 1 of 2" in guessed
    assert f"warning: {policy}: has no chat template, so conversations are written as their text alone" in guessed


def test_plain_text_goes_through_no_chat_format_and_generate_says_nothing_of_it(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=0, log__console="true")
    assert "chat format: none, prompts are plain text\n" in run_augur("train", config).stderr
    assert "chat format" not in run_augur("generate", policy, "--prompt", "1 2", "--max-tokens", 1).stderr
    chat = ["--chat", "--chat-format", "chatml", "--max-tokens", 1]
    assert "chat format: chatml\n" in run_augur("generate", policy, "--prompt", "1 2", *chat).stderr


def test_prompts_takes_what_training_takes_and_counts_what_is_odd(tmp_path, policy):
    data = write_rows(tmp_path / "rows.jsonl", [{"prompt": "1"}, {"prompt": "2", "answer": "2"}])
    done = run_augur("prompts", data)
    assert [json.loads(line)["ground_truth"] for line in done.stdout.splitlines()] == [None, "2"]
    assert f"{data}:1: no answer; 1 of 2 rows have none, and only reward.python can score them" in done.stderr
    for flags in (["--verifier", "exact"], ["--answer-key", "answer"]):
        assert "no answer" in refused("prompts", data, *flags)
    write_rows(data, [{"prompt": CONVERSATION, "answer": ""}, {"prompt": "1", "answer": "1"}])
    said = [run_augur("prompts", data).stderr]
    assert "for 1 of 2 prompts" in said[0]
    changes = dict(data__train=f"[{data}]", data__chat_format="chatml", train__steps=0, eval__files="[]")
    said.append(run_augur("train", small_config(tmp_path, policy, **changes)).stderr)
    for text in said:
        assert f"warning: {data}:1: the answer is empty; 1 of 2 answers are" in text
    assert "no answer" not in said[0]


@pytest.mark.parametrize("score", [0, 1])
def test_scores_that_never_differ_are_named_after_ten_steps_of_a_run_and_its_resumptions(tmp_path, policy, score):
    reward = tmp_path / "reward.py"
    reward.write_text(f"def flat(completions, **kwargs):\n    return [{score}.0] * len(completions)\n")
    changes = dict(eval__files="[]", log__console="true", reward__python=f"{reward}:flat", reward__overlong_buffer=0)
    config = small_config(tmp_path, policy, **changes)
    said = [run_augur("train", config, f"train.steps={steps}").stderr for steps in (6, 9, 11, 12)]
    warning = (
        "in the last 10 steps every response scored 0; look at responses with `augur watch"
        if score == 0
        else "in the last 10 steps all responses to a prompt scored the same"
    )
    assert [text.count(warning) for text in said] == [0, 0, 1, 0]
    assert f"step 10: {warning}" in said[2] and "in the last 12 steps" in said[3]


EVIL = "\x1b[2J\x1b]0;title\x07\u009b"
SEEN = "\\x1b[2J\\x1b]0;title\\x07\\x9b"


def test_control_characters_of_data_and_exceptions_never_reach_a_terminal(tmp_path, policy):
    data = write_rows(tmp_path / "rows.jsonl", [{"prompt": "1", "answer": "1", "data_source": EVIL}])
    changes = dict(data__train=f"[{data}]", train__steps=1, rollout__prompts=1, eval__files="[]", log__console="true")
    reward = tmp_path / "reward.py"
    reward.write_text(f"def bad(solution_str, **kwargs):\n    raise ValueError({EVIL!r})\n")
    config = small_config(tmp_path, policy, **changes)
    said = [run_augur("train", config)]
    said.append(run_augur("train", config, f"reward.python={reward}:bad", "run.resume=never", check=False))
    said.append(run_augur("eval", policy, "--data", data, "--max-tokens", 1, "--verifier", "exact"))
    write_rows(data, [{EVIL: "1"}])
    said.append(run_augur("prompts", data, check=False))
    for done in said:
        text = done.stdout + done.stderr
        assert SEEN in text and not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), text


def test_a_model_writes_no_commands_to_a_terminal(tmp_path):
    model = make_guesser(tmp_path / "evil", strength=100)
    file = model / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    tokenizer["model"]["merges"] = [pair for pair in merges if "".join(pair).replace(" ", "") != "\u01207"]
    vocabulary["\u011b[2J"] = vocabulary.pop("\u01207")  # byte 0x1b, as byte-level vocabularies write it
    file.write_text(json.dumps(tokenizer))
    command = ["generate", model, "--prompt", "1 2", "--greedy", "--ignore-eos", "--max-tokens", "2"]
    assert run_augur(*command).stdout == "\x1b[2J\x1b[2J\n"  # to a pipe as it is
    ours, theirs = pty.openpty()
    subprocess.run([PROGRAM, *map(str, command)], stdout=theirs, check=True)
    assert os.read(ours, 1000) == b"\\x1b[2J\\x1b[2J\r\n"
    os.close(theirs)
    os.close(ours)


def test_what_an_exception_quotes_is_cut_and_shown_once(tmp_path, policy):
    reward = tmp_path / "reward.py"
    reward.write_text("def huge(solution_str, **kwargs):\n    raise ValueError('begin ' + 'x' * 5_000_000)\n")
    done = run_augur("train", small_config(tmp_path, policy, reward__python=f"{reward}:huge"), check=False)
    assert done.returncode == 2 and len(done.stderr) < 5000
    assert done.stderr.count("x" * 1000) == 1 and done.stderr.count("raise ValueError") == 1
    assert "more characters)" in done.stderr and "4,998," in done.stderr


def test_a_run_directory_without_control_characters_is_asked_for(tmp_path, policy):
    config = small_config(tmp_path, policy)
    for name in ("a\x1b[2Jb", "a\nb"):
        line = refused("train", config, f"run.dir={tmp_path / name}")
        assert "run.dir is" in line and "control character" in line and "\x1b" not in line
        assert not (tmp_path / name).exists()


def test_threads_beyond_the_cores_are_warned_of(tmp_path, policy):
    cores = len(os.sched_getaffinity(0))
    config = small_config(tmp_path, policy, train__steps=0, eval__files="[]")
    assert f"warning: {cores + 1} threads on" in run_augur("train", config, f"run.threads={cores + 1}").stderr
    assert "threads on" not in run_augur("train", config, "run.threads=1", "run.resume=never").stderr


@pytest.mark.parametrize("command", ["train", "sft"])
def test_an_adapter_wider_than_the_matrices_is_refused(tmp_path, policy, command):
    config = small_config(tmp_path, policy, lora__rank=4096)
    if command == "sft":
        config.write_text(
            f"model: {{path: {policy}}}\nlora: {{rank: 4096}}\ndata: {{train: [task:sort:numbers=4]}}\n"
            "log: {console: false}\n"
        )
    line = refused(command, config, f"run.dir={tmp_path / command}")
    assert "lora.rank: is 4096, and no matrix that it adapts has a rank above" in line


def test_weights_that_are_a_pipe_are_refused_at_once(tmp_path, policy):
    model = tmp_path / "piped"
    shutil.copytree(policy, model)
    (model / "model.safetensors").unlink()
    os.mkfifo(model / "model.safetensors")
    assert "model.safetensors: is a pipe or a device" in refused("generate", model, "--prompt", "1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl.gz", b"\x1f\x8b\x08\x00", "is compressed (gzip); decompress it with gunzip"),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfd", "is compressed (zstd); decompress it with unzstd"),
        ("a.csv", b"prompt,answer\n1,2\n", "is a table (csv), not JSON lines; convert it with pandas"),
        ("a.json", b' [\n{"prompt": "1"}]', "is a JSON array, not JSON lines; write one object a line, with pandas"),
        ("*.jsonl", None, "is a pattern, and files are named one by one; list them"),
    ],
)
def test_data_of_another_format_is_named_with_what_to_do(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert f"{tmp_path / name}: {message}" in refused("prompts", tmp_path / name)


def test_a_path_that_leads_nowhere_says_where_it_begins(tmp_path, policy):
    config = small_config(tmp_path, policy, data__train="[rows.jsonl]")
    line = refused("train", config, cwd=tmp_path)
    assert "rows.jsonl: cannot open" in line and f"relative to the working directory, {tmp_path}" in line
    config = small_config(tmp_path, policy, data__train=f"[{tmp_path / 'rows.jsonl'}]")
    assert "relative" not in refused("train", config)


def test_a_row_in_the_place_of_a_file_is_called_one(tmp_path, policy):
    config = small_config(tmp_path, policy, data__train='[{"prompt": "1", "answer": "1"}]')
    assert "data.train names files, and a row is given; write the rows to a JSONL file" in refused("train", config)


def test_a_complete_run_says_that_nothing_is_left(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=1, eval__files="[]")
    assert "nothing was left to do" not in run_augur("train", config).stdout
    (tmp_path / "run" / "checkpoints" / "latest_checkpointed_iteration.txt.tmp.1").write_text("1\n")
    assert "trained 1 step in" in (said := run_augur("train", config).stdout)
    assert "; it was complete, and nothing was left to do\n" in said
    assert not list((tmp_path / "run" / "checkpoints").glob("*.tmp.*"))


@pytest.mark.parametrize("command", ["train", "sft"])
def test_help_shows_the_first_keys_and_says_where_all_are(command):
    text = run_augur(command, "--help").stdout
    assert text.count("\n") < 60 and f"{command}.steps" in text and "augur config" in text
    assert "--dump-step" not in text and "--corrupt-gradient" not in text and "micro_tokens" not in text


def test_a_pipe_of_rows_is_called_one(tmp_path):
    line = refused("prompts", "/dev/stdin", stdin='{"prompt": "1", "answer": "1"}\n')
    assert "/dev/stdin: is a pipe or a device" in line and "write it to a file" in line


def test_a_page_that_cannot_be_written_costs_no_training(tmp_path, policy):
    (tmp_path / "run" / "report.html").mkdir(parents=True)
    done = run_augur("train", small_config(tmp_path, policy, train__steps=3, eval__every=1))
    assert done.stderr.count("warning: the report was not written") == 1 and "report.html" in done.stderr
    assert "trained 3 steps" in done.stdout and "report:" not in done.stdout
    assert (tmp_path / "run" / "model").is_dir()


@pytest.mark.parametrize(("overlong", "what"), [("drop", "left out"), ("truncate_left", "cut at the left")])
def test_prompts_dropped_or_cut_are_counted_at_the_start(tmp_path, policy, overlong, what):
    data = tmp_path / "rows.jsonl"
    prompts = ["1 2 =", "3 4 =", "5 " * 60 + "7 =", "6 " * 60 + "7 ="]
    data.write_text("".join(json.dumps({"prompt": p, "answer": "1"}) + "\n" for p in prompts))
    changes = dict(data__max_prompt_tokens=20, data__overlong=overlong, data__train=f"[{data}]", train__steps=1)
    changes |= dict(rollout__prompts=4, algorithm__entropy_bonus=1e-6, train__minibatch=0, log__tokens=100)
    said = run_augur("train", small_config(tmp_path, policy, **changes)).stderr
    shown = {r["prompt"].strip() for r in read_lines(tmp_path / "run" / "tokens.jsonl")}
    assert shown == {"1 2 =", "3 4 ="} | (
        {f"{i} " * 18 + "7 =" for i in "56"} if overlong == "truncate_left" else set()
    )
    assert f"{data}: 2 of 4 prompts {what}" in said and "data.max_prompt_tokens" in said
    sft = tmp_path / "sft.yaml"
    sft.write_text(
        f"run: {{dir: {tmp_path / 'sft'}, threads: 1}}\nmodel: {{path: {policy}}}\nlog: {{console: false}}\n"
        f"data: {{train: [{data}], max_prompt_tokens: 20, overlong: {overlong}}}\nsft: {{steps: 1, batch: 2}}\n"
    )
    assert f"2 of 4 prompts {what}" in run_augur("sft", sft).stderr


def test_a_limit_beyond_the_models_context_is_named(tmp_path, policy):
    config = small_config(tmp_path, policy, train__steps=0, eval__files="[]")
    said = run_augur("train", config, "rollout.max_tokens=128").stderr
    assert "rollout.max_tokens is 128, and the model's context of 128 tokens ends responses before" in said
    assert "context" not in run_augur("train", config, "rollout.max_tokens=127", "run.resume=never").stderr
    evaluated = ["eval.files=[task:sort:numbers=4:count=1:seed=3]", "eval.max_tokens=200", "eval.at_start=false"]
    assert "eval.max_tokens is 200, and" in run_augur("train", config, *evaluated, "run.resume=never").stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora__targets": "[q_proj]"}, "lora.targets does nothing where lora.rank is 0, and every weight is trained"),
        ({"model__reference": "POLICY"}, "model.reference does nothing where algorithm.kl_coef is 0"),
        ({"mask": "clip", "mask.delta": 0.01}, "mask.delta does nothing where mask.proximity is ratio"),
        ({"mask": "dppo-topk-tv", "mask.clip_low": 0.1}, "mask.clip_low does nothing where mask.proximity is tv"),
        ({"mask": "clip", "algorithm__loss": "cispo"}, "the section mask does nothing where algorithm.loss is cispo"),
        ({"algorithm__tis_cap": 3}, "algorithm.tis_cap does nothing where algorithm.loss is masked"),
        ({"algorithm__kl_estimator": "k1"}, "algorithm.kl_estimator does nothing where algorithm.kl_coef is 0"),
        ({"algorithm__max_refills": 3}, "algorithm.max_refills does nothing where algorithm.dynamic_sampling is false"),
        ({"reward__timeout_s": 3}, "reward.timeout_s does nothing where reward.python names no function"),
        ({"train__min_lr_ratio": 0.1}, "train.min_lr_ratio does nothing where train.schedule is constant"),
        ({"train__warmup_steps": 9}, "train.warmup_steps is 9, more than all 0 steps: train.lr is never reached"),
        ({"parallel__replicas": 2}, "parallel.replicas does nothing where the run has one process"),
    ],
)
def test_settings_that_do_nothing_by_themselves_are_named(tmp_path, policy, changes, message):
    changes = {key: str(value).replace("POLICY", str(policy)) for key, value in changes.items()}
    mask = [f"{key}={changes.pop(key)}" for key in list(changes) if key.startswith("mask")]
    done = run_augur("train", small_config(tmp_path, policy, train__steps=0, **changes), *mask)
    assert done.stderr.count("augur: warning: ") == 1 and message in done.stderr


def test_chat_without_a_chat_format_is_an_error(tmp_path, policy):
    for command in (
        ("generate", policy, "--chat", "--prompt", "hello"),
        ("eval", policy, "--chat", "--data", "task:sort:count=2"),
        ("train", small_config(tmp_path, policy, data__chat="always")),
    ):
        line = refused(*command)
        assert "no chat format" in line and "--chat-format" in line and "data.chat_format" in line
    run_augur("generate", policy, "--chat", "--chat-format", "chatml", "--prompt", "hello", "--max-tokens", 2)


@pytest.mark.parametrize("prompts", [10**6, 10**9, 10**12, 10**18])
@pytest.mark.parametrize("key", ["rollout.prompts", "rollout.group", "rollout.staleness", "eval.samples"])
def test_a_number_that_no_memory_holds_is_refused_at_once(tmp_path, policy, key, prompts):
    before = time.monotonic()
    line = refused("train", small_config(tmp_path, policy, train__minibatch=0), f"{key}={prompts}")
    assert key in line or key.split(".")[1] in line
    assert time.monotonic() - before < 5


def test_a_support_as_large_as_the_vocabulary_is_named_by_its_key(tmp_path, policy):
    line = run_augur("train", small_config(tmp_path, policy), "rollout.support=272", check=False).stderr
    assert "rollout.support: top-272 of a vocabulary of 272 tokens" in line


def test_bytes_that_are_no_parquet_are_called_so(tmp_path, policy):
    data = tmp_path / "rows.parquet"
    for content in (os.urandom(1000), b"", b'{"prompt": "1", "answer": "1"}\n'):
        data.write_bytes(content)
        for command in (("prompts", data), ("train", small_config(tmp_path, policy, data__train=f"[{data}]"))):
            line = refused(*command)
            assert f"{data}: is named .parquet and is none" in line and "JSON:" not in line


def test_files_of_other_commands_are_sent_there(tmp_path, policy):
    line = refused("sft", ROOT / "recipes" / "quickstart.yaml")
    assert "belongs to a file of augur train; run augur train with it" in line
    line = refused("sft", small_config(tmp_path, policy, model__reference="x"))
    assert "run augur train with it" in line  # although model.reference, an unknown key here, comes first
    assert "run augur compare with it" in refused("sft", ROOT / "recipes" / "compare-tiny.yaml")
    assert "run augur sft with it" in refused("train", ROOT / "recipes" / "tiny-sft.yaml")


def peak_of_memory(process) -> int:
    """Bytes of addresses that it held at most."""
    peak = 0
    while process.poll() is None:
        found = re.search(r"VmPeak:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        peak = int(found[1]) * 1024 if found else peak
        time.sleep(0.005)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return peak


RL = "rollout: {prompts: 16, group: 8, max_tokens: 2}\nreward: {verifier: exact}\nalgorithm: {entropy_bonus: 1e-6}\n"
# Settings, what of them makes a run that needs little, and what another says.
SHORTAGES = {
    "train": (
        RL + "train: {steps: 1, micro_tokens: 1000000}\n",
        "train.steps=0",
        ["step 1, updating: ", "train.micro_tokens=500000", "train.checkpoint_activations=full"],
    ),
    "sft": (
        "sft: {steps: 1, micro_tokens: 1000000, batch: 128}\n",
        "sft.batch=1",
        ["step 1, updating: ", "sft.micro_tokens=500000", "sft.checkpoint_activations=full"],
    ),
    "evaluation": (
        RL + "train: {steps: 0}\neval: {files: [DATA], samples: 16, max_tokens: 200}\n",
        "eval.at_start=false",
        ["step 0, evaluating: ", "rollout.max_batch", "rollout.memory_share"],
    ),
}


@pytest.mark.parametrize("name", SHORTAGES)
def test_memory_that_runs_out_inside_a_step_is_told_with_the_step_its_stage_and_a_remedy(tmp_path, name):
    """Room for the model and a few rollouts, not for a backward over 30,000 tokens at once, nor 2,000 rollouts."""
    deep = make_policy(tmp_path / "deep", layers=24, positions=512)
    data = tmp_path / "long.jsonl"
    rows = [{"prompt": "1 2 " * 60 + f"{i} =", "answer": "7"} for i in range(128)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings, little, said = SHORTAGES[name]
    config = tmp_path / "c.yaml"
    config.write_text(
        f"run: {{dir: {tmp_path / 'run'}, threads: 1}}\nmodel: {{path: {deep}, precision: fp32}}\n"
        f"data: {{train: [{data}]}}\nlog: {{console: false}}\n" + settings.replace("DATA", str(data))
    )
    # On ARM torch allocates by mimalloc, which would reserve a GiB of addresses at once.
    run = dict(command="sft" if name == "sft" else "train", env=os.environ | {"MIMALLOC_ARENA_RESERVE": "64MiB"})
    idle = peak_of_memory(start(config, f"run.dir={tmp_path / 'idle'}", little, **run))
    limit = idle + 400 * 2**20
    process = start(config, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)), **run)
    _, errors = process.communicate()
    assert process.returncode == 2 and "the memory of this machine is full" in errors, errors
    assert all(part in errors for part in said), errors


def test_a_model_that_cannot_be_trained_here_is_refused_before_it_is_loaded(tmp_path, policy):
    huge = tmp_path / "huge"
    shutil.copytree(policy, huge)
    fields = json.loads((huge / "config.json").read_text())
    (huge / "config.json").write_text(json.dumps(fields | {"hidden_size": 2**17, "num_hidden_layers": 64}))
    line = refused("train", small_config(tmp_path, huge))
    assert "takes at least" in line and "GiB" in line


@pytest.mark.slow
def test_the_time_left_counts_the_step_under_way(tmp_path, policy):
    """After a first step of seconds, the second shows what it does and what is left of the run."""
    config = write_config(tmp_path / "c.yaml", policy, tmp_path / "run", train__epochs=1500, train__steps=3)
    process = start(config)
    shown = []
    for line in process.stderr:
        shown.append(line)
        if "step 1/3" in line and "updating" in line:
            break
    assert " left" in shown[-1], shown
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("train.lr=1", "did you mean 'sft.lr'?"),
        ("eval.every=1", "the section 'eval' is one of augur train; leave it out"),
        ("data.trian=[x]", "did you mean 'data.train'?"),
    ],
)
def test_keys_of_other_commands_are_sent_there(tmp_path, policy, key, remedy):
    sft = tmp_path / "sft.yaml"
    sft.write_text(f"model: {{path: {policy}}}\ndata: {{train: [x.jsonl]}}\nsft: {{steps: 1}}\n")
    done = run_augur("sft", sft, key, check=False)
    assert done.returncode == 2 and remedy in done.stderr


def test_memory_too_small_for_a_page_is_told_with_its_key(tmp_path, policy):
    done = run_augur("train", small_config(tmp_path, policy), "rollout.memory_share=1e-9", check=False)
    assert done.returncode == 2 and "(rollout.memory_share, --memory-share)" in done.stderr
