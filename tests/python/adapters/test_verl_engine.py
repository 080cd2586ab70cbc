"""verl's training worker with Augur's engine and loss, against plain torch."""

import functools

import pytest
import torch
from verl.workers.engine.fsdp import FSDPEngineWithLMHead

from augur.verl import LOSS_MODES, rule_of
from augur.verl.engine import read_packed
from augur.verl.loss import MaskedLoss, masked_policy_loss
from reference import token_losses
from verl_cpu import (
    ADAM_EPSILON,
    PROMPT,
    RESPONSE,
    VOCAB,
    Qwen3ForCausalLM,
    actor_config,
    as_verl,
    as_verl_v1,
    make_batch,
    make_worker,
    one_process,
    save_model,
    tu,
)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    one_process(0)
    return save_model(tmp_path_factory.mktemp("model"))


def metrics_of(output):
    return {name: float(value[0]) for name, value in tu.get(output, "metrics").items() if isinstance(value, list)}


def response_logits(model, batch, temperature):
    logits = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=batch["position_ids"]
    ).logits
    return logits[:, PROMPT - 1 : -1] / temperature


def plain_loss(rule, model, batch, temperature=1.0):
    """The token mean of the losses from full logits."""
    rows = batch["response_mask"].bool() & (batch["teacher_ids"][:, PROMPT - 1 : -1, 0] >= 0)
    losses = token_losses(
        rule,
        response_logits(model, batch, temperature)[rows],
        batch["teacher_ids"][:, PROMPT - 1 : -1][rows],
        batch["teacher_logprobs"][:, PROMPT - 1 : -1][rows],
        batch["advantages"][rows],
    )
    return losses.sum() / batch["response_mask"].sum()


class PlainTrainer:
    """AdamW on the plain loss, with verl's settings."""

    def __init__(self, model_path, rule, temperature=1.0, lr=1e-2):
        self.model = Qwen3ForCausalLM.from_pretrained(model_path)
        self.rule, self.temperature = rule, temperature
        settings = dict(lr=lr, betas=(0.9, 0.999), weight_decay=0.0, eps=ADAM_EPSILON)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **settings)

    def update(self, batch):
        loss = plain_loss(self.rule, self.model, batch, self.temperature)
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item(), norm.item()


@functools.lru_cache
def cached_batch(model_path, **options):
    return make_batch(Qwen3ForCausalLM.from_pretrained(model_path), **options)


def check_updates(model_path, loss_mode, updates=4, temperature=1.0, equal=False, config=None, flags=None, **engine):
    config = actor_config(loss_mode, **(config or {}))
    worker = make_worker(model_path, config, **engine)
    plain = PlainTrainer(model_path, rule_of(config), temperature)
    batch = cached_batch(model_path, temperature=temperature, equal=equal)
    history = []
    for _ in range(updates):
        metrics = metrics_of(worker.train_mini_batch(as_verl(batch, temperature, **(flags or {}))))
        loss, norm = plain.update(batch)
        assert metrics["actor/pg_loss"] == pytest.approx(loss, abs=2e-6)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
        history.append(metrics)
    assert history[0]["mask/divergence"] < 1e-5 and history[0]["mask/masked"] == 0
    return history


# The reference written here knows KL and TV.
# reference.py has no windows that move with mu: test_rules.py holds those rules' decisions.
BY_REFERENCE = [mode for mode in LOSS_MODES if not any(word in mode for word in ("reverse", "ripo", "dcpo"))]


@pytest.mark.parametrize("loss_mode", BY_REFERENCE)
def test_four_updates_equal_plain_torch(model_path, loss_mode):
    history = check_updates(model_path, loss_mode)
    wide = ("augur_none", "augur_icepop", "augur_mis_token")  # four updates do not take a ratio that far
    assert loss_mode in wide or history[-1]["mask/masked"] > 0


