"""AsyncGRPOTrainer under a mask: TRL's own trainer, queue, packing and rollout loop against a faked vLLM server."""

import asyncio
import copy
import os
import queue
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import trl
from packaging.version import Version
from peft import LoraConfig

if Version(trl.__version__) < Version("1.16"):
    pytest.skip("TRL 1.15 lays the batch out in another way", allow_module_level=True)

from trl.experimental.async_grpo import AsyncGRPOConfig, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop

import augur.trl
from async_trl import (  # noqa: F401  one is a fixture
    Library,
    Server,
    async_server,
    look_up,
    make_chat_tokenizer,
    make_chats,
    replace_what_needs_cuda,
    spread,
)
from augur import support
from augur.trl import recorded
from augur.trl.async_grpo import AugurAsyncGRPOConfig, AugurAsyncGRPOTrainer
from augur.trl.async_rollout import AugurRolloutLoop, RecordingLoop, support_of, unpack
from ranks import end_rank
from reference import keep_mask, token_losses
from test_trl_distributed import free_port
from tiny_trl import make_qwen3

STALE = dict(weight_sync_steps=2, max_staleness=8, learning_rate=3e-2)


class ThreadWorker(AsyncRolloutWorker):
    """TRL's worker with its loop in a thread: a process of its own takes long to start."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.rollout_buffer, self.metrics_queue = queue.Queue(8), queue.Queue()

    def start(self):
        self.loop = self._loop_cls(
            **self._loop_kwargs,
            rollout_buffer=self.rollout_buffer,
            model_version_value=self._model_version_value,
            heartbeat_value=self._heartbeat_value,
            failed_event=self._failed_event,
            exception_info_queue=self._exception_info_queue,
            metrics_queue=self.metrics_queue,
        )
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        self.thread.start()

    def stop(self):
        if self.thread.is_alive():
            self.loop._loop.call_soon_threadsafe(self.loop._stop_event.set)
            self.thread.join()


class CheckedTrainer(AugurAsyncGRPOTrainer):
    """For each loss the same from plain torch: a plain forward of every sample of the batch."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        samples = self.packed.pop(0)
        plain = make_qwen3()
        plain.load_state_dict(model.state_dict())
        total, masked = plain_losses(self, plain, samples)
        tokens = count_tokens(samples)
        expected = total / tokens / self.current_gradient_accumulation_steps
        self.losses = [*getattr(self, "losses", []), (loss.item(), expected.item())]
        ours = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        self.gradients = [
            *getattr(self, "gradients", []),
            max(
                ((a - b).norm() / b.norm().clamp(min=1e-3)).item()
                for a, b in zip(ours, torch.autograd.grad(expected, list(plain.parameters())), strict=True)
            ),
        ]
        self.masked = [*getattr(self, "masked", []), (masked, tokens)]
        return loss


def plain_terms(model, sample, temperature):
    """Logits, support and advantages of the sample's tokens that have a support."""
    ids, logprobs = unpack(torch.tensor(sample["old_log_probs"]))
    rows = torch.tensor(sample["completion_mask"]).bool() & (ids[:, 0] >= 0)
    logits = model(input_ids=torch.tensor(sample["input_ids"])[None]).logits[0] / temperature
    return logits[:-1][rows[1:]], ids[rows], logprobs[rows], torch.full((int(rows.sum()),), sample["advantage"])


def plain_losses(trainer, model, samples):
    """Of all tokens of the samples, and how many the mask holds back."""
    losses, masked = [], 0
    for sample in samples:
        terms = plain_terms(model, sample, trainer.temperature)
        losses.append(token_losses(trainer.rule, *terms))
        masked += (~keep_mask(trainer.rule, *terms)).sum().item()
    return torch.cat(losses).sum(), masked


def count_tokens(samples):
    return sum(int(sample["completion_mask"].sum()) for sample in samples)


