"""The example of docs/trl.md, on a tiny random model."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tiny_trl import make_qwen3, make_tokenizer

EXAMPLE = Path(__file__).resolve().parents[3] / "python" / "examples" / "trl_arithmetic.py"
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"


def test_the_example_trains_and_reports_the_mask(tmp_path):
    make_qwen3().save_pretrained(tmp_path)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, EXAMPLE, tmp_path, "--steps", "8", "--cpu", "--output", tmp_path / "out"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr
    reports = re.findall(r"^reward=\S+ mask/outside=\S+ mask/masked=\S+$", done.stdout, re.MULTILINE)
    assert len(reports) == 2, done.stdout
