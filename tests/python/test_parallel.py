"""N processes that torchrun starts do what one does: the same figures, checkpoints that any number reads."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from safetensors.torch import load_file

from conftest import ROOT, run_augur
from rank_runs import ENVIRONMENT, rl_config, run_ranks
from train_runs import (
    make_guesser,
    make_moe_policy,
    make_policy,
    read_lines,
    read_metrics,
    without_times,
    write_config,
    write_guesses,
)

TINY = ROOT / "models" / "tiny"


# One response in each forward and sums whose order does not matter: a response's gradient is then the same wherever it
# is made, and so is what follows.
EXACT_SUMS = dict(train__gradient_dtype="fp64", train__micro_tokens=1)


def assert_close(run: Path, expected: Path, exact: bool = True) -> None:
    """Every figure but times: to float64's rounding with EXACT_SUMS, otherwise to float32's."""
    lines, truths = (without_times(read_metrics(directory)) for directory in (run, expected))
    assert [line["step"] for line in lines] == [line["step"] for line in truths]
    for line, truth in zip(lines, truths, strict=True):
        assert line["data"].keys() == truth["data"].keys()
        for name, value in truth["data"].items():
            # Differences between trainer and engine are rounding and nothing else; those of log-probs carry theirs.
            small = name in ("actor/ppo_kl", "audit/delta_divergence")
            absolute = 0 if exact else 5e-6 if name.startswith("mismatch") else 5e-7 if small else 1e-7
            close = pytest.approx(value, rel=1e-12 if exact else 1e-5, abs=absolute)
            assert line["data"][name] == close, (line["step"], name)


def assert_same_weights(run: Path, expected: Path) -> None:
    weights, truth = (load_file(next(path.glob("*/*model.safetensors"))) for path in (run, expected))
    assert weights.keys() == truth.keys()
    for name, tensor in truth.items():
        assert weights[name].equal(tensor), name


@pytest.fixture(scope="module")
def guesser(tmp_path_factory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("guesser")
    return make_guesser(directory / "model"), write_guesses(directory / "guesses.jsonl")


@pytest.fixture(scope="module")
def alone(tmp_path_factory, guesser) -> Path:
    directory = tmp_path_factory.mktemp("alone")
    run_augur("train", rl_config(directory, guesser, "run", **EXACT_SUMS))
    return directory / "run"


@pytest.mark.parametrize(
    ("ranks", "shard"),
    [
        pytest.param(ranks, shard, marks=[] if (ranks, shard) == (2, "full") else pytest.mark.slow)
        for ranks in (1, 2, 3, 4)
        for shard in ("none", "states", "full")
    ],
)
def test_any_number_of_ranks_gives_the_figures_of_one(tmp_path, guesser, alone, ranks, shard):
    done = run_ranks(ranks, "train", rl_config(tmp_path, guesser, "run", parallel__shard=shard, **EXACT_SUMS))
    run = tmp_path / "run"
    assert_close(run, alone)
    assert_same_weights(run, alone)
    assert done.stdout.count("trained 5 steps") == 1
    # The first step's responses to the bit, by what the viewer shows of them; decisions are those of all ranks.
    first, truth = (
        [line for line in read_lines(directory / "tokens.jsonl") if line["step"] == 1] for directory in (run, alone)
    )
    assert len(first) == 3
    for line, expected in zip(first, truth, strict=True):
        assert [t["id"] for t in line["tokens"]] == [t["id"] for t in expected["tokens"]]
        assert line["prompt"] == expected["prompt"] and line["reward"] == expected["reward"]
    points, expected = (read_lines(directory / "points.jsonl") for directory in (run, alone))
    assert [(p["step"], p["tokens"], p["outside"]) for p in points] == [
        (p["step"], p["tokens"], p["outside"]) for p in expected
    ]
    figures, truth = (read_metrics(directory)[-1]["data"] for directory in (run, alone))
    share = {"none": 1, "states": (1 + 2 / ranks) / 3, "full": 1 / ranks}[shard]
    assert share <= figures["perf/state_memory_gb"] / truth["perf/state_memory_gb"] < 1.05 * share
    # The rollout's copy is given back while the step learns.
    assert truth["perf/rollout_weights_gb"] > 0
    whole = shard != "full" or ranks == 1
    assert figures["perf/rollout_weights_gb"] == (truth["perf/rollout_weights_gb"] if whole else 0)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "shard"), [(2, "none"), (3, "states"), (4, "full")])
def test_several_responses_in_a_forward_give_them_within_rounding(tmp_path, guesser, ranks, shard):
    run_augur("train", rl_config(tmp_path, guesser, "alone"))
    run_ranks(ranks, "train", rl_config(tmp_path, guesser, "run", parallel__shard=shard))
    assert_close(tmp_path / "run", tmp_path / "alone", exact=False)
    weights, truth = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "alone"))
    for name, tensor in truth.items():
        assert weights[name].allclose(tensor, rtol=1e-4, atol=1e-6), name


@pytest.mark.slow
def test_settings_that_several_ranks_cannot_use_are_named(tmp_path, guesser):
    changes = dict(parallel__shard="states", eval__files="[]", train__steps=1, checkpoint__every=0)
    config = rl_config(tmp_path, guesser, "bf16", train__gradient_dtype="bf16", rollout__prompts=1, **changes)
    said = run_ranks(2, "train", config, "train.minibatch=1").stderr
    assert "train.gradient_dtype: bf16 does nothing where parallel.shard is states: ranks add gradients in" in said
    assert "rollout.prompts is 1, and there are 2 processes: 1 generate nothing in each step" in said
    run_ranks(2, "train", rl_config(tmp_path, guesser, "fp32", rollout__prompts=1, **changes), "train.minibatch=1")
    norms = [read_metrics(tmp_path / name)[0]["data"]["actor/grad_norm"] for name in ("bf16", "fp32")]
    assert norms[0] == norms[1]  # sums are in float32 with both
    sft = tmp_path / "sft.yaml"
    sft.write_text(
        f"run: {{dir: {tmp_path / 'sft'}, threads: 1}}\nmodel: {{path: {guesser[0]}}}\nlog: {{console: false}}\n"
        f"data: {{train: [{guesser[1]}]}}\nsft: {{steps: 1, batch: 2, gradient_dtype: bf16}}\n"
        "parallel: {shard: states}\n"
    )
    assert "sft.gradient_dtype: bf16 does nothing where parallel.shard is states" in run_ranks(2, "sft", sft).stderr


def test_groups_of_replicas_are_made_once(monkeypatch):
    """torch keeps connections and threads of each until the process ends."""
    from augur import _processes

    made = []
    monkeypatch.setattr(_processes, "_backends", lambda: "gloo")
    monkeypatch.setattr(_processes.dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(_processes.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(
        _processes.dist,
        "new_group",
        lambda members, backend: made.append(members) or types.SimpleNamespace(group_name=f"of {members}"),
    )
    _processes._divided.cache_clear()
    names = [_processes._divided(2), _processes._divided(2)]
    _processes._divided.cache_clear()
    assert names[0] == names[1] == b"of [0, 1]\nof [1, 3]\n" and len(made) == 4


@pytest.mark.slow
def test_replicas_divide_the_state_within_groups(tmp_path, guesser, alone):
    changes = dict(parallel__shard="full", parallel__replicas=2)
    run_ranks(4, "train", rl_config(tmp_path, guesser, "run", **changes, **EXACT_SUMS))
    assert_close(tmp_path / "run", alone)
    parts = sorted(p.name for p in (tmp_path / "run" / "checkpoints" / "global_step_4").glob("tensors*"))
    assert parts == [f"tensors-0000{r}-of-00002.safetensors" for r in (1, 2)]
    bad = run_ranks(2, "train", rl_config(tmp_path, guesser, "bad", parallel__replicas=3), check=False)
    assert "augur: rank 0: parallel.replicas: is 3, which does not divide the 2 ranks" in bad.stderr


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "full"])
def test_a_damaged_part_of_a_checkpoint_is_seen_by_whichever_rank_reads_it(tmp_path, guesser, shard):
    changes = dict(parallel__shard=shard, eval__files="[]", train__steps=4)
    config = rl_config(tmp_path, guesser, "run", **changes)
    run_ranks(2, "train", config)
    newest = tmp_path / "run" / "checkpoints" / "global_step_4"
    part = sorted(newest.glob("tensors*.safetensors"))[-1]
    assert part.stat().st_size > 1 << 16  # smaller files are read by the first rank
    data = bytearray(part.read_bytes())
    data[-5] ^= 1
    part.write_bytes(data)
    said = run_ranks(2, "train", config, "train.steps=5", "log.console=true").stderr
    assert f"global_step_4 is damaged ({part.name} fails its checksum); trying the one before it" in said
    assert "resuming from" in said and "global_step_2" in said
    assert [line["step"] for line in read_metrics(tmp_path / "run")][-3:] == [3, 4, 5]


@pytest.mark.slow
def test_the_same_number_twice_gives_the_same_bits(tmp_path, guesser):
    for name in ("one", "two"):
        run_ranks(3, "train", rl_config(tmp_path, guesser, name, parallel__shard="states", train__steps=3))
    assert without_times(read_metrics(tmp_path / "one")) == without_times(read_metrics(tmp_path / "two"))


@pytest.mark.slow
def test_a_run_goes_on_with_any_number_of_ranks(tmp_path, guesser, alone):
    """Four ranks, then three, then one; and what four wrote is exported by one."""
    config = rl_config(tmp_path, guesser, "run", **EXACT_SUMS)
    run = tmp_path / "run"
    run_ranks(4, "train", config, "train.steps=2", "parallel.shard=states")
    parts = sorted((run / "checkpoints" / "global_step_2").glob("tensors*"))
    assert [p.name for p in parts] == [f"tensors-0000{r}-of-00004.safetensors" for r in range(1, 5)]
    sizes = [p.stat().st_size for p in parts]
    whole = (alone / "checkpoints" / "global_step_2" / "tensors.safetensors").stat().st_size
    assert max(sizes) < 0.3 * whole and 0.95 * whole < sum(sizes) < 1.1 * whole
    run_augur("export", run, tmp_path / "exported")
    run_augur("export", alone / "checkpoints" / "global_step_2", tmp_path / "truth")
    exported, truth = (load_file(tmp_path / name / "model.safetensors") for name in ("exported", "truth"))
    assert all(exported[name].equal(tensor) for name, tensor in truth.items())
    run_ranks(3, "train", config, "train.steps=4", "parallel.shard=full")
    run_augur("train", config)
    assert_close(run, alone)
    assert_same_weights(run, alone)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "shard"), [(2, "none"), (3, "full"), (4, "states")])
def test_sft_on_ranks_gives_the_figures_of_one(tmp_path, ranks, shard):
    policy = make_policy(tmp_path / "model")
    for name in ("alone", "ranks"):
        lines = [
            f"run: {{dir: {tmp_path / name}, threads: 1}}", f"model: {{path: {policy}, precision: fp32}}",
            "data: {train: ['task:sort:numbers=4:count=64:seed=3']}", "checkpoint: {every: 2}",
            "log: {console: false}", f"parallel: {{shard: {shard if name == 'ranks' else 'none'}}}",
            "sft: {steps: 5, batch: 7, lr: 0.001, micro_tokens: 1, gradient_dtype: fp64}",
        ]  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    run_augur("sft", tmp_path / "alone.yaml")
    run_ranks(ranks, "sft", tmp_path / "ranks.yaml")
    assert_close(tmp_path / "ranks", tmp_path / "alone")
    assert_same_weights(tmp_path / "ranks", tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "ranks", "changes"),
    [
        (make_moe_policy, 2, dict(parallel__shard="full", algorithm__load_balance_coef=0.1)),
        (make_moe_policy, 3, dict(parallel__shard="states", rollout__replay_routing="true")),
        (make_policy, 3, dict(parallel__shard="states", lora__rank=4)),
        (make_policy, 2, dict(parallel__shard="full", lora__rank=4)),
    ],
    ids=["experts-full", "experts-states", "lora-states", "lora-full"],
)
def test_experts_and_adapters_on_ranks_give_the_figures_of_one(tmp_path, make, ranks, changes):
    policy = make(tmp_path / "model")
    settings = dict(train__steps=5, train__lr=0.001, reward__overlong_buffer=8, log__console="false", **EXACT_SUMS)
    alone = settings | {
        key: value for key, value in changes.items() if key.startswith(("lora", "algorithm", "rollout"))
    }
    run_augur("train", write_config(tmp_path / "alone.yaml", policy, tmp_path / "alone", **alone))
    run_ranks(ranks, "train", write_config(tmp_path / "ranks.yaml", policy, tmp_path / "ranks", **settings, **changes))
    assert_close(tmp_path / "ranks", tmp_path / "alone")
    assert_same_weights(tmp_path / "ranks", tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "shard"), [(2, "full"), (3, "states")])
def test_states_in_bf16_are_rounded_alike_on_any_number_of_ranks(tmp_path, guesser, ranks, shard):
    """The draw that rounds an element follows from its place among all, whoever has it."""
    changes = dict(train__optimizer_dtype="bf16", train__steps=3, algorithm__dynamic_sampling="false", audit__every=0)
    run_augur("train", rl_config(tmp_path, guesser, "alone", **changes))
    run_ranks(ranks, "train", rl_config(tmp_path, guesser, "ranks", parallel__shard=shard, **changes))
    norms = [
        [line["data"]["actor/grad_norm"] for line in read_metrics(tmp_path / name)[1:]] for name in ("ranks", "alone")
    ]
    assert norms[0] == pytest.approx(norms[1], rel=2e-5)


@pytest.mark.slow
def test_a_budget_of_tokens_outside_and_the_mismatch_are_those_of_all_ranks(tmp_path, guesser):
    """From the second step on updates begin off policy, so that both are more than rounding."""
    changes = dict(
        mask__outside_budget=0.2, rollout__staleness=1, train__minibatch=0, train__epochs=1, train__steps=3,
        train__lr=0.02, algorithm__anchor="rollout", algorithm__dynamic_sampling="false", audit__every=0,
        eval__files="[]", checkpoint__every=0,
    )  # fmt: skip
    run_augur("train", rl_config(tmp_path, guesser, "alone", **changes))
    run_ranks(2, "train", rl_config(tmp_path, guesser, "ranks", **changes))
    for line, truth in zip(*(read_metrics(tmp_path / name)[1:] for name in ("ranks", "alone")), strict=True):
        assert truth["data"]["mask/delta"] > 1e-4
        names = [name for name in truth["data"] if name.startswith(("mask/", "mismatch/"))]
        for name in names:
            assert line["data"][name] == pytest.approx(truth["data"][name], rel=1e-3), (line["step"], name)


REWARD = """
def score(data_source, solution_str, ground_truth, extra_info):
    if len(solution_str.split()) == 2:
        raise ValueError("two words")
    return {"score": float(solution_str.strip() == ground_truth), "length": len(solution_str)}