def build_trainer(directory, server, monkeypatch, worker=ThreadWorker, trainer_class=None, given=None, **changes):
    """A trainer, with the server in its field `server` and every row's samples in `packed`."""
    packed, pack = [], packing.TreeRow.pack
    monkeypatch.setattr(packing.TreeRow, "pack", lambda row: (packed.append(list(row.samples)), pack(row))[1])
    monkeypatch.setattr(async_grpo_trainer, "AsyncRolloutWorker", worker)
    settings = dict(
        output_dir=str(directory),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=7,
        token_budget=-1,
        max_inflight_tasks=4,
        max_steps=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        support_size=6,
        vllm_server_base_url=server.url,
    )
    trainer = (trainer_class or CheckedTrainer)(
        model=str(directory / "model"),
        reward_funcs=spread,
        args=AugurAsyncGRPOConfig(**(settings | STALE | changes)),
        train_dataset=make_chats(),
        processing_class=make_chat_tokenizer(),
        weight_transfer=server,
        **(given or {}),
    )
    trainer.server, trainer.packed = server, packed
    return trainer


@pytest.fixture
def make_trainer(tmp_path, monkeypatch, async_server):  # noqa: F811
    make_qwen3().save_pretrained(tmp_path / "model")
    return lambda server=None, **changes: build_trainer(tmp_path, server or async_server(), monkeypatch, **changes)


def history(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def check_against_plain_torch(trainer):
    for ours, plain in trainer.losses:
        assert ours == pytest.approx(plain, abs=2e-5)
    assert max(trainer.gradients) < 1e-3


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("predictive-kl-aggregated delta=0.02", {}),
        ("predictive-kl-exact delta=0.02", {"temperature": 0.7}),
        ("predictive-tv-uniform delta=0.02", {"token_budget": 96}),
        ("dppo-topk-kl delta=0.02", {"gradient_accumulation_steps": 2, "max_steps": 3}),
        ("clip", {}),
    ],
    ids=str,
)
def test_losses_and_gradients_are_those_of_plain_torch(make_trainer, rule, changes):
    trainer = make_trainer(mask_rule=rule, **changes)
    trainer.train()
    check_against_plain_torch(trainer)
    assert {p["logprobs"] for p in trainer.server.asked} == {6} and trainer.server.engine.outside_top > 5
    assert set(history(trainer, "mask/missing")) == {0}
    if rule != "clip":  # whose divergence is |r - 1|
        assert history(trainer, "mask/divergence")[0] < 1e-5
    assert sum(count for count, _ in trainer.masked) > 0
    per_step = len(trainer.masked) // len(history(trainer, "loss"))
    for i, share in enumerate(history(trainer, "mask/masked")):
        counts = trainer.masked[i * per_step : (i + 1) * per_step]
        assert share == pytest.approx(sum(c for c, _ in counts) / sum(n for _, n in counts), abs=1e-9)


@pytest.mark.parametrize("given", [{"tools": [look_up]}, {"environment_factory": Library}], ids=["tool", "environment"])
def test_what_tools_and_environments_wrote_has_no_support_and_no_part_in_any_figure(make_trainer, given):
    trainer = make_trainer(given=given, max_tool_calling_iterations=2, max_completion_length=4, max_steps=3)
    seen = []
    kept = trainer.packed
    trainer.packed = SimpleNamespace(pop=lambda i: (seen.append(kept[i]), kept.pop(i))[1])
    trainer.train()
    check_against_plain_torch(trainer)
    assert set(history(trainer, "mask/missing")) == {0}
    behind = 0
    for sample in (sample for samples in seen for sample in samples):
        sampled = torch.tensor(sample["completion_mask"]).bool()
        ids, _ = unpack(torch.tensor(sample["old_log_probs"]))
        assert torch.equal(ids[sampled][:, 0].long(), torch.tensor(sample["input_ids"])[sampled])
        assert torch.all(ids[~sampled] == -1)
        first = int(sampled.nonzero()[0])
        behind += int((sampled[first:].long().diff() == 1).any())  # sampled again behind what the tool wrote
    assert behind > 0


def test_tokens_whose_log_prob_is_no_number_are_left_out_and_counted(make_trainer, async_server):  # noqa: F811
    trainer = make_trainer(async_server(nan_every=4), max_steps=3)
    trainer.train()
    check_against_plain_torch(trainer)
    assert all(0.1 < share < 0.5 for share in history(trainer, "mask/missing"))


