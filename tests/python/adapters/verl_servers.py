"""Rollout servers behind verl's own clients: actor handles and a load balancer without Ray."""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from verl.workers.rollout.replica import TokenOutput

from augur.support import from_ranked

VOCAB = 14


def remote(function: Callable) -> SimpleNamespace:
    return SimpleNamespace(remote=function)


class FakeServer:
    """Samples from distributions of its own; with `logprobs` a number it gives the support as a recording server does.

    calls: what each call brings, as (number of tokens, version of the weights, stop reason).
    """

    def __init__(self, calls, support=True, top_k=4):
        g = torch.Generator().manual_seed(0)
        self.calls, self.support, self.top_k = list(calls), support, top_k
        self.log_mu = torch.log_softmax(2 * torch.randn(64, VOCAB, generator=g), -1)
        self.tokens = torch.randint(2, VOCAB, (64,), generator=g).tolist()
        self.next, self.requests = 0, []
        self.generate = remote(self._generate)

    def top(self, t):
        """Ids and log-probs of the t-th sampled token's row, the sampled one among them."""
        token, top = self.tokens[t], self.log_mu[t].topk(self.top_k)
        ids = top.indices.tolist()
        ids = ids if token in ids else [*ids, token]
        return ids, self.log_mu[t, ids].tolist()

    async def _generate(self, *, prompt_ids, sampling_params, request_id, **_):
        self.requests.append((list(prompt_ids), dict(sampling_params)))
        count, version, stop = self.calls.pop(0)
        rows = range(self.next, self.next + count)
        self.next += count
        tokens = [self.tokens[t] for t in rows]
        fields = {"global_steps": version}
        if self.support and type(sampling_params["logprobs"]) is int and tokens:
            size = sampling_params["logprobs"]
            recorded = from_ranked(tokens, *map(list, zip(*map(self.top, rows), strict=True)), size)
            fields |= {"support_ids": recorded.ids.numpy(), "support_logprobs": recorded.logprobs.numpy()}
        log_probs = [self.log_mu[t, token].item() for t, token in zip(rows, tokens, strict=True)]
        return TokenOutput(token_ids=tokens, log_probs=log_probs, stop_reason=stop, extra_fields=fields)


def make_client(client_class, server, config):
    """verl's client, with one server behind its load balancer."""

    async def acquire_server(request_id, **_):
        return "server", server

    async def no_fields():
        return []

    balancer = SimpleNamespace(
        acquire_server=remote(acquire_server),
        release_server=remote(lambda **_: None),
        require_acquire_fields=remote(no_fields),
        require_release_fields=remote(no_fields),
    )
    return client_class(config=config, load_balancer_handle=balancer)