"""


@pytest.mark.slow
def test_what_a_function_says_of_responses_reaches_the_first_rank(tmp_path, guesser):
    """Scores, failures and figures of its own."""
    (tmp_path / "reward.py").write_text(REWARD)
    changes = dict(reward__python=f"{tmp_path / 'reward.py'}:score", reward__workers=1, reward__max_errors=0.9)
    changes |= dict(train__steps=2, eval__every=1, algorithm__dynamic_sampling="false", **EXACT_SUMS)
    run_augur("train", rl_config(tmp_path, guesser, "alone", **changes))
    run_ranks(2, "train", rl_config(tmp_path, guesser, "ranks", **changes))
    truth = read_metrics(tmp_path / "alone")
    for name in ("reward/errors", "reward/length/mean", "val-aux/guess/length/mean@2", "val-aux/guess/reward_errors"):
        assert truth[-1]["data"][name] > 0
    assert_close(tmp_path / "ranks", tmp_path / "alone")


@pytest.mark.slow
def test_one_rank_of_many_can_be_measured_alone(tmp_path):
    flags = ["--tokens", "64", "--length", "32", "--rounds", "1", "--json"]
    figures = json.loads(run_augur("bench", "train", "--ranks", "8", "--shard", "full", *flags).stdout)
    # smollm2-135m: an eighth of weights in bf16, master weights and states.
    states = 14 * 134_515_008 / 8
    assert figures["weights_and_states_gib"] * 2**30 == pytest.approx(states, rel=0.01)
    flags += ["--reference", "--save", tmp_path / "model"]
    with_reference = json.loads(run_augur("bench", "train", "--ranks", "8", "--shard", "full", *flags).stdout)
    pieces = 2 * 134_515_008 / 8
    assert with_reference["weights_and_states_gib"] * 2**30 == pytest.approx(states + pieces, rel=0.01)
    # One whole model at a time, though there are two, and the largest part is moved while it is divided.
    largest = 2 * 49_152 * 576
    assert with_reference["loading_peak_gib"] * 2**30 < 2 * 134_515_008 + states + pieces + 2 * largest
    assert len(load_file(tmp_path / "model" / "model.safetensors")) == 272


@pytest.mark.slow
def test_eval_generate_and_score_use_all_ranks(tmp_path):
    data = ["--data", "task:sort:numbers=4:count=5:seed=9", "--samples", "2", "--max-tokens", "12", "--threads", "1"]
    run_augur("eval", TINY, *data, "--output", tmp_path / "alone.json")
    run_ranks(2, "eval", TINY, *data, "--output", tmp_path / "ranks.json")
    assert json.loads((tmp_path / "ranks.json").read_text()) == json.loads((tmp_path / "alone.json").read_text())
    supports = [*data, "--top-logprobs", "3"]
    run_augur("generate", TINY, *supports, "--output", tmp_path / "alone.jsonl")
    run_ranks(3, "generate", TINY, *supports, "--output", tmp_path / "ranks.jsonl")
    assert (tmp_path / "ranks.jsonl").read_text() == (tmp_path / "alone.jsonl").read_text()
    lines = "".join(json.dumps({"tokens": line["tokens"]}) + "\n" for line in read_lines(tmp_path / "alone.jsonl"))
    flags = ["score", TINY, "--batch-tokens", "20"]
    truth = [json.loads(line)["logprobs"] for line in run_augur(*flags, stdin=lines).stdout.splitlines()]
    bad = run_ranks(2, *flags, stdin=lines + '{"tokens": [999999]}\n', check=False)  # the rest is answered
    found = [json.loads(line)["logprobs"] for line in bad.stdout.splitlines()]
    assert len(found) == len(truth) == 10
    for line, expected in zip(found, truth, strict=True):
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert bad.stderr.count("outside the vocabulary") == 1 and "augur: rank 0: line 11" in bad.stderr


CALLS = """
import sys
import augur
from ranks import end_rank

