"""vLLM behind TRL: what a server must be started with, and the support of what a colocated engine generates."""

import logging
from types import SimpleNamespace
from typing import Any

from augur import vllm
from augur.trl import recorded

_REMEDY = (
    "start it with `trl vllm-serve`, or with VLLM_SERVER_DEV_MODE=1 vllm serve MODEL "
    """--weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs --max-logprobs -1"""
)


def server_info(client: Any, support_size: int) -> dict[str, Any]:  # noqa: ANN401  TRL's VLLMClient
    """vLLM's configuration as /server_info gives it; empty where the server does not tell it, which is said."""
    if hasattr(client, "get_server_info"):  # since TRL 1.16
        return client.get_server_info()
    answer = client.session.get(f"{client.base_url}/server_info", params={"config_format": "json"})
    if answer.status_code == 404:
        warn_unchecked("404 for /server_info", support_size)
        return {}
    answer.raise_for_status()
    return answer.json()["vllm_config"]


def warn_unchecked(why: object, support_size: int) -> None:
    logging.getLogger("augur").warning(
        f"vllm server: does not tell its settings ({why}); see that it runs with --logprobs-mode processed_logprobs "
        f"and with --max-logprobs of at least {support_size}"
    )


def check_server(info: dict[str, Any], support_size: int, weight_transfer: bool = True) -> None:
    """Raises ValueError for a server whose log-probs, or whose number of them, or whose weights are not what the mask
    needs. info: vLLM's configuration; what it does not tell is not checked."""
    model = info.get("model_config") or {}
    mode = model.get("logprobs_mode", "processed_logprobs")
    if mode != "processed_logprobs":
        raise ValueError(
            f"vllm server: runs with --logprobs-mode {mode}, so its log-probs are not those of the sampling "
            f"temperature; {_REMEDY}"
        )
    most = model.get("max_logprobs", -1)
    if most != -1 and most < support_size:
        raise ValueError(
            f"vllm server: gives at most {most} log-probs (--max-logprobs), and support_size is {support_size}; "
            f"{_REMEDY}"
        )
    if weight_transfer and info.get("weight_transfer_config", True) is None:
        raise ValueError(
            f"vllm server: has no --weight-transfer-config, so the trainer's weights cannot reach it; {_REMEDY}"
        )


def record_colocated(llm: Any, support_size: int) -> None:  # noqa: ANN401  vllm.LLM
    """From now on llm.generate gives for each token one log-prob, which remembers its support."""
    generate = llm.generate

    def generate_and_record(*args, sampling_params: Any, **kwargs) -> list:  # noqa: ANN401  vLLM's SamplingParams
        sampling_params.logprobs = support_size
        vllm.ask_flat(sampling_params)
        outputs = generate(*args, sampling_params=sampling_params, **kwargs)
        for response in (response for output in outputs for response in output.outputs):
            if response.logprobs is None:
                raise ValueError("vllm: gave no log-probs, so there is no support to record")
            rows = recorded.attach(vllm.support_of(response.token_ids, response.logprobs, support_size))
            # As TRL reads vLLM's rows; it turns a log-prob that is no number into None.
            response.logprobs = [
                {token: SimpleNamespace(logprob=float("nan") if x is None else x, rank=1)}
                for token, x in zip(response.token_ids, rows, strict=True)
            ]
        return outputs

    llm.generate = generate_and_record
