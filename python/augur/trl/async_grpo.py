"""AsyncGRPOTrainer under a mask: `from augur.trl.async_grpo import AugurAsyncGRPOConfig, AugurAsyncGRPOTrainer`.

Generation goes on while the trainer updates, so tokens are several updates old when they are trained on. Needs TRL
1.16: versions before it lay a batch out in another way.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import trl
from packaging.version import Version
from torch.utils.data import DataLoader
from transformers.utils import ModelOutput

if Version(trl.__version__) < Version("1.16"):
    raise ImportError(
        f"augur.trl.async_grpo: found trl {trl.__version__} and needs 1.16; pip install 'trl>=1.16,<1.17'"
    )

from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop
from trl.experimental.async_grpo.weight_transfer import WeightTransferClient

from augur import support
from augur.masks import MaskRule, decide
from augur.support import Support
from augur.trl.async_rollout import AugurRolloutLoop, RecordingLoop, unpack
from augur.trl.config import NO_CLIP, MaskFields
from augur.trl.readout import LOG_RATIO_LIMIT, SupportReader, causal_lm_of, log_ratio_cap
from augur.trl.vllm import check_server, warn_unchecked


@dataclass
class AugurAsyncGRPOConfig(MaskFields, AsyncGRPOConfig):
    """AsyncGRPOConfig with the mask, which takes the place of the ratio clip."""

    epsilon: float = field(default=NO_CLIP, metadata={"help": "Unused: mask_rule takes its place."})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settle_rule()
        self.check_recording()
        self.refuse_clip()


class AugurAsyncGRPOTrainer(AsyncGRPOTrainer):
    """AsyncGRPOTrainer that decides token by token, by `args.mask_rule`, whether an update may pass."""

    def __init__(self, *args, **kwargs) -> None:
        call = inspect.signature(AsyncGRPOTrainer.__init__).bind(self, *args, **kwargs)
        if call.arguments.get("args") is None:
            name = call.arguments["model"].split("/")[-1]
            call.arguments["args"] = AugurAsyncGRPOConfig(f"{name}-AsyncGRPO")  # as TRL names it
        if not isinstance(call.arguments["args"], AugurAsyncGRPOConfig):
            raise ValueError(
                f"args: is a {type(call.arguments['args']).__name__}; pass an AugurAsyncGRPOConfig, which holds "
                "mask_rule and support_size"
            )
        super().__init__(*call.args[1:], **call.kwargs)
        self.rule = MaskRule.preset(self.args.mask_rule)
        causal_lm = causal_lm_of(self.accelerator.unwrap_model(self.model))
        exact = self.rule.tail == "exact" and self.rule.direction == "predicted"
        self._reader = SupportReader(causal_lm, self.temperature, with_squares=exact)
        if isinstance(self.rollout_worker, AsyncRolloutWorker):
            _record(self.rollout_worker, self.args.support_size)

    def get_train_dataloader(self) -> DataLoader:
        if isinstance(self.rollout_worker, AsyncRolloutWorker):  # the main process, before the worker starts
            self._check_server()
        return super().get_train_dataloader()

    def _check_server(self) -> None:
        import requests  # which TRL's worker needs, and TRL's package does not ask for

        self.vllm_client.wait_for_server_ready()
        try:
            info = self.vllm_client.get_server_info()
        except requests.HTTPError as error:
            warn_unchecked(error, self.args.support_size)
            return
        check_server(info, self.args.support_size, isinstance(self.weight_transfer, WeightTransferClient))

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *args, **kwargs) -> torch.Tensor:
        """TRL's loss over the tokens that pass. A row of a batch holds the samples of one rank, [1, ...]."""
        terms = self._terms(inputs)
        scored = MaskedModel(model, terms, self._decide, log_ratio_cap(self.rule))
        places = torch.where(terms.selected, terms.selected.cumsum(1) - 1, -1)
        own = {
            "old_log_probs": torch.where(terms.selected & ~terms.missing, terms.recorded.logprobs[..., 0], 0.0),
            "advantages": inputs["advantages"].masked_fill(terms.missing, 0.0),
            "token_index": places,  # the log-probs come in the order of the loss's terms
        }
        loss = super().compute_loss(scored, inputs | own, *args, **kwargs)
        share = self.accelerator.num_processes / inputs["global_n_tokens"][0].clamp(min=1.0)
        self._add_metrics(support.mask_sums(scored.decision))
        # TRL has summed the masked tokens' losses, too, as constants.
        return loss - scored.masked_loss * share / self.current_gradient_accumulation_steps

    def _terms(self, inputs: dict[str, torch.Tensor]) -> "Terms":
        if inputs["old_log_probs"].dim() != 3:
            raise ValueError(
                "support: the samples have none; a rollout worker of your own must put augur.trl.async_rollout.pack of "
                "their support in the place of old_log_probs, or derive its loop from RecordingLoop there"
            )
        selected = inputs["token_index"] >= 0
        recorded = unpack(inputs["old_log_probs"])
        missing = selected & (recorded.ids[..., 0] < 0)
        if torch.equal(missing, selected):
            raise ValueError(
                "support: no token of the batch has one, so nothing would be learned; see that vLLM's log-probs are "
                "numbers and that a rollout worker of your own sends the support along"
            )
        index = inputs["token_index"][selected]
        labels = inputs["shift_labels"][inputs["attention_mask"].bool()][index]
        counted = ~missing[selected]
        if not torch.equal(recorded.ids[selected][:, 0][counted].long(), labels[counted]):
            raise RuntimeError(
                "support: the recorded tokens are not those of the batch; something between generation and loss "
                "reorders or edits samples, which the mask cannot follow"
            )
        return Terms(recorded, selected, missing, index, inputs["advantages"][selected])

    def _decide(self, terms: "Terms", forward: Callable[[], ModelOutput]) -> tuple[ModelOutput, Any]:
        ids, behaviour = (x[terms.selected] for x in terms.recorded)
        positions = (torch.zeros_like(terms.index), terms.index)
        with self._reader.reading(ids, positions) as readout:
            output = forward()
        policy = readout.policy(output.log_probs.detach().flatten()[terms.index].float())
        vocab_size = self._reader.vocab_size
        square = readout.tail_square(policy, vocab_size)
        return output, decide(self.rule, behaviour, policy, terms.advantages.float(), vocab_size, square)

    def _add_metrics(self, sums: torch.Tensor) -> None:
        total = self.accelerator.reduce(sums, reduction="sum")
        for name, metric in support.mask_metrics(total).items():
            self._metrics["train"][name].append((metric.numerator, metric.denominator))  # TRL takes it for a rate


