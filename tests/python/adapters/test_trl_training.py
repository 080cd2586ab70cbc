"""AugurGRPOTrainer on a tiny model: what it records, what it decides, and what TRL then trains."""

import copy
import math

import pytest
import torch
from peft import LoraConfig, PromptEncoderConfig, PromptTuningConfig
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from augur import MaskRule
from augur.trl import AugurGRPOTrainer
from reference import token_losses
from tiny_trl import VOCAB, count_digits, make_data, make_qwen3, make_tokenizer, make_trainer

SMALL = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=1,
)


def full_logits(trainer, inputs, model=None):
    """[B, T, V] at the temperature, from the model's own forward."""
    model = model or trainer.model
    tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    length = inputs["completion_ids"].shape[1]
    return model(input_ids=tokens, attention_mask=mask).logits[:, -length - 1 : -1] / trainer.temperature


def plain_loss(trainer, model, inputs):
    """GRPO's and DAPO's reductions over token losses from full logits."""
    rows = inputs["completion_mask"].bool()
    advantages = inputs["advantages"][:, None].expand(rows.shape)
    losses = torch.zeros(rows.shape)
    losses[rows] = token_losses(
        trainer.rule,
        full_logits(trainer, inputs, model)[rows],
        inputs["support_ids"][rows],
        inputs["support_logprobs"][rows],
        advantages[rows],
    )
    if trainer.loss_type == "grpo":
        return (losses.sum(1) / rows.sum(1)).mean() / trainer.current_gradient_accumulation_steps
    share = trainer.current_gradient_accumulation_steps / trainer.args.steps_per_generation
    return losses.sum() / (inputs["num_items_in_batch"] * share)


class PlainTrainer(AugurGRPOTrainer):
    """The same rollouts; the loss from full logits in plain torch."""

    def _compute_loss(self, model, inputs):
        return plain_loss(self, model, inputs)


class LoggingTrainer(AugurGRPOTrainer):
    """Keeps the inputs of every loss."""

    def _compute_loss(self, model, inputs):
        self.seen = [*getattr(self, "seen", []), inputs]
        return super()._compute_loss(model, inputs)


def history(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_support_equals_a_full_forward(tmp_path, temperature):
    trainer = make_trainer(
        tmp_path, trainer_class=LoggingTrainer, temperature=temperature, max_steps=1, learning_rate=0
    )
    trainer.train()
    (inputs,) = trainer.seen
    with torch.no_grad():
        log_pi = torch.log_softmax(full_logits(trainer, inputs), -1)
    rows = inputs["completion_mask"].bool()
    ids, logprobs = inputs["support_ids"][rows].long(), inputs["support_logprobs"][rows]
    used = ids >= 0
    assert torch.equal(ids[:, 0], inputs["completion_ids"][rows])
    torch.testing.assert_close(logprobs[used], log_pi[rows].gather(1, ids.clamp(min=0))[used], rtol=0, atol=2e-5)
    for row, top in zip(ids, log_pi[rows].topk(20).indices, strict=True):
        assert set(row[row >= 0].tolist()) == {*top.tolist(), row[0].item()}
    assert torch.all(logprobs[:, 1:-1] >= logprobs[:, 2:])
    assert torch.all(inputs["support_ids"][~rows] == -1)


def gemma2():
    torch.manual_seed(1)
    return Gemma2ForCausalLM(Gemma2Config(**SMALL, final_logit_softcapping=0.5, query_pre_attn_scalar=8))


def cohere():
    torch.manual_seed(1)
    return CohereForCausalLM(CohereConfig(**{k: v for k, v in SMALL.items() if k != "head_dim"}, logit_scale=3.0))


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (make_qwen3, {}),
        (make_qwen3, {"one_pass": False}),
        (make_qwen3, {"one_pass": False, "temperature": 0.7}),
        (make_qwen3, {"one_pass": False, "gradient_checkpointing": True}),
        (make_qwen3, {"one_pass": False, "mask_rule": "predictive-kl-exact"}),
        (gemma2, {"one_pass": False, "temperature": 0.7}),
        (make_qwen3, {"temperature": 0.7}),
        (make_qwen3, {"gradient_checkpointing": True}),
        (make_qwen3, {"pad_to_multiple_of": 16}),
        (make_qwen3, {"mask_rule": "predictive-kl-exact"}),
        (make_qwen3, {"support_size": VOCAB + 5}),
        (lambda: make_qwen3(tie_word_embeddings=True), {}),
        (gemma2, {}),
        (gemma2, {"temperature": 0.7}),
        (cohere, {}),
        (cohere, {"cast_lm_head_to_fp32": True}),
    ],
    ids=str,
)
def test_first_step_diverges_by_rounding_alone(tmp_path, model, changes):
    # Wrong alignment after shuffling and splitting, or a wrong logit transform, would show as divergence.
    trainer = make_trainer(tmp_path, model=model(), max_steps=1, **changes)
    trainer.train()
    assert history(trainer, "mask/divergence")[0] < 1e-5
    assert history(trainer, "mask/ratio")[0] == pytest.approx(1, abs=1e-4)
    assert history(trainer, "mask/missing") == [0] and history(trainer, "mask/masked") == [0]


