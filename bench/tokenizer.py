"""Augur's tokenizer against the `tokenizers` package: one thread, the same texts, one run.

    python bench/tokenizer.py MODEL [--text FILE.jsonl ...]

MODEL is a directory with a tokenizer.json. Texts are lines {"text": ...}; without any, English, code and CJK
are drawn from what Python itself brings and from sentences below. The time of both is that of encoding alone:
process start, loading and JSON are left out. Each is timed several times, taking turns, and the best time
counts; of the package's two ways, `encode` and `encode_batch_fast`, the faster one.
"""

import argparse
import json
import os
import random
import subprocess
import sysconfig
import time
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Tokenizer  # noqa: E402

PROGRAM = Path(__file__).resolve().parents[1] / "build" / "augur"
CJK = """今天的天气非常好,我们一起去公园散步吧。
设函数在区间上连续,且满足下列条件,求其最大值与最小值之和。
人工智能正在改变我们的生活方式,也带来了许多新的问题。
昨日は友達と一緒に映画を見に行きました。とても面白かったです。
この問題を解くには、まず方程式の両辺を二乗する必要があります。
강화 학습은 보상을 최대화하는 행동을 학습하는 방법이다.
서울의 봄은 벚꽃이 피어서 매우 아름답습니다.
他说:“如果明天下雨,比赛就会推迟到下个星期三。”
证明:对任意正整数,该数列的前项和都不超过二。
図書館で借りた本を返すのを忘れてしまった。""".splitlines()


def built_in_texts() -> dict[str, list[str]]:
    rng = random.Random(0)
    library = Path(sysconfig.get_path("stdlib"))
    modules = [
        "argparse",
        "ast",
        "datetime",
        "decimal",
        "doctest",
        "inspect",
        "pathlib",
        "typing",
        "unittest/case",
    ]
    sources = [p for p in (library / f"{name}.py" for name in modules) if p.exists()]
    code = [s[i : i + 2000] for s in (p.read_text() for p in sources) for i in range(0, len(s), 2000)]
    topics = (library / "pydoc_data" / "topics.py").read_text().encode().decode("unicode_escape", errors="ignore")
    english = [topics[i : i + 2000] for i in range(0, 600_000, 2000)]
    cjk = ["".join(rng.sample(CJK, len(CJK))) * 3 for _ in range(300)]
    return {"English": english, "code": code, "CJK": cjk}


def seconds_of_augur(model: Path, texts: list[str]) -> float:
    lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
    done = subprocess.run(
        [PROGRAM, "tokenize", model, "--stats"], input=lines, capture_output=True, text=True, check=True
    )
    return json.loads(done.stderr)["seconds"]


def seconds_of_tokenizers(tokenizer: Tokenizer, texts: list[str]) -> float:
    start = time.perf_counter()
    for text in texts:
        tokenizer.encode(text, add_special_tokens=False)
    one_by_one = time.perf_counter() - start
    start = time.perf_counter()
    tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return min(one_by_one, time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, nargs="+", help='files of lines {"text": ...}')
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sets = built_in_texts()
    if args.text:
        sets = {p.stem: [json.loads(line)["text"] for line in p.open(encoding="utf-8")] for p in args.text}
    sets["all"] = [text for texts in sets.values() for text in texts]
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    print(f"{'texts':10} {'MB':>6} {'tokenizers MB/s':>16} {'Augur MB/s':>11} {'ratio':>6}")
    for name, texts in sets.items():
        size = sum(len(text.encode()) for text in texts) / 1e6
        times = [
            (seconds_of_tokenizers(tokenizer, texts), seconds_of_augur(args.model, texts)) for _ in range(args.rounds)
        ]
        peer, own = (min(column) for column in zip(*times, strict=True))
        print(f"{name:10} {size:6.2f} {size / peer:16.2f} {size / own:11.2f} {peer / own:6.1f}")


if __name__ == "__main__":
    main()
