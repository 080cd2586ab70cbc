"""Configuration files through the program: what is printed reads back, faults name their place, the page is current."""

import pytest
import yaml

from conftest import ROOT, run_augur

MINIMAL = "model: {path: m}\ndata:\n  train: [a.jsonl]\n"


@pytest.fixture
def config(tmp_path):
    def write(text: str = MINIMAL) -> str:
        path = tmp_path / "some.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_the_documentation_is_what_the_field_list_says():
    made = run_augur("config", "--markdown").stdout
    assert (ROOT / "docs" / "configuration.md").read_text() == made, "run: build/augur config --markdown"


def test_what_is_printed_reads_back_identically(config):
    first = run_augur("config", config(), "mask=predictive-tv-uniform", "train.lr=3e-4", "data.train=[x.jsonl, y z]")
    assert run_augur("config", config(first.stdout)).stdout == first.stdout
    assert "tail: uniform" in first.stdout and '"y z"' in first.stdout


def test_numbers_are_numbers_to_other_readers_of_yaml(config):
    given = ["train.lr=1e-06", "train.eps=2.5e-9", "mask.delta=1e-05", "train.weight_decay=0.1"]
    printed = run_augur("config", config(), *given).stdout
    read = yaml.safe_load(printed)
    assert (read["train"]["lr"], read["train"]["eps"], read["mask"]["delta"]) == (1e-06, 2.5e-9, 1e-05)
    numbers = [value for section in read.values() for value in section.values() if str(value)[:1].isdigit()]
    assert not [value for value in numbers if isinstance(value, str)]
    older = printed.replace("1.0e-", "1e-")
    assert older != printed and run_augur("config", config(older)).stdout == printed


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (MINIMAL + "train:\n  stepss: 3\n", ":5: ", "did you mean 'train.steps'"),
        (MINIMAL + "\n# a comment\nrollouts: {}\n", ":6: ", "did you mean 'rollout'"),
        (MINIMAL + "train:\n  lr: fast\n", ":5: ", "train.lr is 'fast', which is not a number"),
        (MINIMAL + "rollout:\n  prompts: 4\n  top_k: 50\n", ":6: ", "truncate"),
        (MINIMAL + "train: {lr: 1\n", ":5", "not valid YAML"),
    ],
)
def test_a_fault_is_one_line_with_file_line_and_remedy(config, text, place, message):
    done = run_augur("config", config(text), check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"some.yaml{place}" in done.stderr and message in done.stderr


@pytest.mark.parametrize("command", ["train", "sft", "config"])
def test_a_setting_without_a_file_before_it_is_explained(command):
    done = run_augur(command, "run.dir=runs/x", "train.steps=1", check=False)
    assert done.returncode == 2 and "run.dir=runs/x: is a setting where the configuration file belongs" in done.stderr


def test_a_fault_on_the_command_line_names_the_override(config):
    done = run_augur("config", config(), "train.stesp=4", check=False)
    assert done.returncode == 2
    assert "train.stesp=4: unknown key 'train.stesp'; did you mean 'train.steps'?" in done.stderr


@pytest.mark.parametrize("words", [["mask.clip_low=0.3", "mask=clip"], ["mask=clip", "mask.clip_low=0.3"]])
def test_a_preset_replaces_the_files_mask_and_keys_given_with_it_stay_whatever_their_order(config, words):
    made = run_augur("config", config(MINIMAL + "mask: {clip_high: 0.5}\n"), *words).stdout
    assert "proximity: ratio" in made and "\n  clip_low: 0.3\n" in made and "\n  clip_high: 0.28\n" in made


def test_true_and_false_are_written_as_yaml_and_python_write_them(config):
    for text, meant in [("True", "true"), ("TRUE", "true"), ("False", "false"), ("false", "false")]:
        assert f"  deterministic: {meant}\n" in run_augur("config", config(), f"run.deterministic={text}").stdout
        assert f"  shuffle: {meant}\n" in run_augur("config", config(f"{MINIMAL}  shuffle: {text}\n")).stdout


@pytest.mark.parametrize(
    "change", ["train.steps=99999999999999999999", "train.lr=1e999", "run.seed=18446744073709551616"]
)
def test_a_number_too_large_for_the_machine_is_out_of_range(config, change):
    done = run_augur("config", config(), change, check=False)
    key, value = change.split("=")
    assert done.returncode == 2 and f"{key} is {value}, out of range; give a" in done.stderr


@pytest.mark.parametrize(("recipe", "command"), [("tiny-sft.yaml", "sft"), ("compare-tiny.yaml", "compare")])
def test_a_file_of_another_command_is_sent_there(recipe, command):
    done = run_augur("train", ROOT / "recipes" / recipe, "--print-config", check=False)
    assert done.returncode == 2 and f"run augur {command} with it" in done.stderr and done.stderr.count("\n") == 1


def test_a_file_may_extend_another(tmp_path):
    (tmp_path / "base.yaml").write_text(MINIMAL + "mask: {preset: clip, clip_high: 0.3}\ntrain: {lr: 1e-3, steps: 7}\n")
    (tmp_path / "small.yaml").write_text("extends: base.yaml\ntrain:\n  lr: 2e-3\n")
    printed = run_augur("config", tmp_path / "small.yaml").stdout
    assert "lr: 0.002" in printed and "steps: 7" in printed and "clip_high: 0.3" in printed
    (tmp_path / "small.yaml").write_text("extends: base.yaml\nmask: clip\n")
    assert "clip_high: 0.28" in run_augur("config", tmp_path / "small.yaml").stdout
    (tmp_path / "home.yaml").write_text("extends: ~/base.yaml\n")
    assert "clip_high: 0.3" in run_augur("config", tmp_path / "home.yaml", environment={"HOME": str(tmp_path)}).stdout
    for text, part in [("extends: none.yaml\n", "none.yaml"), ("extends: small.yaml\n", "circle")]:
        (tmp_path / "small.yaml").write_text(text)
        done = run_augur("config", tmp_path / "small.yaml", check=False)
        assert done.returncode == 2 and part in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("recipe", "model", "precision", "prompts", "group"),
    [
        ("paper-qwen3-4b", "Qwen3-4B-Base", "bf16", 64, 8),
        ("paper-qwen3-8b", "Qwen3-8B-Base", "bf16", 128, 16),
        ("paper-qwen3-30b-a3b-fp8-rollout", "Qwen3-30B-A3B-Base", "fp8_rollout", 128, 16),
        ("paper-qwen3-30b-a3b-fp8", "Qwen3-30B-A3B-Base", "fp8", 128, 16),
    ],
)
def test_the_papers_settings(recipe, model, precision, prompts, group):
    printed = run_augur("config", ROOT / "recipes" / f"{recipe}.yaml").stdout
    table = [
        "lr: 1.0e-06",
        "epochs: 1",
        "max_prompt_tokens: 2048",
        "max_tokens: 8192",
        "minibatch: 16",
        "temperature: 1",
    ]
    for part in [f"models/{model}", f"precision: {precision}", f"prompts: {prompts}", f"group: {group}", *table]:
        assert part in printed, part
    assert "support: 20" in printed and "delta: 0.15" in printed


@pytest.mark.parametrize("recipe", ["qwen3-8b-one-gpu", "qwen3-30b-a3b-lora-one-gpu"])
def test_the_recipes_for_one_gpu_are_read(recipe):
    run_augur("config", ROOT / "recipes" / f"{recipe}.yaml")
