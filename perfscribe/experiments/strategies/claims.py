"""The sentences about what the workshop says of wrapping, sharding, a single device and off-load."""

from __future__ import annotations

import pandas as pd

from perfscribe.experiments.strategies.answers import (
    ALLOWED,
    SETTING,
    base,
    divides_nothing,
    handling,
    in_doubt,
    largest,
    longer,
    named,
    size,
)
from perfscribe.findings import CannotTell, need, one_setting, shown
from perfscribe.statistics import format_figure

CLAIMED_SHARE_PERCENT = 80
NEAR_PERCENT = 5
NORM_TOLERANCE = 0.01


def wrapping(rows: pd.DataFrame, grid: pd.DataFrame) -> tuple[str, str]:
    """What the workshop's wrapping came to, and what wrapping and prefetching change. grid: of the strategies."""
    need(rows, 2, "variants")
    by = rows.set_index(["api", "wrapping", "prefetch"])
    whole = rows[(rows["api"] == "FSDP1") & (rows["wrapping"] != "per block")]
    need(whole, 1, "FSDP1 as one unit")
    source = whole.iloc[0]
    per_block = rows[(rows["api"] == "FSDP1") & (rows["wrapping"] == "per block")]
    need(per_block, 1, "FSDP1 wrapped per block")
    asked = per_block.iloc[0]
    text = (
        f"No. The workshop asks for its blocks to be wrapped, but the setting is not read: as it took effect, FSDP1 "
        f"has {source['applied_units']} unit, which gathers {size(source['gathered_most_gib'])} at once and keeps "
        f"{size(source['gathered_between_gib'])} of it between forward and backward; it sends "
        f"{format_figure(float(source['sent_mb']))} MB a step, peaks at {size(source['peak_allocated_gib'])} and takes "
        f"{shown(source, 'step_ms')} ms. Wrapped per block it has {asked['applied_units']} units, "
        f"gathers {size(asked['gathered_most_gib'])}, sends {format_figure(float(asked['sent_mb']))} MB, peaks at "
        f"{size(asked['peak_allocated_gib'])} and takes {shown(asked, 'step_ms')} ms. "
        f"{' '.join(part for part in (_per_unit(rows, grid), _prefetch(by), in_doubt(rows)) if part)}"
    ).strip()
    return text, "contradicted" if int(source["applied_units"]) == 1 else "confirmed"


def _per_unit(rows: pd.DataFrame, grid: pd.DataFrame) -> str:
    """What a unit more costs by each api, and how much of that there is without communication; "" where nothing."""
    said = []
    for api in ("FSDP1", "FSDP2"):
        own = rows[rows["api"] == api]
        whole, parts = own[own["wrapping"] != "per block"], own[own["wrapping"] == "per block"]
        if len(whole) and len(parts):
            alike = parts[parts["prefetch"] == whole.iloc[0]["prefetch"]]
            said.append(_by_api(api, whole.iloc[0], (alike if len(alike) else parts).iloc[0], grid))
    told = " ".join(text for text in said if text)
    return f"Each unit is gathered and reduced by collectives of its own. {told}" if told else ""


def _by_api(api: str, whole: pd.Series, per_block: pd.Series, grid: pd.DataFrame) -> str:
    """Both figures of one api, whose units another handles in another time; "" where its units cost nothing."""
    units = int(per_block["applied_units"]) - int(whole["applied_units"])
    if units <= 0:
        return ""
    more, spread = longer(per_block, whole, units)
    if more <= 0:
        return ""
    text = (
        f"By {api}, with {per_block['collectives']} a step against {whole['collectives']}, a step takes "
        f"{format_figure(more, spread)} ms longer for each further unit"
    )
    if whole["units_verdict"] != "slower":
        return f"{text}, but the turns do not tell that from none."
    found = handling(grid, api)
    each, own_spread = longer(*found, int(per_block["applied_units"])) if found else (0.0, 0.0)
    if found is None or each <= 0:
        return f"{text}."
    told = "so that all that this shows is"
    if abs(each - more) <= max(spread, own_spread):
        told = "which the spread of steps does not tell from it: all that this shows is"
    elif each < more:
        told = "which is"
    return (
        f"{text}; one rank, which sends nothing, takes {format_figure(each, own_spread)} ms a unit longer than the "
        f"model alone ({found[1]['dtype']}), {told} the handling of units."
    )


