"""verl's SGLang replicas with the recording server. Imports SGLang, which a trainer's process may lack."""

import ray
from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer, SGLangReplica
from verl.workers.rollout.sglang_rollout.sglang_pd_replica import SGLangPDReplica

from augur.verl.sglang_server import RecordingServer


class AugurSGLangHttpServer(RecordingServer, SGLangHttpServer):
    pass


class AugurSGLangReplica(SGLangReplica):
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(AugurSGLangHttpServer)


class AugurSGLangPDReplica(SGLangPDReplica):
    """Prefill and decode on servers of their own."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(AugurSGLangHttpServer)
