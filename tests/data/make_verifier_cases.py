"""Makes verifier_cases.jsonl: responses with the scores that verl 0.9.1 gives them, by verl's own code.

    .venv/bin/python tests/data/make_verifier_cases.py > tests/data/verifier_cases.jsonl

./check installs verl's files into .venv/truth (requirements-truth.txt). One case a line: response, ground_truth, and
the score under each of Augur's verifiers of the same origin: math_dapo, math_dapo_boxed, gsm8k, gsm8k_flexible.
"""

import importlib.util
import json
import random
from pathlib import Path

VERL = Path(__file__).resolve().parents[2] / ".venv" / "truth" / "verl" / "utils" / "reward_score"

PIECES = [
    *'0123456789.,-$={}()*: \n\t\\+x\x1c\x85\u2028\r"\u0663\u00b2\uff14\u6f22\U0001f600\ufeff',
    *r"42 1,234 \boxed{ \text{ \textbf{ \overline{ Answer: answer #### \frac frac sqrt".split(),
    *r"\sqrt{2} \frac{1}{2} ^\circ ^{\circ} \text{and} mbox{ \$ .$ ,\! {,} \; square units".split(),
    *r"\text{}^2 \ldots \mathrm{th} degrees [INVALID] cm sue \dots".split(),
    *["answer :", "an\u017fwer:", "ANSWER\u00a0:\u2003", "Answer:\n", "Answer: ", "#### ", "a ", "an ", "\\ "],
    *["\\text{\ns}", "x" * 90, "\u6f22" * 95, "\n" * 40],
]
TRUTHS = [
    "42",
    "1234",
    "-7",
    "0.5",
    r"\frac{1}{2}",
    r"\frac43",
    r"90^\circ",
    "x^2+1",
    r"\text{Evelyn}",
    "(3, 4)",
    "2.50",
    "",
]
FORMS = [
    "{reason}Answer: {truth}",
    "{reason}answer: ${truth}$.",
    "{reason}The final answer is \\boxed{{{truth}}}.",
    "{reason}Answer: \\boxed{{{truth}}}\n{after}",
    "{reason}\n#### {truth}",
    "{reason}\n#### {truth}\n{after}",
    "{reason}So the result is {truth}.",
    "{reason}It is {truth} cm, {after}",
    "{reason}Answer: x = {truth}\nAnswer: {other}",
    "{reason}\\boxed{{{other}}} or \\boxed{{{truth}}}",
    "{reason}\\boxed{{{truth}",
    "{reason}{truth}",
]
WORDS = "We expand and collect terms then solve for the value 12 of x in 3 steps, so 4 + 5 = 9 .".split()


def written(rng):
    """A response as a model writes it, sometimes wrong, sometimes longer than what the scorers read."""
    truth, other = rng.choice(TRUTHS), rng.choice(TRUTHS)
    if rng.random() < 0.3:
        truth = f"{rng.randrange(2_000_000):,}" if rng.random() < 0.5 else str(rng.randrange(-999, 9999))
    words = [rng.choice(WORDS) for _ in range(rng.choice([0, 3, 12, 60, 120]))]
    after = " ".join(rng.choice(WORDS) for _ in range(rng.choice([0, 2, 20, 25, 70])))
    shown = other if rng.random() < 0.3 else truth
    response = rng.choice(FORMS).format(
        reason=" ".join(words) + "\n" * bool(words), truth=shown, after=after, other=other
    )
    return response, truth.replace(",", "") if rng.random() < 0.5 else truth


def scrambled(rng):
    """Pieces that the scorers' expressions are about, in any order."""
    text = ["".join(rng.choice(PIECES) for _ in range(rng.randrange(most))) for most in (5, 12, rng.choice([1, 3, 12]))]
    frame = rng.choice(["{}Answer: {}{}", "{}\\boxed{{{}}}{}", "{}#### {}{}", "{}answer:\n{}{}", "{}{}{}"])
    return frame.format(text[1], text[0], text[2]), text[0]


def load(name):
    """One of verl's files by path: importing the package would need all that it depends on."""
    spec = importlib.util.spec_from_file_location(f"verl_{name}", VERL / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_score


def main():
    math_dapo, gsm8k = load("math_dapo"), load("gsm8k")
    rng = random.Random(20260101)
    for i in range(700):
        response, truth = written(rng) if i % 2 else scrambled(rng)
        case = {
            "response": response,
            "ground_truth": truth,
            "math_dapo": math_dapo(response, truth)["score"],
            "math_dapo_boxed": math_dapo(response, truth, strict_box_verify=True)["score"],
            "gsm8k": gsm8k(response, truth, method="strict"),
            "gsm8k_flexible": gsm8k(response, truth, method="flexible"),
        }
        print(json.dumps(case, separators=(",", ":")))


if __name__ == "__main__":
    main()