augur.join()
options = {"max_tokens": 4, "threads": 1, "device": "cpu"}
rollouts = augur.generate(sys.argv[1], ["3 1 2 =", "4 2 ="], **options)
figures = augur.evaluate(sys.argv[1], "task:sort:numbers=4:count=2", samples=1, **options)
try:
    augur.generate(sys.argv[1], ["3 1 2 ="], sampels=2, **options)
except augur.Error as error:
    found = (len(rollouts), figures.get("samples"), "did you mean" in str(error), "another rank" in str(error))
    sys.stdout.write(" ".join(map(str, found)) + "\\n")  # at once, next to the other rank's
    sys.stdout.flush()
    end_rank()
"""


@pytest.mark.slow
def test_calls_from_python_give_the_first_rank_what_they_made(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests' / 'python'}"}
    done = subprocess.run(
        [*launcher, tmp_path / "calls.py", TINY], capture_output=True, text=True, env=environment, timeout=120
    )
    assert {"2 1 True False", "0 None False True"} <= set(done.stdout.splitlines()), done.stderr


OWN_CALLS = """
import os, sys
import augur
from ranks import end_rank

own = int(os.environ["RANK"])
options = {"max_tokens": 4, "threads": 1, "device": "cpu", "greedy": True}
prompts = [["1 2 =", "3 4 ="], ["9 8 ="]][own]
rows = [{"prompt": prompt, "answer": "1"} for prompt in prompts]
said = [len(augur.generate(sys.argv[1], prompts, **options)), augur.evaluate(sys.argv[1], rows, **options) != {}]
augur.join()
for call in (
    lambda: augur.generate(sys.argv[1], prompts, **options),
    lambda: augur.evaluate(sys.argv[1], [rows[0] | {"answer": str(own)}], **options),
    lambda: augur.generate(sys.argv[1], ["1 2 ="], **(options | {"max_tokens": 4 + own})),
    lambda: augur.generate(sys.argv[1], [] if own else prompts, **options),
):
    try:
        call()
        said.append("answered")
    except augur.Error as error:
        reasons = ("not those of the first rank", "another rank", "holds no prompts")
        said.append(any(reason in str(error) for reason in reasons) or str(error))
