"""Lines of results that survive a crash, pages that show them, and the document that keeps what people wrote."""

import dataclasses
import json
import threading
from pathlib import Path

import pytest

from tests.unit.studies.made import made_results
from vitrine.errors import DataError
from vitrine.jobs.study import write_studies
from vitrine.studies.registry import STUDIES
from vitrine.studies.reporting import (
    VERDICTS,
    Section,
    rows_of,
    verdict_table,
    write_document,
    write_study_page,
)
from vitrine.studies.results import FILE, Results, append_result, latest_series, read_results

RESULTS = Path(__file__).parents[3] / "docs" / "studies" / "results"


def lines(study: str = "head") -> list[dict[str, object]]:
    return [dataclasses.asdict(result) for result in made_results(study, lambda run: 0.5, seeds=1)]


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    for line in lines():
        append_result(tmp_path, line)
    assert [dataclasses.asdict(result) for result in read_results(tmp_path)] == lines()


def test_a_line_that_a_crash_cut_off_is_ignored_and_then_replaced(tmp_path: Path) -> None:
    first, second, *_ = lines()
    append_result(tmp_path, first)
    file = tmp_path / FILE
    whole = file.read_bytes()
    file.write_bytes(whole + json.dumps(second).encode()[:40])
    assert [result.run for result in read_results(tmp_path)] == [first["run"]]
    append_result(tmp_path, second)
    assert file.read_bytes().startswith(whole)
    assert [result.run for result in read_results(tmp_path)] == [first["run"], second["run"]]
    assert file.read_bytes().endswith(b"\n")


def test_a_file_that_was_cut_off_in_its_first_line_begins_anew(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"study": "he')
    assert read_results(tmp_path) == []
    append_result(tmp_path, lines()[0])
    assert len(read_results(tmp_path)) == 1


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("not json\n")
    with pytest.raises(DataError, match=r"results\.jsonl, line 1, .*JSON"):
        read_results(tmp_path)
    (tmp_path / FILE).write_text('{"study": "head"}\n')
    with pytest.raises(DataError, match=r"results\.jsonl, line 1, .*finished run"):
        read_results(tmp_path)


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_has_a_page_with_its_claim_rule_figure_and_every_group(
    study: str, tmp_path: Path
) -> None:
    found = STUDIES[study]
    results = made_results(study, lambda run: 0.5)
    verdict = write_study_page(tmp_path / "index.html", found, results)
    text = (tmp_path / "index.html").read_text()
    assert "<svg" in text
    assert verdict.word in text
    assert "http" not in text.replace("http://www.w3.org", "")
    assert text.count("<tr><td>") >= len(rows_of(found, Results(results, measure=found.measure)))
    for chart in found.charts(Results(results, measure=found.measure)):
        assert any(chart.series.values()), chart.title


@pytest.mark.parametrize("study", STUDIES)
def test_a_page_of_nothing_says_so(study: str, tmp_path: Path) -> None:
    assert write_study_page(tmp_path / "index.html", STUDIES[study], []).word == "not measured"


def test_lines_of_many_writers_at_once_all_come_back(tmp_path: Path) -> None:
    wanted = [{"key": str(number), "words": "x" * 20_000} for number in range(12)]
    (tmp_path / FILE).write_text('{"cut off": ')  # as a crash leaves it
    threads = [threading.Thread(target=append_result, args=(tmp_path, line)) for line in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert sorted(line["key"] for line in found) == sorted(line["key"] for line in wanted)


def test_the_document_replaces_its_sections_and_keeps_what_people_wrote(tmp_path: Path) -> None:
    file = tmp_path / "studies.md"
    file.write_text("# Studies\n\nWritten by hand.\n")
    study = STUDIES["positions"]
    bad = made_results("positions", lambda run: 0.5)
    good = made_results("positions", lambda run: 0.3 if run.settings["positions"] == "none" else 0.5)
    write_document(file, [Section(study, bad, "vitrine study positions cifar10")])
    assert "**Verdict: open (" in file.read_text()
    file.write_text(file.read_text() + "\nMore by hand.\n")
    write_document(file, [Section(study, good, "vitrine study positions cifar10")])
    text = file.read_text()
    assert "Written by hand." in text
    assert "More by hand." in text
    assert "**Verdict: reproduced (" in text and "small scale on made-up" in text
    assert "Verdict: open" not in text
    assert text.count("<!-- study positions -->") == 1
    assert (tmp_path / "studies" / "positions.svg").read_text().startswith("<svg")
    before = text
    write_document(file, [Section(study, good, "vitrine study positions cifar10")])
    assert file.read_text() == before


def test_a_study_on_several_sets_has_a_section_for_each_with_its_last_series(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "positions"
    folder.mkdir(parents=True)
    for data, series, accuracy in (
        ("a/cifar10", "old", 0.2),
        ("cifar100", "x", 0.3),
        ("a/cifar10", "new", 0.4),
    ):
        for line in lines("positions"):
            values = {**line, "data": data, "series": series, "key": f"{line['key']}{series}"}
            append_result(folder, {**values, "measures": {"accuracy": accuracy, "fewshot": accuracy}})
    file = tmp_path / "studies.md"
    write_studies(tmp_path / "results", file)
    text = file.read_text()
    assert "| 40.00" in text and "| 30.00" in text and "| 20.00" not in text
    for data in ("cifar10", "cifar100"):
        assert text.count(f"<!-- study positions-{data} -->") == 1
        assert (tmp_path / "studies" / f"positions-{data}.svg").exists()
        assert (folder / f"{data}.html").exists()


@pytest.mark.parametrize("folder", sorted(RESULTS.iterdir()), ids=lambda folder: folder.name)
def test_the_document_says_what_the_kept_results_say(folder: Path, tmp_path: Path) -> None:
    study, series = STUDIES[folder.name], latest_series(read_results(folder))
    document = (RESULTS.parent.parent / "studies.md").read_text()
    for data, results in series.items():
        seeds = len({result.seed for result in results})
        on, file = data if len(series) > 1 else "", tmp_path / f"{data}.md"
        write_document(file, [Section(study, results, f"{results[-1].command} --seeds {seeds}", on)])
        # The figure's folder is called like the document.
        written = file.read_text().replace(f"]({data}/", "](studies/")
        assert written.partition("<!--")[2].strip() in document


def test_the_table_at_the_top_of_the_document_says_what_the_kept_results_say() -> None:
    sections = [
        Section(study, results, "", data if len(series) > 1 else "")
        for study in STUDIES.values()
        for series in [latest_series(read_results(RESULTS / study.name))]
        for data, results in series.items()
    ]
    assert len(sections) >= 6
    table = verdict_table(tuple(STUDIES.values()), sections)
    document = (RESULTS.parent.parent / "studies.md").read_text()
    begin, end = VERDICTS
    assert document.partition(begin)[2].partition(end)[0].strip() == table
    assert document.index(begin) < document.index("## ")
