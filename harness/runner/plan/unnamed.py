"""Runs without a name: each has a folder of its own, `20261128-143205-otter`, and the same plan goes on in its last.

The word is that of the plan, so that it is recognised: equal plans have equal words. Different plans may share one;
then what lies in the folder tells them apart.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from harness.records.run_status import read_status
from harness.records.runs import PROFILE, RUNS, is_run, read_manifest, unnamed_runs
from harness.runner.plan.run_plan import Resume, RunPlan

_WORDS = """
acorn alder amber apple apricot aspen badger bamboo barley basil beaver beech berry birch bison bluebell bramble
breeze brook canary canyon cedar cherry cinnamon citrus clover cobalt comet coral cornflower cotton crane cricket
crimson cypress daisy dolphin dove dune eagle elder elm ember falcon fennel fern fiddle finch fjord flint fox garnet
gazelle ginger glacier goose granite grove gull harbor hare hawthorn hazel heather heron hickory holly honey hornet
ibis indigo iris island ivory ivy jackdaw jade jasmine jay juniper kestrel kingfisher kiwi koala lagoon lantern
larch lark laurel lavender lemon lichen lilac lily linden linnet lotus lupin lynx magnolia magpie maple marble
marigold marlin marten meadow mimosa mint mistral moose moss mulberry myrtle narwhal nectar nettle newt nightjar
nutmeg oak oasis ocelot olive onyx opal orchard orchid oriole osprey otter owl oyster palm panda papaya parsley
peach pear pearl pebble pelican pepper petrel pigeon pine plover plum pollen poplar poppy prairie puffin quail
quartz quince rabbit raven reed reef river robin rook rosemary rowan ruby saffron sage salmon sandpiper sapphire
savanna seal sequoia shale siskin skylark sorrel sparrow spruce squirrel starling stork summit sunflower swallow
swan swift sycamore tamarind tansy teal tern thistle thrush thyme tiger topaz trout tulip tundra turtle umber
valley vanilla violet vole walnut walrus warbler weasel wharf willow wombat wren yarrow yew zebra zephyr
"""
WORDS = tuple(_WORDS.split())


def word_of(plan: RunPlan) -> str:
    """The word of a plan."""
    return WORDS[int(plan.key, 16) % len(WORDS)]


def new_name(plan: RunPlan) -> str:
    """A name that no run has: the time, by this machine's clock, and the word of the plan."""
    now = datetime.now()
    while (RUNS / (name := f"{now:%Y%m%d-%H%M%S}-{word_of(plan)}")).exists():
        now += timedelta(seconds=1)
    return name


def in_own_folder(plan: RunPlan) -> RunPlan:
    """A plan without a name, in a folder that is not there yet; others as they are."""
    return _called(plan, new_name(plan)) if plan.is_unnamed else plan


def resumed(plan: RunPlan, resume: Resume) -> RunPlan:
    """A plan that goes on with what earlier sessions left; one without a name where the last run of the same plan is,
    unless it is to begin afresh."""
    plan = replace(plan, resume=resume)
    if not plan.is_unnamed:
        return plan
    last = None if resume.is_fresh else next((path for path in unnamed_runs(word_of(plan)) if _is_of(path, plan)), None)
    return in_own_folder(plan) if last is None else _called(plan, last.name)


def _called(plan: RunPlan, name: str) -> RunPlan:
    title = name if plan.title == plan.name else plan.title
    return replace(plan, name=name, title=title, folder=RUNS / name)


def _is_of(folder: Path, plan: RunPlan) -> bool:
    """Whether a folder with the word of a plan is one of its runs; one that has kept nothing yet is."""
    if (folder / PROFILE).is_file() and not is_run(folder):
        return False
    key = ""
    # a damaged file is told when the run goes on
    with suppress(ValueError):
        key = str(read_manifest(folder).get("plan", ""))
    with suppress(ValueError):
        status = read_status(folder)
        key = key or (status.plan if status is not None else "")
    return key in ("", plan.key)
