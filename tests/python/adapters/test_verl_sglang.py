"""verl's own SGLang server with Augur's recording over a fake tokenizer manager; the sglang package is mocked."""

import asyncio
import math
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from verl.workers.rollout import llm_server
from verl.workers.rollout.replica import RolloutReplicaRegistry

from augur.verl.sglang_server import RecordingManager
from mock_packages import mocked
from verl_cpu import VOCAB  # noqa: F401  sets the platform


@pytest.fixture(scope="module")
def server_class():
    with mocked("sglang", "vllm"):
        assert RolloutReplicaRegistry.get("sglang").__name__ == "AugurSGLangReplica"
        assert llm_server.get_rollout_replica_class("sglang", True).__name__ == "AugurSGLangPDReplica"
        from verl.workers.rollout.sglang_rollout import async_sglang_server

        from augur.verl.sglang_replica import AugurSGLangHttpServer

        async_sglang_server.GenerateReqInput = SimpleNamespace
        yield AugurSGLangHttpServer


class FakeManager:
    """Answers a request as SGLang 0.5.12 does: (log-prob, id, text) for the sampled token and, asked for, the top K."""

    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.log_mu = torch.log_softmax(2 * torch.randn(6, 30, generator=g), -1)
        self.tokens = torch.randint(30, (6,), generator=g).tolist()
        self.asked, self.lost_row = [], None

    async def generate_request(self, obj, request=None):
        self.asked.append((obj.return_logprob, getattr(obj, "top_logprobs_num", None)))
        await asyncio.sleep(0)
        sampled = [(self.log_mu[t, token].item(), token, None) for t, token in enumerate(self.tokens)]
        meta = {"finish_reason": {"type": "stop"}, "output_token_logprobs": sampled}
        if getattr(obj, "top_logprobs_num", None):
            tops = [row.topk(obj.top_logprobs_num) for row in self.log_mu]
            meta["output_top_logprobs"] = [
                None
                if t == self.lost_row
                else [(x, i, None) for x, i in zip(*map(torch.Tensor.tolist, top), strict=True)]
                for t, top in enumerate(tops)
            ]
        yield {"output_ids": list(self.tokens), "meta_info": meta}

    def is_alive(self):
        return "yes"


def make_server(server_class):
    server = server_class.__new__(server_class)
    server.tokenizer_manager = FakeManager()
    server.config = MagicMock(max_model_len=64, response_length=6, prompt_length=8)
    server.config.enable_rollout_routing_replay, server.config.mtp = False, None
    server.model_config = SimpleNamespace(processor=None, lora_rank=0, lora={})
    server._disaggregation_role, server._pd_decode_peers = "null", []
    server.global_steps, server.replica_rank = 7, 0
    return server


def ask(server, request_id, logprobs):
    return server.generate([3, 4, 5], dict(temperature=1.0, top_p=1.0, top_k=-1, logprobs=logprobs), request_id)


def check_support(output, manager, k):
    ids, logprobs = (torch.from_numpy(output.extra_fields[name]) for name in ("support_ids", "support_logprobs"))
    assert ids.shape == (6, k + 1) and ids[:, 0].tolist() == output.token_ids == manager.tokens
    for t, (row, values) in enumerate(zip(ids, logprobs, strict=True)):
        used = row >= 0
        assert set(row[used].tolist()) == {manager.tokens[t], *manager.log_mu[t].topk(k).indices.tolist()}
        torch.testing.assert_close(values[used], manager.log_mu[t, row[used].long()])


def test_a_number_of_logprobs_brings_the_top_k_of_generation(server_class):
    server = make_server(server_class)
    manager = server.tokenizer_manager
    output = asyncio.run(ask(server, "a", 8))
    assert manager.asked == [(True, 8)]  # one request: nothing is scored again
    check_support(output, manager, 8)
    assert output.log_probs == [manager.log_mu[t, token].item() for t, token in enumerate(manager.tokens)]


def test_true_asks_as_verl_does(server_class):
    server = make_server(server_class)
    manager = server.tokenizer_manager
    output = asyncio.run(ask(server, "a", True))
    assert manager.asked == [(True, None)] and "support_ids" not in output.extra_fields
    assert server.tokenizer_manager is manager


@pytest.mark.parametrize(
    "request_ids", [["a", "b", "c"], ["det-0"] * 3], ids=["ids", "one id, as full_determinism has"]
)
def test_requests_at_the_same_time_keep_apart(server_class, request_ids):
    server = make_server(server_class)

    async def all_at_once():
        sizes = (3, 5, True)
        return await asyncio.gather(*(ask(server, name, size) for name, size in zip(request_ids, sizes, strict=True)))

    first, second, third = asyncio.run(all_at_once())
    assert first.extra_fields["support_ids"].shape == (6, 4)
    assert second.extra_fields["support_ids"].shape == (6, 6)
    assert "support_ids" not in third.extra_fields


def test_a_token_whose_row_is_lost_keeps_its_own_log_prob_alone(server_class):
    server = make_server(server_class)
    manager = server.tokenizer_manager
    manager.lost_row = 0
    output = asyncio.run(ask(server, "a", 8))
    row = output.extra_fields["support_ids"][0]
    assert row[0] == manager.tokens[0] and (row[1:] == -1).all()
    assert math.isfinite(output.extra_fields["support_logprobs"][0, 0])


def test_with_prefill_and_decode_apart_the_decoding_server_gives_the_support(server_class):
    prefill, decode = make_server(server_class), make_server(server_class)
    manager = decode.tokenizer_manager
    peer = SimpleNamespace(generate=SimpleNamespace(remote=decode.generate))
    prefill._disaggregation_role, prefill._pd_decode_peers = "prefill", [peer]
    prefill._pd_bootstrap_host, prefill._disaggregation_bootstrap_port = "127.0.0.1", 1
    check_support(asyncio.run(ask(prefill, "a", 8)), manager, 8)


def test_the_rest_of_the_manager_is_as_it_was():
    assert RecordingManager(FakeManager()).is_alive() == "yes"
