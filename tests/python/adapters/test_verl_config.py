"""What of verl's configuration the adapter refuses, its launch script, and its entry point."""

import dataclasses
import functools
import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import verl
from omegaconf import OmegaConf
from packaging.specifiers import SpecifierSet
from verl.experimental.agent_loop import agent_loop
from verl.utils.config import omega_conf_to_dataclass

from augur import guards
from augur.verl import rule_of
from augur.verl.config import check_config, support_size_of
from verl_cpu import PROMPT  # noqa: F401  sets the platform

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "python" / "examples" / "verl"
SCRIPT = EXAMPLES / "qwen3_4b.sh"


def environment(**changes):
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | changes


def compose(*command):
    """The configuration that a launch script gives verl, composed by verl's own entry point."""
    done = subprocess.run(["bash", *command, "--cfg", "job"], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return OmegaConf.create(done.stdout)


@pytest.fixture(scope="module")
def script_config():
    return compose(SCRIPT, "4", "/models/Qwen3-4B-Base", "train.parquet", "val.parquet")


@pytest.fixture(scope="module", params=["e2e", "rollout"])
def fp8_config(request):
    script = EXAMPLES / "qwen3_30b_a3b_fp8.sh"
    config = compose(script, "4", request.param, "/models/Qwen3-30B-A3B-Base", "train.parquet", "val.parquet")
    return request.param, config


def check_hyperparameters(config, batch, group):
    """Those that the paper lists, and what verl and the adapter themselves make of the configuration."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    verl.utils.config.validate_config(config, use_reference_policy=False, use_critic=False)
    assert config.trainer.nnodes == 4 and config.trainer.n_gpus_per_node == 8
    assert config.data.train_batch_size == batch and actor.ppo_mini_batch_size == 16
    assert (config.data.max_prompt_length, config.data.max_response_length) == (2048, 8192)
    assert actor.optim.lr == 1e-6 and actor.ppo_epochs == 1
    assert rollout.n == group and rollout.temperature == 1.0 and rollout.val_kwargs.n == 16
    rule = rule_of(omega_conf_to_dataclass(actor))
    assert (rule.proximity, rule.direction, rule.tail) == ("kl", "predicted", "aggregated")
    assert rule.delta == rule.delta_negative == 0.15
    assert support_size_of(omega_conf_to_dataclass(rollout)) == support_size_of(rollout) == 20


def test_the_launch_script_sets_the_papers_hyperparameters(script_config):
    check_hyperparameters(script_config, batch=64, group=8)


def test_the_fp8_script_sets_the_papers_hyperparameters_and_precision(fp8_config):
    precision, config = fp8_config
    check_hyperparameters(config, batch=128, group=16)
    actor = config.actor_rollout_ref.actor
    assert actor.strategy == "megatron" and config.actor_rollout_ref.rollout.quantization == "fp8"
    overrides = OmegaConf.to_container(actor.megatron.override_transformer_config)
    transformer_config = pytest.importorskip("megatron.core.transformer.transformer_config").TransformerConfig
    known = {field.name for field in dataclasses.fields(transformer_config)}
    assert overrides.keys() <= known
    wanted = {"fp8": "e4m3", "fp8_recipe": "blockwise"} if precision == "e2e" else {}
    assert {name: value for name, value in overrides.items() if name.startswith("fp8")} == wanted


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("qwen3_4b.sh", ["4"]),
        ("qwen3_30b_a3b_fp8.sh", ["4", "e2e", "model"]),
        ("qwen3_30b_a3b_fp8.sh", ["4", "fp8", "model", "train", "val"]),
    ],
)
def test_launch_scripts_say_how_they_are_used(script, arguments):
    done = subprocess.run(["bash", EXAMPLES / script, *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and f"{script} NODES " in done.stderr and "TRAIN.parquet VAL.parquet" in done.stderr


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("actor_rollout_ref.rollout.top_p", 0.9, "rollout.top_p: is 0.9; .*set top_p=1.0"),
        ("actor_rollout_ref.rollout.top_k", 50, "rollout.top_k: is 50; .*set top_k=0"),
        ("actor_rollout_ref.rollout.min_p", 0.1, "rollout.min_p: is 0.1; .*set min_p=None"),
        ("actor_rollout_ref.rollout.repetition_penalty", 1.1, "rollout.repetition_penalty: is 1.1; .*=1.0"),
        ("actor_rollout_ref.rollout.do_sample", False, "rollout.do_sample: is False"),
        ("actor_rollout_ref.rollout.temperature", 0.0, "rollout.temperature: is 0.0; .*above 0"),
        ("actor_rollout_ref.rollout.calculate_log_probs", False, "calculate_log_probs: is False; .*set it to True"),
        ("actor_rollout_ref.rollout.logprobs_mode", "raw_logprobs", "logprobs_mode: .*set it to processed_logprobs"),
        (
            "actor_rollout_ref.rollout.engine_kwargs.vllm.logprobs_mode",
            "raw_logprobs",
            "engine_kwargs.vllm.logprobs_mode: is raw_logprobs; .*set it to processed_logprobs",
        ),
        ("actor_rollout_ref.rollout.custom.augur.support_size", 0, "custom.augur.support_size: is 0"),
        ("actor_rollout_ref.rollout.custom.augur", 20, "custom.augur: is 20; write custom.augur.support_size=20"),
        ("actor_rollout_ref.rollout.engine_kwargs.vllm.max_logprobs", 0, "is 20 and vLLM gives at most 0"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "augur-clip", "unknown mode 'augur-clip'"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "Augur", "unknown mode 'Augur'"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "augur_cispo", "augur_cispo is no mode: the rule does more"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "augur_gspo", "augur_gspo is no mode: the rule does more"),
        ("actor_rollout_ref.actor.clip_ratio_low", True, "actor.clip_ratio_low: is True; it is the mask's threshold"),
        ("actor_rollout_ref.rollout.custom.augur.support", 20, "custom.augur.support: there is no such setting"),
        ("actor_rollout_ref.actor.clip_ratio_high", 0, "actor.clip_ratio_high: is 0; it is the mask's threshold"),
        ("actor_rollout_ref.actor.clip_ratio_low", -1, "actor.clip_ratio_low: is -1; it is the mask's threshold"),
        ("algorithm.rollout_correction.bypass_mode", False, "bypass_mode: is False, .*set it to True"),
        ("algorithm.rollout_correction.rollout_is", "token", "rollout_is: is token; .*set it to null"),
        ("algorithm.rollout_correction.rollout_rs", "token_k1", "rollout_rs: is token_k1; .*set it to null"),
        ("actor_rollout_ref.model.use_fused_kernels", True, "use_fused_kernels: hide the logits"),
        ("distillation.enabled", True, "distillation.enabled: "),
        ("actor_rollout_ref.rollout.name", "trtllm", "rollout.name: is trtllm, .*set it to vllm or sglang"),
        ("actor_rollout_ref.rollout.custom.augur.support_size", 32, "is 32 and vLLM gives at most 20.*max_logprobs=32"),
        ("actor_rollout_ref.actor.strategy", "torchtitan", "actor.strategy: is torchtitan, .*fsdp, fsdp2, megatron"),
        ("trainer.device", "npu", "trainer.device: is npu; .*set it to cuda"),
        (
            "actor_rollout_ref.rollout.agent.default_agent_loop",
            "mine",
            "default_agent_loop: is mine, which is neither registered",
        ),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode",
            "augur_predictive_kl_tight",
            "augur_predictive_kl_tight is no mode, .*augur_predictive_kl_aggregated with actor.clip_ratio_low=0.05",
        ),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "augur_predictive", "unknown mode 'augur_predictive'"),
    ],
)
def test_refused_settings_name_the_key_the_reason_and_the_remedy(script_config, key, value, message):
    config = OmegaConf.create(OmegaConf.to_container(script_config))
    OmegaConf.update(config, key, value, force_add=True)
    with pytest.raises(ValueError, match=message):
        verl.utils.config.validate_config(config, use_reference_policy=False, use_critic=False)
    with pytest.raises(ValueError, match=message):
        verl.trainer.constants_ppo.get_ppo_ray_runtime_env(config)


def test_the_driver_prints_the_delta_in_use_where_it_is_not_the_presets(script_config, caplog, monkeypatch):
    monkeypatch.setattr(guards, "_noted", set())
    validate = functools.partial(verl.utils.config.validate_config, use_reference_policy=False, use_critic=False)
    config = OmegaConf.create(OmegaConf.to_container(script_config))
    validate(config)  # 0.15, as the preset has it
    assert not caplog.messages
    for name in ("clip_ratio_low", "clip_ratio_high"):
        config.actor_rollout_ref.actor[name] = None
    for _ in range(2):
        validate(config)
    assert len(caplog.messages) == 1
    assert "delta is 0.2 where A > 0 and 0.2 where A < 0" in caplog.text and "has 0.15" in caplog.text


@pytest.mark.parametrize("value", [0, 1.0, True, float("inf")])
def test_a_dual_clip_that_cannot_be_is_refused(script_config, value):
    config = OmegaConf.create(OmegaConf.to_container(script_config))
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "augur_clip_dual"
    check_config(config)
    OmegaConf.update(config, "actor_rollout_ref.actor.clip_ratio_c", value)
    with pytest.raises(ValueError, match="actor.clip_ratio_c: is .*; set a number above 1"):
        check_config(config)


def test_a_rule_without_a_threshold_takes_none(script_config):
    config = OmegaConf.create(OmegaConf.to_container(script_config))
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "augur_none"
    config.actor_rollout_ref.actor.clip_ratio_low = -3
    check_config(config)
    assert rule_of(config.actor_rollout_ref.actor).proximity == "none"


def test_more_log_probs_than_vllms_default_need_its_limit_raised(script_config):
    config = OmegaConf.create(OmegaConf.to_container(script_config))
    OmegaConf.update(config, "actor_rollout_ref.rollout.custom.augur.support_size", 32)
    OmegaConf.update(config, "actor_rollout_ref.rollout.engine_kwargs.vllm.max_logprobs", 32, force_add=True)
    check_config(config)


@pytest.mark.parametrize(
    ("base", "passes"), [("SupportMixin, SingleTurnAgentLoop", True), ("SingleTurnAgentLoop", False)]
)
def test_agent_loops_of_ones_own_must_send_the_support_along(script_config, tmp_path, monkeypatch, base, passes):
    module = f"loops_{passes}"
    (tmp_path / f"{module}.py").write_text(
        "from augur.verl import SupportMixin\n"
        "from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop\n"
        f"class Mine({base}): pass\n"
    )
    (tmp_path / "loops.yaml").write_text(f"- name: mine\n  _target_: {module}.Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = OmegaConf.create(OmegaConf.to_container(script_config))
    agent = config.actor_rollout_ref.rollout.agent
    agent.agent_loop_config_path, agent.default_agent_loop = str(tmp_path / "loops.yaml"), "mine"
    if passes:
        check_config(config)
    else:
        with pytest.raises(ValueError, match=f"^agent loop mine: {module}.Mine sends no support along; .*SupportMixin"):
            check_config(config)


@pytest.mark.parametrize("name", ["mine", "single_turn_agent"])
@pytest.mark.parametrize(
    ("base", "passes"), [("SupportMixin, SingleTurnAgentLoop", True), ("SingleTurnAgentLoop", False)]
)
def test_agent_loops_may_be_registered_in_a_module(script_config, tmp_path, monkeypatch, name, base, passes):
    monkeypatch.setattr(agent_loop, "_agent_loop_registry", dict(agent_loop._agent_loop_registry))
    module = f"registered_{name}_{passes}"
    (tmp_path / f"{module}.py").write_text(
        "from augur.verl import SupportMixin\n"
        "from verl.experimental.agent_loop.agent_loop import register\n"
        "from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop\n"
        f"@register('{name}')\nclass Mine({base}): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(module)  # as verl does for those in VERL_USE_EXTERNAL_MODULES
    config = OmegaConf.create(OmegaConf.to_container(script_config))
    config.actor_rollout_ref.rollout.agent.default_agent_loop = name
    if passes:
        check_config(config)
    else:
        with pytest.raises(ValueError, match=f"^agent loop {name}: {module}.Mine sends no support along"):
            check_config(config)


def test_sglangs_log_probs_must_have_the_temperature(script_config, monkeypatch):
    config = OmegaConf.create(OmegaConf.to_container(script_config))
    config.actor_rollout_ref.rollout.name, config.actor_rollout_ref.rollout.temperature = "sglang", 0.7
    check_config(config)
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "true")
    with pytest.raises(ValueError, match="^SGLANG_RETURN_ORIGINAL_LOGPROB: is set, .*unset it"):
        check_config(config)


def test_other_loss_modes_are_not_checked(script_config):
    config = OmegaConf.create(OmegaConf.to_container(script_config))
    config.actor_rollout_ref.actor.policy_loss.loss_mode, config.actor_rollout_ref.rollout.top_p = "vanilla", 0.9
    verl.utils.config.validate_config(config, use_reference_policy=False, use_critic=False)


@pytest.fixture
def installed(tmp_path):
    """The environment of a process in which verl finds the adapter installed."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["verl.plugins"]
    metadata = tmp_path / "augur_rl-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: augur-rl\nVersion: 0.1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entry.items())
    (metadata / "entry_points.txt").write_text(f"[verl.plugins]\n{lines}")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    return environment(PYTHONPATH=path)


def test_a_refused_setting_ends_the_driver_before_ray_starts(installed, tmp_path):
    done = subprocess.run(
        ["bash", SCRIPT, "4", "none", "t.parquet", "v.parquet", "actor_rollout_ref.rollout.top_p=0.9"],
        capture_output=True,
        text=True,
        env=installed,
        cwd=tmp_path,  # where hydra writes
    )
    assert done.returncode != 0
    assert "ValueError: actor_rollout_ref.rollout.top_p: is 0.9" in done.stderr
    assert "ray init kwargs" not in done.stdout


def test_verl_finds_the_adapter_through_its_entry_point(installed):
    program = """
import sys, verl
assert "augur.verl" in sys.modules
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.engine import EngineRegistry
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.workers.rollout.replica import RolloutReplicaRegistry
assert get_policy_loss_fn("augur").__module__ == "augur.verl.loss"
assert EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__ == "AugurFSDPEngine"
assert _agent_loop_registry["single_turn_agent"]["_target_"] == "augur.verl.agent_loop.AugurSingleTurnAgentLoop"
for name in ("vllm", "sglang"):
    assert RolloutReplicaRegistry._registry[name].__module__ == "augur.verl.replicas"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=installed)
    assert done.returncode == 0, done.stderr


def test_a_failure_to_load_is_not_silent(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['verl.trainer.constants_ppo'] = None\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", "import augur_verl"], capture_output=True, text=True, env=environment(PYTHONPATH=path)
    )
    assert done.returncode != 0 and "augur.verl could not be loaded" in done.stderr


def test_a_library_that_does_not_load_is_not_silent(installed, tmp_path):
    """verl itself notes a plug-in that fails at DEBUG."""
    (tmp_path / "sitecustomize.py").write_text("import torch\ntorch.__version__ = '2.99.0'\n")
    done = subprocess.run([sys.executable, "-c", "import verl"], capture_output=True, text=True, env=installed)
    assert "augur.verl could not be loaded" in done.stderr and "this is torch 2.99.0" in done.stderr, done.stderr


def test_a_version_outside_the_tested_range_is_said_once_by_the_driver(script_config, caplog, monkeypatch):
    monkeypatch.setattr(guards, "_noted", set())
    monkeypatch.setattr(verl, "__version__", "0.11.0")
    for _ in range(2):
        verl.utils.config.validate_config(script_config, use_reference_policy=False, use_critic=False)
    (line,) = [message for message in caplog.messages if message.startswith("verl ")]
    assert line.startswith("verl 0.11.0: ") and "pip install 'verl>=0.9,<0.10'" in line


def test_this_version_is_inside_the_tested_range():
    assert verl.__version__ in SpecifierSet(guards.TESTED["verl"])
