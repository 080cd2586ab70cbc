"""augur report, looked at in Chromium: what the page says is what the run directories hold."""

import itertools
import json
import re
import time

import numpy as np
import pytest

import augur.runs
import report_runs
from browser import Browser
from conftest import run_augur


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [report_runs.make_run(folder / "predictive"), report_runs.make_run(folder / "clip", steps=50, seed=1)]


@pytest.fixture(scope="module")
def page(runs):
    out = runs[0].parent / "report.html"
    run_augur("report", *runs, "-o", out)
    return out


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def shown_number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", ""))


def detail(browser: Browser, key: str) -> str:
    return browser.ask(f"document.querySelector('#token-detail [data-key={key}]').textContent")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_opens_from_a_file_without_network_errors_or_sideways_scrolling(browser, page, width, dark):
    browser.open(page, width=width, dark=dark)
    assert browser.problems == []
    assert browser.requests == [page.resolve().as_uri()]
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask("document.documentElement.dataset.theme") == ("dark" if dark else "light")


def test_every_chart_is_drawn_with_the_values_of_the_metrics_file(browser, runs, page):
    browser.open(page)
    drawn = browser.ask("""charts.map((holder) => {
        const {width, height} = holder.canvas;
        const pixels = holder.canvas.getContext('2d').getImageData(0, 0, width, height).data;
        return pixels.some((value) => value !== 0);
    })""")
    assert len(drawn) > 12 and all(drawn)
    for run, name in ((0, "critic/score/mean"), (1, "mask/outside"), (0, "val-core/sort/acc/mean@16")):
        expected = [[m["step"], m["data"][name]] for m in lines_of(runs[run] / "metrics.jsonl") if name in m["data"]]
        assert browser.ask(f"series(RUNS[{run}], {json.dumps(name)})") == expected
    titles = browser.ask("[...document.querySelectorAll('.chart h3')].map((h) => h.textContent)")
    reward = browser.ask(f"charts[{titles.index('Reward')}].chart.data.datasets.map((d) => d.data.map((p) => p.y))")
    for run, shown in zip(runs, reward, strict=True):
        assert shown == [m["data"]["critic/score/mean"] for m in lines_of(run / "metrics.jsonl")]


def test_smoothing_averages_the_curve_and_keeps_the_raw_values_behind_it(browser, page):
    browser.open(page)
    browser.ask(
        "(() => {const s = document.getElementById('smoothing'); s.value = 0.9; s.dispatchEvent(new Event('input'))})()"
    )
    raw, smooth = browser.ask("charts[1].chart.data.datasets.slice(0, 2).map((d) => d.data.map((p) => p.y))")
    total, norm, expected = 0.0, 0.0, []
    for value in raw:
        total, norm = 0.9 * total + 0.1 * value, 0.9 * norm + 0.1
        expected.append(total / norm)
    np.testing.assert_allclose(smooth, expected, rtol=1e-12)
    assert browser.problems == []


def test_the_theme_button_switches_and_redraws(browser, page):
    browser.open(page)
    browser.mouse("#theme")
    assert browser.ask("document.documentElement.dataset.theme") == "dark"
    assert browser.ask("charts.every((h) => h.chart.canvas === h.canvas)")
    browser.mouse("#theme")
    assert browser.ask("document.documentElement.dataset.theme") == "light"
    assert browser.problems == []


def test_pointing_at_a_token_shows_the_figures_of_its_record(browser, runs, page):
    browser.open(page)
    record = lines_of(runs[0] / "tokens.jsonl")[0]
    for index in (0, 7, 31):
        token = record["tokens"][index]
        browser.mouse("#responses .response:first-child .tok", click=False, index=index)
        for key in ("ratio", "divergence", "advantage", "local", "global"):
            assert shown_number(detail(browser, key)) == pytest.approx(token[key], rel=1e-3), key
        reason = detail(browser, "reason")
        assert ("Outside" in reason) == token["outside"]
        assert ("gradient is dropped" in reason) == (not token["keep"])
        for value, key in ((2, "mu"), (3, "pi")):
            shown = browser.ask(
                f"[...document.querySelectorAll('#token-detail [data-{key}]')].map((n) => Number(n.dataset.{key}))"
            )
            ordered = sorted(token["support"], key=lambda atom: -atom[2])
            expected = [atom[value] for atom in ordered] + [token[f"{key}_tail"]]
            assert shown == pytest.approx(expected, rel=1e-5)


