"""verl's own vLLM server with Augur's recording over a fake vLLM engine; the vllm package itself is mocked."""

import asyncio
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import ray
import torch
from ray import cloudpickle
from verl.workers.rollout import llm_server
from verl.workers.rollout.replica import RolloutReplicaRegistry

from augur import vllm
from augur.verl.vllm_server import RecordingEngine, RecordingServer
from mock_packages import mocked
from verl_cpu import VOCAB  # noqa: F401  sets the platform


@pytest.fixture(scope="module")
def server_class():
    with mocked("vllm"):
        assert RolloutReplicaRegistry.get("vllm").__name__ == "AugurVLLMReplica"
        # With prefill and decode apart verl asks a function, not the registry.
        assert llm_server.get_rollout_replica_class("vllm", True).__name__ == "AugurVLLMPDReplica"
        assert llm_server.get_rollout_replica_class("vllm").__name__ == "AugurVLLMReplica"
        from verl.workers.rollout.vllm_rollout import vllm_async_server

        from augur.verl.vllm_replica import AugurVLLMHttpServer

        vllm_async_server.SamplingParams = lambda **given: SimpleNamespace(**({"prompt_logprobs": None} | given))
        yield AugurVLLMHttpServer


class FlatRows:
    def __iter__(self):
        raise AssertionError("nobody should make an object of each entry")


class FakeEngine:
    """Yields the growing output of one request, with vLLM's dictionaries of log-probs."""

    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.log_mu = torch.log_softmax(2 * torch.randn(6, 30, generator=g), -1)
        self.tokens = torch.randint(30, (6,), generator=g).tolist()
        self.asked, self.flat = [], False

    def flat_rows(self, count, k):
        """vLLM's FlatLogprobs, which make objects only when they are read one by one."""
        rows = [[token, *self.log_mu[t].topk(k).indices.tolist()] for t, token in enumerate(self.tokens[:count])]
        flat = FlatRows()
        flat.start_indices = [t * (k + 1) for t in range(count)]
        flat.end_indices = [(t + 1) * (k + 1) for t in range(count)]
        flat.token_ids = [i for row in rows for i in row]
        flat.logprobs = [self.log_mu[t, i].item() for t, row in enumerate(rows) for i in row]
        return flat

    async def generate(self, *, prompt, sampling_params, request_id, lora_request, priority):
        self.asked.append(sampling_params.logprobs)
        rows = []
        for t, token in enumerate(self.tokens):
            order = self.log_mu[t].argsort(descending=True).tolist()
            chosen = dict.fromkeys([token, *order[: sampling_params.logprobs or 0]])
            rows.append({i: SimpleNamespace(logprob=self.log_mu[t, i].item(), rank=order.index(i) + 1) for i in chosen})
            await asyncio.sleep(0)
            last = t + 1 in (sampling_params.max_tokens, len(self.tokens))
            logprobs = list(rows) if not self.flat else self.flat_rows(t + 1, sampling_params.logprobs or 0)
            response = SimpleNamespace(token_ids=self.tokens[: t + 1], logprobs=logprobs, finish_reason="stop")
            yield SimpleNamespace(outputs=[response], finished=last, kv_transfer_params={"from": "prefill"})
            if last:
                return

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


@pytest.mark.parametrize("flat", [False, True], ids=["dictionaries", "flat lists"])
def test_a_number_of_logprobs_brings_the_support(server_class, monkeypatch, flat):
    server = make_server(server_class)
    engine = server.engine
    if flat:  # vLLM's parameters have such a field, and its engine heeds it
        from verl.workers.rollout.vllm_rollout import vllm_async_server

        params = vllm_async_server.SamplingParams
        with_flat = lambda **given: params(**given, flat_logprobs=False)  # noqa: E731
        monkeypatch.setattr(vllm_async_server, "SamplingParams", with_flat)
        engine.flat = True
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


def test_ray_can_send_the_server(server_class):
    sent = cloudpickle.dumps(ray.remote(server_class).__ray_metadata__.modified_class)
    assert issubclass(cloudpickle.loads(sent), RecordingServer)


def test_the_support_is_built_outside_the_servers_event_loop(server_class, monkeypatch):
    threads, support_of = [], vllm.support_of

    def note_thread(*args):
        threads.append(threading.current_thread())
        return support_of(*args)

    monkeypatch.setattr(vllm, "support_of", note_thread)
    asyncio.run(ask(make_server(server_class), "a", 4))
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


def test_log_probs_that_do_not_fit_leave_the_tokens_without_support_and_end_nothing(server_class, caplog):
    class ShortEngine(FakeEngine):
        async def generate(self, **kwargs):
            async for output in super().generate(**kwargs):
                output.outputs[0].logprobs = output.outputs[0].logprobs[:-1]
                yield output

    server = make_server(server_class)
    server.engine = ShortEngine()
    output = asyncio.run(ask(server, "a", 8))
    assert len(output.token_ids) == 6 and "support_ids" not in output.extra_fields
    (line,) = [message for message in caplog.messages if message.startswith("support: ")]
    assert "6 tokens stay without" in line and "\n" not in line


def test_with_prefill_and_decode_apart_the_decoding_server_gives_the_support(server_class):
    prefill, decode = make_server(server_class), make_server(server_class)
    decode.global_steps = 8
    peer = SimpleNamespace(generate=SimpleNamespace(remote=decode.generate))
    prefill._disaggregation_role, prefill._pd_decode_peers, prefill._pd_peer_idx = "prefill", [peer], 0
    prefill._disaggregation_kv_transfer_config = {}
    output = asyncio.run(ask(prefill, "a", 8))
    ids = torch.from_numpy(output.extra_fields["support_ids"])
    assert output.token_ids == ids[:, 0].tolist() == decode.engine.tokens and ids.shape == (6, 9)
    assert decode.engine.asked == [8] and output.extra_fields["global_steps"] == 8


def test_the_rest_of_the_engine_is_as_it_was():
    assert RecordingEngine(FakeEngine()).is_alive() == "yes"


@pytest.mark.parametrize(("stop", "text"), [([], False), (None, False), (["</answer>"], True)])
def test_vllm_makes_text_of_its_candidates_only_where_strings_stop_it(stop, text):
    params = SimpleNamespace(flat_logprobs=False, detokenize=True, stop=stop)
    vllm.ask_flat(params)
    assert params.flat_logprobs and params.detokenize == text
    older = SimpleNamespace(logprobs=3)
    vllm.ask_flat(older)
    assert vars(older) == {"logprobs": 3}
