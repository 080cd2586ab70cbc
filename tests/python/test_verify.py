"""`augur verify` against verl's scorers: recorded cases, and verl's own code on random responses."""

import importlib.util
import random

import pytest

from conftest import recorded, run_augur, run_augur_lines, truth_file


def scores(kind, cases):
    lines = [{"response": response, "answer": answer} for response, answer in cases]
    return [line["score"] for line in run_augur_lines("verify", kind, lines=lines)]


@pytest.mark.parametrize("kind", ["math_dapo", "math_dapo_boxed", "gsm8k", "gsm8k_flexible"])
def test_scores_every_recorded_case_as_verl_does(kind):
    """The scores of verl's own code, recorded by tests/data/make_verifier_cases.py."""
    cases = recorded("verifier_cases.jsonl")
    got = scores(kind, [(case["response"], case["ground_truth"]) for case in cases])
    assert [case for case, score in zip(cases, got, strict=True) if score != case[kind]] == []
    assert 10 < got.count(1.0) < len(got) - 10


PIECES = [
    *'0123456789.,-$={}()*: \n\t\\+x\x1c\x85\u2028\r"\u0663\u00b2\uff14\u6f22\U0001f600\ufeff',
    *r"42 1,234 \boxed{ \text{ \textbf{ \overline{ Answer: answer #### \frac frac sqrt".split(),
    *r"\sqrt{2} \frac{1}{2} ^\circ ^{\circ} \text{and} mbox{ \$ .$ ,\! {,} \; square units".split(),
    *r"\text{}^2 \ldots \mathrm{th} degrees [INVALID] cm sue \dots".split(),
    *[
        "answer :",
        "an\u017fwer:",
        "ANSWER\u00a0:\u2003",
        "Answer:\n",
        "Answer: ",
        "#### ",
        "a ",
        "an ",
        "\\ ",
    ],
    *["\\text{\ns}", "x" * 90, "\u6f22" * 95, "\n" * 40],
]


def random_text(rng, most):
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(most)))


def random_case(rng):
    """A response that often holds its ground truth, so that both scores occur."""
    truth = random_text(rng, 5) if rng.random() < 0.7 else str(rng.randrange(2000))
    frame = rng.choice(["{}Answer: {}{}", "{}\\boxed{{{}}}{}", "{}#### {}{}", "{}answer:\n{}{}", "{}{}{}"])
    return frame.format(random_text(rng, 12), truth, random_text(rng, rng.choice([1, 1, 3, 12]))), truth


def load_verl_scorer(name):
    """One of verl's scorer files by path: importing the package would need all that it depends on."""
    path = truth_file(f"verl/utils/reward_score/{name}.py")
    spec = importlib.util.spec_from_file_location(f"verl_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_score


@pytest.mark.parametrize(
    ("kind", "module", "options"),
    [
        ("math_dapo", "math_dapo", {}),
        ("math_dapo_boxed", "math_dapo", {"strict_box_verify": True}),
        ("gsm8k", "gsm8k", {"method": "strict"}),
        ("gsm8k_flexible", "gsm8k", {"method": "flexible"}),
    ],
)
def test_scores_random_responses_as_verls_own_code_does(kind, module, options):
    verl = load_verl_scorer(module)
    rng = random.Random(f"{kind}-1")
    cases = [random_case(rng) for _ in range(20000)]
    results = [verl(response, truth, **options) for response, truth in cases]
    want = [r["score"] if isinstance(r, dict) else r for r in results]
    got = scores(kind, cases)
    assert [(c, g, w) for c, g, w in zip(cases, got, want, strict=True) if g != w] == []
    assert 0.05 < want.count(1.0) / len(want) < 0.95


# Small cases of our own with the scores verl 0.9.1 gives, for machines without verl.
VERL_CASES = [
    # response, ground truth, math_dapo, math_dapo_boxed, gsm8k, gsm8k_flexible
    ("Answer: 42", "42", 1, -1, 0, 1),
    ("Answer: 42.", "42", -1, -1, 0, 0),
    ("Answer: 4 2", "42", 1, -1, 0, 0),
    ("an\u017fwer\u00a0:\n\n 42", "42", 1, -1, 0, 1),
    ("Answer: 1\nAnswer: 2", "2", 1, -1, 0, 1),
    ("Answer: \\boxed{42}", "42", 1, 1, 0, 1),
    ("so \\boxed{42}", "42", 1, 1, 0, 1),
    ("so \\boxed{042}", "42", -1, -1, 0, 0),
    ("\\boxed{42" + "x" * 100, "42", -1, -1, 0, 1),
    ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}", 1, 1, 0, 0),
    ("Answer: \\frac12", "\\frac{1}{2}", 1, -1, 0, 0),
    ("Answer: x = $\\text{5}$ cm", "5", 1, -1, 0, 1),
    ("Answer: 1,234", "1234", 1, -1, 0, 0),
    ("#### 1,234", "1234", -1, -1, 1, 0),
    ("#### 42\nMore text", "42", -1, -1, 1, 1),
    ("#### 7\n" + "\u6f22" * 300, "7", -1, -1, 0, 0),
    ("Answer:", "", -1, -1, 0, 0),
    ("Answer: ", "", 1, -1, 0, 0),
    ("Answer: \uff14,\uff12", "\uff14\uff12", 1, -1, 0, 0),
    ("", "42", -1, -1, 0, 0),
]