def test_tokens_are_marked_by_class_as_their_records_say(browser, runs, page):
    browser.open(page)
    for i, record in enumerate(lines_of(runs[0] / "tokens.jsonl")):
        classes = browser.ask(
            f"[...document.querySelectorAll('.response')[{i}].querySelectorAll('.tok')].map((t) => [...t.classList])"
        )
        for token, names in zip(record["tokens"], classes, strict=True):
            assert ("masked" in names) == (not token["keep"])
            assert ("kept" in names) == (token["keep"] and token["outside"])
            assert ("disagree" in names) == token["disagree"]


def test_keys_walk_over_tokens_responses_masked_and_disagreeing_tokens(browser, runs, page):
    browser.open(page)
    records = lines_of(runs[0] / "tokens.jsonl")
    chosen = (
        "(() => {const a = viewer.chosen.augur; return [RUNS[0].tokens.responses.indexOf(a.response), a.position]})()"
    )
    browser.mouse("#responses .tok")
    assert browser.ask(chosen) == [0, 0]
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    assert browser.ask(chosen) == [0, 2]
    browser.key("ArrowLeft")
    assert browser.ask(chosen) == [0, 1]
    browser.key("ArrowDown")
    assert browser.ask(chosen) == [1, 0]
    browser.key("m")
    assert browser.ask(chosen) == [1, next(i for i, t in enumerate(records[1]["tokens"]) if i > 0 and not t["keep"])]
    browser.key("d")
    response, position = browser.ask(chosen)
    assert records[response]["tokens"][position]["disagree"]
    assert browser.ask("document.activeElement === viewer.chosen")
    browser.key("Escape")
    assert browser.ask("viewer.chosen") is None
    browser.key("/")
    assert browser.ask("document.activeElement.id") == "token-search"


def test_filters_and_search_keep_the_responses_that_fit(browser, runs, page):
    browser.open(page)
    records = lines_of(runs[0] / "tokens.jsonl")
    browser.mouse("#only-disagree")
    expected = [r for r in records if any(t["disagree"] for t in r["tokens"])]
    assert browser.ask("document.querySelectorAll('.response').length") == len(expected)
    bright = browser.ask("[...document.querySelectorAll('#responses .tok:not(.dim)')].length")
    assert bright == sum(t["disagree"] for r in expected for t in r["tokens"])
    browser.mouse("#only-disagree")
    needle = records[5]["prompt"].split(": ")[1]
    browser.mouse("#token-search")
    for char in needle:
        browser.key(char)
    assert browser.ask("document.querySelectorAll('.response').length") == 1
    assert browser.ask("document.querySelector('#token-count').textContent") == "1 of 12 responses"


HOSTILE = [
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    "<!--<script>",
    "&lt;b&gt; \" ' ` ${1} {{data}} {{charts}}",
    "\u2028\u2029\u0000\u0007\x1b[31m\u202e right to left",
    "]]> </textarea></title>",
    "😀 日本 \ufeff",
    "",
]


def test_text_of_any_kind_is_shown_as_text(browser, tmp_path):
    run = report_runs.make_run(tmp_path / "<b>run & 'co'", responses=0)
    rng = np.random.default_rng(0)
    record = report_runs.response(rng, 1, length=len(HOSTILE))
    record.update(prompt="".join(HOSTILE), answer=HOSTILE[0], data_source=HOSTILE[1], finish=HOSTILE[0])
    for i, (token, text) in enumerate(zip(record["tokens"], HOSTILE, strict=True)):
        token.update(id=1000 + i, text=text)
        token["support"][0][:2] = [1000 + i, text]
    report_runs.write_lines(run / "tokens.jsonl", [record])
    metrics = [{"step": 1, "data": {HOSTILE[0]: 1.5, "critic/score/mean": 0.5}}]
    report_runs.write_lines(run / "metrics.jsonl", metrics)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("models/tiny", json.dumps(HOSTILE[0])))
    out = tmp_path / "report.html"
    run_augur("report", run, "-o", out)
    browser.open(out)
    assert browser.problems == []
    assert browser.ask("window.broken") is None
    assert browser.ask("document.querySelectorAll('img, main script').length") == 0
    assert browser.ask("RUNS[0].tokens.responses[0].prompt") == record["prompt"]
    shown = browser.ask("[...document.querySelectorAll('#responses .tok')].map((t) => t.textContent)")
    assert shown[0] == HOSTILE[0] and shown[1] == HOSTILE[1] and shown[7] == "∅"
    assert "␀␇␛[31m⟨U+202E⟩ right to left" in shown[4]
    for i in range(len(HOSTILE)):
        browser.mouse("#responses .tok", index=i)
    assert HOSTILE[0] in browser.ask("document.querySelector('.run-card header').textContent")
    assert browser.problems == [] and browser.ask("window.broken") is None
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', out.read_text(), re.S).group(1)
    assert not set("<>&\u2028\u2029") & set(data)


