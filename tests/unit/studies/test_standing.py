"""The table of all verdicts, and the paper's figures beside ours."""

import dataclasses
from collections.abc import Callable

import pytest

from tests.unit.studies.made import made_results
from tests.unit.studies.test_verdicts import CASES
from vitrine.studies.published import TABLE_6, TABLE_8
from vitrine.studies.record import Run
from vitrine.studies.registry import STUDIES
from vitrine.studies.reporting import page_of, verdict_table
from vitrine.studies.results import Result, Results
from vitrine.studies.standing import row_of, table_of


def made(study: str, number: int, *, num_images: int = 49_000) -> list[Result]:
    """Return results that reproduce (0), leave open (1) or contradict (2) a claim."""
    value: Callable[[Run], float] = CASES[study][number]
    return [dataclasses.replace(one, num_images=num_images) for one in made_results(study, value)]


def test_a_claim_holds_is_open_or_is_disputed_as_its_rule_says() -> None:
    words = [row_of(STUDIES["positions"], made("positions", number)).standing for number in range(3)]
    assert words == ["holds", "open", "disputed"]


@pytest.mark.parametrize(("images", "standing"), [(100_000, "cannot be tested"), (400_000_000, "disputed")])
def test_a_set_that_is_too_small_for_a_claim_cannot_dispute_it(images: int, standing: str) -> None:
    row = row_of(STUDIES["compute"], made("compute", 2, num_images=images))
    assert row.standing == standing
    assert row_of(STUDIES["compute"], made("compute", 0, num_images=images)).standing == "holds"


def test_runs_that_share_a_gpu_share_its_minutes_and_those_on_a_cpu_take_none() -> None:
    results = made("head", 0)
    assert row_of(STUDIES["head"], results).gpu_minutes == 0
    shared = [dataclasses.replace(one, device="GPU", seconds=60.0, jobs=8) for one in results]
    assert row_of(STUDIES["head"], shared).gpu_minutes == pytest.approx(len(results) / 8)


def test_the_table_has_a_row_for_every_study_whether_it_was_run_or_not() -> None:
    table = verdict_table(tuple(STUDIES.values()), [])
    assert table.count("not run") == len(STUDIES)
    assert all(f"| `{name}` |" in table for name in STUDIES)
    assert "1 holds" in table_of([row_of(STUDIES["head"], made("head", 0))])


def test_a_figure_of_the_paper_stands_beside_ours_with_the_change_of_each_from_the_first() -> None:
    page = page_of(STUDIES["positions"], made("positions", 0))
    assert [row.label for row in page.published] == list(TABLE_8)
    none, first, *_ = page.published
    assert (none.paper, none.ours, none.paper_change) == ("61.38", "50.00 ± 0.20", "")
    assert (first.paper, first.paper_change, first.our_change) == ("64.21", "+2.82", "+10.00")
    assert "Table 8" in page.published_as and "49" not in page.published_as and "M parameters" in page.ours_as


@pytest.mark.parametrize("study", [name for name, study in STUDIES.items() if study.published])
def test_every_study_with_published_figures_shows_them_beside_measured_arms(study: str) -> None:
    record, results = STUDIES[study], Results(made(study, 0), measure=STUDIES[study].measure)
    assert record.published is not None and record.published_as
    rows = record.published(results)
    assert all(50 < row.paper < 100 for row in rows)
    # The targets of transfer bear names of Table 2 only where such sets are given.
    assert study == "transfer" or (rows and all(len(row.ours) == 3 for row in rows))


def test_transfer_matches_its_targets_with_the_data_sets_of_table_2() -> None:
    results = [dataclasses.replace(one, data="/data/cifar-100") for one in made("transfer", 0)]
    published = STUDIES["transfer"].published
    assert published is not None
    rows = published(Results(results))
    assert [(row.label.split(":")[0], row.paper) for row in rows] == [
        ("CIFAR-100", 93.90),
        ("CIFAR-100", 93.51),
    ]


def test_models_of_table_6_cost_more_the_larger_they_are() -> None:
    for rows in TABLE_6.values():
        by_cost = sorted(rows.values())
        assert by_cost[0][1] == min(accuracy for _, accuracy in by_cost)
        assert by_cost[-1][1] == max(accuracy for _, accuracy in by_cost)
