"""The agent loops through verl's own clients, synchronous and asynchronous, and a fake server."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
import ray
import torch
from omegaconf import OmegaConf
from ray import cloudpickle
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop import agent_loop as verl_agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, DictConfigWrap, _agent_loop_registry
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.schemas import ToolResponse
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

from augur.verl import AugurSingleTurnAgentLoop, AugurToolAgentLoop, SupportMixin, recording
from augur.verl.engine import flat_support
from verl_cpu import VOCAB  # noqa: F401  sets the platform
from verl_servers import FakeServer, make_client, remote

K = 4
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
)


def make_tokenizer():
    vocab = {token: i for i, token in enumerate(["<pad>", "<eos>", *"0123456789+=", *"aust"])}
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
        full_determinism=False,
        custom={"augur": {"support_size": K}},
        multi_turn={"max_user_turns": 3, "max_assistant_turns": 3, "max_parallel_calls": 1,
                    "max_tool_response_length": 9, "tool_response_truncate_side": "left", "format": "odd"},
    )  # fmt: skip
    return OmegaConf.create(
        {
            "actor_rollout_ref": {
                "actor": {"policy_loss": {"loss_mode": loss_mode}},
                "model": {"path": "none", "tokenizer_path": None},
                "rollout": settings | rollout,
            },
            "algorithm": {"rollout_correction": {"bypass_mode": True}},
            "data": {
                "apply_chat_template_kwargs": {},
                "mm_processor_kwargs": {},
                "continuous_token": {"enable": False, "model_family": None},
            },
        }
    )


def make_loop(server, config, loop_class, client_class):
    return loop_class(
        trainer_config=DictConfigWrap(config),
        server_manager=make_client(client_class, server, config),
        tokenizer=make_tokenizer(),
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
    )


PARAMS = dict(temperature=1.0, top_p=1.0, top_k=-1, repetition_penalty=1.0, logprobs=True)
PROMPT = [{"role": "user", "content": "12+34"}]


def run(
    server, config=None, temperature=1.0, loop_class=AugurSingleTurnAgentLoop, client_class=LLMServerClient, setup=None
):
    async def main():
        loop = make_loop(server, config or make_config(), loop_class, client_class)
        if setup is not None:
            setup(loop)
        return await loop.run(PARAMS | {"temperature": temperature}, raw_prompt=PROMPT)

    return asyncio.run(main())


def check_rows(output, server, sampled):
    """sampled: for each response token the number of the server's draw, None where nobody sampled it."""
    ids, logprobs = output.extra_fields["teacher_ids"], output.extra_fields["teacher_logprobs"]
    prompt = len(output.prompt_ids)
    assert ids.shape == logprobs.shape == (prompt + len(output.response_ids), K + 1)
    assert ids.dtype == torch.int32 and logprobs.dtype == torch.float32
    assert torch.all(ids[: prompt - 1] == -1) and torch.all(ids[-1] == -1)
    assert len(output.response_ids) == len(sampled)
    for t, draw in enumerate(sampled):
        row, values = ids[prompt - 1 + t], logprobs[prompt - 1 + t]
        used = row >= 0
        if draw is None:
            assert not used.any()
            continue
        assert row[0] == output.response_ids[t] == server.tokens[draw]
        assert set(row[used].tolist()) == set(server.top(draw)[0])
        torch.testing.assert_close(values[used], server.log_mu[draw, row[used].long()])


@pytest.mark.parametrize("client_class", [LLMServerClient, FullyAsyncLLMServerClient])
def test_the_support_travels_in_the_row_before_its_token(client_class):
    server = FakeServer([(5, 3, "completed")])
    output = run(server, client_class=client_class)
    check_rows(output, server, range(5))
    assert output.extra_fields["weight_versions"] == [3] * 5
    assert "support_ids" not in output.extra_fields
    assert len(server.requests) == 1 and server.requests[0][1]["logprobs"] == K


def test_a_response_that_a_weight_sync_cuts_keeps_its_support_and_knows_its_versions(monkeypatch):
    no_wait = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda _: no_wait(0))
    server = FakeServer([(2, 3, "aborted"), (0, 4, "aborted"), (3, 4, "completed")])
    output = run(server, client_class=FullyAsyncLLMServerClient)
    check_rows(output, server, range(5))
    assert output.extra_fields["weight_versions"] == [3, 3, 4, 4, 4]
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (3, 4)
    assert [len(prompt) for prompt, _ in server.requests] == [len(output.prompt_ids) + n for n in (0, 2, 2)]


