"""What AugurGRPOConfig and AugurGRPOTrainer refuse, and how they say it."""

import functools
import subprocess
import sys

import pytest
import torch
import trl
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from peft import LoraConfig
from transformers import GPT2Config, GPT2LMHeadModel
from trl import GRPOConfig, GRPOTrainer, TrlParser

import augur.trl
from augur import MaskRule, guards
from augur.trl import AugurGRPOConfig, AugurGRPOTrainer
from augur.trl import trainer as trainer_module
from tiny_trl import count_digits, make_config, make_data, make_qwen3, make_tokenizer, make_trainer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_p": 0.9}, r"^top_p: is 0.9; .*softmax\(logits / temperature\); set top_p=1.0"),
        ({"top_k": 50}, r"^top_k: is 50; .*set top_k=0"),
        ({"top_k": None}, r"^top_k: is None; .*set top_k=0"),  # transformers' own is 50
        ({"min_p": 0.1}, r"^min_p: is 0.1; .*set min_p=None"),
        ({"repetition_penalty": 1.1}, r"^repetition_penalty: is 1.1; .*set repetition_penalty=1.0"),
        ({"temperature": 0.0}, r"^temperature: is 0.0; .*above 0"),
        ({"temperature": -1.0}, r"^temperature: is -1.0"),
        ({"temperature": float("nan")}, r"^temperature: is nan"),
        ({"generation_kwargs": {"top_p": 0.9}}, r"^generation_kwargs.top_p: is 0.9"),
        ({"generation_kwargs": {"top_k": 20}}, r"^generation_kwargs.top_k: is 20"),
        ({"generation_kwargs": {"min_p": 0.05}}, r"^generation_kwargs.min_p: is 0.05"),
        ({"generation_kwargs": {"repetition_penalty": 1.2}}, r"^generation_kwargs.repetition_penalty: is 1.2"),
        ({"generation_kwargs": {"temperature": 0.5}}, r"^generation_kwargs.temperature: is 0.5 while .* by 1.0"),
        ({"generation_kwargs": {"do_sample": False}}, r"^generation_kwargs.do_sample: is False"),
        ({"generation_kwargs": {"do_sample": None}}, r"^generation_kwargs.do_sample: is None"),
        ({"generation_kwargs": {"num_beams": 4}}, r"^generation_kwargs.num_beams: is 4"),
        ({"generation_kwargs": {"bad_words_ids": [[3]]}}, r"^generation_kwargs.bad_words_ids: may change"),
        ({"generation_kwargs": {"logit_bias": {3: 1.0}}}, r"^generation_kwargs.logit_bias: may change"),
        ({"support_size": 0}, r"^support_size: is 0"),
        ({"support_size": 2.5}, r"^support_size: is 2.5"),
        ({"support_size": "8"}, r"^support_size: is '8'"),
        ({"mask_rule": "predictive-kl-agregated"}, "predictive-kl-aggregated"),
        ({"mask_rule": "sapo"}, r"^mask_rule: is .sapo.; TRL.s loss follows rules that mask"),
        ({"mask_rule": ""}, r"^mask_rule: is empty; give"),
        ({"mask_rule": "  "}, r"^mask_rule: is empty; give"),
        ({"mask_rule": 3}, r"^mask_rule: is 3; give an augur.MaskRule"),
        ({"delta": 0.0}, r"^delta: is 0.0; it bounds the ratio where .*; set a number above 1"),
        ({"delta": 1.0}, r"^delta: is 1.0; it bounds the ratio"),
        ({"delta": float("inf")}, r"^delta: is inf; it bounds the ratio"),
        ({"mask_rule": "clip-dual", "delta": 2.0}, r"^delta: is 2.0; the rule has a dual_clip"),
        ({"vllm_importance_sampling_correction": True}, r"^vllm_importance_sampling_correction: is True; .* False"),
        ({"off_policy_mask_threshold": 0.5}, r"^off_policy_mask_threshold: is 0.5; mask_rule decides"),
        ({"use_transformers_continuous_batching": True}, r"^use_transformers_continuous_batching: .*no log-probs"),
        ({"vllm_structured_outputs_regex": "a+"}, r"^vllm_structured_outputs_regex: is 'a\+'"),
        ({"epsilon": 0.2}, r"^epsilon: is 0.2; .*mask_rule='clip clip_low=0.2 clip_high=0.28'"),
        ({"epsilon_high": 0.28}, r"^epsilon_high: is 0.28"),
        ({"loss_type": "cispo", "epsilon": 0.5}, r"^epsilon: is 0.5; cispo caps the ratio by epsilon_high alone"),
        ({"loss_type": "sapo", "epsilon": 0.3}, r"^epsilon: is 0.3; mask_rule takes the place"),
    ],
    ids=str,
)
def test_refused_settings_name_the_field_the_reason_and_the_remedy(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"generation_kwargs": {"top_p": 1.0, "top_k": -1, "max_new_tokens": 5}},
        {"top_k": -1, "min_p": 0.0},
        {"loss_type": "cispo", "epsilon_high": 5.0},
        {"mask_rule": "dppo-topk-kl delta=0.05"},
        {"mask_rule": MaskRule(proximity="tv", delta=0.1)},
    ],
    ids=str,
)
def test_neutral_settings_pass(tmp_path, changes):
    make_config(tmp_path, **changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_repeat_ngram_size", 3),
        ("suppress_tokens", [5]),
        ("typical_p", 0.9),
        ("min_new_tokens", 2),
        ("num_beams", 2),
        ("min_p", 0.1),
    ],
)
def test_a_models_own_defaults_that_bend_the_distribution_are_refused(tmp_path, name, value):
    model = make_qwen3()
    setattr(model.generation_config, name, value)
    with pytest.raises(
        ValueError, match=rf"^model.generation_config.{name}: is .*; set model.generation_config.{name}"
    ):
        make_trainer(tmp_path, model=model)