def _record(worker: AsyncRolloutWorker, support_size: int) -> None:
    """Before the worker's process starts: its loop becomes one that records."""
    if worker._loop_cls is _AsyncRolloutLoop:
        worker._loop_cls = AugurRolloutLoop
    elif not issubclass(worker._loop_cls, RecordingLoop):
        name = worker._loop_cls.__name__
        raise ValueError(
            f"rollout_worker: its loop {name} records no support; derive one from "
            f"augur.trl.async_rollout.RecordingLoop and {name}, in this order, and name it in the worker's _loop_cls"
        )
    worker._loop_kwargs["support_size"] = support_size


@dataclass
class Terms:
    """The terms of a batch's loss: the tokens that the model sampled, N of them, in a row [1, n] with padding."""

    recorded: Support  # [1, n, M]
    selected: torch.Tensor  # [1, n]
    missing: torch.Tensor  # [1, n], those without support
    index: torch.Tensor  # [N], the position whose prediction each is
    advantages: torch.Tensor  # [N]


class MaskedModel:
    """Stands for the model in TRL's loss: gives log-probs and entropies [N] in the order of the terms, those of masked
    tokens without a gradient."""

    def __init__(self, model: torch.nn.Module, terms: Terms, decide_terms: Callable, log_ratio_cap: float) -> None:
        self._model, self._terms, self._decide, self._cap = model, terms, decide_terms, log_ratio_cap
        self.decision = None
        self.masked_loss: torch.Tensor | None = None

    def __call__(self, **kwargs) -> ModelOutput:
        terms = self._terms
        output, self.decision = self._decide(terms, lambda: self._model(**kwargs))
        logprobs = output.log_probs.flatten()[terms.index]
        missing = terms.missing[terms.selected]
        old = torch.where(missing, 0.0, terms.recorded.logprobs[..., 0][terms.selected])
        value = logprobs.detach()
        # Finite whatever the ratio is, and a capped ratio keeps its gradient.
        value = torch.where(missing, 0.0, old + (value - old).clamp(-LOG_RATIO_LIMIT, self._cap))
        live = self.decision.keep & ~missing
        output.log_probs = torch.where(live, value + logprobs - logprobs.detach(), value)
        output.entropy = output.entropy.flatten()[terms.index]
        self.masked_loss = torch.where(live | missing, 0.0, -(value - old).exp() * terms.advantages).sum()
        return output