@pytest.mark.parametrize("lengths", [(5, 3), (4, 4)], ids=["ragged", "as long"])
def test_verls_asynchronous_trainers_get_the_support_from_their_queue(lengths):
    """colocate_async and separate_async put what an agent loop returns into a queue, and the actor takes it out."""
    outputs = [run(FakeServer([(n, 3, "completed")]), client_class=FullyAsyncLLMServerClient) for n in lengths]
    expected = [torch.cat([o.extra_fields[name] for o in outputs]) for name in ("teacher_ids", "teacher_logprobs")]
    batch = tu.list_of_dict_to_tensordict(
        [o.as_dict() | {"input_ids": torch.tensor([*o.prompt_ids, *o.response_ids])} for o in outputs]
    )
    for ours, theirs in zip(flat_support(batch), expected, strict=True):
        assert torch.equal(ours, theirs)
    assert [fields["weight_versions"] for fields in batch["extra_fields"]] == [[3] * n for n in lengths]


def test_an_unknown_version_is_not_taken_for_a_known_one():
    output = run(FakeServer([(5, None, "completed")]))
    assert output.extra_fields["weight_versions"] == [-1] * 5


def test_long_responses_are_cut_with_their_support():
    server = FakeServer([(5, 3, "completed")])
    output = run(server, make_config(response_length=3))
    check_rows(output, server, range(3))


@ToolParser.register("odd")
class OddParser(ToolParser):
    """A turn whose first token's id is odd asks for a tool."""

    async def extract_tool_calls(self, responses_ids, tools=None):
        calls = [FunctionCall(name="add", arguments="{}")] if responses_ids[0] % 2 else []
        return self.tokenizer.decode(responses_ids), calls


def with_tool(loop):
    async def call_tool(*_):
        return ToolResponse(text="46"), 0.0, {}

    loop._call_tool = call_tool


def test_what_a_tool_wrote_has_no_support_and_what_follows_it_has():
    server = FakeServer([(3, 3, "completed"), (2, 4, "completed")])
    server.tokens[0], server.tokens[3] = 5, 4  # asks for the tool, then ends
    config = make_config(response_length=30)
    output = run(server, config, loop_class=AugurToolAgentLoop, client_class=FullyAsyncLLMServerClient, setup=with_tool)
    written = len(output.response_ids) - 5
    assert written > 0 and output.response_mask == [1] * 3 + [0] * written + [1] * 2
    check_rows(output, server, [0, 1, 2, *[None] * written, 3, 4])
    assert output.extra_fields["weight_versions"] == [3] * 3 + [-1] * written + [4] * 2


def test_each_of_several_outputs_finds_its_own_calls():
    class TwoOutputs(verl_agent_loop.AgentLoopBase):
        async def run(self, sampling_params, **kwargs):
            outputs = []
            for prompt, mask in (([3, 4], [1, 1, 1]), ([5, 6, 7], [1, 0])):
                out = await self.server_manager.generate("a", prompt_ids=prompt, sampling_params=sampling_params)
                outputs.append(
                    verl_agent_loop.AgentLoopOutput(
                        prompt_ids=prompt,
                        response_ids=out.token_ids,
                        response_mask=mask,
                        metrics={},
                    )
                )
            return outputs

    class Recording(SupportMixin, TwoOutputs):
        pass

    server = FakeServer([(3, 3, "completed"), (2, 3, "completed")])
    first, second = run(server, loop_class=Recording)
    check_rows(first, server, range(3))
    check_rows(second, server, [3, None])  # the loop itself leaves one out


def run_worker(server, validate, after):
    """verl's worker, up to what it does with an agent loop's output."""
    config = make_config()
    worker = AgentLoopWorker.__new__(AgentLoopWorker)
    worker.config, worker.llm_client, worker.tokenizer = (
        config,
        make_client(LLMServerClient, server, config),
        make_tokenizer(),
    )
    worker.processor = worker.hf_model_type = None
    worker.dataset_cls, worker.tools = RLHFDataset, []
    outputs = []

    async def keep(output, validate, **kwargs):
        await after(worker, output)
        outputs.append(output)

    worker._agent_loop_postprocess = keep
    trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": validate}
    asyncio.run(
        worker._run_agent_loop(PARAMS, trajectory, agent_name="single_turn_agent", trace=False, raw_prompt=PROMPT)
    )
    return outputs[0]


