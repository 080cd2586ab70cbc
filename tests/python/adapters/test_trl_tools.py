"""Tools, environments and rollout functions: tokens that nobody sampled have no support and no part in anything."""

import pytest
import torch
from trl.trainer import grpo_trainer

from augur import MaskRule, support
from augur.trl import AugurGRPOTrainer
from fake_vllm import fake_vllm  # noqa: F401  a fixture
from test_trl_training import LoggingTrainer, full_logits, history
from tiny_trl import Dataset, count_digits, make_config, make_qwen3, make_tokenizer, skip_without_head

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}"
    "{% for c in m.get('tool_calls') or [] %}{{ c['function']['name'] }}{{ c['function']['arguments'] }}{% endfor %}"
    "{% if m['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}{% if add_generation_prompt %}={% endif %}"
)


def look_up(name: str) -> str:
    """Looks something up.

    Args:
        name: What to look up.
    """
    return name * 2


class Counter:
    """An environment with one tool and a reward of its own."""

    def reset(self, **_) -> str:
        self.seen = ""
        return "A"

    def look_up(self, name: str) -> str:
        """Looks something up.

        Args:
            name: What to look up.
        """
        self.seen += name
        return name * 3

    def get_reward(self) -> float:
        return float(len(self.seen))


def call_for_odd(tokenizer, ids, prefix=None, tools=None):
    """A completion whose first token's id is odd asks for the tool."""
    message = {"role": "assistant", "content": tokenizer.decode(ids, skip_special_tokens=True)}
    if ids and ids[0] % 2:
        function = {"name": "look_up", "arguments": {"name": tokenizer.decode(ids[:1], skip_special_tokens=True)}}
        message["tool_calls"] = [{"type": "function", "function": function}]
    return message


def make_tool_trainer(tmp_path, monkeypatch, changes=None, **arguments):
    monkeypatch.setattr(grpo_trainer, "parse_response", call_for_odd)
    tokenizer = make_tokenizer()
    tokenizer.chat_template, tokenizer.response_schema = TEMPLATE, {"type": "object"}
    prompts = [[{"role": "user", "content": f"{i % 10}+{i % 7}"}] for i in range(64)]
    changes = changes or {}
    limit = {"max_tokens" if changes.get("use_vllm") else "max_new_tokens": 4}  # of one turn
    settings = dict(
        max_completion_length=24, max_tool_calling_iterations=2, learning_rate=1e-2, generation_kwargs=limit
    )
    trainer = LoggingTrainer(
        model=make_qwen3(),
        args=make_config(tmp_path, **(settings | changes)),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        **arguments,
    )
    return skip_without_head(trainer)


def check_support(trainer, inputs):
    """Each sampled token's support is the policy's own; tokens from a tool have none. Returns the rows of each kind."""
    with torch.no_grad():
        log_pi = torch.log_softmax(full_logits(trainer, inputs), -1)
    inside = inputs["completion_mask"].bool()
    sampled = inside & inputs["tool_mask"].bool()
    ids, logprobs = inputs["support_ids"][sampled].long(), inputs["support_logprobs"][sampled]
    assert torch.equal(ids[:, 0], inputs["completion_ids"][sampled])
    used = ids >= 0
    torch.testing.assert_close(logprobs[used], log_pi[sampled].gather(1, ids.clamp(min=0))[used], rtol=0, atol=5e-5)
    assert torch.all(inputs["support_ids"][~sampled] == -1)
    return sampled, inside & ~sampled


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"one_pass": False},
        {"temperature": 0.7},
        {"use_vllm": True, "vllm_mode": "colocate"},
        {"use_vllm": True, "vllm_mode": "server", "one_pass": False},
    ],
    ids=str,
)
def test_tool_results_have_no_support_and_no_part_in_any_figure(tmp_path, monkeypatch, fake_vllm, changes):  # noqa: F811
    fake_vllm()
    trainer = make_tool_trainer(
        tmp_path,
        monkeypatch,
        changes | {"max_steps": 1, "learning_rate": 0},
        tools=[look_up],
        reward_funcs=count_digits_of,
    )
    trainer.train()
    sampled, written = check_support(trainer, trainer.seen[0])
    # Written by the tool in the middle of a completion, and sampled again behind it.
    behind = torch.cumsum(written, 1).bool() & sampled
    assert written.any() and behind.any()
    assert history(trainer, "mask/missing") == [0] and history(trainer, "mask/divergence")[0] < 1e-5
    assert history(trainer, "mask/ratio")[0] == pytest.approx(1, abs=1e-4)


def count_digits_of(completions, **_):
    return count_digits([completion[0]["content"] for completion in completions])


def test_one_pass_and_trls_own_head_train_alike_with_tools(tmp_path, monkeypatch):
    trainers = []
    for one_pass in (True, False):
        changes = {"one_pass": one_pass, "mask_rule": MaskRule(delta=0.04)}
        trainers.append(
            make_tool_trainer(tmp_path, monkeypatch, changes, tools=[look_up], reward_funcs=count_digits_of)
        )
        torch.manual_seed(3)
        trainers[-1].train()
    one, other = trainers
    assert max(history(one, "mask/masked")) > 0
    for name in ("loss", "grad_norm", "entropy", "mask/masked", "mask/divergence", "mask/ratio"):
        assert history(one, name) == pytest.approx(history(other, name), rel=1e-3, abs=2e-5), name