# As el() once took attributes: an object becomes none, and a handler would not run.
HOSTILE_OBJECTS = [
    {"onmouseover": "window.broken = 1", "onfocus": "window.broken = 1", "style": "position:fixed;inset:0;z-index:99"},
    {"toString": "x", "valueOf": 1, "toJSON": "y", "__proto__": {"x": 1}, "constructor": 1},
    ["<img src=x onerror='window.broken = 1'>", {"onclick": "window.broken = 1"}],
    {"values": {"onmouseover": "window.broken = 1"}},
    None,
    True,
    1e308,
]


def with_objects_for_text(value, objects):
    """The same JSON with an object of the cycle in the place of every text."""
    if isinstance(value, dict):
        return {key: with_objects_for_text(item, objects) for key, item in value.items()}
    if isinstance(value, list):
        return [with_objects_for_text(item, objects) for item in value]
    return next(objects) if isinstance(value, str) else value


def make_frontier(run) -> dict:
    cells = [
        {"at": [i], "counted": 1, "broken": i, "final_accuracy": 0.5, "updates": 1.0}
        | {
            "runs": [
                {"seed": 0, "finished": True, "broken": False, "start": 0.3, "final": 0.5, "best": 0.5, "note": ""}
            ]
        }
        for i in range(2)
    ]
    figure = {"mean": 0.5, "low": 0.4, "high": 0.6}
    arms = [{"name": "clip", "surviving": figure, "minus_baseline": None, "cells": cells}]
    axes = [{"name": "lr_factor", "values": [1, 2]}]
    return {
        "kind": "frontier",
        "axes": axes,
        "arms": arms,
        "seeds": [0],
        "level": 0.95,
        "baseline": "clip",
        "unfinished": 0,
    }


@pytest.mark.parametrize("first", range(len(HOSTILE_OBJECTS)))
def test_objects_in_the_place_of_text_are_shown_as_text(browser, tmp_path, first):
    run = report_runs.make_run(tmp_path / "run", steps=3, responses=1)
    names = {"compare": report_runs.make_comparison(run), "analysis": report_runs.make_analysis(run)}
    names["frontier"] = make_frontier(run)
    names["summary"] = {"before": "x", "after": "x", "steps": "x", "train_seconds": "x", "verifiers": {"sort": "x"}}
    objects = itertools.cycle(HOSTILE_OBJECTS[first:] + HOSTILE_OBJECTS[:first])
    for name, content in names.items():
        changed = with_objects_for_text(content, objects) | {"kind": content.get("kind")}
        (run / f"{name}.json").write_text(json.dumps(changed))
    lines = [{"step": 1, "data": {"toString": 1.0, "constructor": 2.0, "__proto__": 3.0}}]
    report_runs.write_lines(run / "metrics.jsonl", lines)
    out = tmp_path / "report.html"
    run_augur("report", run, report_runs.make_run(tmp_path / "plain", steps=3, responses=1), "-o", out)
    browser.open(out)
    handlers = (
        "[...document.querySelectorAll('*')].flatMap((e) => [...e.attributes]).filter((a) => /^on|^x$/.test(a.name))"
    )
    assert browser.ask(f"{handlers}.length") == 0
    assert browser.ask("[...document.querySelectorAll('*')].some((e) => e.style.position === 'fixed')") is False
    assert browser.ask("document.querySelectorAll('.run-card').length") == 2
    assert browser.problems == [] and browser.ask("window.broken") is None
    if first == 0:
        assert "window.broken" in browser.ask("document.getElementById('main').textContent")


def test_a_name_of_an_arm_that_is_an_object_is_shown_as_its_json(browser, tmp_path):
    run = report_runs.make_run(tmp_path / "run", responses=0)
    comparison = report_runs.make_comparison(run)
    for arm in comparison["arms"]:
        arm["name"] = HOSTILE_OBJECTS[0]
    (run / "compare.json").write_text(json.dumps(comparison))
    run_augur("report", run)
    browser.open(run / "report.html")
    assert browser.ask("document.querySelectorAll('[onmouseover]').length") == 0
    assert '{"onfocus":"window.broken' in browser.ask("document.querySelector('#compare-0 table').textContent")
    assert browser.problems == []


