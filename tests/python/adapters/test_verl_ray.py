"""A Ray worker group of two ranks, as verl's trainer starts it, against plain torch on the whole batch."""

import os
from functools import partial
from pathlib import Path

import pytest
import ray
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

from augur.verl import rule_of
from test_verl_engine import PlainTrainer, metrics_of
from verl_cpu import (
    CPUTrainingWorker,
    Qwen3ForCausalLM,
    actor_config,
    as_verl,
    make_batch,
    ppo_loss,
    save_model,
    worker_config,
)

LR = 1e-3
HERE = Path(__file__).resolve().parent


@pytest.fixture
def cluster():
    path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ["PYTHONPATH"]])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


@ray.remote
def find_package():
    import augur

    return augur.__file__


def test_workers_have_the_package_of_this_checkout(cluster):
    assert ray.get(find_package.remote()) == str(HERE.parents[2] / "python" / "augur" / "__init__.py")


def test_two_ranks_update_as_one_process_does(cluster, tmp_path):
    model_path = save_model(tmp_path)
    config = actor_config()
    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
    worker_class = RayClassWithInitArgs(
        ray.remote(CPUTrainingWorker), worker_config(model_path, remove_padding=True, lr=LR)
    )
    group = RayWorkerGroup(pool, worker_class)
    group.reset()
    group.set_loss_fn(partial(ppo_loss, config=config))
    # A behaviour some way off masks from the first update on; small steps keep Adam from blowing up rounding.
    batch = make_batch(Qwen3ForCausalLM.from_pretrained(model_path), rows=8, drift=0.6)
    plain = PlainTrainer(model_path, rule_of(config), lr=LR)
    for _ in range(3):
        metrics = metrics_of(group.train_mini_batch(as_verl(batch)).get())
        loss, norm = plain.update(batch)
        assert metrics["actor/pg_loss"] == pytest.approx(loss, abs=5e-6)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
        assert 0 < metrics["mask/masked"] < 1