def test_a_server_whose_log_probs_are_no_numbers_ends_the_run(make_trainer, async_server):  # noqa: F811
    with pytest.raises(ValueError, match="^support: no token of the batch has one, .*see that vLLM's log-probs"):
        make_trainer(async_server(nan_every=1)).train()


def test_a_capped_ratio_keeps_its_gradient(make_trainer):
    trainer = make_trainer(trainer_class=AugurAsyncGRPOTrainer, mask_rule="none ratio_cap=1.1")
    trainer.train()
    assert max(history(trainer, "ratio")) < 1.1 and max(history(trainer, "mask/capped")) > 0
    assert all(torch.isfinite(torch.tensor(history(trainer, "grad_norm"))))


def test_adapters_train_under_the_mask(make_trainer):
    given = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}
    trainer = make_trainer(
        trainer_class=AugurAsyncGRPOTrainer, given=given, learning_rate=5e-2, mask_rule="predictive-kl-exact delta=0.02"
    )
    trainer.train()
    assert set(history(trainer, "mask/missing")) == {0}
    assert history(trainer, "mask/divergence")[0] < 1e-5 and max(history(trainer, "mask/masked")) > 0


def test_in_a_process_of_its_own_the_worker_records_while_the_trainer_updates(make_trainer):
    trainer = make_trainer(worker=AsyncRolloutWorker, max_steps=3)
    trainer.train()
    check_against_plain_torch(trainer)
    assert set(history(trainer, "mask/missing")) == {0} and trainer.server.syncs == 2
    assert history(trainer, "mask/divergence")[0] < 1e-5 < history(trainer, "mask/divergence")[1]


class RankTrainer(AugurAsyncGRPOTrainer):
    """After each backward, compares the gradient that DDP averaged with that of the plain loss on both ranks' rows."""

    def training_step(self, model, inputs, num_items_in_batch):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.is_main_process:  # which alone packs, one row for each rank
            samples = self.packed.pop(0) + self.packed.pop(0)
            inner, plain = self.accelerator.unwrap_model(model), make_qwen3()
            plain.load_state_dict(inner.state_dict())
            total, masked = plain_losses(self, plain, samples)
            (total / count_tokens(samples)).backward()
            for ours, theirs in zip(inner.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-6)
            self.shares = [*getattr(self, "shares", []), masked / count_tokens(samples)]
        return loss


def train_rank(rank, port, directory):
    os.environ |= dict(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(1)
    monkeypatch = pytest.MonkeyPatch()
    replace_what_needs_cuda(monkeypatch)
    server = Server(make_qwen3())
    trainer = build_trainer(
        directory,
        server,
        monkeypatch,
        trainer_class=RankTrainer,
        ddp_backend="gloo",
        mask_rule="predictive-kl-aggregated delta=0.02",
    )
    trainer.train()
    assert dist.get_world_size() == 2
    if rank == 0:
        assert history(trainer, "mask/masked") == pytest.approx(trainer.shares) and max(trainer.shares) > 0
        assert set(history(trainer, "mask/missing")) == {0}
    end_rank()


def test_two_ranks_average_the_gradients_of_both_rows(tmp_path):
    make_qwen3().save_pretrained(tmp_path / "model")
    mp.spawn(train_rank, (free_port(), tmp_path), nprocs=2)


@pytest.mark.parametrize(
    ("info", "changes", "message"),
    [
        ({"model_config": {"logprobs_mode": "raw_logprobs"}}, {}, "runs with --logprobs-mode raw_logprobs"),
        ({"model_config": {"max_logprobs": 5}}, {}, "gives at most 5 log-probs .*support_size is 6"),
    ],
)
def test_a_server_that_cannot_give_the_support_is_refused(make_trainer, async_server, info, changes, message):  # noqa: F811
    with pytest.raises(ValueError, match=f"^vllm server: {message}"):
        make_trainer(async_server(**info), **changes).get_train_dataloader()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_p": 0.9}, r"^top_p: is 0.9"),
        ({"min_p": 0.1}, r"^min_p: is 0.1"),
        ({"temperature": 0.0}, r"^temperature: is 0.0"),
        ({"epsilon": 0.2}, r"^epsilon: is 0.2"),
        ({"support_size": 0}, r"^support_size: is 0"),
    ],
    ids=str,
)
def test_refused_settings_name_the_field(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        AugurAsyncGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], **changes)