@pytest.mark.parametrize(
    ("column", "kind"), list(enumerate(["math_dapo", "math_dapo_boxed", "gsm8k", "gsm8k_flexible"], start=2))
)
def test_scores_a_table_of_cases_as_verl_does(column, kind):
    got = scores(kind, [case[:2] for case in VERL_CASES])
    assert got == [case[column] for case in VERL_CASES]


def test_knows_digits_as_python_does():
    candidates = [chr(c) for c in range(0x80, 0x10000) if not 0xD800 <= c < 0xE000 and not chr(c).isspace()]
    candidates = [c for c in candidates if c.isnumeric() or ord(c) % 37 == 0]
    got = scores("math_dapo", [(f"Answer: 1,{c}", f"1{c}") for c in candidates])
    assert got == [1.0 if c.isdigit() else -1.0 for c in candidates]


def test_takes_numbers_as_answers_and_ground_truth_as_a_key():
    lines = [{"response": "Answer: 42", "answer": 42}, {"response": "Answer: 42", "ground_truth": "42"}]
    assert [line["score"] for line in run_augur_lines("verify", "math_dapo", lines=lines)] == [1.0, 1.0]
    assert scores("gsm8k", [("#### 2.5", 2.5)]) == [1.0]


@pytest.mark.parametrize(
    ("kind", "stdin", "message"),
    [
        ("math_dap", "", "unknown verifier 'math_dap'; did you mean 'math_dapo'?"),
        ("exact", '{"response": "a", "answer": "a"}\n\n{"response": ', "line 3: not valid JSON"),
        ("exact", '{"response": "a"}', 'line 1: the key "answer" is missing'),
        ("exact", '{"answer": "a"}', 'line 1: the key "response" is missing'),
        ("exact", '{"response": "a", "answer": null}', "line 1: answer: expected text or a number"),
        ("exact", '{"response": "a", "answer": 123456789012345678901}', "too large to be exact"),
        ("exact", '{"response": 1, "answer": "a"}', '"response" is a number, not a string'),
        ("exact", "[1]", "line 1: expected a JSON object"),
        ("countdown", '{"response": "1", "answer": "x"}', "line 1: answer: not valid JSON"),
        ("countdown", '{"response": "1", "answer": {"numbers": [1]}}', 'the key "target" is missing'),
        ("countdown", '{"response": "1", "answer": {"numbers": [1.5], "target": 1}}', "not an integer"),
    ],
)
def test_a_bad_line_is_named(kind, stdin, message):
    done = run_augur("verify", kind, stdin=stdin, check=False)
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout.count("\n") == (1 if "line 3" in message else 0)


def test_invalid_utf8_is_named():
    done = run_augur("verify", "exact", stdin=b'{"response": "\xff", "answer": "a"}', check=False)
    assert done.returncode == 2 and b"line 1: not valid JSON" in done.stderr


@pytest.mark.slow
def test_hostile_responses_are_scored():
    shapes = [*"{}(-$", "\\boxed{", "\\text{", "\\frac", "Answer:", "#### ", "1,", "* ", "<answer>"]
    responses = [shape * (2_000_000 // len(shape)) for shape in shapes]
    for kind in ["math_dapo", "math_dapo_boxed", "math_strict", "gsm8k", "gsm8k_flexible", "exact"]:
        assert max(scores(kind, [(r, "42") for r in responses])) <= 0.0
    answer = {"numbers": [1], "target": 42}
    assert max(scores("countdown", [(r, answer) for r in responses])) == 0.0
