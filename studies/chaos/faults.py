"""All kinds of faults, by name."""

from signal import SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM

import damage
import disk
from damage import LATER, YEAR_S
from processes import kill_all
from world import World
from wreck import (
    ALL,
    PAIR,
    TRAIN,
    Fault,
    kill_tree,
    signal_group,
    signal_one,
    sometime,
    spoil,
)


def spoil_shard(world: World) -> str:
    """Damage a shard, before or after DVC has hashed it."""
    if world.random.random() < 0.5:
        world.await_role("stage")
    size = world.target.partition("@")[2]
    files = sorted(world.folder.glob(f"data/shards/world-{size}/*.npy"))
    file = world.random.choice(files)
    world.random.choice([damage.flip, damage.truncate])(world.random, file)
    return file.name


def spoil_corpus(world: World) -> str:
    how = world.random.choice([damage.flip, damage.truncate])
    how(world.random, world.folder / "data/corpus.jsonl")
    return "corpus.jsonl"


def jump(world: World) -> str:
    """Shift file times by a year, and run the second run with a monotonic clock that is
    ahead by a million seconds.
    """
    sometime(world)
    damage.shift_times(world, world.random.choice([-YEAR_S, YEAR_S]))
    kill_all(world.mark)
    world.before = LATER
    return "clocks"


def two(world: World) -> str:
    """Inject two faults that can occur at the same time."""
    names = ["kill_random", "kill_dvc", "kill_rank", "stop_rank"]
    first, second = world.random.sample([*names, "term_stage", "int_group"], 2)
    hit = FAULTS[first].do(world)
    return f"{first}: {hit}, {second}: {FAULTS[second].do(world)}"


FAULTS = {
    "kill_random": Fault(signal_one(SIGKILL, *ALL)),
    "kill_dvc": Fault(signal_one(SIGKILL, "dvc")),
    "kill_stage": Fault(signal_one(SIGKILL, "stage")),
    "kill_rank": Fault(signal_one(SIGKILL, "rank"), TRAIN),
    "kill_tree": Fault(kill_tree),
    "stop_rank": Fault(signal_one(SIGSTOP, "rank"), TRAIN),
    "term_dvc": Fault(signal_one(SIGTERM, "dvc")),
    "term_stage": Fault(signal_one(SIGTERM, "stage")),
    "hup_group": Fault(signal_group(SIGHUP)),
    "int_group": Fault(signal_group(SIGINT)),
    "int_dvc": Fault(signal_one(SIGINT, "dvc")),
    "truncate": Fault(spoil(damage.truncate), TRAIN),
    "flip": Fault(spoil(damage.flip), TRAIN),
    "delete": Fault(spoil(damage.delete), TRAIN),
    "swap": Fault(spoil(damage.swap), TRAIN),
    "disk_checkpoint": Fault(disk.while_saving, TRAIN, on_disk=True),
    "disk_outputs": Fault(disk.for_outputs, on_disk=True),
    "disk_cache": Fault(disk.for_dvc, on_disk=True),
    "port": Fault(damage.occupy_port, PAIR, is_first=True),
    "shard": Fault(spoil_shard, (*TRAIN, "replay@2")),
    "corpus": Fault(spoil_corpus, ("shard",), is_first=True),
    "clock": Fault(jump),
    "two": Fault(two, TRAIN),
}