def test_only_the_pages_own_scripts_and_styles_run(browser, page):
    browser.open(page)
    assert "unsafe-inline" not in page.read_text().split("</head>")[0]
    browser.ask("document.querySelector('h3').setAttribute('onclick', 'window.broken = 1')")
    browser.ask("document.querySelector('h3').click()")
    script = "const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s)"
    browser.ask(f"(() => {{{script}}})()")
    browser.ask("document.querySelector('h3').setAttribute('style', 'position:fixed')")
    assert browser.ask("window.broken") is None
    assert browser.ask("document.querySelector('h3').style.position") == ""


def test_a_notebook_shows_the_page_in_a_frame_of_another_origin(browser, tmp_path, page):
    host = tmp_path / "notebook.html"
    host.write_text(f"<!doctype html><title>notebook</title><body>{augur.runs.Report(page)._repr_html_()}")
    browser.open(host)
    assert browser.ask("document.querySelector('iframe').contentDocument") is None
    assert browser.ask("[...document.querySelector('iframe').sandbox]") == ["allow-scripts"]
    # In a frame that may be looked into, the links of the navigation stay within the page.
    host.write_text(host.read_text().replace('sandbox="allow-scripts"', ""))
    browser.open(host)
    frame = "document.querySelector('iframe')"
    browser.ask(f"{frame}.contentDocument.querySelector('nav a[href=\"#tokens\"]').click()")
    time.sleep(0.5)
    assert browser.ask(f"{frame}.contentDocument.getElementById('tokens').getBoundingClientRect().top") < 200
    assert browser.problems == []


