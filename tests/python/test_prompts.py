"""`augur prompts`: data sets read as pyarrow and json read them, and an order anyone can recompute."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import run_augur

ROWS = [
    {
        "data_source": "math_dapo",
        "prompt": [
            {"role": "system", "content": "Think."},
            {"role": "user", "content": f"What is {i} + 1? \u6f22"},
        ],
        "ability": "MATH",
        "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
        "extra_info": {"index": i, "split": "train", "tags": ["a", None], "weight": 0.5, "easy": i % 2 == 0},
    }
    for i in range(500)
]


def prompts(*args):
    return [json.loads(line) for line in run_augur("prompts", *args).stdout.splitlines()]


def write_parquet(path, rows, **options):
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def without_place(rows):
    return [{key: value for key, value in row.items() if key not in ("file", "line")} for row in rows]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zstd"},
        {"compression": "none", "use_dictionary": False},
        {"row_group_size": 7, "compression": "gzip"},
        {"version": "1.0", "data_page_version": "2.0", "compression": "brotli"},
    ],
    ids=str,
)
def test_parquet_reads_as_the_same_rows_in_jsonl(tmp_path, options):
    from_parquet = prompts(write_parquet(tmp_path / "rows.parquet", ROWS, **options))
    from_jsonl = prompts(write_jsonl(tmp_path / "rows.jsonl", ROWS))
    assert without_place(from_parquet) == without_place(from_jsonl)
    assert [row["prompt"] for row in from_parquet] == [row["prompt"] for row in ROWS]
    assert [row["ground_truth"] for row in from_parquet] == [str(i + 1) for i in range(500)]
    assert [row["extra_info"] for row in from_parquet] == [row["extra_info"] for row in ROWS]
    assert [row["line"] for row in from_parquet] == list(range(1, 501))


def test_every_arrow_type_with_a_counterpart_in_json_is_read(tmp_path):
    columns = {
        "prompt": pa.array(["p", "q"], pa.large_string()),
        "answer": pa.array(["1", "2"]).dictionary_encode(),
        "extra_info": pa.StructArray.from_arrays(
            [
                pa.array([1, None], pa.int8()),
                pa.array([2**63, 3], pa.uint64()),
                pa.array([1.5, -2.0], pa.float32()),
                pa.array([[1, 2], []], pa.large_list(pa.int16())),
                pa.array([[True], None], pa.list_(pa.bool_(), 1)),
            ],
            ["small", "large", "real", "list", "fixed"],
        ),
        "image": pa.array([b"\xff\x00", b""], pa.binary()),
    }
    pq.write_table(pa.table(columns), tmp_path / "types.parquet")
    done = run_augur("prompts", tmp_path / "types.parquet")
    assert done.stderr.endswith("no counterpart in JSON are left out: image\n") and done.stderr.count("\n") == 1
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["line"] for row in rows] == [1, 2] and [row["prompt"] for row in rows] == ["p", "q"]
    assert [row["ground_truth"] for row in rows] == ["1", "2"]
    assert rows[0]["extra_info"] == {"small": 1, "large": 2**63, "real": 1.5, "list": [1, 2], "fixed": [True]}
    assert rows[1]["extra_info"] == {"small": None, "large": 3, "real": -2.0, "list": [], "fixed": None}


SETS = {  # rows in the shapes of published sets: what the columns are called, and what their prompt and answer are
    "aime2024": [{"id": "2024-I-1", "problem": "Find $x$.", "answer": "204", "answer_original": "204"}],
    "math500": [{"id": "a/1", "problem": "What is $1/2$?", "answer": "\\frac{1}{2}", "level": 3, "subject": "Algebra"}],
    "gsm8k_train": [{"question": "How many?", "answer": "1,200", "solution": "20 * 60 = 1200\n#### 1,200"}],
    "math_sample": [{"prompt": "Find \u03c0.\n", "answer": 3}],
    "rows_of_trl": [{"prompt": [{"role": "user", "content": "Say 4."}], "solution": "4"}],
    "rows_of_slime": [{"prompt": [{"role": "user", "content": "Say 5."}], "label": "5"}],
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_sets_of_the_usual_columns_read_as_pyarrow_and_json_read_them(tmp_path, name, kind):
    write = write_parquet if kind == "parquet" else write_jsonl
    (row,) = prompts(write(tmp_path / f"{name}.{kind}", SETS[name]))
    (source,) = SETS[name]
    keys = [
        [k for k in names if k in source][0]
        for names in (("problem", "question", "prompt"), ("label", "answer", "solution"))
    ]
    assert [row["prompt"], row["ground_truth"]] == [source[key] for key in keys]
    assert row["data_source"] == name and row["line"] == 1


def test_a_published_solution_of_gsm8k_is_read_to_its_last_number(tmp_path):
    solution = "She sells 20 * 60 = <<20*60=1200>>1,200 eggs.\n#### 1,200"
    (row,) = prompts(write_jsonl(tmp_path / "gsm8k.jsonl", [{"question": "How many?", "answer": solution}]))
    assert row["ground_truth"] == "1200" and row["verifier"] == "gsm8k"


def test_countdown_rows_are_puzzles(tmp_path):
    source = [{"numbers": [3, 5, 7], "target": 8}, {"numbers": [1, 2], "target": 3}]
    made = prompts(write_jsonl(tmp_path / "train.jsonl", source))
    assert [row["ground_truth"] for row in made] == source and {row["verifier"] for row in made} == {"countdown"}
    assert "[3,5,7]" in made[0]["prompt"] and "equals 8" in made[0]["prompt"]


def test_the_verifier_that_auto_chooses_warns_too(tmp_path):
    rows = [{"prompt": "p", "answer": "1,234", "data_source": s} for s in ("gsm8k", "dapo", "letters")]
    done = run_augur("prompts", write_jsonl(tmp_path / "rows.jsonl", rows), "--verifier", "auto")
    assert done.stderr.splitlines() == [
        f"augur: warning: {tmp_path}/rows.jsonl:1: the ground truth '1,234' cannot match itself under 'gsm8k'"
    ]


def philox(key, low, high):
    """Philox 4x32-10 (Salmon et al. 2011), written independently; the first 64 bits."""
    x = [low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32]
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b >> 32) ^ x[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ x[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x[1] << 32 | x[0]


def epoch_order(size, seed, epoch):
    order = list(range(size))
    for i in range(size - 1, 0, -1):
        j = philox(seed, i, (0x70726F6D << 32) + epoch) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def test_the_shuffled_order_is_the_documented_one_and_resumes_anywhere(tmp_path):
    file = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": str(i), "answer": i} for i in range(50)])
    seed = 2**63 + 12345
    want = [index for epoch in range(3) for index in epoch_order(50, seed, epoch)]
    got = prompts(file, "--shuffle", seed, "--limit", 150)
    assert [row["index"] for row in got] == want
    resumed = prompts(file, "--shuffle", seed, "--start", 77, "--limit", 73)
    assert resumed == got[77:]


def test_a_ground_truth_that_cannot_match_itself_is_a_warning_with_its_line(tmp_path):
    rows = [{"prompt": "p", "answer": answer} for answer in ["5", "1,234", 7, "about 3"]]
    done = run_augur("prompts", write_jsonl(tmp_path / "rows.jsonl", rows), "--verifier", "gsm8k")
    assert done.stderr.splitlines() == [
        f"augur: warning: {tmp_path}/rows.jsonl:{line}: the ground truth '{answer}' cannot match itself under 'gsm8k'"
        for line, answer in [(2, "1,234"), (4, "about 3")]
    ]


def test_keys_and_template_are_taken_from_the_command(tmp_path):
    file = write_jsonl(tmp_path / "rows.jsonl", [{"q": {"text": "1+1"}, "a": 2, "from": "sums"}])
    keys = ["--prompt-key", "q.text", "--answer-key", "a", "--data-source-key", "from"]
    (row,) = prompts(file, *keys, "--template", "{prompt} = ?")
    assert (row["prompt"], row["ground_truth"], row["data_source"]) == ("1+1 = ?", 2, "sums")


def damaged(content, cut):
    return content[: len(content) // 2] if cut == "half" else content[:40] + b"\xff" * 40 + content[80:]


@pytest.mark.parametrize("cut", ["half", "bytes"])
def test_a_damaged_parquet_file_is_named(tmp_path, cut):
    good = write_parquet(tmp_path / "good.parquet", ROWS).read_bytes()
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(damaged(good, cut))
    done = run_augur("prompts", bad, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"augur: {bad}: cannot be read as Parquet") and done.stderr.count("\n") == 1


def test_a_malformed_row_is_named_with_file_and_line(tmp_path):
    rows = [{"prompt": "p", "answer": "1"}, {"prompt": None, "answer": "1"}]
    for file in [write_parquet(tmp_path / "r.parquet", rows), write_jsonl(tmp_path / "r.jsonl", rows)]:
        done = run_augur("prompts", file, check=False)
        assert done.returncode == 2
        assert f"augur: {file}:2: no prompt" in done.stderr


@pytest.mark.parametrize("flag", ["--limit", "--start", "--shuffle"])
def test_negative_numbers_are_refused(flag):
    done = run_augur("prompts", "task:sort:count=10:seed=1", flag, -1, check=False)
    assert done.returncode == 2 and flag in done.stderr and "-1" in done.stderr


def conversation(*turns):
    return [{"role": role, "content": content} for role, content in turns]


ASKED = conversation(("system", "Add."), ("user", "3 + 4?"))
ANSWERED = [*ASKED, *conversation(("assistant", "3 and 4 make\n#### 7"))]


@pytest.mark.parametrize("column", ["messages", "prompt"])
def test_a_conversation_that_ends_with_its_answer_is_refused_or_cut(tmp_path, column):
    own = {"answer": "seven"} if column == "prompt" else {}
    file = write_jsonl(tmp_path / "rows.jsonl", [{column: ANSWERED} | own])
    done = run_augur("prompts", file, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert "rows.jsonl:1: the prompt ends with the assistant's message, which gives the answer away" in done.stderr
    assert "data.cut_answer=true, or --cut-answer" in done.stderr
    (row,) = prompts(file, "--cut-answer")
    assert row["prompt"] == ASKED and row["ground_truth"] == own.get("answer", "7")


def test_a_conversation_of_an_answer_alone_is_no_prompt(tmp_path):
    file = write_jsonl(tmp_path / "rows.jsonl", [{"messages": ANSWERED[-1:]}])
    for flags in ([], ["--cut-answer"]):
        done = run_augur("prompts", file, *flags, check=False)
        assert done.returncode == 2 and "add the message that it answers" in done.stderr


def test_messages_are_the_prompt_where_no_other_column_is(tmp_path):
    file = write_jsonl(tmp_path / "rows.jsonl", [{"messages": ASKED, "answer": "7"}])
    (row,) = prompts(file)
    assert row["prompt"] == ASKED
