"""Logs of trainings that others ran: what is read of each kind, and how it becomes records and tables."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from workspace import ROOT, Workspace

from perfscribe import cli, journal, records, session
from perfscribe.experiments.imported_logs import present
from perfscribe.importing import log_records, trainer_log, wandb_csv

SEED = ROOT.parent / "shared" / "seeds" / "003_b620a16257b7c466.txt"
# The log sample of the workshop's text, as it stands there, dots included.
SAMPLE = """\
{'eval_loss': 1.2965, 'eval_runtime': 1.2687, 'eval_samples_per_second': 39.41, ... 'epoch': 1.0}
{'eval_loss': 1.5810, 'eval_runtime': 1.2690, 'eval_samples_per_second': 39.403, ... 'epoch': 2.0}
{'eval_loss': 1.7790, 'eval_runtime': 1.2682, 'eval_samples_per_second': 39.427, ... 'epoch': 2.93}
{'train_runtime': 125.2999, 'train_samples_per_second': 11.971, 'train_steps_per_second': 0.742, \
'train_loss': 0.7039, 'epoch': 2.93}
"""
# Standard output and error of a training in one file: bars go back by carriage returns, lines follow behind them.
NOISY = (
    "Some weights were not initialized.\n"
    "  0%|          | 0/20 [00:00<?, ?it/s]\r 50%|█████     | 10/20 [00:05<00:05, 2.00it/s]"
    "{'loss': 2.5, 'grad_norm': 3.1, 'learning_rate': 2.5e-05, 'epoch': 1.0}\n"
    "\r  0%|          | 0/100 [00:00<?, ?it/s]\r100%|██████████| 100/100 [00:02<00:00, 50.00it/s]\x1b[A\n"
    "{'eval_loss': '1.25', 'eval_runtime': '2.0', 'eval_samples_per_second': '50.0', 'epoch': '1'}\n"
    "\r100%|██████████| 20/20 [00:12<00:00, 2.00it/s]{'loss': 1.5, 'learning_rate': 0.0, 'epoch': 2.0}\n"
    "{'eval_loss': 1.0, 'eval_runtime': 2.0, 'eval_samples_per_second': 51.0, 'epoch': 2.0}\n"
    "{'train_runtime': 12.5, 'train_samples_per_second': 6.4, 'train_steps_per_second': 1.6, 'train_loss': 2.0, "
    "'epoch': 2.0}\n"
    "wandb: Syncing run BLOOM_Multi_GPUS_2_GPUs\n"
    "wandb: Run summary:\n"
    "wandb:                  avg_gpu_util_% 91.5\n"
    "wandb:                avg_mem_alloc_MB 2048\n"
    "wandb: train/samples_per_second_mean 7.25\n"
    "wandb: You can sync this run\n"
)


# --- output of Trainer -----------------------------------------------------------------------------------------------


def check_sample(history) -> None:
    values, series = history.values(), history.series()
    assert series["eval_loss"] == [1.2965, 1.581, 1.779] and series["eval_epoch"] == [1.0, 2.0, 2.93]
    assert (values["mean_train_loss"], values["train_runtime_s"]) == (0.7039, 125.2999)
    assert values["steps"] == 93 and values["steps_told_by"] == "steps/s x runtime"
    assert round(values["rows_trained"]) == 1500 and series["eval_step"][-1] == 93
    assert "train_loss" not in series


def test_the_log_sample_of_the_workshops_text():
    check_sample(trainer_log.parse(SAMPLE, "sample"))


@pytest.mark.skipif(not SEED.is_file(), reason="the workshop's text is not here")
def test_the_workshops_whole_text():
    """Its other lines in braces, such as settings of FSDP, hold no figures."""
    check_sample(trainer_log.parse(SEED.read_text(), "text"))


def test_bars_colours_texts_and_a_summary():
    history = trainer_log.parse(NOISY, "noisy")
    values, series = history.values(), history.series()
    assert history.name == "BLOOM_Multi_GPUS_2_GPUs" and not history.dropped
    assert series["train_loss"] == [2.5, 1.5] and series["train_loss_step"] == [10, 20]
    assert series["eval_loss"] == [1.25, 1.0] and series["eval_step"] == [10, 20]
    assert (values["steps"], values["steps_told_by"], values["steps_per_epoch"]) == (20, "progress bar", 10.0)
    assert values["gpu_utilisation_percent"] == 91.5 and values["at_rest_bytes"] == 2048 * 2**20
    assert values["train/samples_per_second_mean"] == 7.25 and values["final_train_loss"] == 1.5


def test_what_is_no_number_is_left_out_and_named():
    history = trainer_log.parse("{'loss': nan, 'epoch': 0.5}\n{'loss': 2.0, 'epoch': 1.0}\n{'eval_loss': inf}\n", "n")
    assert history.series()["train_loss"] == [2.0] and history.dropped == ["loss nan", "eval_loss inf"]
    record = log_records.record_of(history, Path("n.out"))
    assert record["flags"] == ["left out: loss nan, eval_loss inf, no finite numbers"]


def test_nothing_in_a_log_is_run(tmp_path):
    side = tmp_path / "side"
    text = f"{{'loss': __import__('os').mkdir('{side}'), 'epoch': 1.0}}\n{{'eval_loss': 2.0, 'epoch': 1.0}}\n"
    assert trainer_log.parse(text, "n").series() == {"eval_loss": [2.0], "eval_epoch": [1.0]}
    assert not side.exists()


# --- exports of W&B --------------------------------------------------------------------------------------------------


CHART = (
    '"Step","BLOOM_2 - eval/loss","BLOOM_2 - eval/loss__MIN","BLOOM_4 - eval/loss"\n'
    '"10","1.5","1.4","1.6"\n"20","1.25","1.2",""\n"30","","","1.1"\n'
)
RUNS = (
    '"Name","State","train/loss","eval/loss","train/train_loss","train/train_runtime","train/train_samples_per_second",'
    '"train/train_steps_per_second","train/epoch","train/global_step","avg_gpu_util_%","avg_mem_alloc_MB","Notes"\n'
    '"Custom_2_GPUs","finished","0.5","1.25","0.7","100","25","6.25","5","625","88.5","3000","-"\n'
    '"Custom_4_GPUs","finished","0.6","1.35","0.8","60","41.7","","5","","90","",""\n'
)


def test_a_chart_gives_a_history_each_run():
    two, four = wandb_csv.parse(CHART, "chart")
    assert (two.name, two.series()) == ("BLOOM_2", {"eval_loss": [1.5, 1.25], "eval_step": [10, 20]})
    assert (four.name, four.series()["eval_loss"], four.series()["eval_step"]) == ("BLOOM_4", [1.6, 1.1], [10, 30])


def test_a_chart_of_one_run_has_the_files_name():
    (only,) = wandb_csv.parse("Step,train/loss\n1,3\n2,2\n", "losses")
    assert (only.name, only.series()) == ("losses", {"train_loss": [3.0, 2.0], "train_loss_step": [1, 2]})


def test_the_table_of_runs_gives_a_history_each_row():
    two, four = wandb_csv.parse(RUNS, "runs")
    values = two.values()
    assert (values["mean_train_loss"], values["train_runtime_s"], values["steps"]) == (0.7, 100.0, 625)
    assert values["at_rest_bytes"] == 3000 * 2**20 and values["gpu_utilisation_percent"] == 88.5
    assert values["steps_per_epoch"] == 125.0 and two.series()["eval_loss"] == [1.25]
    assert four.values()["train_samples_per_s"] == 41.7 and "at_rest_bytes" not in four.values()


# --- records ---------------------------------------------------------------------------------------------------------


def kept(root: Path) -> list[dict]:
    return list(journal.read(root / "results" / "local" / "journal" / log_records.EXPERIMENT).all_records())


@pytest.fixture
def files(tmp_path):
    (tmp_path / "sample.out").write_text(SAMPLE)
    (tmp_path / "noisy.out").write_text(NOISY)
    (tmp_path / "runs.csv").write_text(RUNS)
    return tmp_path


def test_records_are_whole_and_imported_once(files, capsys):
    names = [str(files / name) for name in ("sample.out", "noisy.out", "runs.csv")]
    for _ in range(2):
        assert log_records.main(files, "local", names) == 0
    found = kept(files)
    assert sorted(record["factors"]["log"] for record in found) == [
        "BLOOM_Multi_GPUS_2_GPUs",
        "Custom_2_GPUs",
        "Custom_4_GPUs",
        "sample",
    ]
    for record in found:
        assert record["origin"] == "imported" and record["status"] == "ok" and record["environment"] == ""
        assert str(files) not in json.dumps(record)  # folders are private
        assert set(record) == set(records.make({})) | {"experiment", "key", "round", "factors", "status", "fingerprint"}
    assert "records of origin imported: 0 new" in capsys.readouterr().out.splitlines()[-1]


def test_a_longer_log_of_the_same_name_takes_the_place_of_the_first(files):
    path = files / "sample.out"
    log_records.main(files, "local", [str(path)])
    path.write_text(SAMPLE + "{'eval_loss': 1.0, 'epoch': 4.0}\n")
    log_records.main(files, "local", [str(path)])
    (record,) = kept(files)
    assert record["series"]["eval_loss"] == [1.2965, 1.581, 1.779, 1.0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "neither a line of Trainer's metrics"),
        (b"Step,accuracy\n1,2\n", "neither a line of Trainer's metrics"),
        (b"all went well\n", "neither a line of Trainer's metrics"),
        (b"\x00\x01\x02", "no text"),
        (b"Name,Name\na,b\n", "two columns have the same name"),
    ],
)
def test_bad_input_is_one_line_and_loses_nothing(files, content, why):
    log_records.main(files, "local", [str(files / "noisy.out")])
    before = kept(files)
    if content is not None:
        (files / "bad.out").write_bytes(content)
    with pytest.raises(ValueError, match=why) as caught:
        log_records.main(files, "local", [str(files / "sample.out"), str(files / "bad.out")])
    assert len(str(caught.value).splitlines()) == 1 and str(caught.value).startswith("import-log: ")
    assert kept(files) == before  # nothing of the good file either


def test_a_run_under_way_is_not_disturbed(files):
    lock = session.RunLock(files / ".perfscribe" / "run.lock")
    assert lock.try_acquire()
    with pytest.raises(session.AnotherRun):
        log_records.main(files, "local", [str(files / "sample.out")])
    lock.release()


def test_the_verb_is_known(capsys):
    assert {"import-log", "import-env"} <= set(cli.VERBS) and "import-log FILE" in cli.HELP
    with pytest.raises(ValueError, match="say which file"):
        cli.import_log([])


# --- tables ----------------------------------------------------------------------------------------------------------


def shown(*histories) -> dict:
    made = [log_records.record_of(history, Path("a.out")) for history in histories]
    return {table.id: table for table in present.tables({present.NAME: records.merge_rounds(made)})}


def test_the_nine_rows_of_the_workshop():
    rows = shown(trainer_log.parse(NOISY, "noisy"))["fsdp.imported_logs"].frame
    assert len(rows) == 18  # the workshop's own sample stands there without any import
    sample = rows[rows["log"] == present.SAMPLE].set_index("metric")["value"]
    assert sample["Eval Loss (Epoch 3)"] == 1.779 and sample["GPU Utilization (%)"] == present.NOT_TOLD
    assert set(rows["origin"]) == {"published", "imported"} and set(rows["status"]) == {"ok"}
    own = rows[rows["log"] != present.SAMPLE].set_index("metric")["value"]
    assert own["Memory Allocated (MB)"] == 2048 and own["Steps per Epoch"] == 10.0
    assert own["Eval Loss (Epoch 2)"] == 1.0 and own["Eval Loss (Epoch 3)"] == present.NOT_TOLD


def test_the_sentence_tells_the_settings_of_the_sample():
    (finding,) = present.findings(shown())
    assert finding.text == (
        "log sample of the workshop's text: 1500 rows in 93 steps, so 16.1 a step and 512 an epoch; evaluation loss "
        "1.30, 1.58, 1.78, which rises with each evaluation: the training over-fits."
    )


def test_an_imported_log_stands_in_the_report(tmp_path):
    space = Workspace(tmp_path)
    space.only("imported_logs")
    (space.root / "report" / "templates" / "fsdp.md").write_text(
        '# Chapter\n\n{{ table("fsdp.imported_logs") }}\n\n{{ figure("fsdp.imported_losses") }}\n'
    )
    space.set_config("preset: tiny\nchapters: [fsdp]\n")
    done = space.run("report")
    assert done.returncode == 0, done.stdout
    assert (
        "noisy" not in space.report()
        and "1.779" in (space.root / "results" / "local" / "tables" / "fsdp.imported_logs.csv").read_text()
    )
    (space.root / "noisy.out").write_text(NOISY)
    done = space.run("import-log", "noisy.out")
    assert done.returncode == 0, done.stdout
    assert "BLOOM_Multi_GPUS_2_GPUs: 2 training losses, 2 evaluations, mean train loss 2" in done.stdout
    assert space.planned_jobs() >= {"measure imported_logs 0", "present_imported_logs"}
    assert space.run("report").returncode == 0
    assert "BLOOM_Multi_GPUS_2_GPUs" in space.report() and "imported" in space.report()
    assert [row["origin"] for row in space.rows("imported_logs")] == ["imported"]
    assert space.planned_jobs() == set()
    bad = space.run("import-log", os.devnull)
    assert bad.returncode == 1 and bad.stdout.count("\n") == 1 and bad.stdout.startswith("run: import-log: ")