def test_a_file_that_is_no_page_is_not_overwritten(runs, tmp_path):
    out = tmp_path / "base.yaml"
    out.write_text("run:\n  seed: 1\n")
    done = run_augur("report", runs[0], "-o", out, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{out}: exists and is not a page that augur report wrote; remove it, or name another" in done.stderr
    assert out.read_text() == "run:\n  seed: 1\n"
    page = tmp_path / "page.html"
    page.touch()  # as mktemp leaves it
    run_augur("report", runs[0], "-o", page)
    first = page.read_text()
    run_augur("report", runs[1], "-o", page)
    assert page.read_text() != first


def notes(browser: Browser) -> str:
    return browser.ask("[...document.querySelectorAll('.notes')].map((n) => n.textContent).join('\\n')")


def test_a_run_that_has_only_begun_gives_a_page_that_says_what_is_missing(browser, tmp_path):
    run = tmp_path / "begun"
    run.mkdir()
    (run / "summary.json").write_text("{}")
    run_augur("report", run)
    browser.open(run / "report.html")
    assert browser.problems == []
    assert "no metrics.jsonl" in notes(browser) and "no config.yaml" in notes(browser)


def test_probabilities_as_small_as_numbers_get_are_shown(tmp_path):
    run = report_runs.make_run(tmp_path / "run", steps=3)
    text, changed = re.subn(r'"local": [-+.e0-9]+', '"local": 5e-324', (run / "tokens.jsonl").read_text())
    assert changed
    (run / "tokens.jsonl").write_text(text)
    run_augur("report", run)
    assert (run / "report.html").exists()


def test_a_directory_that_is_no_run_is_a_user_error(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    done = run_augur("report", tmp_path, check=False)
    assert done.returncode == 2 and f"{tmp_path}: is no run" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "report.html").exists()
    for name in ("config.yaml", "manifest.json", "state.json"):
        (tmp_path / name).write_text("{}")
    done = run_augur("report", tmp_path, check=False)
    assert done.returncode == 2 and "is a checkpoint; name the run" in done.stderr


def test_a_damaged_and_unfinished_run_shows_what_is_whole(browser, tmp_path):
    run = report_runs.make_run(tmp_path / "cut")
    metrics = run / "metrics.jsonl"
    metrics.write_text("\n".join(metrics.read_text().splitlines()[:40]) + '\n{"step": 41, "da')
    tokens = run / "tokens.jsonl"
    tokens.write_bytes(b'\xff\xfe garbage\n[1, 2]\n{"step": "x"}\n' + tokens.read_bytes()[:-50])
    (run / "points.jsonl").write_text('{"step": 1}\n')
    (run / "config.yaml").write_text(report_runs.config().replace("delta: 0.15", "delta: {{{ 0.15"))
    (run / "summary.json").write_text('{"before": 0.3, "aft')
    (run / "analysis.json").write_text('[{"x": 1}, 7]')
    (run / "compare.json").write_text('{"arms": 3}')
    run_augur("report", run)
    browser.open(run / "report.html")
    assert browser.problems == []
    text = notes(browser)
    for part in (
        "metrics.jsonl: 1 damaged line",
        "tokens.jsonl: 4 damaged lines",
        "points.jsonl",
        "config.yaml is damaged",
    ):
        assert part in text
    assert "summary.json" in text and "analysis.json is not what this page reads" in text
    assert browser.ask("series(RUNS[0], 'critic/score/mean').length") == 40
    assert browser.ask("document.querySelectorAll('.response').length") == 11


def test_a_last_line_torn_within_its_step_takes_no_others_with_it(browser, tmp_path):
    run = report_runs.make_run(tmp_path / "torn")
    tokens = run / "tokens.jsonl"
    lines = tokens.read_text().splitlines(keepends=True)
    step = json.loads(lines[-1])["step"]
    assert step >= 10
    tokens.write_text("".join(lines) + f'{{"step": {str(step)[:1]}')
    run_augur("report", run)
    browser.open(run / "report.html")
    assert "tokens.jsonl: 1 damaged line" in notes(browser)
    assert browser.ask("document.querySelectorAll('.response').length") == len(lines)


def test_an_unfinished_run_says_how_far_it_came_and_runs_of_two_models_are_told_apart(browser, tmp_path):
    first = report_runs.make_run(tmp_path / "a" / "run", steps=20)
    (first / "config.yaml").write_text(report_runs.config(steps=100))
    second = report_runs.make_run(tmp_path / "b" / "run", steps=20, model="models/other")
    run_augur("report", first, second, "-o", tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    assert "unfinished: 20 of 100 steps" in notes(browser)
    assert "different models (models/other, models/tiny)" in notes(browser)
    assert browser.ask("new Set(RUNS.map((r) => r.label)).size") == 2


def test_a_resumed_run_counts_its_repeated_steps_once(browser, tmp_path):
    run = report_runs.make_run(tmp_path / "resumed", steps=10)
    lines = lines_of(run / "metrics.jsonl")
    repeated = [{"step": s, "data": {"critic/score/mean": 9.0}} for s in (7, 8)]
    report_runs.write_lines(run / "metrics.jsonl", lines + repeated)
    run_augur("report", run)
    browser.open(run / "report.html")
    assert [x for x, _ in browser.ask("series(RUNS[0], 'critic/score/mean')")] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_page_too_large_samples_its_tokens_and_says_so(browser, tmp_path):
    run = report_runs.make_run(tmp_path / "large", responses=0)
    rng = np.random.default_rng(0)
    # One long response with every token outside, repeated, since only the size matters.
    line = json.dumps(report_runs.response(rng, 1, length=500)).replace('"outside": false', '"outside": true')
    with (run / "tokens.jsonl").open("w") as file:
        for step in range(100):
            file.write(line.replace('{"step": 1,', f'{{"step": {step},', 1) + "\n")
    assert (run / "tokens.jsonl").stat().st_size > 60 << 20
    run_augur("report", run)
    assert (run / "report.html").stat().st_size <= 10_000_000
    browser.open(run / "report.html")
    assert "probabilities are shown for tokens outside the trust region only" in notes(browser)
    assert "of 100 recorded responses are shown, drawn at random" in notes(browser)
    assert browser.ask("document.querySelector('#token-count').textContent").endswith("sampled from 100")
    assert browser.problems == []


def test_a_path_that_is_no_directory_is_a_user_error(tmp_path):
    done = run_augur("report", tmp_path / "absent", check=False)
    assert done.returncode == 2 and "does not exist" in done.stderr
    (tmp_path / "file").write_text("")
    done = run_augur("report", tmp_path / "file", check=False)
    assert done.returncode == 2 and "is no directory" in done.stderr
    run = report_runs.make_run(tmp_path / "run", responses=1)
    done = run_augur("report", run, "-o", tmp_path / "no" / "such" / "place.html", check=False)
    assert done.returncode == 2 and "place.html" in done.stderr
    done = run_augur("report", check=False)
    assert done.returncode == 2


def table_with(browser: Browser, head: str) -> list[list[str]]:
    """The cells of the table whose first row holds that heading."""
    cells = "(table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent))"
    tables = browser.ask(f"[...document.querySelectorAll('table')].map({cells})")
    return next(rows for rows in tables if head in rows[0])


def test_an_analysis_is_shown_with_its_own_figures(browser, tmp_path):
    run = tmp_path / "study"
    run.mkdir()
    kl = report_runs.make_analysis(run)["divergences"][0]
    run_augur("report", run)
    browser.open(run / "report.html")
    assert browser.problems == []
    for row, criterion in zip(table_with(browser, "sign accuracy %")[1:], kl["criteria"], strict=True):
        accuracy = criterion["prediction"]["sign_accuracy"]
        assert row[2] == f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['se']:.1f}"
    disagreements = table_with(browser, "unsafe keep %")
    assert len(disagreements) == len(kl["criteria"]) and "34.2 ± 1.0" in disagreements[1]
    assert "65.1" in disagreements[1] and "–" in disagreements[1]
    text = browser.ask("document.querySelector('#analysis-0').textContent")
    assert "1,435 of 40,000 tokens outside" in text and "No token was outside by this divergence" in text
    # The distribution function, the causes, and for each criterion the seeds that have both rates, with their mean.
    assert browser.ask("charts.length") == 2 + 4
    lines = browser.ask("charts[1].chart.data.datasets.map((d) => d.data.map((p) => p.y))")
    assert len(lines) == 8 and lines[0] == pytest.approx([0.369, 0.352])
    assert lines[-1] == pytest.approx([0.369, 0.342 + 0.01 * 4])


def test_a_comparison_is_shown_with_intervals_and_names_unfinished_runs(browser, tmp_path):
    run = tmp_path / "compared"
    run.mkdir()
    arms = report_runs.make_comparison(run)["arms"]
    run_augur("report", run)
    browser.open(run / "report.html")
    assert browser.problems == []
    for row, arm in zip(table_with(browser, "final accuracy %")[1:], arms, strict=True):
        final = arm["final_accuracy"]
        assert row[1] == f"{100 * final['mean']:.1f} [{100 * final['low']:.1f}, {100 * final['high']:.1f}]"
    assert "grpo-clip-higher, seed 7: 40 of 100 steps" in notes(browser) and "config" not in notes(browser)
    shown = browser.ask("charts[0].chart.data.datasets.filter((d) => d.label).map((d) => d.data.map((p) => p.y))")
    assert shown == [arm["curves"]["accuracy"]["mean"] for arm in arms]
    cards = browser.ask("[...document.querySelectorAll('#summary .card')].map((c) => c.textContent)")
    assert len(cards) == 5 and cards[0].startswith("grpo-clip-higher") and "baseline" in cards[0]
    for card, arm in zip(cards[1:4], arms[1:], strict=True):
        assert arm["name"] in card and f"{100 * arm['final_accuracy']['mean']:.1f}%" in card and "p = 0.040" in card
    assert "8of 100 steps" in cards[4] and "little" not in notes(browser)


def test_a_comparison_of_one_seed_shows_no_intervals_and_says_so(browser, tmp_path):
    run = tmp_path / "compared"
    run.mkdir()
    comparison = report_runs.make_comparison(run)
    comparison["seeds"] = [0]
    for arm in comparison["arms"]:
        figures = [arm["final_accuracy"], arm["auc_accuracy"], *(arm["minus_baseline"] or {}).values()]
        for figure in figures:
            figure |= {"low": None, "high": None, "p": None}
    (run / "compare.json").write_text(json.dumps(comparison))
    run_augur("report", run)
    browser.open(run / "report.html")
    assert browser.problems == [] and "One seed says little" in notes(browser)
    rows = table_with(browser, "final accuracy %")[1:]
    assert [row[1] for row in rows] == [f"{100 * arm['final_accuracy']['mean']:.1f}" for arm in comparison["arms"]]
    assert [row[3] for row in rows] == ["", "–", "–", "–"]


@pytest.mark.parametrize(("steps", "shown"), [(60, True), (40, False)])
def test_what_a_run_came_to_is_shown_until_it_goes_on(browser, tmp_path, steps, shown):
    run = report_runs.make_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"steps": steps}))
    run_augur("report", run)
    browser.open(run / "report.html")
    text = browser.ask("document.querySelector('#summary .cards').textContent")
    assert ("31.0% → 62.0%" in text) == shown and "Accuracy" in text