@pytest.mark.parametrize("one_pass", [True, False])
def test_bf16_first_step_diverges_by_bf16_rounding(tmp_path, one_pass):
    trainer = make_trainer(tmp_path, model=make_qwen3().to(torch.bfloat16), max_steps=1, one_pass=one_pass)
    trainer.train()
    assert history(trainer, "mask/divergence")[0] < 2e-4
    assert history(trainer, "mask/outside") == [0]


RULES = [
    MaskRule(delta=0.05),
    MaskRule(delta=0.05, tail="uniform"),
    MaskRule(delta=0.05, tail="exact"),
    MaskRule(delta=0.03, proximity="tv", tail="exact"),
    MaskRule.preset("dppo-topk-kl delta=0.05"),
    MaskRule.preset("dppo-binary-tv delta=0.01"),
    MaskRule.preset("clip"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.text)
@pytest.mark.parametrize(("loss_type", "one_pass"), [("grpo", True), ("dapo", True), ("dapo", False)])
def test_six_updates_equal_plain_torch(tmp_path, rule, loss_type, one_pass):
    model, reference = make_qwen3(), make_qwen3()
    settings = dict(mask_rule=rule, loss_type=loss_type, one_pass=one_pass, max_steps=6, temperature=0.9)
    # Without the epsilon, AdamW would make whole steps of what rounding leaves of a gradient that is nearly 0.
    settings |= dict(learning_rate=1e-2, adam_epsilon=1e-5)
    trainer = make_trainer(tmp_path, model=model, **settings)
    trainer.train()
    plain = make_trainer(tmp_path, model=reference, trainer_class=PlainTrainer, **settings)
    plain.train()
    assert 0 < max(history(trainer, "mask/masked")) < 1
    assert history(trainer, "loss") == pytest.approx(history(plain, "loss"), abs=2e-6)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_type": "grpo"},
        {"loss_type": "bnpo"},
        {"loss_type": "dr_grpo"},
        {"loss_type": "dapo"},
        {"loss_type": "dapo", "beta": 0.2, "use_bias_correction_kl": False},
        {"loss_type": "grpo", "beta": 0.2, "use_bias_correction_kl": False, "gradient_accumulation_steps": 2},
        {"loss_type": "dapo", "gradient_accumulation_steps": 4},
        {"mask_truncated_completions": True},
        {"mask_rule": MaskRule(delta=0.05, ratio_cap=1.02)},
    ],
    ids=str,
)
def test_one_pass_and_trls_own_head_train_alike(tmp_path, changes):
    settings = {"mask_rule": MaskRule(delta=0.04), "learning_rate": 1e-2} | changes
    trainers = [make_trainer(tmp_path, one_pass=one_pass, **settings) for one_pass in (True, False)]
    for trainer in trainers:
        torch.manual_seed(3)
        trainer.train()
    one, other = trainers
    assert one._head is not None and other._head is None
    for name in ("loss", "grad_norm", "entropy", "kl", "reward", "mask/masked", "mask/divergence", "mask/ratio"):
        assert history(one, name) == pytest.approx(history(other, name), rel=1e-3, abs=2e-5), name
    if "beta" in changes:
        return  # at the reference the KL's gradient is rounding alone, which Adam makes large
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("loss_type", ["bnpo", "dr_grpo", "luspo", "cispo", "sapo", "vespo"])
def test_every_loss_type_of_trl_trains_under_the_mask(tmp_path, loss_type):
    changes = {"epsilon_high": 5.0} if loss_type == "cispo" else {}
    trainer = make_trainer(tmp_path, loss_type=loss_type, **changes)
    trainer.train()
    assert max(history(trainer, "mask/masked")) > 0
    assert all(torch.isfinite(torch.tensor(history(trainer, "loss"))))