def _prefetch(by: pd.DataFrame) -> str:
    found = [
        f"{prefetch} {row['ratio'] if isinstance(row['ratio'], str) else shown(row, 'ratio')}× ({row['verdict']})"
        for (api, of, prefetch), row in by.iterrows()
        if (api, of) == ("FSDP2", "per block") and prefetch != "implicit"
    ]
    return f"Prefetching in FSDP2, against implicit: {', '.join(found)}." if found else ""


def share(rows: pd.DataFrame) -> tuple[str, str]:
    """The share of the blocks, of which the workshop says about 80 %."""
    by = need(rows, 1, "models").set_index("of")
    blocks, embedding, one = (by.loc[name] for name in ("all blocks", "embedding, tied to the head", "one block"))
    percent = float(blocks["share_percent"])
    near = abs(percent - CLAIMED_SHARE_PERCENT) < NEAR_PERCENT
    text = (
        f"{'Yes' if near else 'No'}: the blocks of {blocks['model']} hold {blocks['parameters']} of "
        f"{by.loc['the whole model']['parameters']} parameters, {percent:.1f} %, where the workshop says about "
        f"{CLAIMED_SHARE_PERCENT} %; the embedding, tied to the head, holds {float(embedding['share_percent']):.1f} %. "
        f"Wrapped per block, the largest unit is what lies outside of the blocks, "
        f"{format_figure(embedding['parameters'] / one['parameters'])} times as large as a block."
    )
    return text, "confirmed" if near else "contradicted"


def world_of_one(rows: pd.DataFrame) -> tuple[str, str]:
    """Whether sharding lowers a single device's memory."""
    chosen = need(rows, 1, "cells")
    alone = chosen[chosen["api"] == "none"]
    need(alone, 1, "the model alone")
    plain = alone.iloc[0]
    same = chosen[(chosen["dtype"] == plain["dtype"]) & (chosen["checkpointing"] == "no")]
    sharded = need(same[(same["api"].isin(["FSDP1", "FSDP2"])) & (same["offload"] == "no")], 1, "FSDP")
    each = [
        f"{row['strategy']} by {row['api']} is {row['applied_strategy']} on {row['mesh']} (copies × shards), calls "
        f"{row['collectives']} collectives, holds {_against(row['state_gib'], plain['state_gib'])} and peaks at "
        f"{size(row['peak_allocated_gib'])}"
        for _, row in sharded.iterrows()
    ]
    lower = sharded["state_gib"].astype(float) < (1 - ALLOWED) * float(plain["state_gib"])
    text = (
        f"{'Yes' if lower.any() else 'No'}: with one rank ({plain['model']}, {plain['dtype']}) the model alone holds "
        f"{size(plain['state_gib'])} of parameters, gradients and optimizer state and peaks at "
        f"{size(plain['peak_allocated_gib'])}; {'; '.join(each)}. {_peaks_differ(str(plain['dtype']))} "
        f"{_offloaded(same, str(plain['state_device']))}"
    ).strip()
    return text, "confirmed" if lower.any() else "contradicted"


def _against(held: float, alone: float) -> str:
    """What is held, and whether it is what the model alone holds."""
    return "the same to the byte" if float(held) == float(alone) else size(held)


def _peaks_differ(dtype: str) -> str:
    if dtype == "fp32":
        return "Peaks differ by copies, not by what is held: FSDP2 copies a unit where several ranks would gather it."
    return (
        f"Peaks differ by casts, not by what is held: autocast keeps the weights that it has cast to {dtype}, FSDP "
        "what it gathers at once."
    )


def _offloaded(rows: pd.DataFrame, device: str) -> str:
    """What off-load leaves; device: where the state lies without it."""
    found = rows[rows["offload"] == "yes"]
    if found.empty:
        return ""
    row = found.iloc[0]
    peak, state = size(row["peak_allocated_gib"]), size(row["state_gib"])
    if row["state_device"] == device:
        return (
            f"CPU off-load moves nothing here, as the state of {state} lies on the {device} anyway; it peaks at {peak}."
        )
    return (
        f"Only CPU off-load lowers what lies on the device: the state of {state} lies on the {row['state_device']} "
        f"then, and the device peaks at {peak}."
    )


