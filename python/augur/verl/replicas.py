"""Where verl looks for the class of a rollout replica: Augur's for vLLM and SGLang, prefill and decode apart or not."""

from verl.workers.rollout import llm_server, replica
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

_load_plain_sglang = RolloutReplicaRegistry._registry["sglang"]
_plain_class = replica.get_rollout_replica_class


def _load_vllm() -> type[RolloutReplica]:
    from augur.verl.vllm_replica import AugurVLLMReplica

    return AugurVLLMReplica


def _load_sglang() -> type[RolloutReplica]:
    _load_plain_sglang()  # which prepares the imports
    from augur.verl.sglang_replica import AugurSGLangReplica

    return AugurSGLangReplica


def _replica_class(rollout: str, disaggregation_enabled: bool = False) -> type[RolloutReplica]:
    """verl's function takes replicas with prefill and decode apart not from its registry."""
    if disaggregation_enabled and rollout == "vllm":
        from augur.verl.vllm_replica import AugurVLLMPDReplica

        return AugurVLLMPDReplica
    if disaggregation_enabled and rollout == "sglang":
        RolloutReplicaRegistry.get("sglang")
        from augur.verl.sglang_replica import AugurSGLangPDReplica

        return AugurSGLangPDReplica
    return _plain_class(rollout, disaggregation_enabled)


def register_replicas() -> None:
    RolloutReplicaRegistry.register("vllm", _load_vllm)
    RolloutReplicaRegistry.register("sglang", _load_sglang)
    replica.get_rollout_replica_class = llm_server.get_rollout_replica_class = _replica_class
