"""The support through TRL's vLLM paths: ragged rows, the sampled token outside the top K, log-probs that are NaN."""

from types import SimpleNamespace

import pytest
import torch

from augur.trl import AugurGRPOTrainer
from augur.trl.vllm import server_info
from fake_vllm import fake_vllm  # noqa: F401  a fixture
from tiny_trl import make_trainer


class LoggingTrainer(AugurGRPOTrainer):
    def _compute_loss(self, model, inputs):
        self.seen = [*getattr(self, "seen", []), inputs]
        return super()._compute_loss(model, inputs)


def history(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize(
    ("mode", "temperature", "one_pass", "flat"),
    [
        ("colocate", 1.0, True, True),
        ("colocate", 1.0, True, False),
        ("server", 0.7, True, False),
        ("colocate", 0.7, False, True),
    ],
)
def test_support_from_vllm_follows_the_tokens_and_the_mask_trains(
    fake_vllm,  # noqa: F811
    tmp_path,
    mode,
    temperature,
    one_pass,
    flat,  # noqa: F811
):
    engines = fake_vllm(flat_logprobs=flat)
    trainer = make_trainer(
        tmp_path,
        trainer_class=LoggingTrainer,
        use_vllm=True,
        vllm_mode=mode,
        temperature=temperature,
        one_pass=one_pass,
        support_size=6,
        learning_rate=1e-1,
    )
    trainer.train()
    assert engines[0].outside_top > 10
    assert history(trainer, "mask/divergence")[0] < 1e-5 < history(trainer, "mask/divergence")[-1]
    assert history(trainer, "mask/missing") == [0] * 4
    assert max(history(trainer, "mask/masked")) > 0
    for inputs in trainer.seen:
        rows = inputs["completion_mask"].bool()
        ids, logprobs = inputs["support_ids"][rows], inputs["support_logprobs"][rows]
        assert torch.equal(ids[:, 0].long(), inputs["completion_ids"][rows])
        assert torch.equal(inputs["sampling_per_token_logps"][rows], logprobs[:, 0])
        assert {6, 7} == set((ids >= 0).sum(1).tolist())


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_tokens_whose_logprob_is_nan_are_excluded_and_counted(fake_vllm, tmp_path, mode):  # noqa: F811
    fake_vllm(nan_every=4)
    trainer = make_trainer(tmp_path, use_vllm=True, vllm_mode=mode, max_steps=2)
    trainer.train()
    assert 0.1 < history(trainer, "mask/missing")[0] < 0.5
    assert history(trainer, "mask/divergence")[0] < 1e-5
    assert all(torch.isfinite(torch.tensor(history(trainer, "loss"))))


def test_a_batch_none_of_whose_tokens_has_support_ends_the_run(fake_vllm, tmp_path):  # noqa: F811
    fake_vllm(nan_every=1)
    trainer = make_trainer(tmp_path, use_vllm=True, vllm_mode="colocate", max_steps=1)
    with pytest.raises(ValueError, match="^support: no token of the batch has one, so nothing would be learned"):
        trainer.train()


@pytest.mark.parametrize(
    ("info", "changes", "message"),
    [
        ({"model_config": {"logprobs_mode": "raw_logprobs"}}, {}, "runs with --logprobs-mode raw_logprobs"),
        (
            {"model_config": {"max_logprobs": 20}},
            {"support_size": 32},
            "gives at most 20 log-probs .*support_size is 32",
        ),
        ({"weight_transfer_config": None}, {}, "has no --weight-transfer-config"),
    ],
)
def test_a_server_started_without_what_the_mask_needs_is_refused(fake_vllm, tmp_path, info, changes, message):  # noqa: F811
    fake_vllm(**info)
    with pytest.raises(ValueError, match=f"^vllm server: {message}") as error:
        make_trainer(tmp_path, use_vllm=True, vllm_mode="server", **changes)
    for word in (
        "trl vllm-serve",
        "--max-logprobs -1",
        "--weight-transfer-config",
        "--logprobs-mode processed_logprobs",
    ):
        assert word in str(error.value)


def test_a_server_that_does_not_tell_its_settings_is_not_refused_but_named(caplog):
    class Client:
        """TRL 1.15's, of a server without its development endpoints."""

        base_url = "http://fake"
        session = SimpleNamespace(get=lambda *_, **__: SimpleNamespace(status_code=404))

    assert server_info(Client(), 32) == {}
    (line,) = caplog.messages
    assert line.startswith("vllm server: does not tell its settings (404 for /server_info); see that ")
    assert "--max-logprobs of at least 32" in line


def test_a_server_that_gives_as_many_as_asked_serves_more_than_twenty(fake_vllm, tmp_path):  # noqa: F811
    fake_vllm(model_config={"max_logprobs": -1}, weight_transfer_config={"backend": "nccl"})
    trainer = make_trainer(tmp_path, use_vllm=True, vllm_mode="server", support_size=32, max_steps=1)
    trainer.train()
    assert history(trainer, "mask/divergence")[0] < 1e-5


def test_colocate_refuses_more_logprobs_than_vllm_gives(tmp_path):
    with pytest.raises(ValueError, match="support_size: is 21; .* at most 20"):
        make_trainer(tmp_path, use_vllm=True, vllm_mode="colocate", support_size=21)
