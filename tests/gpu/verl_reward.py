"""The reward of tests/gpu/verl_fsdp.py, as verl loads it: the share of words with an even number."""


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict | None = None, **_) -> float:
    words = solution_str.split()
    return sum(word[-1] in "02468" for word in words) / max(1, len(words))
