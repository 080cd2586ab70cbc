"""What of verl's configuration the adapter refuses, its launch script, and its entry point."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass

from augur import guards
from augur.verl import rule_of
from augur.verl.agent_loop import check_config, support_size_of
from verl_cpu import PROMPT  # noqa: F401  sets the platform

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "python" / "examples" / "verl" / "qwen3_4b.sh"


def environment(**changes):
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | changes


@pytest.fixture(scope="module")
def script_config():
    """The configuration that the launch script gives verl, composed by verl's own entry point."""
    command = ["bash", SCRIPT, "4", "/models/Qwen3-4B-Base", "train.parquet", "val.parquet", "--cfg", "job"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return OmegaConf.create(done.stdout)


def test_the_launch_script_sets_the_papers_hyperparameters(script_config):
    actor, rollout = script_config.actor_rollout_ref.actor, script_config.actor_rollout_ref.rollout
    check_config(script_config)
    assert script_config.trainer.nnodes == 4 and script_config.trainer.n_gpus_per_node == 8
    assert script_config.data.train_batch_size == 64 and actor.ppo_mini_batch_size == 16
    assert (script_config.data.max_prompt_length, script_config.data.max_response_length) == (2048, 8192)
    assert actor.optim.lr == 1e-6 and actor.ppo_epochs == 1
    assert rollout.n == 8 and rollout.temperature == 1.0 and rollout.val_kwargs.n == 16
    assert support_size_of(rollout) == 20


def test_the_launch_script_becomes_verls_dataclasses(script_config):
    config = omega_conf_to_dataclass(script_config.actor_rollout_ref.actor)
    rule = rule_of(config)
    assert (rule.proximity, rule.direction, rule.tail) == ("kl", "predicted", "aggregated")
    assert rule.delta == rule.delta_negative == 0.15 and rule.action == "drop"
    assert support_size_of(omega_conf_to_dataclass(script_config.actor_rollout_ref.rollout)) == 20


def test_the_launch_script_says_how_it_is_used():
    done = subprocess.run(["bash", SCRIPT, "4"], capture_output=True, text=True)
    assert done.returncode == 2 and "qwen3_4b.sh NODES MODEL TRAIN.parquet VAL.parquet" in done.stderr


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
        ("actor_rollout_ref.rollout.custom.augur.support_size", 0, "custom.augur.support_size: is 0"),
        ("algorithm.rollout_correction.bypass_mode", False, "bypass_mode: is False, .*set it to True"),
        ("algorithm.rollout_correction.rollout_is", "token", "rollout_is: is token; .*set it to null"),
        ("algorithm.rollout_correction.rollout_rs", "token_k1", "rollout_rs: is token_k1; .*set it to null"),
        ("actor_rollout_ref.model.use_fused_kernels", True, "use_fused_kernels: hide the logits"),
        ("distillation.enabled", True, "distillation.enabled: "),
    ],
)
def test_refused_settings_name_the_key_the_reason_and_the_remedy(script_config, key, value, message):
    config = OmegaConf.create(OmegaConf.to_container(script_config))
    OmegaConf.update(config, key, value, force_add=True)
    with pytest.raises(ValueError, match=message):
        check_config(config)


def test_verl_finds_the_adapter_through_its_entry_point(tmp_path):
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["verl.plugins"]
    metadata = tmp_path / "augur-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: augur\nVersion: 0.1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entry.items())
    (metadata / "entry_points.txt").write_text(f"[verl.plugins]\n{lines}")
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
assert RolloutReplicaRegistry._registry["vllm"].__module__ == "augur.verl.vllm_server"
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(PYTHONPATH=str(tmp_path))
    )
    assert done.returncode == 0, done.stderr


def test_a_failure_to_load_is_not_silent(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import augur.guards as g\ndef fail(*args): raise ImportError('another version')\ng.check_version = fail\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import augur.verl"],
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=str(tmp_path)),
    )
    assert done.returncode != 0 and "augur.verl could not be loaded" in done.stderr


def test_another_version_is_refused():
    with pytest.raises(ImportError, match="augur works with verl 0.9.1, found 0.10.0; pip install verl==0.9.1"):
        guards.check_version("verl", "0.10.0", "0.9.1")
