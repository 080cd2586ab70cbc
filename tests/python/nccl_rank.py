"""`augur ARGS` as one of several ranks that share a GPU over NCCL.

NCCL refuses a GPU twice only where the host is the same, too: each rank calls its host by another name, and they talk
over sockets, as between machines.
"""

import os
import runpy

os.environ |= {"NCCL_HOSTID": f"rank{os.environ['RANK']}", "NCCL_SOCKET_IFNAME": "lo"}

from augur import _processes  # noqa: E402, NCCL reads its variables once

_processes._have_gpus = lambda *_: True
runpy.run_module("augur", run_name="__main__", alter_sys=True)