def test_the_time_of_a_long_unfinished_run_is_that_of_all_its_steps(browser, tmp_path):
    run = report_runs.make_run(tmp_path / "run", responses=0)
    (run / "summary.json").unlink()
    lines = [{"step": step, "data": {"timing_s/step": 2.0}} for step in range(1, 9001)]
    report_runs.write_lines(run / "metrics.jsonl", lines)
    run_augur("report", run)
    browser.open(run / "report.html")
    assert browser.ask("series(RUNS[0], 'timing_s/step').length") < 9000
    assert browser.ask("seconds(RUNS[0])") == 18000


def test_the_summary_says_which_verifier_scored_what(browser, tmp_path):
    run = report_runs.make_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"verifiers": {"sort": "exact", "gsm8k": "gsm8k"}}))
    run_augur("report", run)
    browser.open(run / "report.html")
    assert "scored by gsm8k (gsm8k), exact (sort)" in browser.ask("document.querySelector('#summary').textContent")


CHARTS = """charts.map((h) => ({
    title: h.canvas.closest('.chart').querySelector('h3').textContent,
    about: h.canvas.closest('.chart').textContent,
    runs: h.chart.data.datasets.map((d) => d.label),
    x: h.chart.options.scales.x.title.text,
    xs: h.chart.scales.x.ticks.map((t) => t.value),
    y: [h.chart.scales.y.min, h.chart.scales.y.max],
}))"""