@pytest.mark.parametrize(
    "options",
    [
        {"remove_padding": True},
        {"remove_padding": True, "temperature": 0.7},
        {"temperature": 0.7},
        {"remove_padding": True, "use_dynamic_bsz": True},
        {"equal": True},
        {"equal": True, "remove_padding": True},
        {"remove_padding": True, "pad_to_length": True, "pad_to_length_bucket": 32},
        {"flags": {"calculate_entropy": True}},
        {"strategy": "fsdp2", "micro_batch_size_per_gpu": 1},
        {"config": {"clip_ratio_low": 0.02, "clip_ratio_high": 0.2}},
    ],
    ids=str,
)
def test_layouts_and_settings_of_verl_change_nothing(model_path, options):
    check_updates(model_path, "augur_predictive_kl_exact", **options)


@pytest.mark.parametrize("equal", [False, True], ids=["ragged", "as long"])
@pytest.mark.parametrize("remove_padding", [False, True])
def test_batches_from_the_transfer_queue_train_alike(model_path, equal, remove_padding):
    config = actor_config()
    worker = make_worker(model_path, config, remove_padding=remove_padding)
    plain, batch = PlainTrainer(model_path, rule_of(config)), cached_batch(model_path, temperature=1.0, equal=equal)
    for _ in range(2):
        metrics = metrics_of(worker.train_mini_batch(as_verl_v1(batch)))
        loss, norm = plain.update(batch)
        assert metrics["actor/pg_loss"] == pytest.approx(loss, abs=2e-6)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("shards", [2, 3])
def test_shards_of_a_sequence_decide_as_the_whole(model_path, shards):
    batch = cached_batch(model_path, temperature=1.0, equal=False)
    data = as_verl(batch)
    g = torch.Generator().manual_seed(2)
    rows = data["input_ids"].values().shape[0]
    logits = 3 * torch.randn(1, rows, VOCAB, generator=g)
    loss = MaskedLoss(None, rule_of(actor_config("augur_predictive_kl_exact")))
    whole = read_packed(loss, logits, data)
    size = -(-rows // shards)
    padded = torch.nn.functional.pad(logits, (0, 0, 0, size * shards - rows))
    parts = [read_packed(loss, part, data, i, shards) for i, part in enumerate(padded.split(size, 1))]
    for name, expected in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts], 1)[:, :rows], expected), name


def test_metrics_do_not_depend_on_the_micro_batches(model_path):
    one, four = (check_updates(model_path, "augur", updates=2, micro_batch_size_per_gpu=size)[-1] for size in (4, 1))
    for name, value in one.items():
        if name.startswith("mask/") or name in ("actor/pg_clipfrac", "actor/ppo_kl"):
            assert value == pytest.approx(four[name], rel=1e-4, abs=1e-7), name


def test_tokens_without_support_get_no_gradient_and_are_counted(model_path):
    config = actor_config()
    worker, plain = make_worker(model_path, config), PlainTrainer(model_path, rule_of(config))
    batch = cached_batch(model_path).clone()
    batch["teacher_ids"][:, PROMPT], batch["teacher_logprobs"][:, PROMPT] = -1, -torch.inf
    metrics = metrics_of(worker.train_mini_batch(as_verl(batch)))
    loss, norm = plain.update(batch)
    assert metrics["actor/pg_loss"] == pytest.approx(loss, abs=2e-6)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert metrics["mask/missing"] == pytest.approx(4 / batch["response_mask"].sum().item())
    assert metrics["actor/pg_clipfrac"] == metrics["mask/masked"] == 0


@pytest.mark.parametrize("size", [4, 1])
def test_means_are_over_the_tokens_that_have_a_support(model_path, size):
    """The policy is that of the rollout: its ratio is 1, however many tokens lack a support."""
    batch = cached_batch(model_path).clone()
    batch["teacher_ids"][:2, PROMPT + 1 :], batch["teacher_logprobs"][:2, PROMPT + 1 :] = -1, -torch.inf
    worker = make_worker(model_path, actor_config(), micro_batch_size_per_gpu=size)
    metrics = metrics_of(worker.train_mini_batch(as_verl(batch)))
    assert metrics["mask/missing"] > 0.2 and metrics["mask/ratio"] == pytest.approx(1, abs=1e-4)


