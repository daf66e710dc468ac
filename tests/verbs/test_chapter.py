"""`./run chapter`: a problem's text with a site's results, and the conditions that do not hold there."""

import pytest
from workspace import ROOT

from perfscribe.verbs import chapter


def test_an_author_learns_which_reasons_do_not_hold_here(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "chapters" / "cs336" / "pytorch_attention.md")
    printed = {}
    for site in ("cpu2", "h100"):
        assert chapter.main(ROOT, [path, "--site", site], dict) == 0
        printed[site] = capsys.readouterr().out
    left_out = "as these do not hold here: four_matrices, mostly_softmax, other_kernel, launches_dominate\n"
    assert left_out in printed["cpu2"] and "launches_dominate" not in printed["h100"]


def test_reasons_that_rest_on_an_unmeasured_table_are_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "chapters" / "fsdp" / "strategies.md")
    assert chapter.main(ROOT, [path, "--site", "h100"], dict) == 0
    printed = capsys.readouterr().out
    assert printed.count("Tables not measured here: fsdp.step\n") == 1
    assert "Reasons left out, as these do not hold here: best_trade, units_cost\n" in printed