@pytest.mark.parametrize(("validate", "asked"), [(True, True), (False, K)])
def test_validation_is_known_even_at_the_temperature_of_training(validate, asked):
    async def nothing(*_):
        pass

    server = FakeServer([(5, 3, "completed")])
    output = run_worker(server, validate, nothing)
    assert server.requests[0][1]["logprobs"] == asked and type(server.requests[0][1]["logprobs"]) is type(asked)
    assert ("teacher_ids" in output.extra_fields) is ("weight_versions" in output.extra_fields) is not validate


def test_reward_functions_get_the_extra_fields_without_the_support():
    sent = []

    async def compute_score(data):
        sent.append(dict(data.non_tensor_batch["tool_extra_fields"][0]))
        return {"reward_score": 0.5, "reward_extra_info": {"exact": True}}

    async def score(worker, output):
        worker.reward_loop_worker_handles = [SimpleNamespace(compute_score=remote(compute_score))]
        await worker._compute_score([output], kwargs={})

    server = FakeServer([(5, 3, "completed")])
    output = run_worker(server, False, score)
    assert sent[0]["turn_scores"] == [] and not sent[0].keys() & {"teacher_ids", "teacher_logprobs", "weight_versions"}
    check_rows(output, server, range(5))
    assert output.reward_score == 0.5 and output.extra_fields["reward_extra_info"] == {"exact": True}
    assert output.extra_fields["weight_versions"] == [3] * 5


def test_a_greedy_baseline_carries_a_support_that_says_nothing():
    server = FakeServer([(5, 3, "completed")])
    output = run(server, temperature=0.0)
    assert torch.all(output.extra_fields["teacher_ids"] == -1)
    assert server.requests[0][1]["logprobs"] is True


def test_other_loss_modes_run_as_in_verl_itself():
    server = FakeServer([(5, 3, "completed")])
    output = run(server, make_config("vanilla", top_p=0.9))
    assert "teacher_ids" not in output.extra_fields and server.requests[0][1]["logprobs"] is True


def test_a_server_without_top_k_leaves_tokens_without_support_and_says_so_once(caplog, monkeypatch):
    monkeypatch.setattr(recording, "_noted", False)
    with caplog.at_level(logging.ERROR, "augur"):
        for _ in range(2):
            output = run(FakeServer([(5, 3, "completed")], support=False))
            assert torch.all(output.extra_fields["teacher_ids"] == -1)
    (line,) = [message for message in caplog.messages if message.startswith("support: ")]
    assert "gave no top-K log-probs" in line and "pip show augur-rl" in line


def test_log_probs_of_other_tokens_are_no_support(caplog, monkeypatch):
    monkeypatch.setattr(recording, "_noted", False)
    server = FakeServer([(5, 3, "completed")])
    generate = server.generate.remote

    async def swapped(**kwargs):
        output = await generate(**kwargs)
        output.extra_fields["support_ids"][:, 0] = (output.extra_fields["support_ids"][:, 0] + 1) % 14
        return output

    server.generate = remote(swapped)
    output = run(server)
    assert torch.all(output.extra_fields["teacher_ids"] == -1)
    (line,) = [message for message in caplog.messages if message.startswith("support: ")]
    assert "log-probs of other tokens than it returned" in line


def test_tokens_that_are_not_those_of_the_response_have_no_support():
    server = FakeServer([(5, 3, "completed")])
    generate = LLMServerClient.generate

    class EditingClient(LLMServerClient):
        async def generate(self, *args, **kwargs):
            output = await generate(self, *args, **kwargs)
            output.token_ids[2] = (output.token_ids[2] + 1) % 14
            return output

    output = run(server, client_class=EditingClient)
    assert (output.extra_fields["teacher_ids"][:, 0] >= 0).sum() == 2


def test_verl_starts_these_loops_under_its_own_names():
    assert _agent_loop_registry["single_turn_agent"]["_target_"].endswith("AugurSingleTurnAgentLoop")
    assert _agent_loop_registry["tool_agent"]["_target_"].endswith("AugurToolAgentLoop")


def test_ray_can_send_the_workers_that_know_of_validation():
    class Worker(AgentLoopWorker):
        """As verl's trainers have their own; Ray sends such a class with its methods, not by name."""

    sent = cloudpickle.dumps(ray.remote(Worker).__ray_metadata__.modified_class)
    assert {"_run_agent_loop", "_compute_score"} <= set(dir(cloudpickle.loads(sent)))