def test_each_measure_has_its_own_charts_and_a_ratio_is_never_called_a_divergence(browser, tmp_path):
    runs = [report_runs.make_run(tmp_path / name, steps=10, seed=i) for i, name in enumerate(("kl", "clip", "binary"))]
    report_runs.under_clip(runs[1])
    config = runs[2] / "config.yaml"
    config.write_text(config.read_text().replace("proximity: kl", "proximity: tv").replace("topk", "binary"))
    run_augur("report", *runs, "-o", tmp_path / "report.html")
    browser.open(tmp_path / "report.html")
    charts = {chart["title"]: chart for chart in browser.ask(CHARTS)}
    for title, label in (
        ("Divergence: KL", "kl"),
        ("Mean |r − 1|", "clip"),
        ("Divergence: binary TV", "binary"),
        ("Outside by KL", "kl"),
        ("Outside by |r − 1|", "clip"),
        ("Outside by binary TV", "binary"),
    ):
        assert charts[title]["runs"] == [label]
    assert not {"Divergence", "Outside"} & set(charts)
    for chart in browser.ask(CHARTS):
        assert len({"kl", "clip", "binary"} & set(chart["runs"])) != 2
    panels = "[...document.querySelectorAll('#mask > .grid.wide')][1].textContent"
    assert "ivergence" not in browser.ask(panels) and "δ" not in browser.ask(panels)
    horizontal = [chart["x"] for chart in browser.ask(CHARTS) if chart["title"] == "Proximity and direction"]
    assert horizontal == ["divergence D (KL)", "|r − 1|", "divergence D (binary TV)"]
    notes = browser.ask("[...document.querySelectorAll('.card .note')].map((n) => n.textContent)")
    assert [note for note in notes if " by " in note] == [
        f"of tokens by {measure}, last tenth" for measure in ("KL", "|r − 1|", "binary TV")
    ]
    assert browser.problems == []


def test_a_token_of_a_ratio_rule_shows_its_measure(browser, tmp_path):
    run = report_runs.under_clip(report_runs.make_run(tmp_path / "run", steps=3))
    run_augur("report", run)
    browser.open(run / "report.html")
    browser.mouse("#responses .tok", index=3)
    figures = browser.ask("document.querySelector('#token-detail .figures').textContent")
    assert "|r − 1|" in figures and "ivergence" not in figures and "Ḋ of KL, local" in figures


def test_the_axes_of_shares_and_steps_end_where_they_do(browser, tmp_path):
    run = report_runs.make_run(tmp_path / "run", steps=1)
    data = {"mask/outside": 0.0, "mask/masked": 0.0, "critic/score/mean": 0.5, "val-core/sort/acc/mean@1": 1.0}
    report_runs.write_lines(run / "metrics.jsonl", [{"step": step, "data": data} for step in (0, 1)])
    other = report_runs.make_run(tmp_path / "other", steps=1)
    report_runs.write_lines(other / "metrics.jsonl", [{"step": 1, "data": data}])
    for one in (run, other):
        run_augur("report", one)
        browser.open(one / "report.html")
        charts = {chart["title"]: chart for chart in browser.ask(CHARTS)}
        for name in ("Outside by KL", "Masked", "Held-out accuracy"):
            assert 0 <= charts[name]["y"][0] < charts[name]["y"][1] <= 1, name
        for name in ("Reward", "Masked"):
            assert charts[name]["xs"] and all(x >= 0 and x == int(x) for x in charts[name]["xs"]), name