@pytest.mark.parametrize(
    "changes",
    [
        {"beta": 0.1},
        {"importance_sampling_level": "sequence"},
        {"num_iterations": 2},
        {"gradient_accumulation_steps": 2},
        {"entropy_coef": 0.01},
        {"top_entropy_quantile": 0.5},
        {"mask_truncated_completions": True},
        {"beta": 0.1, "num_iterations": 2},
    ],
    ids=str,
)
def test_other_features_of_trl_work_with_the_mask(tmp_path, changes):
    trainer = make_trainer(tmp_path, **changes)
    trainer.train()
    assert history(trainer, "mask/divergence")[0] < 1e-5
    assert all(torch.isfinite(torch.tensor(history(trainer, "loss"))))


def loss_and_gradients(trainer, ratio=None, **changes):
    """The loss of one batch and its gradient in the log-probs, [B, T]; `ratio` moves the recorded policy away."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._generate_and_score_completions([{"prompt": "1+1="}] * 8) | changes
    if ratio is not None:
        batch["support_logprobs"][..., 0] -= math.log(ratio)
    logprobs = []
    score = trainer._get_per_token_logps_and_entropies

    def keep_logprobs(*args, **kwargs):
        out = score(*args, **kwargs)
        out[0].retain_grad()
        logprobs.append(out[0])
        return out

    trainer._get_per_token_logps_and_entropies = keep_logprobs
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    return loss.item(), logprobs[-1].grad, batch


def test_a_masked_token_of_a_sequence_with_one_ratio_has_no_gradient(tmp_path):
    settings = dict(importance_sampling_level="sequence", loss_type="grpo", mask_rule="dppo-topk-kl delta=1e-9")
    trainer = make_trainer(tmp_path, **settings)
    decide, kept = trainer.get_off_policy_mask, []
    trainer.get_off_policy_mask = lambda **given: kept.append(decide(**given)) or kept[-1]
    advantages = torch.tensor([1.0, -1.0] * 4)
    _, gradient, batch = loss_and_gradients(trainer, ratio=1.5, advantages=advantages)
    counted, keep = batch["completion_mask"].bool(), kept[0].bool()
    assert (keep & counted).any() and (~keep & counted).any()
    assert (gradient[~keep] == 0).all() and (gradient[keep & counted] != 0).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_delta_cuts_large_ratios_of_bad_responses_alone(tmp_path, sign):
    trainer = make_trainer(tmp_path, delta=2.0, mask_rule="none")
    _, gradient, batch = loss_and_gradients(trainer, ratio=3.0, advantages=torch.full([8], sign))
    live = gradient[batch["completion_mask"].bool()] != 0
    assert live.all() if sign > 0 else not live.any()
    assert trainer.args.delta == 2.0


def test_kl_to_the_reference_model_is_measured_against_the_reference(tmp_path):
    trainer = make_trainer(tmp_path, beta=0.1, max_steps=2)
    trainer.train()
    first, second = history(trainer, "kl")
    assert abs(first) < 1e-6 < second


def test_lora_trains_the_adapter_alone(tmp_path):
    model = make_qwen3()
    before = copy.deepcopy(model.state_dict())
    trainer = make_trainer(
        tmp_path, model=model, peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]), learning_rate=0.3
    )
    trainer.train()
    divergence = history(trainer, "mask/divergence")
    assert divergence[0] < 1e-5 < divergence[-1]
    for name, value in trainer.model.get_base_model().state_dict().items():
        if name in before:
            assert torch.equal(value, before[name])


@pytest.mark.parametrize("one_pass", [True, False])
@pytest.mark.parametrize("peft_config", [PromptTuningConfig, PromptEncoderConfig])
def test_virtual_tokens_before_the_prompt_move_no_decision(tmp_path, peft_config, one_pass):
    virtual = peft_config(task_type="CAUSAL_LM", num_virtual_tokens=3)
    trainer = make_trainer(
        tmp_path, mask_rule="predictive-kl-exact", one_pass=one_pass, peft_config=virtual, learning_rate=0.3
    )
    trainer.train()
    divergence = history(trainer, "mask/divergence")
    assert divergence[0] < 1e-5 < divergence[-1]


@pytest.mark.parametrize("one_pass", [True, False])
def test_exact_tail_works_under_lora(tmp_path, one_pass):
    trainer = make_trainer(
        tmp_path,
        mask_rule="predictive-kl-exact",
        one_pass=one_pass,
        peft_config=LoraConfig(r=4, target_modules=["q_proj"]),
    )
    trainer.train()
    assert history(trainer, "mask/divergence")[0] < 1e-5


def test_metrics_are_means_over_tokens_whatever_the_micro_batches(tmp_path):
    # The same four micro-batches logged one by one and as one window.
    single = make_trainer(tmp_path, trainer_class=LoggingTrainer, learning_rate=1e-2)
    single.train()
    window = make_trainer(tmp_path, learning_rate=1e-2, logging_steps=4)
    window.train()
    tokens = torch.tensor([inputs["completion_mask"].sum() for inputs in single.seen])
    for name in ("mask/divergence", "mask/masked", "mask/outside", "mask/ratio"):
        mean = (torch.tensor(history(single, name)) * tokens).sum() / tokens.sum()
        assert history(window, name) == [pytest.approx(mean.item(), rel=1e-5)]


def test_evaluation_logs_the_mask_too(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1, per_device_eval_batch_size=8)
    trainer.train()
    trainer.evaluate(make_data(8))
    assert history(trainer, "eval_mask/divergence")[0] < 1e-5


class Forgetful(AugurGRPOTrainer):
    """Loses the support of every other token."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["support_ids"][:, 1::2], output["support_logprobs"][:, 1::2] = -1, -torch.inf
        return output


