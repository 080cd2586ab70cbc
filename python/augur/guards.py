"""What the adapters refuse, with the reason and the remedy."""

import logging
import math
import multiprocessing
import os
from collections.abc import Mapping
from typing import Any

import torch
from packaging.specifiers import SpecifierSet

# Settings under which tokens come from softmax(logits / temperature), by the names TRL, transformers, verl and vLLM
# share. The first value is the one a message advises. None is not among them where an engine then takes the model's
# default or its own, as transformers takes a top_k of 50 and no sampling.
_NEUTRAL: dict[str, tuple] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0, None),
    "frequency_penalty": (0.0, None),
    "typical_p": (1.0,),
    "do_sample": (True,),
    "num_beams": (1,),
}
# Settings that say when generation ends or how it runs, never which token is likely.
_HARMLESS = {
    "max_new_tokens",
    "max_tokens",
    "max_length",
    "stop",
    "stop_strings",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "detokenize",
    "seed",
    "use_cache",
    "cache_implementation",
}


def check_sampling(settings: Mapping[str, Any], where: str = "") -> None:
    """Raises ValueError for a setting under which tokens do not come from softmax(logits / temperature)."""
    for name, value in settings.items():
        neutral = _NEUTRAL.get(name)
        if neutral is not None and value not in neutral:
            raise ValueError(
                f"{where}{name}: is {value!r}; the mask compares the trainer's policy with the distribution that "
                f"tokens were sampled from, so that must be softmax(logits / temperature); set {name}={neutral[0]}"
            )


def check_temperature(temperature: float, where: str = "") -> None:
    if not (isinstance(temperature, (int, float)) and math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"{where}temperature: is {temperature!r}; the mask needs tokens sampled at a temperature above 0; "
            "set temperature=1.0"
        )


def check_generation_kwargs(settings: Mapping[str, Any], temperature: float, where: str = "generation_kwargs.") -> None:
    """generation_kwargs override the trainer's own fields, so nothing that changes the distribution may hide there."""
    check_sampling(settings, where)
    if settings.get("temperature", temperature) != temperature:
        raise ValueError(
            f"{where}temperature: is {settings['temperature']} while the trainer divides its logits by "
            f"{temperature}; set temperature in the configuration alone"
        )
    for name in settings:
        if name not in _NEUTRAL and name not in _HARMLESS and name != "temperature":
            raise ValueError(
                f"{where}{name}: may change the distribution that tokens are sampled from, which the mask takes to be "
                f"softmax(logits / temperature); leave {name} out"
            )


# Fields of a model's generation_config.json that transformers applies unless told otherwise, with what leaves the
# distribution alone. TRL sets the commonest itself.
_MODEL_NEUTRAL: dict[str, tuple] = {
    "num_beams": (1, None),
    "min_p": (0.0, None),
    "typical_p": (1.0, None),
    "top_h": (None,),
    "epsilon_cutoff": (0.0, None),
    "eta_cutoff": (0.0, None),
    "no_repeat_ngram_size": (0, None),
    "encoder_repetition_penalty": (1.0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "bad_words_ids": (None,),
    "sequence_bias": (None,),
    "suppress_tokens": (None,),
    "begin_suppress_tokens": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
    "min_length": (0, None),
    "min_new_tokens": (0, None),
    "guidance_scale": (None, 1.0),
    "watermarking_config": (None,),
}


def check_generation_config(config: Any) -> None:  # noqa: ANN401  a transformers GenerationConfig
    """Raises ValueError where the model's own defaults would bend the distribution that tokens are sampled from."""
    for name, neutral in _MODEL_NEUTRAL.items():
        value = getattr(config, name, None)
        if value not in neutral:
            raise ValueError(
                f"model.generation_config.{name}: is {value}, with which tokens would not come from "
                f"softmax(logits / temperature); set model.generation_config.{name} = {neutral[0]}"
            )


# What modules call a rate that they hand to functions; others have a module of torch's for it.
_DROPOUT_NAMES = ("attention_dropout", "hidden_dropout", "dropout", "activation_dropout", "dropout_rate")


def warn_dropout(model: torch.nn.Module) -> None:
    """Says in a line that every pass over the model draws a dropout of its own."""
    rates: dict[str, object] = {}
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            rates[path] = module.p
        rates |= {f"{path}.{name}".lstrip("."): getattr(module, name, 0) for name in _DROPOUT_NAMES}
    on = [f"{name}={rate}" for name, rate in rates.items() if isinstance(rate, float) and rate > 0]
    if on:
        logging.getLogger("augur").warning(
            f"dropout: {on[0]}; sampling and training each draw their own, so that they are different policies and "
            "mask/divergence is above 0 at the first update; set it to 0"
        )


def check_support_size(support_size: int, where: str = "") -> None:
    if isinstance(support_size, bool) or not isinstance(support_size, int) or support_size < 1:
        raise ValueError(
            f"{where}support_size: is {support_size!r}; record at least 1 token with the sampled one (20 is usual)"
        )


# The versions each adapter's tests run with (tests/python/adapters, docs/development.md); newer patches of them too.
TESTED = {"trl": ">=1.15,<1.17", "verl": ">=0.9,<0.10"}
_noted: set[str] = set()


def check_version(package: str, found: str, tested: str) -> None:
    """Says once, in the first of several ranks, that a version is outside the tested range: an adapter reaches into a
    framework's internals, which another version may have moved."""
    if found not in SpecifierSet(tested, prereleases=True):
        note_once(
            f"{package} {found}: Augur's adapter is tested with {package} {tested}; "
            f"if something fails, pip install '{package}{tested}'"
        )


def note_once(text: str) -> None:
    """A warning, once, in the first of several ranks."""
    if text in _noted or os.environ.get("RANK", "0") != "0" or multiprocessing.parent_process() is not None:
        return
    _noted.add(text)
    logging.getLogger("augur").warning(text)
