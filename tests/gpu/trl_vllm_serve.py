"""TRL's GRPOTrainer and Augur's with `trl vllm-serve` in a second process: python tests/gpu/trl_vllm_serve.py WORK

With one GPU, server and trainer share it. NCCL refuses two ranks on one device of one host, so each is told to be a
host of its own, and they talk over the loopback interface.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PORT = 8123
NETWORK = dict(
    NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1", VLLM_HOST_IP="127.0.0.1", NO_PROXY="127.0.0.1", no_proxy="127.0.0.1"
)
os.environ |= NETWORK | {"NCCL_HOSTID": "trainer"}

import torch  # noqa: E402
from trl.generation import vllm_client, vllm_generation  # noqa: E402

import common  # noqa: E402
import trl_vllm  # noqa: E402

_answers: list = []
_client: list = []


def start_server(model: str, log: Path, eager: bool) -> subprocess.Popen:
    command = [sys.executable, "-c", "from trl.cli.main import main; main()", "vllm-serve", "--model", model]
    command += ["--port", str(PORT), "--host", "127.0.0.1", "--gpu_memory_utilization", "0.2"]
    command += ["--max_model_len", str(common.LENGTH)]
    command += ["--kv-cache-memory-bytes", "4000000000"]  # measuring free memory fails next to others on the GPU
    command += ["--enforce_eager", "true"] if eager else []
    environment = os.environ | {"NCCL_HOSTID": "server"}
    return subprocess.Popen(command, env=environment, stdout=log.open("w"), stderr=subprocess.STDOUT)


class KeepingClient(vllm_client.VLLMClient):
    """TRL's client, which keeps the server's answers; one for all trainers."""

    def init_communicator(self, device: Any = 0) -> None:  # noqa: ANN401
        if self.communicator is None:
            super().init_communicator(device)

    def _post(self, url: str, **kwargs: Any) -> dict:  # noqa: ANN401
        output = super()._post(url, **kwargs)
        if url.endswith("/v1/completions"):
            _answers.append(lambda: [candidates(choice["logprobs"]) for choice in output["choices"]])
        return output


def candidates(logprobs: dict) -> list[dict[int, float]]:
    """For each token its candidates, from what the server sent: the sampled one and the most likely."""
    rows = []
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        row = {token: value} | (top or {})
        rows.append({int(name.removeprefix("token_id:")): torch.tensor(x).item() for name, x in row.items()})
    return rows


def make_client(**settings: Any) -> KeepingClient:  # noqa: ANN401
    if not _client:
        _client.append(KeepingClient(**settings))
    return _client[0]


if __name__ == "__main__":
    options = common.arguments(__doc__, **trl_vllm.OPTIONS, **{"--eager": dict(action="store_true")})
    report = common.Report("trl_vllm_serve")
    model = common.make_model(options.work / f"model-{options.shape}", options.shape)
    vllm_generation.VLLMClient = make_client
    server = start_server(model, options.work / "server.log", options.eager)
    try:
        trl_vllm.run(
            report,
            options,
            model,
            _answers,
            vllm_mode="server",
            vllm_server_base_url=f"http://127.0.0.1:{PORT}",
            vllm_server_timeout=300,
        )
    finally:
        server.terminate()
        server.wait(30)
    report.end()
