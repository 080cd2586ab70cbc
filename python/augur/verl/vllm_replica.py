"""verl's vLLM replicas with the recording server. Imports vLLM, which a trainer's process may lack."""

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from verl.workers.rollout.vllm_rollout.vllm_pd_replica import vLLMPDReplica

from augur.verl.vllm_server import RecordingServer


class AugurVLLMHttpServer(RecordingServer, vLLMHttpServer):
    pass


class AugurVLLMReplica(vLLMReplica):
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(AugurVLLMHttpServer)


class AugurVLLMPDReplica(vLLMPDReplica):
    """Prefill and decode on servers of their own."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(AugurVLLMHttpServer)
