"""The agent loop with a fake server behind verl's own client interface."""

import asyncio

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from augur.support import from_ranked
from augur.verl.agent_loop import AugurSingleTurnAgentLoop, AugurToolAgentLoop
from verl_cpu import VOCAB  # noqa: F401  sets the platform

K = 4
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"


def make_tokenizer():
    vocab = {token: i for i, token in enumerate(["<pad>", "<eos>", *"0123456789+="])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE
    )


def make_config(loss_mode="augur", **rollout):
    settings = dict(
        name="vllm",
        prompt_length=16,
        response_length=5,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        calculate_log_probs=True,
        custom={"augur": {"support_size": K}},
        multi_turn={"max_user_turns": 1, "max_assistant_turns": 1, "max_parallel_calls": 1,
                    "max_tool_response_length": 1, "tool_response_truncate_side": "left", "format": "hermes"},
    )  # fmt: skip
    return OmegaConf.create(
        {
            "actor_rollout_ref": {
                "actor": {"policy_loss": {"loss_mode": loss_mode}},
                "model": {},
                "rollout": settings | rollout,
            },
            "algorithm": {"rollout_correction": {"bypass_mode": True}},
            "data": {"apply_chat_template_kwargs": {}, "mm_processor_kwargs": {}},
        }
    )


class FakeServer:
    """Answers as verl's clients do; log_mu[t] is the distribution of the response's token t."""

    def __init__(self, support=True, prompt_logprobs=True):
        g = torch.Generator().manual_seed(0)
        self.log_mu = torch.log_softmax(2 * torch.randn(5, 14, generator=g), -1)
        self.tokens = torch.randint(2, 14, (5,), generator=g).tolist()
        self.support, self.prompt_logprobs, self.requests = support, prompt_logprobs, []

    def top(self, t):
        top = self.log_mu[t].topk(K)
        return top.indices.tolist(), top.values.tolist()

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.requests.append(dict(sampling_params))
        fields = {"global_steps": 3, "min_global_steps": 3, "max_global_steps": 3}
        if "prompt_logprobs" in sampling_params:
            if self.prompt_logprobs:
                rows = [([0] * K, [0.0] * K)] * (len(prompt_ids) - 6)
                rows += [self.top(t) for t in range(5)] + [([0] * K, [0.0] * K)]
                fields["prompt_ids"], fields["prompt_logprobs"] = map(list, zip(*rows, strict=True))
            return TokenOutput(token_ids=[0], log_probs=None, extra_fields=fields)
        if self.support and type(sampling_params["logprobs"]) is int:
            rows = [self.top(t) for t in range(5)]
            rows = [
                (ids, values) if token in ids else ([*ids, token], [*values, self.log_mu[t, token].item()])
                for t, (token, (ids, values)) in enumerate(zip(self.tokens, rows, strict=True))
            ]
            recorded = from_ranked(self.tokens, *map(list, zip(*rows, strict=True)), K)
            fields |= {"support_ids": recorded.ids.numpy(), "support_logprobs": recorded.logprobs.numpy()}
        log_probs = [self.log_mu[t, token].item() for t, token in enumerate(self.tokens)]
        return TokenOutput(token_ids=self.tokens, log_probs=log_probs, extra_fields=fields)


def run(server, config=None, temperature=1.0, loop_class=AugurSingleTurnAgentLoop):
    config = config or make_config()

    async def main():
        loop = loop_class(
            trainer_config=DictConfigWrap(config),
            server_manager=server,
            tokenizer=make_tokenizer(),
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
        )
        params = dict(temperature=temperature, top_p=1.0, top_k=-1, repetition_penalty=1.0, logprobs=True)
        return await loop.run(params, raw_prompt=[{"role": "user", "content": "12+34"}])

    return asyncio.run(main())


@pytest.mark.parametrize("support", [True, False], ids=["recorded", "scored again"])
def test_the_support_travels_in_the_row_before_its_token(support):
    server = FakeServer(support)
    output = run(server)
    ids, logprobs = output.extra_fields["teacher_ids"], output.extra_fields["teacher_logprobs"]
    prompt = len(output.prompt_ids)
    assert output.response_ids == server.tokens and ids.shape == logprobs.shape == (prompt + 5, K + 1)
    assert ids.dtype == torch.int32 and logprobs.dtype == torch.float32
    assert torch.all(ids[: prompt - 1] == -1) and torch.all(ids[-1] == -1)
    for t, token in enumerate(server.tokens):
        row, values = ids[prompt - 1 + t], logprobs[prompt - 1 + t]
        used = row >= 0
        assert row[0] == token and set(row[used].tolist()) == {token, *server.top(t)[0]}
        torch.testing.assert_close(values[used], server.log_mu[t, row[used].long()])
    assert len(server.requests) == (1 if support else 2)
    assert "support_ids" not in output.extra_fields
    assert server.requests[0]["logprobs"] == K and type(server.requests[0]["logprobs"]) is int


def test_long_responses_are_cut_with_their_support():
    output = run(FakeServer(), make_config(response_length=3))
    assert len(output.response_ids) == 3
    assert output.extra_fields["teacher_ids"].shape[0] == len(output.prompt_ids) + 3


def test_validation_carries_a_support_that_says_nothing():
    server = FakeServer()
    output = run(server, temperature=0.0)
    assert torch.all(output.extra_fields["teacher_ids"] == -1)
    assert server.requests[0]["logprobs"] is True


def test_other_loss_modes_run_as_in_verl_itself():
    server = FakeServer()
    output = run(server, make_config("vanilla", top_p=0.9))
    assert "teacher_ids" not in output.extra_fields and server.requests[0]["logprobs"] is True


def test_scoring_again_needs_temperature_one():
    with pytest.raises(ValueError, match="rollout.temperature: is 0.7; .*knows temperature 1 alone"):
        run(FakeServer(support=False), make_config(temperature=0.7), temperature=0.7)


def test_a_server_without_any_top_k_is_refused():
    with pytest.raises(ValueError, match="^support: the server gives neither top-K log-probs nor prompt log-probs"):
        run(FakeServer(support=False, prompt_logprobs=False))


def test_responses_from_several_weights_are_refused():
    class Partial(FakeServer):
        async def generate(self, *args, **kwargs):
            output = await super().generate(*args, **kwargs)
            output.extra_fields["max_global_steps"] = 4
            return output

    with pytest.raises(ValueError, match="sampled from several versions of the weights"):
        run(Partial(support=False))


def test_a_support_of_other_tokens_is_refused():
    class Shifted(FakeServer):
        async def generate(self, *args, **kwargs):
            output = await super().generate(*args, **kwargs)
            output.extra_fields["support_ids"] = np.roll(output.extra_fields["support_ids"], 1, 0)
            return output

    with pytest.raises(ValueError, match="recorded tokens are not those of the response"):
        run(Shifted())


def test_a_refused_setting_stops_the_loop():
    with pytest.raises(ValueError, match="rollout.top_p: is 0.9"):
        run(FakeServer(), make_config(top_p=0.9))


def test_tools_are_refused():
    with pytest.raises(ValueError, match="^agent loop tool_agent: .*tokens nobody sampled"):
        run(FakeServer(), loop_class=AugurToolAgentLoop)


def test_verl_starts_these_loops_under_its_own_names():
    assert _agent_loop_registry["single_turn_agent"]["_target_"].endswith("AugurSingleTurnAgentLoop")
    assert _agent_loop_registry["tool_agent"]["_target_"].endswith("AugurToolAgentLoop")
