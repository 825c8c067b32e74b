"""Keys of a space file: the legal ones of each table, each with its meaning and its default.

The reader accepts these keys and no others. The reference of the documentation is written from them.
"""

from __future__ import annotations

from typing import NamedTuple


class KeyMeaning(NamedTuple):
    """One key.

    Args:
        meaning: for a reader of the reference; code stands in backticks.
        default: what an absent key means; empty where there is nothing to say.
    """

    meaning: str
    default: str = ""


ROOT = {
    "project": KeyMeaning(
        "the project of the program", "the name in the nearest `pyproject.toml`, and the git remote `origin`"
    ),
    "objective": KeyMeaning(
        "what to maximise: one objective, or a list of two",
        "tokens or samples, whichever most launches of the workload count (on a tie, tokens); optimizer steps where "
        "most count neither, if no tuned parameter changes their work",
    ),
    "statistic": KeyMeaning("the statistic of the step times behind the throughput", '`"mean"`'),
    "prices": KeyMeaning("prices of a device hour, by the value of one parameter or workload fact", "none"),
    "job": KeyMeaning("work of the whole job", "none"),
    "workload": KeyMeaning("facts that are read and never changed", "empty"),
    "parameters": KeyMeaning("what may change; at least one entry", "required"),
    "constraints": KeyMeaning("expressions that every config must satisfy", "none"),
    "ignore_rules": KeyMeaning("names of rules of legality that do not count", "none"),
    "tune": KeyMeaning("further changes of each profiling launch", "none"),
    "rewrite": KeyMeaning("the conditions for rewriting an ordinary launch", "as below"),
    "trainer": KeyMeaning("a trainer whose table supplies bindings, values and defaults", "none"),
    "log": KeyMeaning("how to read throughput from your own log lines", "none"),
}

_DEFAULT = KeyMeaning("the script's value if the command does not state one")

FACT_BINDINGS = {
    "flag": KeyMeaning("the flag as typed, or `name=` where the value follows at once"),
    "env": KeyMeaning("the environment variable"),
    "file": KeyMeaning("where the command names the config file: a flag, a variable with `$` in front, or the path"),
    "key": KeyMeaning("with `file`: the key in that file, with dots between its names"),
    "component": KeyMeaning('the option of the component, such as `"-j"`'),
    "scheduler": KeyMeaning("the option of the scheduler (`-cfg`)"),
}

FACT = {**FACT_BINDINGS, "default": _DEFAULT}

RANGE = {
    "low": KeyMeaning("the least value of a range; it is legal"),
    "high": KeyMeaning("the limit of a range; it is legal if a step leads there"),
    "step": KeyMeaning("distance of the values of a range", "1 for whole numbers"),
    "scale": KeyMeaning('`"log2"`: the values are `low`, doubled as long as they are at most `high`', "an even range"),
}

PARAMETER = {
    "choices": KeyMeaning("the legal values: numbers, strings or booleans, all of one kind, each once"),
    **RANGE,
    **FACT_BINDINGS,
    "torchrun": KeyMeaning('`"--nnodes"` or `"--nproc_per_node"`'),
    "hook": KeyMeaning("the hook that sets the value in the job"),
    "modules": KeyMeaning('with `hook = "parallelize_module"`: the modules that it places'),
    "per_layer": KeyMeaning("one value per layer; the count is a fact or a number", "one value"),
    "per_table": KeyMeaning(
        "one value per embedding table, in the order in which the model lists them; the count is a fact or a number",
        "one value",
    ),
    "groups": KeyMeaning("with `per_layer` or `per_table`: so many blocks of neighbours share one value", "one each"),
    "derive": KeyMeaning(
        "no free choice: the exact value of an expression; a fraction is not a legal config", "a free choice"
    ),
    "when": KeyMeaning("active only if this holds; otherwise keeps its default or the value you typed", "always"),
    "default": _DEFAULT,
    "observe": KeyMeaning(
        'the observed fact that replaces the requested value in training rows; `""` for none', "the standard name"
    ),
    "changes_training": KeyMeaning(
        "`true`: a launch or a tune may change it although it changes what is trained", "no"
    ),
    "was": KeyMeaning("the former name, or a list of them, under which earlier launches recorded it", "none"),
}

MESH = {
    "mesh": KeyMeaning("two or more of `dp_replicate`, `dp_shard`, `dp`, `tp`, `pp` and `cp`, outermost first"),
    "flags": KeyMeaning("the flag of each axis, by the name of the axis", "a `trainer` knows its own"),
    "hook": KeyMeaning('`"mesh"`, for a script without flags'),
    "most": KeyMeaning("the largest size of each axis", "1024"),
    "default": KeyMeaning("the script's own size of each axis, if the command does not state it"),
    "order": KeyMeaning("`true`: the order of the axes may change too; only with the hook", "no"),
}

REWRITE = {
    "min_gain": KeyMeaning(
        "the minimum predicted gain as a share; the low end of its 80 % interval must be a gain too", "0.01"
    ),
    "min_fit": KeyMeaning("the minimum probability to fit in memory", "0.9"),
    "freeze": KeyMeaning("parameters that stay as typed", "none"),
    "explore": KeyMeaning("the share of launches that try an untried config", "0"),
    "explore_budget_gpu_hours": KeyMeaning(
        "wall hours times world size for all exploring launches of the program", "required with `explore`"
    ),
    "baseline_every": KeyMeaning(
        "until your own config was measured three times, one launch in so many runs it although a faster one is known, "
        "unless its gain is surely above 25 %; 0: none",
        "4",
    ),
    "retry_as_typed": KeyMeaning(
        "a rewritten launch that fails early is started again as typed, in the same job", "true"
    ),
    "resume": KeyMeaning(
        'what may change where a launch goes on with an earlier training: a list of parameters, or `"reshards"` for '
        "degrees and sharding, if the program loads its checkpoints in any layout",
        "recomputation, prefetching, allocator and threads",
    ),
}

TUNE = {
    "args": KeyMeaning("flags and their values, for each launch of a tune", "none"),
    "env": KeyMeaning("environment variables and their values", "none"),
    "files": KeyMeaning("for a config file as the command names it: its keys and their values", "none"),
}

LOG = {
    "pattern": KeyMeaning("a regular expression, searched for in each line that rank 0 or the last rank prints"),
    "groups": KeyMeaning("quantity -> number or other name of its group", "the groups bear the names"),
}

JOB = {
    "steps": KeyMeaning("optimizer steps of the whole job, 1 to 1e18"),
    "samples": KeyMeaning("samples of the whole job, likewise"),
    "tokens": KeyMeaning("tokens of the whole job, likewise"),
}

TABLES: dict[str, dict[str, KeyMeaning]] = {
    "top level": ROOT,
    "job": JOB,
    "workload": FACT,
    "parameters": PARAMETER,
    "mesh": MESH,
    "rewrite": REWRITE,
    "tune": TUNE,
    "log": LOG,
}
"""Table of a space file -> its keys, in the order of the reference."""
