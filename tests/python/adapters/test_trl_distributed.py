"""AugurGRPOTrainer on two Gloo ranks under DDP."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ranks import end_rank
from test_trl_training import history, plain_loss
from tiny_trl import AugurGRPOTrainer, make_trainer


class CheckedTrainer(AugurGRPOTrainer):
    """After each backward, compares the gradient that DDP averaged with that of the plain loss on both ranks' data."""

    def _compute_loss(self, model, inputs):
        self.inputs = inputs
        return super()._compute_loss(model, inputs)

    def training_step(self, model, inputs, num_items_in_batch):
        loss = super().training_step(model, inputs, num_items_in_batch)
        gathered = [None, None]
        dist.all_gather_object(gathered, self.inputs)
        plain = self.accelerator.unwrap_model(model)
        ours = [parameter.grad for parameter in plain.parameters()]
        assert self.loss_type == "dapo"  # whose num_items_in_batch spans both ranks, so the halves add up
        losses = sum(plain_loss(self, plain, part) for part in gathered)
        for got, expected in zip(ours, torch.autograd.grad(losses, list(plain.parameters())), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-6)
        self.compared = getattr(self, "compared", 0) + 1
        return loss


def train_rank(rank, port, directory):
    os.environ |= dict(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(1)
    trainer = make_trainer(directory, trainer_class=CheckedTrainer, ddp_backend="gloo", learning_rate=1e-2)
    trainer.train()
    assert dist.get_world_size() == 2 and trainer.compared == 4
    assert history(trainer, "mask/divergence")[0] < 1e-5
    assert max(history(trainer, "mask/masked")) > 0
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    other = weights.clone()
    dist.broadcast(other, 0)
    assert torch.equal(weights, other)
    metrics = [None, None]
    dist.all_gather_object(metrics, history(trainer, "mask/masked"))
    assert metrics[0] == metrics[1]
    end_rank()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_ranks_average_the_gradients_of_both_halves(tmp_path):
    mp.spawn(train_rank, (free_port(), tmp_path), nprocs=2)