def test_the_package_gives_the_trainer_when_it_is_asked_for():
    assert augur.trl.AugurAsyncGRPOTrainer is AugurAsyncGRPOTrainer
    assert augur.trl.AugurAsyncGRPOConfig is AugurAsyncGRPOConfig
    with pytest.raises(AttributeError, match="has no attribute 'AugurAsync'"):
        augur.trl.AugurAsync  # noqa: B018


def test_a_plain_config_is_refused(tmp_path):
    args = AsyncGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[])
    with pytest.raises(ValueError, match="^args: is a AsyncGRPOConfig; pass an AugurAsyncGRPOConfig"):
        AugurAsyncGRPOTrainer("model", spread, args)


class OtherLoop(_AsyncRolloutLoop):
    pass


class OtherWorker(ThreadWorker):
    _loop_cls = OtherLoop


def test_a_loop_that_records_nothing_is_refused(make_trainer):
    with pytest.raises(ValueError, match="^rollout_worker: its loop OtherLoop records no support; derive one from"):
        make_trainer(worker=OtherWorker)


def test_samples_without_support_are_refused(make_trainer):
    trainer = make_trainer()
    inputs = {"old_log_probs": torch.zeros(1, 5), "token_index": torch.zeros(1, 5)}
    with pytest.raises(ValueError, match="^support: the samples have none"):
        AugurAsyncGRPOTrainer.compute_loss(trainer, trainer.model, inputs)


def test_edited_samples_are_noticed(make_trainer, monkeypatch):
    trainer = make_trainer()
    score = AugurRolloutLoop._score_group

    async def edit(self, group):
        samples = await score(self, group)
        for sample in samples:
            sample.input_ids[sample.completion_mask.astype(bool)] += 1
        return samples

    monkeypatch.setattr(AugurRolloutLoop, "_score_group", edit)
    with pytest.raises(RuntimeError, match="^support: the recorded tokens are not those of the batch"):
        trainer.train()


def test_what_vllm_writes_for_minus_infinity_is_no_candidate():
    rows = [{"token_id:3": -0.1, "token_id:4": -9999.0}, None]
    choice = {"token_ids": [3, 5], "logprobs": {"top_logprobs": rows}}
    ids, logprobs = support_of(copy.deepcopy(choice), 2)
    assert ids.tolist() == [[3, -1, -1], [-1, -1, -1]]
    assert logprobs[0, 0].item() == pytest.approx(-0.1) and torch.all(logprobs[1] == -torch.inf)


def test_supports_are_read_outside_the_loop_that_serves_other_requests(monkeypatch):
    threads = []

    def noting(function):
        return lambda *args: (threads.append(threading.current_thread()), function(*args))[1]

    class Base:
        async def _post(self, *_):
            return {"choices": [{"token_ids": [3], "logprobs": {"top_logprobs": [{"token_id:3": -0.1}]}}]}

        async def _score_group(self, group):
            return [SimpleNamespace()]

    class Loop(RecordingLoop, Base):
        pass

    async def turn():
        loop = Loop(support_size=1)
        (choice,) = (await loop._post("/v1/completions", {}))["choices"]
        row = SimpleNamespace(old_log_probs=choice["logprobs"]["token_logprobs"])
        (sample,) = await loop._score_group(SimpleNamespace(completions_sequences=[[row]]))
        return unpack(torch.from_numpy(sample.old_log_probs)).ids.tolist()

    monkeypatch.setattr(support, "from_ranked", noting(support.from_ranked))
    monkeypatch.setattr(recorded, "collect", noting(recorded.collect))
    assert asyncio.run(turn()) == [[3, -1]]
    assert len(threads) == 2 and threading.main_thread() not in threads
