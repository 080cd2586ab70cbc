"""vLLM behind TRL's own client code: the trainer's model samples, and answers take the shapes of vLLM 0.24."""

from types import SimpleNamespace

import pytest
import torch
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient


class FakeEngine:
    """Samples with the model as it is and lists, as vLLM does, the top K of each step and the sampled token."""

    def __init__(self, model, nan_every: int = 0):
        self.model, self.nan_every = model, nan_every
        self.outside_top = self.steps = 0
        self.generator = torch.Generator().manual_seed(3)

    @torch.no_grad()
    def complete(self, prompt, max_tokens, temperature, logprobs):
        """Token ids, and for each the dictionary token -> (rank, log-prob)."""
        was_training = self.model.training
        self.model.eval()
        tokens, rows = [], []
        while len(tokens) < max_tokens and 1 not in tokens:
            logits = self.model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, -1]
            log_mu = torch.log_softmax(logits.float() / temperature, -1)
            token = torch.multinomial(log_mu.exp(), 1, generator=self.generator).item()
            order = log_mu.argsort(descending=True).tolist()
            row = {i: (rank + 1, log_mu[i].item()) for rank, i in enumerate(order[:logprobs])}
            self.outside_top += token not in row
            row = {token: (order.index(token) + 1, log_mu[token].item())} | row
            self.steps += 1
            if self.nan_every and self.steps % self.nan_every == 0:
                row[token] = (row[token][0], float("nan"))
            tokens.append(token)
            rows.append(row)
        self.model.train(was_training)
        return tokens, rows


def flat(tokens, rows):
    """vLLM's FlatLogprobs: the sampled token's entry first, and once more among the top K where it is one of them."""
    lists = SimpleNamespace(start_indices=[], end_indices=[], token_ids=[], logprobs=[])
    for token, row in zip(tokens, rows, strict=True):
        top = sorted(row.items(), key=lambda item: item[1][0])
        top = top[:-1] if top[-1][0] == token and top[-1][1][0] > len(top) - 1 else top
        lists.start_indices.append(len(lists.token_ids))
        for i, (_, x) in [(token, row[token]), *top]:
            lists.token_ids.append(i)
            lists.logprobs.append(x)
        lists.end_indices.append(len(lists.token_ids))
    return lists


class FakeLLM:
    """vllm.LLM as colocate mode calls it."""

    def __init__(self, engine):
        self.engine = engine
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=128))

    def generate(self, prompts, sampling_params, use_tqdm):
        return [self._request(prompt["prompt_token_ids"], sampling_params) for prompt in prompts]

    def _request(self, prompt, params):
        tokens, rows = self.engine.complete(prompt, params.max_tokens, params.temperature, params.logprobs)
        logprobs = [{i: SimpleNamespace(rank=rank, logprob=x) for i, (rank, x) in row.items()} for row in rows]
        if getattr(params, "flat_logprobs", False):
            logprobs = flat(tokens, rows)
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[SimpleNamespace(token_ids=tokens, logprobs=logprobs)])


def make_client(engine, info: dict) -> VLLMClient:
    """TRL's client with its HTTP calls answered here, in the shape of /v1/completions."""

    def post(url, json):
        choices = []
        for prompt in json["prompt"]:
            for _ in range(json["n"]):
                tokens, rows = engine.complete(prompt, json["max_tokens"], json["temperature"], json["logprobs"])
                choices.append(
                    {
                        "prompt_token_ids": prompt,
                        "token_ids": tokens,
                        "logprobs": {
                            "tokens": [f"token_id:{t}" for t in tokens],
                            "token_logprobs": [row[t][1] for t, row in zip(tokens, rows, strict=True)],
                            "top_logprobs": [{f"token_id:{i}": x for i, (_, x) in row.items()} for row in rows],
                        },
                    }
                )
        return {"choices": choices}

    def get(url, params):
        assert url == "http://fake/server_info" and params == {"config_format": "json"}
        config = {"model_config": {"logprobs_mode": "processed_logprobs"}} | info
        return SimpleNamespace(
            status_code=200, raise_for_status=lambda: None, json=lambda: {"vllm_config": config, "vllm_env": {}}
        )

    client = VLLMClient.__new__(VLLMClient)
    client.base_url, client.model, client._post = "http://fake", "tiny", post
    client.session = SimpleNamespace(get=get)
    return client


@pytest.fixture
def fake_vllm(monkeypatch):
    """Installs the fake; the call returns a list that receives the engine once a trainer makes one."""

    def install(nan_every=0, flat_logprobs=True, **info):
        engines = []

        def init(generation):
            engine = FakeEngine(generation.model, nan_every)
            engines.append(engine)
            if generation.mode == "server":
                generation.vllm_client = make_client(engine, info)
            else:
                generation.llm = FakeLLM(engine)

        monkeypatch.setattr(vllm_generation.VLLMGeneration, "_init_vllm", init)
        monkeypatch.setattr(vllm_generation.VLLMGeneration, "sync_weights", lambda self: None)
        defaults = {"flat_logprobs": False} if flat_logprobs else {}  # older ones have no such thing
        params = lambda **given: SimpleNamespace(**(defaults | given))  # noqa: E731
        monkeypatch.setattr(vllm_generation, "SamplingParams", params, raising=False)
        return engines

    return install
