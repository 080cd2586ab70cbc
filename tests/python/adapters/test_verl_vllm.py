"""verl's own vLLM server with Augur's recording over a fake vLLM engine; the vllm package itself is mocked."""

import asyncio
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from verl.workers.rollout.replica import RolloutReplicaRegistry

from augur.verl.vllm_server import RecordingEngine
from verl_cpu import VOCAB  # noqa: F401  sets the platform


class MockModule(ModuleType):
    """Any attribute is a class of that name, so that verl's modules can import and derive from it."""

    __path__: list[str] = []
    __version__ = "0.24.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (MagicMock,), {})
        setattr(self, name, value)
        return value


class MockFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "vllm":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return MockModule(spec.name)

    def exec_module(self, module):
        pass


@pytest.fixture(scope="module")
def server_class():
    if importlib.util.find_spec("vllm"):
        pytest.skip("vllm is installed; the mock would hide it")
    finder, version = MockFinder(), importlib.metadata.version
    sys.meta_path.insert(0, finder)
    importlib.metadata.version = lambda name: MockModule.__version__ if name == "vllm" else version(name)
    try:
        replica = RolloutReplicaRegistry.get("vllm")
        assert replica.__name__ == "AugurVLLMReplica"
        from verl.workers.rollout.vllm_rollout import vllm_async_server

        from augur.verl.vllm_replica import AugurVLLMHttpServer

        vllm_async_server.SamplingParams = lambda **given: SimpleNamespace(**({"prompt_logprobs": None} | given))
        yield AugurVLLMHttpServer
    finally:
        sys.meta_path.remove(finder)
        importlib.metadata.version = version
        for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
            del sys.modules[name]


class FakeEngine:
    """Yields the growing output of one request, with vLLM's dictionaries of log-probs."""

    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.log_mu = torch.log_softmax(2 * torch.randn(6, 30, generator=g), -1)
        self.tokens = torch.randint(30, (6,), generator=g).tolist()
        self.asked = []

    async def generate(self, *, prompt, sampling_params, request_id, lora_request, priority):
        self.asked.append(sampling_params.logprobs)
        rows = []
        for t, token in enumerate(self.tokens):
            order = self.log_mu[t].argsort(descending=True).tolist()
            chosen = dict.fromkeys([token, *order[: sampling_params.logprobs or 0]])
            rows.append({i: SimpleNamespace(logprob=self.log_mu[t, i].item(), rank=order.index(i) + 1) for i in chosen})
            await asyncio.sleep(0)
            response = SimpleNamespace(token_ids=self.tokens[: t + 1], logprobs=list(rows), finish_reason="stop")
            yield SimpleNamespace(outputs=[response])

    def is_alive(self):
        return "yes"


def make_server(server_class):
    server = server_class.__new__(server_class)
    server.engine = FakeEngine()
    server.config = MagicMock(max_model_len=64, response_length=6, prompt_length=8, full_determinism=False)
    server.config.get = lambda name, default=None: default
    server.config.enable_rollout_routing_replay, server.config.mtp = False, None
    server.model_config = SimpleNamespace(processor=None, lora_rank=0, lora={})
    server._disaggregation_role, server._pd_decode_peers = "null", []
    server._submission_paused, server._admitting = False, 0
    server.global_steps, server.replica_rank = 7, 0
    return server


def ask(server, request_id, logprobs):
    return server.generate([3, 4, 5], dict(temperature=1.0, top_p=1.0, top_k=-1, logprobs=logprobs), request_id)


def test_a_number_of_logprobs_brings_the_support(server_class):
    server = make_server(server_class)
    engine = server.engine
    output = asyncio.run(ask(server, "a", 8))
    assert engine.asked == [8]
    assert output.token_ids == engine.tokens
    assert output.log_probs == [engine.log_mu[t, token].item() for t, token in enumerate(engine.tokens)]
    ids, logprobs = (torch.from_numpy(output.extra_fields[name]) for name in ("support_ids", "support_logprobs"))
    assert ids.shape == (6, 9) and ids[:, 0].tolist() == engine.tokens
    for t, (row, values) in enumerate(zip(ids, logprobs, strict=True)):
        used = row >= 0
        assert set(row[used].tolist()) == {engine.tokens[t], *engine.log_mu[t].topk(8).indices.tolist()}
        torch.testing.assert_close(values[used], engine.log_mu[t, row[used].long()])
    assert {8, 9} == set((ids >= 0).sum(1).tolist())


def test_true_asks_as_verl_does(server_class):
    server = make_server(server_class)
    engine = server.engine
    output = asyncio.run(ask(server, "a", True))
    assert engine.asked == [0] and "support_ids" not in output.extra_fields
    assert server.engine is engine


def test_requests_at_the_same_time_keep_apart_and_leave_nothing(server_class):
    server = make_server(server_class)

    async def both():
        return await asyncio.gather(ask(server, "a", 3), ask(server, "b", 5), ask(server, "c", True))

    first, second, third = asyncio.run(both())
    assert first.extra_fields["support_ids"].shape == (6, 4)
    assert second.extra_fields["support_ids"].shape == (6, 6)
    assert "support_ids" not in third.extra_fields
    assert server.engine.sizes == server.engine.outputs == {}


def test_the_rest_of_the_engine_is_as_it_was():
    assert RecordingEngine(FakeEngine()).is_alive() == "yes"
