"""verl's Megatron engine with the mask against its FSDP engine, one rank each: python tests/gpu/verl_megatron.py WORK

The decisions, log-probs and divergences of both on the same batch, over the real megatron-core in float32. Its layers
are Megatron's local ones, with attention in plain torch, because verl asks for Transformer Engine's.
"""

import os
import sys
from pathlib import Path

os.environ["AUGUR_TEST_DEVICE"] = "cuda"
TESTS = Path(__file__).resolve().parents[1] / "python"
sys.path[:0] = [str(TESTS / "adapters"), str(TESTS)]

import torch  # noqa: E402

import common  # noqa: E402

LAYOUTS = {
    "packed": {},
    "padded": {"use_remove_padding": False},
    "bucketed": {"pad_to_length": True, "pad_to_length_bucket": 32},
    "head with rows behind the vocabulary": {"padded_vocab": 128},
}


def largest_difference(ours: list[dict], theirs: list[dict], name: str) -> float:
    mine, other = (torch.cat([part[name] for part in parts]).double() for parts in (ours, theirs))
    return (mine - other).abs().max().item()


if __name__ == "__main__":
    options = common.arguments(__doc__)
    import test_verl_megatron as megatron
    import verl_cpu as harness

    report = common.Report("verl_megatron")
    harness.one_process(0)
    path = harness.save_model(options.work / "model-tiny")
    plain = harness.Qwen3ForCausalLM.from_pretrained(path)
    batch = harness.make_batch(plain, rows=4, drift=0.6)  # with more, the engines take the rows in different orders
    for mode in megatron.MODES:
        worker = harness.make_worker(path, harness.actor_config(mode), remove_padding=True, lr=0.0)
        with megatron.Decisions() as theirs:
            worker.train_mini_batch(harness.as_verl(batch))
        for layout, settings in LAYOUTS.items():
            engine = megatron.CPUMegatronEngine(path, **settings)
            ours, output = megatron.decisions_of(engine, batch, mode)
            names = [
                name for name in ours[0] if layout != "head with rows behind the vocabulary" or name != "log_probs"
            ]
            worst = {name: largest_difference(ours, theirs, name) for name in names}
            flags = torch.cat([part["augur_flags_up"].flatten() for part in ours]).to(torch.uint8)
            outside = (flags.bitwise_and(2) > 0).double().mean().item()
            report.figures(mode=mode, layout=layout, device=str(ours[0]["log_probs"].device), outside=outside, **worst)
            report.check(f"{mode}, {layout}: the same decisions", all(x <= 1e-5 for x in worst.values()))
            report.check(f"{mode}, {layout}: the same flags", all(worst[n] == 0 for n in worst if "flags" in n))
            report.check(f"{mode}, {layout}: some outside, some not", 0 < outside < 1)
            grads = [p.grad for p in engine.parameters.values()]
            report.check(f"{mode}, {layout}: gradients", all(g is not None and g.isfinite().all() for g in grads))
    report.end()
