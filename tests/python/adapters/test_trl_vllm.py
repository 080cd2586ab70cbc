"""The support through TRL's vLLM paths: ragged rows, the sampled token outside the top K, log-probs that are NaN."""

import pytest
import torch

from augur.trl import AugurGRPOTrainer
from fake_vllm import fake_vllm  # noqa: F401  a fixture
from tiny_trl import make_trainer


class LoggingTrainer(AugurGRPOTrainer):
    def _compute_loss(self, model, inputs):
        self.seen = [*getattr(self, "seen", []), inputs]
        return super()._compute_loss(model, inputs)


def history(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize(
    ("mode", "temperature", "one_pass"), [("colocate", 1.0, True), ("server", 0.7, True), ("colocate", 0.7, False)]
)
def test_support_from_vllm_follows_the_tokens_and_the_mask_trains(fake_vllm, tmp_path, mode, temperature, one_pass):  # noqa: F811
    engines = fake_vllm()
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


def test_a_server_with_raw_logprobs_is_refused(fake_vllm, tmp_path):  # noqa: F811
    fake_vllm(logprobs_mode="raw_logprobs")
    with pytest.raises(ValueError, match="restart it with --logprobs-mode processed_logprobs"):
        make_trainer(tmp_path, use_vllm=True, vllm_mode="server")


def test_colocate_refuses_more_logprobs_than_vllm_gives(tmp_path):
    with pytest.raises(ValueError, match="support_size: is 21; .* at most 20"):
        make_trainer(tmp_path, use_vllm=True, vllm_mode="colocate", support_size=21)