def test_criteria_do_not_disagree_on_a_token_whose_advantage_is_0(model_path):
    batch = cached_batch(model_path, drift=0.6).clone()
    config = actor_config("augur_predictive_kl_aggregated", clip_ratio_low=1e-4, clip_ratio_high=1e-4)
    some = metrics_of(make_worker(model_path, config).train_mini_batch(as_verl(batch)))
    batch["advantages"].zero_()
    none = metrics_of(make_worker(model_path, config).train_mini_batch(as_verl(batch)))
    assert some["mask/disagree"] > 0 and none["mask/disagree"] == none["mask/masked"] == 0
    assert none["mask/outside"] == pytest.approx(some["mask/outside"]) and none["mask/outside"] > 0


def test_a_mini_batch_no_token_of_which_counts_passes(model_path):
    batch = cached_batch(model_path).clone()
    batch["response_mask"].zero_()
    batch["teacher_ids"].fill_(-1)
    metrics = metrics_of(make_worker(model_path, actor_config()).train_mini_batch(as_verl(batch)))
    assert metrics["mask/masked"] == metrics["mask/missing"] == 0


def with_a_tool_and_padding(batch):
    """The third token of each response is a tool's, and the last sample one of those that verl appends to fill a batch:
    no token of it counts, and what stands for its support is none."""
    batch = batch.clone()
    batch["response_mask"][:, 2] = 0
    batch["teacher_ids"][:, PROMPT + 1], batch["teacher_logprobs"][:, PROMPT + 1] = -1, -torch.inf
    batch["old_log_probs"][:, 2] = 0
    batch["response_mask"][-1], batch["old_log_probs"][-1], batch["advantages"][-1] = 0, 0, 0
    batch["teacher_ids"][-1], batch["teacher_logprobs"][-1] = 1, 0
    return batch


@pytest.mark.parametrize("loss_mode", ["augur", "augur_predictive_tv_exact"])
@pytest.mark.parametrize("as_sent", [as_verl, as_verl_v1])
def test_what_nobody_sampled_has_no_part_in_loss_or_figures(model_path, loss_mode, as_sent):
    config = actor_config(loss_mode)
    worker, plain = make_worker(model_path, config, remove_padding=True), PlainTrainer(model_path, rule_of(config))
    batch = with_a_tool_and_padding(cached_batch(model_path, drift=0.6))
    rows = batch["response_mask"].bool()
    for _ in range(2):
        with torch.no_grad():
            log_pi = torch.log_softmax(response_logits(plain.model, batch, 1.0), -1)
        ratio = (log_pi.gather(2, batch["responses"][..., None])[..., 0] - batch["old_log_probs"])[rows].exp().mean()
        metrics = metrics_of(worker.train_mini_batch(as_sent(batch)))
        loss, norm = plain.update(batch)
        assert metrics["actor/pg_loss"] == pytest.approx(loss, abs=2e-6)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
        assert metrics["mask/missing"] == 0 and 0 < metrics["mask/masked"] < 1
        assert metrics["mask/ratio"] == pytest.approx(ratio.item(), rel=1e-4)


def with_a_filler(batch, row):
    """In the place of a sample one with which verl 0.9.0 fills a batch: an end of sequence as prompt and response, no
    token of which counts, and the support of the sample before it, in that one's length."""
    batch = batch.clone()
    inside = torch.zeros(PROMPT + RESPONSE, dtype=torch.int64)
    inside[PROMPT - 1 : PROMPT + 1] = 1
    batch["attention_mask"][row] = batch["input_ids"][row] = inside  # the token's id is 1
    batch["position_ids"][row] = (inside.cumsum(0) - 1).clamp(min=0)
    batch["prompts"][row], batch["responses"][row] = inside[:PROMPT], inside[PROMPT:]
    for key in ("response_mask", "old_log_probs", "advantages"):
        batch[key][row] = 0
    data = as_verl_v1(batch)
    for key in ("teacher_ids", "teacher_logprobs"):
        parts = list(data[key].unbind())
        parts[row] = parts[row - 1]
        equal = all(len(part) == len(parts[0]) for part in parts)
        data[key] = torch.stack(parts) if equal else torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    return batch, data


