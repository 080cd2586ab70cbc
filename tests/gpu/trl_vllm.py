"""What the scripts for TRL with vLLM share: trainers that keep vLLM's own answers with what became of them."""

import os
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import common
from augur.trl import AugurGRPOConfig, AugurGRPOTrainer

GROUP, SAMPLES, EVERY = 8, 32, 2  # generations of a prompt, samples of an update, updates of a generation
VARIANTS = {
    "GRPOTrainer": (GRPOTrainer, GRPOConfig, {}),
    "one_pass=True": (AugurGRPOTrainer, AugurGRPOConfig, {"one_pass": True}),
    "one_pass=False": (AugurGRPOTrainer, AugurGRPOConfig, {"one_pass": False}),
}


OPTIONS = {
    "--variants": dict(default=",".join(VARIANTS), help="which to train; GRPOTrainer first"),
    "--length": dict(type=int, default=128, help="tokens of a response, at most"),
}


def settings(options: Any, **more: Any) -> dict:  # noqa: ANN401
    return dict(
        output_dir=str(options.work / "run"),
        per_device_train_batch_size=SAMPLES,
        num_generations=GROUP,
        steps_per_generation=EVERY,
        gradient_accumulation_steps=1,
        max_completion_length=options.length,
        max_steps=options.steps,
        learning_rate=1e-6,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        gradient_checkpointing=False,
        use_vllm=True,
        seed=3,
        **more,
    )


def make_trainer(name: str, model: str, answers: list, **more: Any) -> Any:  # noqa: ANN401
    """answers: where the caller's hook puts, for each generation, a function that gives vLLM's answers."""
    trainer_class, config_class, own = VARIANTS[name]
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # which TRL sets for vLLM; accelerate would make it DDP
        os.environ.pop(variable, None)

    class Checked(common.Times, trainer_class):
        compared, difference = 0, 0.0

        def _generate_and_score_completions(self, inputs: list) -> dict:
            output = super()._generate_and_score_completions(inputs)
            if "support_ids" in output and len(self.generations) in (1, 2):  # later ones are as these, and take time
                count, worst = common.compare_support(output, answers.pop()())
                self.compared += count
                self.difference = max(self.difference, worst)
                print(f"{name}: {count} log-probs of vLLM's, largest difference {worst}", flush=True)
            answers.clear()
            return output

    return Checked(
        model=model,
        reward_funcs=common.reward,
        args=config_class(**more, **own),
        train_dataset=Dataset.from_dict({"prompt": common.prompts(256)}),
    )


def run(report: common.Report, options: Any, model: str, answers: list, **more: Any) -> None:  # noqa: ANN401
    """Trains each variant in turn, the plain trainer first, and reports times, their ratios and the mask's figures."""
    times = {}
    for name in options.variants.split(","):
        trainer = make_trainer(name, model, answers, **settings(options, **more))
        trainer.train()
        times[name] = trainer.summary()
        figures = times[name] | {"tokens": sum(common.history(trainer, "completions/mean_length"))}
        if name != "GRPOTrainer":
            mask = common.mask_figures(trainer)
            ratios = {f"{part}_ratio": round(times[name][part] / times["GRPOTrainer"][part], 3) for part in times[name]}
            figures |= mask | ratios | {"compared": trainer.compared, "difference": trainer.difference}
        report.figures(variant=name, **figures)
        if name != "GRPOTrainer":
            report.check_mask(mask, name == "one_pass=True")
            report.check("the supports are vLLM's own answers", trainer.compared > 1000 and trainer.difference == 0)
        del trainer
        torch.cuda.empty_cache()
