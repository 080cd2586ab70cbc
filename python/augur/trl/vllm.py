"""What a vLLM server must be started with, so that its answers hold the support."""

from typing import Any

_REMEDY = (
    "start it with `trl vllm-serve`, or with VLLM_SERVER_DEV_MODE=1 vllm serve MODEL "
    """--weight-transfer-config '{"backend": "nccl"}' --logprobs-mode processed_logprobs --max-logprobs -1"""
)


def check_server(info: dict[str, Any], support_size: int, weight_transfer: bool = True) -> None:
    """Raises ValueError for a server whose log-probs, or whose number of them, or whose weights are not what the mask
    needs. info: vLLM's configuration as /server_info gives it; what it does not tell is not checked."""
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