def test_environments_train_under_the_mask(tmp_path, monkeypatch):
    changes = {"max_steps": 1, "learning_rate": 0}
    trainer = make_tool_trainer(tmp_path, monkeypatch, changes, environment_factory=Counter, reward_funcs=None)
    trainer.train()
    _, written = check_support(trainer, trainer.seen[0])
    assert written.any() and history(trainer, "mask/missing") == [0]


def rollout(trainer, prompts, keep=lambda row: row[0]):
    """A rollout function that asks vLLM through the trainer and puts a token of its own behind each completion."""
    prompt_ids = trainer.processing_class(list(prompts))["input_ids"]
    _, completions, logprobs, _ = trainer.vllm_generation.generate(
        prompts=prompt_ids, images=None, num_generations=trainer.num_generations
    )
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [[*tokens, 5] for tokens in completions],
        "logprobs": [[*map(keep, rows), 0.0] for rows in logprobs],
        "env_mask": [[1] * len(tokens) + [0] for tokens in completions],
    }


def make_rollout_trainer(tmp_path, rollout_func):
    return LoggingTrainer(
        model=make_qwen3(),
        reward_funcs=count_digits,
        args=make_config(tmp_path, use_vllm=True, vllm_mode="colocate", max_steps=1, learning_rate=0),
        train_dataset=Dataset.from_dict({"prompt": [f"{i % 10}+{i % 7}=" for i in range(64)]}),
        processing_class=make_tokenizer(),
        rollout_func=rollout_func,
    )


@pytest.mark.parametrize("keep", [lambda row: row[0], lambda row: row], ids=["first of each row", "as they are"])
def test_a_rollout_function_that_keeps_the_log_probs_keeps_the_support(tmp_path, fake_vllm, keep):  # noqa: F811
    fake_vllm()
    trainer = make_rollout_trainer(tmp_path, lambda prompts, trainer: rollout(trainer, prompts, keep))
    trainer.train()
    _, written = check_support(trainer, trainer.seen[0])
    assert written.any() and history(trainer, "mask/missing") == [0]
    assert history(trainer, "mask/divergence")[0] < 1e-5
    assert trainer.seen[0]["sampling_per_token_logps"].dim() == 2


def test_a_rollout_function_may_give_the_support_itself(tmp_path, fake_vllm):  # noqa: F811
    fake_vllm()

    def given(prompts, trainer):
        out = rollout(trainer, prompts)
        sources = [row[0].source for row in out["logprobs"]]
        blank = ([-1] * 21, [-float("inf")] * 21)
        out["logprobs"] = [[float(x) for x in row] for row in out["logprobs"]]
        return out | {
            "support_ids": [[*s.ids.tolist(), blank[0]] for s in sources],
            "support_logprobs": [[*s.logprobs.tolist(), blank[1]] for s in sources],
        }

    trainer = make_rollout_trainer(tmp_path, given)
    trainer.train()
    check_support(trainer, trainer.seen[0])
    assert history(trainer, "mask/missing") == [0]


def test_supports_of_a_rollout_function_may_differ_in_width(tmp_path, fake_vllm):  # noqa: F811
    fake_vllm()

    def given(prompts, trainer):
        out = rollout(trainer, prompts)
        sources = [row[0].source for row in out["logprobs"]]
        wide = [support.pad_columns(source, 21 if i % 2 else 25) for i, source in enumerate(sources)]
        wide = [support.Support(*(torch.cat([x, x[-1:]]) for x in s)) for s in wide]  # for the token of its own
        for s in wide:
            s.ids[-1], s.logprobs[-1] = -1, -torch.inf
        return out | {"support_ids": [s.ids for s in wide], "support_logprobs": [s.logprobs for s in wide]}

    trainer = make_rollout_trainer(tmp_path, given)
    trainer.train()
    assert trainer.seen[0]["support_ids"].shape[-1] == 25 and history(trainer, "mask/missing") == [0]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"logprobs": None},
        {"logprobs": None, "support_ids": [[[1]]] * 32},
        {"support_ids": [[[1], [1, 2]]] * 32, "support_logprobs": [[[1.0], [1.0, 2.0]]] * 32},
    ],
    ids=["plain log-probs", "none", "ids alone", "ragged rows"],
)
def test_a_rollout_function_without_any_support_is_refused(tmp_path, fake_vllm, changes):  # noqa: F811
    fake_vllm()
    trainer = make_rollout_trainer(
        tmp_path, lambda prompts, trainer: rollout(trainer, prompts, keep=lambda row: float(row[0])) | changes
    )
    with pytest.raises(ValueError, match="^rollout_func: gave no support; return the log-probs .* as they are"):
        trainer.train()


def test_a_subclass_that_edits_completions_is_noticed(tmp_path):
    class Shorter(AugurGRPOTrainer):
        def _generate_single_turn(self, *args, **kwargs):
            completion_ids, logprobs = super()._generate_single_turn(*args, **kwargs)
            return [tokens[:-1] or tokens for tokens in completion_ids], logprobs

    trainer = Shorter(
        model=make_qwen3(),
        reward_funcs=count_digits,
        args=make_config(tmp_path),
        train_dataset=Dataset.from_dict({"prompt": ["1+2="] * 64}),
        processing_class=make_tokenizer(),
    )
    with pytest.raises(RuntimeError, match="^support: completions and their log-probs differ in length"):
        trainer.train()