@pytest.mark.parametrize(
    ("model", "peft_config", "rate"),
    [
        ({"attention_dropout": 0.1}, None, "attention_dropout=0.1"),
        ({}, LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.05), "lora_dropout.default=0.05"),
    ],
)
def test_dropout_which_every_pass_draws_anew_is_told(tmp_path, caplog, model, peft_config, rate):
    make_trainer(tmp_path, model=make_qwen3(**model), peft_config=peft_config)
    (line,) = [m for m in caplog.messages if m.startswith("dropout: ")]
    assert rate in line and "set it to 0" in line


def test_dropout_that_is_off_is_not_told(caplog):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2))
    guards.warn_dropout(model)
    (line,) = [m for m in caplog.messages if m.startswith("dropout: ")]
    assert "=0.1; sampling and training" in line
    for module in model.modules():  # as TRL's disable_dropout does
        if isinstance(module, torch.nn.Dropout):
            module.p = 0
    caplog.clear()
    guards.warn_dropout(model)
    assert caplog.messages == []


def trainer_on_gpus(tmp_path, monkeypatch, settled):
    """A trainer on two GPUs, of which TRL's own constructor leaves `settled` in use."""
    init = GRPOTrainer.__init__

    @functools.wraps(init)
    def settle(self, *args, **kwargs):
        config._n_gpu = 1  # as TRL's own check wants it
        init(self, *args, **kwargs)
        config._n_gpu = settled

    config = make_config(tmp_path)
    config._n_gpu = 2
    monkeypatch.setattr(GRPOTrainer, "__init__", settle)
    return AugurGRPOTrainer(make_qwen3(), count_digits, config, make_data(), processing_class=make_tokenizer())


def test_several_gpus_in_one_process_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="^2 GPUs in one process: .*accelerate launch or torchrun"):
        trainer_on_gpus(tmp_path, monkeypatch, settled=2)


def test_a_model_spread_over_the_gpus_by_its_device_map_is_one_process_of_one_gpu(tmp_path, monkeypatch):
    trainer_on_gpus(tmp_path, monkeypatch, settled=1)


def test_a_plain_config_is_refused(tmp_path):
    args = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[])
    with pytest.raises(ValueError, match="^args: is a GRPOConfig; pass an AugurGRPOConfig"):
        AugurGRPOTrainer(make_qwen3(), count_digits, args)


def test_without_a_config_the_defaults_are_taken(tmp_path, monkeypatch):
    class OnCPU(AugurGRPOConfig):  # TRL's own defaults want a GPU
        def __init__(self, output_dir):
            super().__init__(output_dir, use_cpu=True, bf16=False, report_to=[])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainer_module, "AugurGRPOConfig", OnCPU)
    model = make_qwen3()
    model.config._name_or_path = "somebody/tiny"
    trainer = AugurGRPOTrainer(model, count_digits, train_dataset=make_data(), processing_class=make_tokenizer())
    assert isinstance(trainer.args, AugurGRPOConfig) and trainer.args.output_dir == "tiny-GRPO"
    assert trainer.rule == MaskRule.preset("predictive-kl-aggregated")


def test_a_batch_without_support_is_refused(tmp_path):
    trainer = make_trainer(tmp_path)
    with pytest.raises(ValueError, match="^support_ids: missing from the batch"):
        trainer._compute_loss(trainer.model, {"prompt_ids": torch.zeros(1, 1)})


def test_edited_completions_are_noticed(tmp_path):
    class Editing(AugurGRPOTrainer):
        def _generate_single_turn(self, *args, **kwargs):
            completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
            return [[(i + 1) % 60 for i in tokens] for tokens in completion_ids], logprobs

    with pytest.raises(RuntimeError, match="recorded tokens are not those of the batch"):
        make_trainer(tmp_path, trainer_class=Editing).train()


