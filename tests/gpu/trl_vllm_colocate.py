"""TRL's GRPOTrainer and Augur's with vLLM in the same process: python tests/gpu/trl_vllm_colocate.py WORK"""

from typing import Any

from trl.generation import vllm_generation

import common
import trl_vllm

_engine: list = []
_answers: list = []


def make_engine(**settings: Any) -> Any:  # noqa: ANN401
    """One engine for all trainers, each of which loads its own weights into it."""
    from vllm import LLM

    if not _engine:
        llm = LLM(**settings)
        generate = llm.generate

        def generate_and_keep(*args: Any, **kwargs: Any) -> list:  # noqa: ANN401
            outputs = generate(*args, **kwargs)
            rows = [response.logprobs for output in outputs for response in output.outputs]
            _answers.append(lambda: [[{i: x.logprob for i, x in row.items()} for row in one] for one in rows])
            return outputs

        _engine.append((llm, generate_and_keep))
    llm, llm.generate = _engine[0]
    return llm


if __name__ == "__main__":
    options = common.arguments(__doc__, **trl_vllm.OPTIONS)
    report = common.Report("trl_vllm_colocate")
    model = common.make_model(options.work / f"model-{options.shape}", options.shape)
    vllm_generation.LLM = make_engine
    trl_vllm.run(
        report,
        options,
        model,
        _answers,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.2,
        vllm_max_model_length=common.LENGTH,
    )
    report.end()