@pytest.mark.parametrize("equal", [False, True], ids=["ragged", "as long"])
def test_layouts_with_samples_that_fill_a_batch_leave_the_others_their_support(model_path, equal):
    config = actor_config()
    worker, plain = make_worker(model_path, config, remove_padding=True), PlainTrainer(model_path, rule_of(config))
    batch, data = with_a_filler(cached_batch(model_path, temperature=1.0, equal=equal), row=1)
    metrics = metrics_of(worker.train_mini_batch(data))
    loss, norm = plain.update(batch)
    assert metrics["mask/divergence"] < 1e-5 and metrics["mask/missing"] == 0
    assert metrics["actor/pg_loss"] == pytest.approx(loss, abs=2e-6)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_a_support_of_other_tokens_ends_the_run(model_path):
    batch = cached_batch(model_path, temperature=1.0, equal=True).clone()
    for key in ("teacher_ids", "teacher_logprobs"):
        batch[key] = batch[key].roll(1, 0)
    worker = make_worker(model_path, actor_config())
    with pytest.raises(RuntimeError, match="^support: the recorded tokens are not those of the batch"):
        worker.train_mini_batch(as_verl(batch))


def test_other_losses_run_as_in_verl_itself(model_path, monkeypatch):
    batch = cached_batch(model_path)
    ours = make_worker(model_path, actor_config("vanilla")).train_mini_batch(as_verl(batch))
    worker = make_worker(model_path, actor_config("vanilla"))
    monkeypatch.setattr(worker.engine, "__class__", FSDPEngineWithLMHead)
    theirs = worker.train_mini_batch(as_verl(batch))
    assert metrics_of(ours)["actor/pg_loss"] == metrics_of(theirs)["actor/pg_loss"]
    assert "mask/masked" not in metrics_of(ours)


def test_log_probs_without_a_loss_run_as_in_verl_itself(model_path):
    worker = make_worker(model_path, actor_config())
    output = worker.infer_batch(as_verl(cached_batch(model_path), compute_loss=False, global_token_num=None))
    assert "log_probs" in output


def refused(model_path, message, batch=None, config=None, **flags):
    worker = make_worker(model_path, actor_config(**(config or {})))
    with pytest.raises(ValueError, match=message):
        worker.train_mini_batch(as_verl(cached_batch(model_path) if batch is None else batch, **flags))


def test_missing_support_is_refused(model_path):
    batch = cached_batch(model_path).exclude("teacher_ids", "teacher_logprobs")
    refused(model_path, "^support: the batch has none; .*single_turn_agent or tool_agent, .*SupportMixin", batch)


def test_a_batch_none_of_whose_tokens_has_support_ends_the_run(model_path):
    batch = cached_batch(model_path).clone()
    batch["teacher_ids"].fill_(-1)
    refused(model_path, "^support: no token of the batch has one, so nothing would be learned", batch)


def test_fused_kernels_are_refused(model_path):
    refused(model_path, "use_fused_kernels: is True; .*set it to False", use_fused_kernels=True)


def test_distillation_is_refused(model_path):
    refused(model_path, "^distillation: .*distillation.enabled=False", distillation_use_topk=True)


def test_importance_weights_are_refused(model_path):
    batch = cached_batch(model_path).clone()
    batch["rollout_is_weights"] = torch.ones_like(batch["advantages"])
    refused(model_path, "^algorithm.rollout_correction: .*rollout_is=null", batch)


def test_the_loss_without_the_engine_is_refused():
    x = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="^augur loss: there is no mask .*the engine that decides is not Augur's"):
        masked_policy_loss(x, x, x, x)


def test_an_unknown_mode_of_augurs_names_those_there_are():
    with pytest.raises(ValueError, match="unknown mode 'augur_predictive'; Augur's are augur, .*augur_dppo_topk_kl"):
        rule_of(actor_config("augur_predictive"))


def test_thresholds_come_from_the_clip_ratios():
    rule = rule_of(actor_config("augur_predictive_tv_exact", clip_ratio_low=0.1, clip_ratio_high=0.2))
    assert (rule.proximity, rule.tail, rule.delta, rule.delta_negative) == ("tv", "exact", 0.2, 0.1)
    rule = rule_of(actor_config("augur", clip_ratio=0.3, clip_ratio_low=None, clip_ratio_high=None))
    assert (rule.delta, rule.delta_negative) == (0.3, 0.3)
    rule = rule_of(actor_config("augur_clip", clip_ratio_low=0.1, clip_ratio_high=0.2))
    assert (rule.proximity, rule.clip_low, rule.clip_high) == ("ratio", 0.1, 0.2)