@pytest.mark.parametrize(
    ("version", "lines"), [("1.15.0", 0), ("1.16.0", 0), ("1.16.3", 0), ("1.14.2", 1), ("1.17.0", 1)]
)
def test_a_version_outside_the_tested_range_is_said_once_in_one_line(caplog, monkeypatch, version, lines):
    monkeypatch.setattr(guards, "_noted", set())
    for _ in range(2):
        guards.check_version("trl", version, guards.TESTED["trl"])
    assert len(caplog.messages) == lines
    for line in caplog.messages:
        assert line.startswith(f"trl {version}: ") and "pip install 'trl>=1.15,<1.17'" in line and "\n" not in line


def test_of_several_ranks_the_first_alone_says_it(caplog, monkeypatch):
    for rank in ("0", "1", "2"):
        monkeypatch.setattr(guards, "_noted", set())
        monkeypatch.setenv("RANK", rank)
        guards.check_version("trl", "1.14.2", guards.TESTED["trl"])
    assert len(caplog.messages) == 1


def test_importing_the_adapter_outside_the_range_writes_one_line():
    program = "import trl; trl.__version__ = '1.14.2'; import augur.trl, augur.trl.trainer"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "1.14.2" in line]
    assert line.startswith("trl 1.14.2: Augur's adapter is tested with trl >=1.15,<1.17; ")


def test_this_version_is_inside_the_tested_range():
    assert trl.__version__ in SpecifierSet(guards.TESTED["trl"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"loss_type": "sapo"}, "loss_type=sapo"),
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level=sequence"),
        ({"entropy_coef": 0.1}, "entropy_coef=0.1"),
        ({"delta": 2.0}, "delta=2.0"),
        ({"top_entropy_quantile": 0.5}, "top_entropy_quantile=0.5"),
        ({"cast_lm_head_to_fp32": True}, "cast_lm_head_to_fp32=True"),
        ({"beta": 0.1, "use_bias_correction_kl": True}, "use_bias_correction_kl=True with beta"),
    ],
    ids=str,
)
def test_a_fallback_from_one_pass_says_why_once(tmp_path, caplog, changes, reason):
    trainer = make_trainer(tmp_path, max_steps=2, **changes)
    trainer.train()
    (line,) = [m for m in caplog.messages if m.startswith("one_pass=True: ")]
    assert reason in line and "TRL's own head" in line
    assert [entry["mask/one_pass"] for entry in trainer.state.log_history if "mask/one_pass" in entry] == [0, 0]


@pytest.mark.skipif(Version(trl.__version__) >= Version("1.16"), reason="TRL has the layout that it needs")
def test_before_trl_1_16_the_asynchronous_trainer_says_what_it_needs():
    with pytest.raises(ImportError, match="^augur.trl.async_grpo: found trl 1.15.0 and needs 1.16; pip install"):
        augur.trl.AugurAsyncGRPOTrainer  # noqa: B018


@pytest.mark.parametrize(("one_pass", "logged"), [(True, 1), (False, 0)])
def test_what_was_asked_for_needs_no_line(tmp_path, caplog, one_pass, logged):
    trainer = make_trainer(tmp_path, max_steps=1, one_pass=one_pass)
    trainer.train()
    assert not [m for m in caplog.messages if m.startswith("one_pass")]
    assert [entry["mask/one_pass"] for entry in trainer.state.log_history if "mask/one_pass" in entry] == [logged]


class Partitioned(AugurGRPOTrainer):
    """After the forward the head has no rows, as under ZeRO-3."""

    def get_off_policy_mask(self, *args, **kwargs):
        head = self.model.get_output_embeddings()
        whole, head.weight.data = head.weight.data, torch.empty(0)
        try:
            return super().get_off_policy_mask(*args, **kwargs)
        finally:
            head.weight.data = whole


@pytest.mark.parametrize("rule", ["predictive-kl-uniform", "predictive-kl-exact"])
def test_decisions_do_not_read_the_vocabulary_off_a_partitioned_head(tmp_path, rule):
    settings = dict(one_pass=False, mask_rule=f"{rule} delta=0.02", learning_rate=1e-2)
    whole, parted = (make_trainer(tmp_path, trainer_class=c, **settings) for c in (AugurGRPOTrainer, Partitioned))
    for trainer in (whole, parted):
        torch.manual_seed(3)
        trainer.train()
    logged = [[e["mask/masked"] for e in t.state.log_history if "mask/masked" in e] for t in (whole, parted)]
    assert logged[0] == logged[1] and max(logged[0]) > 0


def test_the_config_parses_from_a_command_line_and_can_be_saved(tmp_path):
    (config,) = TrlParser(AugurGRPOConfig).parse_args_and_config(
        ["--output_dir", str(tmp_path), "--mask_rule", "dppo-topk-kl", "--support_size", "8", "--bf16", "false"]
    )
    assert MaskRule.preset(config.mask_rule) == MaskRule.preset("dppo-topk-kl") and config.support_size == 8
    assert "proximity=kl" in config.to_json_string()