def test_one_pass_and_trls_own_head_give_tokens_without_support_no_kl(tmp_path):
    changes = {"beta": 0.5, "use_bias_correction_kl": False, "trainer_class": Forgetful}
    changes |= {"learning_rate": 1e-2, "adam_epsilon": 1e-5}  # at the reference the KL's gradient is rounding alone
    one, other = (make_trainer(tmp_path, one_pass=one_pass, **changes) for one_pass in (True, False))
    for trainer in (one, other):
        torch.manual_seed(3)
        trainer.train()
    for name in ("loss", "grad_norm", "kl", "mask/missing", "mask/masked"):
        assert history(one, name) == pytest.approx(history(other, name), rel=1e-3, abs=2e-5), name
    assert max(history(one, "kl")) > 1e-3


@pytest.mark.parametrize("one_pass", [True, False])
def test_tokens_without_support_get_no_gradient_and_are_counted(tmp_path, one_pass):
    trainer = make_trainer(tmp_path, trainer_class=Forgetful, max_steps=2, one_pass=one_pass)
    trainer.train()
    assert 0.3 < history(trainer, "mask/missing")[0] < 0.5
    assert all(torch.isfinite(torch.tensor(history(trainer, "loss"))))
    assert history(trainer, "mask/divergence")[0] < 1e-5


@pytest.mark.parametrize("one_pass", [True, False])
def test_capped_ratios_keep_their_gradient(tmp_path, one_pass):
    rule = MaskRule(proximity="none", direction="ratio", ratio_cap=1.05)
    trainer = make_trainer(tmp_path, mask_rule=rule, trainer_class=LoggingTrainer, max_steps=3, one_pass=one_pass)
    trainer.train()
    inputs = trainer.seen[-1]
    logprobs = torch.log_softmax(full_logits(trainer, inputs), -1).gather(2, inputs["completion_ids"][..., None])[
        ..., 0
    ]
    ratio = (logprobs - inputs["support_logprobs"][..., 0]).exp().detach()
    rows = inputs["completion_mask"].bool()
    assert (ratio[rows] > 1.05).any()
    coefficient = torch.where(rows, ratio.clamp(max=1.05), 0) * inputs["advantages"][:, None]
    expected = torch.autograd.grad(
        -(coefficient * logprobs).sum() / inputs["num_items_in_batch"] * 4, trainer.model.lm_head.weight
    )
    (got,) = torch.autograd.grad(trainer._compute_loss(trainer.model, inputs), trainer.model.lm_head.weight)
    torch.testing.assert_close(got, expected[0], rtol=1e-4, atol=1e-6)


def test_checkpoints_resume(tmp_path):
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=2)
    trainer.train()
    resumed = make_trainer(tmp_path, max_steps=6)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.state.global_step == 6


def test_a_compiled_model_reads_the_support_also_after_plain_trl_was_compiled(tmp_path):
    """torch.compile does not look at hooks: a graph of the same model without the reader's would be taken."""
    compiled = {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 1}
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 7}
    plain = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, save_strategy="no", report_to=[], **sizes, **compiled)
    GRPOTrainer(make_qwen3(), count_digits, plain, make_data(), processing_class=make_tokenizer()).train()
    trainer = make_trainer(tmp_path, one_pass=False, **compiled)
    trainer.train()
    assert history(trainer, "mask/divergence")[0] < 1e-5