def sharding_words(rows: pd.DataFrame) -> tuple[str, str]:
    """Whether SHARD_GRAD_OP replicates parameters, and how HYBRID_SHARD arranges the ranks."""
    chosen = base(largest(rows))
    chosen, setting = one_setting(chosen[chosen["api"] == "FSDP2"], SETTING)
    by = chosen.drop_duplicates("strategy").set_index("strategy", drop=False)
    if not {"FULL_SHARD", "SHARD_GRAD_OP"} <= set(by.index):
        raise CannotTell("FULL_SHARD and SHARD_GRAD_OP were not both measured")
    full, kept = by.loc["FULL_SHARD"], by.loc["SHARD_GRAD_OP"]
    divided = float(kept["parameters_gib"]) <= (1 + ALLOWED) * float(full["parameters_gib"])
    text = (
        f"{'No' if divided else 'Yes'}: with {full['world_size']} ranks ({setting}) a rank of SHARD_GRAD_OP keeps "
        f"{size(kept['parameters_gib'])} of parameters between steps, one of FULL_SHARD "
        f"{size(full['parameters_gib'])}; what differs is between forward and backward, where "
        f"{size(kept['gathered_between_gib'])} stay gathered against {size(full['gathered_between_gib'])}."
    )
    if "HYBRID_SHARD" in by.index:
        hybrid = by.loc["HYBRID_SHARD"]
        text += f" HYBRID_SHARD keeps {size(hybrid['parameters_gib'])}: two copies of the model, " + (
            "which among so few ranks are whole ones: it divides nothing and holds what DDP does."
            if divides_nothing(hybrid)
            else "each divided among half of the ranks."
        )
    return text, "contradicted" if divided else "confirmed"


def offload(rows: pd.DataFrame, sums: pd.DataFrame) -> tuple[str, str]:
    """What CPU off-load moves, and whether gradients of several micro-batches are right with it."""
    chosen = rows[rows["offload"] == "yes"] if len(rows) else rows
    row = _plainest(need(chosen, 1, "cells with off-load"))
    text = (
        f"CPU off-load moves more than optimizer state: with {row['world_size']} ranks ({named(row)}) "
        f"{size(row['parameters_gib'])} of parameters, {size(row['gradients_gib'])} of gradients and "
        f"{size(row['optimizer_state_gib'])} of optimizer state lie on the {row['state_device']}, where the update "
        "runs."
    )
    need(sums, 1, "sums of micro-batches")
    norms = [
        f"{one['api']}{' with off-load' if one['offload'] == 'yes' else ''} {one['gradients_exchanged']}"
        f" {float(one['norm_ratio']):.4f}"
        for _, one in sums.rename(columns={"exchange": "gradients_exchanged"}).iterrows()
    ]
    wrong = sums[(sums["norm_ratio"].astype(float) - 1).abs() > NORM_TOLERANCE]
    are = "is" if len(wrong) == 1 else "are"
    verdict = "all are right" if wrong.empty else f"{len(wrong)} of {len(sums)} {are} wrong"
    if sums[(sums["api"] == "FSDP1") & (sums["offload"] == "yes")].empty:
        verdict += "; FSDP1's off-load was not measured"
    text += (
        f" Norm of two micro-batches' gradients over that of one process, gradients exchanged: {', '.join(norms)}: "
        f"{verdict}."
    )
    return text, "contradicted"


def _plainest(rows: pd.DataFrame) -> pd.Series:
    """Of the most ranks the plan that differs least from the table's first one, as far as it was measured."""
    rows, dtype = rows[rows["world_size"] == rows["world_size"].max()], rows["dtype"].iloc[0]
    for name, level in (("strategy", "FULL_SHARD"), ("api", "FSDP2"), ("checkpointing", "no"), ("dtype", dtype)):
        kept = rows[rows[name] == level]
        rows = kept if len(kept) else rows
    return rows.iloc[0]
