"""What AsyncGRPOTrainer talks to, on a CPU: a vLLM server over HTTP that samples with a copy of the model, the transfer
of weights to it, and TRL's attention kernel for packed samples in plain torch."""

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from tokenizers import decoders
from trl.experimental.async_grpo import async_grpo_trainer, async_rollout_worker, packing

from fake_vllm import FakeEngine
from tiny_trl import Dataset, make_qwen3, make_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}"
    "{% for c in m.get('tool_calls') or [] %}{{ c['function']['arguments']['name'] }}{% endfor %}{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)
# A completion that begins with a capital letter asks for the tool, with that letter.
SCHEMA = {
    "type": "object",
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": "string", "x-regex": r"^[A-Z]?(.*?)(?:<eos>)?$"},
        "tool_calls": {
            "type": "array",
            "x-regex-iterator": r"^([A-Z])",
            "items": {
                "type": "object",
                "properties": {
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "properties": {
                            "name": {"const": "look_up"},
                            "arguments": {
                                "type": "object",
                                "properties": {"name": {"type": "string", "x-regex": "^(.)"}},
                            },
                        },
                    },
                },
            },
        },
    },
}


def look_up(name: str) -> str:
    """Looks something up.

    Args:
        name: What to look up.
    """
    return name * 2


class Library:
    """An environment with the tool, a prompt and a reward of its own."""

    def reset(self, **_) -> str:
        self.seen = ""
        return "A"

    def look_up(self, name: str) -> str:
        """Looks something up.

        Args:
            name: What to look up.
        """
        self.seen += name
        return name * 3

    def get_reward(self) -> float:
        return float(len(self.seen))


def spread(completions, **_):
    """A reward that differs between nearly all texts."""
    return [sum(map(ord, messages[-1]["content"])) % 11 / 11 for messages in completions]


class FlashAttention:
    """flash_attn_varlen_func as TRL's tree_attention calls it: keys behind the queries of each segment, causal."""

    def flash_attn_varlen_func(
        self, q, k, v, q_ends, k_ends, longest_q, longest_k, *, softmax_scale, causal, window_size
    ):
        assert causal and window_size == (-1, -1)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        out = torch.empty_like(q)
        q_ends, k_ends = q_ends.tolist(), k_ends.tolist()
        for i in range(len(q_ends) - 1):
            rows, keys = slice(*q_ends[i : i + 2]), slice(*k_ends[i : i + 2])
            n, m = q_ends[i + 1] - q_ends[i], k_ends[i + 1] - k_ends[i]
            hidden = torch.ones(n, m).triu(m - n + 1).bool()
            scores = torch.einsum("nhd,mhd->hnm", q[rows], k[keys]) * softmax_scale
            out = out.index_copy(
                0,
                torch.arange(rows.start, rows.stop),
                torch.einsum("hnm,mhd->nhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v[keys]),
            )
        return out


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A worker that stops leaves its requests."""


class Server:
    """/v1/completions and what TRL asks of a server in addition; `syncs` counts the weights' updates."""

    def __init__(self, model, nan_every=0, **info):
        self.engine, self.lock = FakeEngine(model, nan_every), threading.Lock()
        self.info = {"model_config": {"logprobs_mode": "processed_logprobs", "max_logprobs": 20}} | info
        self.asked, self.syncs, self.ended = [], 0, False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answers = {
                    "/v1/models": {"data": [{"max_model_len": 128}]},
                    "/server_info": {"vllm_config": outer.info},
                }
                self.answer(answers.get(self.path.split("?")[0], {}))

            def do_POST(self):
                payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(outer.complete(payload))

            def answer(self, value):
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def complete(self, payload):
        self.asked.append(payload)
        with self.lock:
            if self.ended:
                return {}
            tokens, rows = self.engine.complete(
                payload["prompt"], payload["max_tokens"], payload["temperature"], payload["logprobs"]
            )
        name = "token_id:{}" if payload.get("return_tokens_as_token_ids") else "some text {}"
        number = lambda x: None if math.isnan(x) else x  # noqa: E731
        logprobs = {
            "tokens": [name.format(t) for t in tokens],
            "token_logprobs": [number(row[t][1]) for t, row in zip(tokens, rows, strict=True)],
            "top_logprobs": [{name.format(i): number(x) for i, (_, x) in row.items()} for row in rows],
        }
        return {"choices": [{"token_ids": tokens, "logprobs": logprobs}]}

    # TRL's protocol for the transfer of weights

    def init_weight_transfer(self):
        pass

    def pause(self):
        self.lock.acquire()

    def send_weights(self, iterator):
        named = dict(self.engine.model.named_parameters())
        with torch.no_grad():
            for name, weight in iterator:
                named[name].copy_(weight)
        self.syncs += 1

    def resume(self):
        self.lock.release()

    def destroy(self):
        pass


def replace_what_needs_cuda(monkeypatch):
    monkeypatch.setattr(packing, "_flash_attn", FlashAttention)
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)  # asks for CUDA's device


@pytest.fixture
def async_server(monkeypatch):
    """Starts servers, of a model each, that end with the test."""
    replace_what_needs_cuda(monkeypatch)
    servers = []

    def start(**settings):
        servers.append(Server(make_qwen3(), **settings))
        return servers[-1]

    yield start
    for server in servers:
        with server.lock:
            server.ended = True
        server.http.shutdown()
        server.http.server_close()


def make_chat_tokenizer():
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    tokenizer.chat_template, tokenizer.response_schema = TEMPLATE, SCHEMA
    return tokenizer


def make_chats(rows=64):
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": f"{i % 10}+{i % 7}"}] for i in range(rows)]})
