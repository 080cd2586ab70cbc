"""verl's vLLM replica with the recording server."""

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from augur.verl.vllm_server import RecordingServer


class AugurVLLMHttpServer(RecordingServer, vLLMHttpServer):
    pass


class AugurVLLMReplica(vLLMReplica):
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(AugurVLLMHttpServer)
