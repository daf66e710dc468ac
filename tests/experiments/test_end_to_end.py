"""Tables of end_to_end: the passes of a size whose full step does not fit in memory."""

from dataclasses import replace

from perfscribe.experiments.cs336.end_to_end import show
from perfscribe.records.records import Record


def test_a_pass_that_ran_is_a_row_with_its_speed_up_though_no_full_step_fits() -> None:
    def record(dtype: str, both_ms: float) -> Record:
        factors = {"size": "10B", "seq_len": 512, "batch": 4, "dtype": dtype, "device": "cuda", "warmup_steps": 5}
        one = Record("end_to_end", factors, "oom", "CUDA out of memory", "measured")
        return replace(one, samples={"forward_backward_ms": [[both_ms] * 3]})

    passes = show.tables({"end_to_end": [record("fp32", 800.0), record("bf16", 100.0)]})[2].frame
    together = passes[passes["pass_type"] == "forward+backward"]
    assert together[["precision", "status", "reason"]].values.tolist() == [
        ["fp32", "ok", "none"],
        ["bf16", "ok", "none"],
    ]
    assert together["speedup"].tolist()[1] == 8.0
    assert set(passes[passes["pass_type"] != "forward+backward"]["status"]) == {"oom"}