said.append(len(augur.generate(sys.argv[1], ["1 2 ="], **options)))
sys.stdout.write(f"{own}: {said}\\n")
sys.stdout.flush()
end_rank()
"""


def test_ranks_answer_their_own_prompts_until_they_join_and_then_refuse_others(tmp_path):
    (tmp_path / "calls.py").write_text(OWN_CALLS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests' / 'python'}"}
    done = subprocess.run(
        [*launcher, tmp_path / "calls.py", TINY], capture_output=True, text=True, env=environment, timeout=120
    )
    refused = ", ".join(["True"] * 4)
    assert {f"0: [2, True, {refused}, 1]", f"1: [1, True, {refused}, 0]"} <= set(done.stdout.splitlines()), (
        done.stdout + done.stderr
    )


@pytest.mark.slow
def test_srun_starts_ranks_too(tmp_path, guesser, alone):
    processes = []
    for rank in range(2):
        slurm = dict(
            SLURM_JOB_ID=str(os.getpid()), SLURM_STEP_NODELIST="localhost", SLURM_NODEID="0", SLURM_PROCID=str(rank),
            SLURM_LOCALID=str(rank), SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="2",
        )  # fmt: skip
        command = [sys.executable, "-m", "augur", "train", str(rl_config(tmp_path, guesser, "run", **EXACT_SUMS))]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        processes.append(subprocess.Popen(command, env=ENVIRONMENT | slurm, **pipes))
    first, other = (process.communicate(timeout=120)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0], first + other
    assert "trained 5 steps" in first and "trained" not in other
    assert "parallel.shard: none, with which" in first  # auto, of a small model
    assert_close(tmp_path / "run", alone)


@pytest.mark.gpu
@pytest.mark.parametrize(("ranks", "shard"), [(1, "full"), (2, "none"), (2, "states"), (2, "full")])
def test_ranks_on_a_gpu_give_the_figures_of_one(tmp_path, ranks, shard):
    """One rank, for which NCCL is set up, gives the bits of none; two that share the GPU over Gloo round otherwise."""
    policy = make_policy(tmp_path / "model")
    settings = dict(
        run__device="cuda", run__deterministic="true", model__precision="bf16", train__steps=3, train__lr=0.001,
        train__eps=1e-3, rollout__memory_share=0.1, reward__overlong_buffer=8, log__console="false",
    )  # fmt: skip
    run_augur("train", write_config(tmp_path / "alone.yaml", policy, tmp_path / "alone", **settings))
    settings |= dict(parallel__shard=shard)
    run_ranks(ranks, "train", write_config(tmp_path / "ranks.yaml", policy, tmp_path / "ranks", **settings))
    lines, expected = (without_times(read_metrics(tmp_path / name)) for name in ("ranks", "alone"))
    if ranks == 1:
        assert lines == expected
        return
    # Later steps draw other tokens where a log-prob was rounded otherwise.
    for name in ("actor/grad_norm", "critic/rewards/mean", "response_length/mean", "actor/entropy"):
        assert lines[0]["data"][name] == pytest.approx(expected[0]["data"][name], rel=0.02), name
    for name in ("actor/grad_norm", "actor/entropy"):
        assert lines[-1]["data"][name] == pytest.approx(expected[-1]["data"][name], rel=0.1), name