def test_the_page_opens_with_what_the_mask_did(browser, runs, page):
    browser.open(page)
    sentences = browser.ask("[...document.querySelectorAll('#summary .what')].map((p) => p.textContent)")
    for run, sentence in zip(runs, sentences, strict=True):
        lines = [line["data"] for line in lines_of(run / "metrics.jsonl")]
        outside, masked, disagree = (
            1000 * np.mean([data[f"mask/{name}"] for data in lines]) for name in ("outside", "masked", "disagree")
        )
        assert sentence == (
            f"Of 1,000 tokens {outside:.2f} were outside the trust region; {masked:.2f} were masked, since their "
            f"update would have led further out. On {disagree:.2f} of 1,000 the ratio would have decided otherwise."
        )
    assert browser.ask("document.querySelectorAll('.run-card .cards')[0].children.length") == 6  # a row at this width
    assert "val-core" not in browser.ask("document.getElementById('summary').textContent")


def test_the_viewer_opens_the_first_masked_token(browser, tmp_path):
    run = report_runs.make_run(tmp_path / "run", steps=3, responses=30)
    lines = lines_of(run / "tokens.jsonl")
    for line in lines[:14]:
        for token in line["tokens"]:
            token["keep"] = True
    report_runs.write_lines(run / "tokens.jsonl", lines)
    run_augur("report", run)
    browser.open(run / "report.html")
    masked = next((i, k) for i, line in enumerate(lines) for k, t in enumerate(line["tokens"]) if not t["keep"])
    chosen = (
        "(() => {const a = viewer.chosen.augur; return [RUNS[0].tokens.responses.indexOf(a.response), a.position]})()"
    )
    assert masked[0] >= 14 and tuple(browser.ask(chosen)) == masked
    assert "gradient is dropped" in detail(browser, "reason")
    assert browser.ask("scrollY") == 0 and browser.ask("document.activeElement === document.body")
    browser.open(run / "report.html", width=390)
    assert browser.ask("viewer.chosen") is None  # it would cover half of the page


def test_a_comparison_says_what_its_arms_are_and_links_to_their_runs(browser, tmp_path):
    folder = tmp_path / "100% & co"
    folder.mkdir()
    comparison = report_runs.make_comparison(folder)
    comparison["arms"][0]["rule"] = report_runs.CLIP
    (folder / "compare.json").write_text(json.dumps(comparison))
    page = report_runs.make_run(folder / "grpo-clip-higher" / "seed-3", steps=2) / "report.html"
    run_augur("report", page.parent)
    (tmp_path / "pages").mkdir()
    for out in (folder / "report.html", tmp_path / "pages" / "report.html"):
        run_augur("report", folder, "-o", out)
        browser.open(out)
        rows = "[...document.querySelectorAll('#compare-0 .words tr')].slice(1).map((r) => r.textContent)"
        first, second = browser.ask(rows)[:2]
        assert "ratio clip [0.2, 0.28]" in first and "topk KL, direction predicted (aggregated), δ = 0.15" in second
        links = browser.ask("[...document.querySelectorAll('#compare-0 a')].map((a) => [a.textContent, a.href])")
        assert links == [["seed 3", page.resolve().as_uri()]]
    cells = browser.ask("[...document.querySelectorAll('#compare-0 td:last-child')].map((c) => c.textContent)")
    assert any(c.endswith("by |r − 1|") for c in cells) and any(c.endswith("by KL") for c in cells)


def test_two_seeds_show_their_values_in_place_of_an_interval(browser, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    text = json.dumps(report_runs.make_comparison(run) | {"seeds": [0, 1]})
    two = re.sub(
        r'"low": [-.0-9]+, "high": [-.0-9]+, "by_seed": \[[^\]]*\]',
        '"low": -1.3, "high": 1.6, "by_seed": [0.1, 0.2]',
        text,
    )
    (run / "compare.json").write_text(two)
    run_augur("report", run)
    browser.open(run / "report.html")
    shown = browser.ask("document.getElementById('main').textContent")
    assert "(10.0, 20.0)" in shown and "10.0 and 20.0" in shown
    assert "160.0" not in shown and "of two seeds with both values" in shown
    bands = "charts.flatMap((h) => h.chart.data.datasets).filter((d) => d.label === null).length"
    assert browser.ask(bands) == 0
