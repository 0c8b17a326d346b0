"""What befalls a cluster: chosen by chance, each fault ends by itself, and ``heal`` ends all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from random import Random

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import MIRROR
from sdrs_core.ids import DiskId, NodeId
from tests.simulation.metastore import ADDRESS as STORE
from tests.simulation.standings import is_readable, share
from tests.simulation.world import World

# Longer than any message is under way: what a node acknowledged before it lost its disk is on record by then.
_BETWEEN_LOSSES_SECONDS = 15.0


class Faults:
    def __init__(self, world: World, random: Random, others: list[str]) -> None:
        """``others``: the names of clients, which can be cut off too."""
        self._world = world
        self._random = random
        self._others = others
        self._destroyed_at = -_BETWEEN_LOSSES_SECONDS
        self._undo: dict[object, Callable[[], None]] = {}
        self._kinds: list[tuple[float, Callable[[], None]]] = [
            (4.0, self._kill_node),
            (3.0, self._pause_node),
            (1.5, self._kill_controller),
            (1.5, self._pause_controller),
            (2.0, self._cut_pair),
            (2.0, self._cut_node),
            (1.0, self._cut_controller),
            (0.7, self._blip),
            (1.2, self._store_outage),
            (1.0, self._lose_answers),
            (1.0, self._clock_jump),
            (1.0, self._bad_weather),
            (0.7, self._slow_node),
            (0.4, self._fill_disk),
            (0.7, self._destroy_disk),
        ]
        if world.shape.has_upkeep:
            self._kinds.append((0.5, self._wreck_node))
        if world.shape.code and random.random() < 0.5:
            # Not beside other losses: nobody knows of it, so of two copies the good one may be let go.
            losses = (self._destroy_disk, self._wreck_node)
            self._kinds = [kind for kind in self._kinds if kind[1] not in losses] + [(1.4, self._rot)]

    async def run(self, seconds: float) -> None:
        """Let things happen for so long; the pace is the seed's."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        pause_seconds = self._random.choice((0.15, 0.4, 0.8, 1.6))
        # Some seeds are about a few kinds of faults only: those then meet more often.
        kinds = self._random.sample(self._kinds, self._random.choice((2, 4, len(self._kinds))))
        if self._world.fault_kinds:
            kinds = [kind for kind in self._kinds if kind[1].__name__.removeprefix("_") in self._world.fault_kinds]
        weights = [weight for weight, _ in kinds]
        while loop.time() < ends:
            await asyncio.sleep(pause_seconds * self._random.uniform(0.1, 2.0))
            [(_, happen)] = self._random.choices(kinds, weights)
            happen()

    def heal(self) -> None:
        self._world.note("heal")
        for undo in list(self._undo.values()):
            undo()
        self._undo.clear()

    def _for(self, seconds: float, undo: Callable[[], None]) -> None:
        key = object()
        self._undo[key] = undo

        def end() -> None:
            if self._undo.pop(key, None):
                undo()

        asyncio.get_running_loop().call_later(seconds, end)

    def _span(self, longest: float) -> float:
        """Mostly short, sometimes longer than anybody's patience."""
        return longest * self._random.random() ** 2 + 0.05

    # Processes

    def _kill_node(self) -> None:
        node_id = self._random.choice(self._world.node_names)
        if self._world.nodes[node_id].process.is_alive:
            self._world.note(f"kill {node_id}")
            self._world.nodes[node_id].process.kill()
            self._for(self._span(8.0), lambda: self._world.start_node(node_id))

    def _pause_node(self) -> None:
        node_id = self._random.choice(self._world.node_names)
        process = self._world.nodes[node_id].process
        if process.runs:
            self._world.note(f"pause {node_id}")
            process.pause()
            self._for(self._span(8.0), lambda: self._resume(node_id, process.resume))

    def _resume(self, name: str, resume: Callable[[], None]) -> None:
        self._world.note(f"resume {name}")
        resume()

    def _kill_controller(self) -> None:
        name = self._random.choice(self._world.controller_names)
        if self._world.controllers[name].process.is_alive:
            self._world.note(f"kill {name}")
            self._world.controllers[name].process.kill()
            self._for(self._span(6.0), lambda: self._world.start_controller(name))

    def _pause_controller(self) -> None:
        name = self._random.choice(self._world.controller_names)
        process = self._world.controllers[name].process
        if process.runs:
            self._world.note(f"pause {name}")
            process.pause()
            self._for(self._span(8.0), lambda: self._resume(name, process.resume))

    # The network

    def _cut(self, pairs: list[tuple[str, str]], seconds: float) -> None:
        for sender, receiver in pairs:
            self._world.note(f"cut {sender} -> {receiver}")
            self._world.network.cut(sender, receiver)

        def join() -> None:
            for sender, receiver in pairs:
                self._world.note(f"join {sender} -> {receiver}")
                self._world.network.join(sender, receiver)

        self._for(seconds, join)

    def _either_way(self, one: list[str], other: list[str]) -> list[tuple[str, str]]:
        there = [(a, b) for a in one for b in other if a != b]
        back = [(b, a) for a, b in there]
        return self._random.choice((there, back, there + back, there + back))

    def _everybody(self) -> list[str]:
        return [*self._world.node_names, *self._world.controller_names, *self._others]

    def _cut_pair(self) -> None:
        one, other = self._random.sample(self._everybody(), 2)
        self._cut(self._either_way([one], [other]), self._span(8.0))

    def _cut_node(self) -> None:
        """From the controllers only, from the other nodes only, from clients, or from all."""
        node_id = self._random.choice(self._world.node_names)
        nodes, controllers = list(self._world.node_names), list(self._world.controller_names)
        others = self._random.choice((controllers, nodes, self._others, nodes + controllers + self._others))
        self._cut(self._either_way([node_id], others), self._span(8.0))

    def _cut_controller(self) -> None:
        name = self._random.choice(self._world.controller_names)
        others = self._random.choice(([STORE], list(self._world.node_names), [*self._everybody(), STORE]))
        self._cut(self._either_way([name], others), self._span(8.0))

    def _blip(self) -> None:
        """Nobody hears a controller, for a moment."""
        everybody = self._everybody()
        self._cut(self._either_way(list(self._world.controller_names), everybody), self._span(4.0))

    def _bad_weather(self) -> None:
        weather = self._world.network.weather
        weather.loss = self._random.choice((0.0, 0.02, 0.1))
        weather.repeat = self._random.choice((0.0, 0.05, 0.2))
        weather.slow = self._random.choice((0.0, 0.02, 0.1))
        self._world.note(f"weather loss={weather.loss} repeat={weather.repeat} slow={weather.slow}")
        self._for(self._span(8.0), weather.clear)

    def _slow_node(self) -> None:
        node_id = self._random.choice(self._world.node_names)
        self._world.note(f"slow {node_id}")
        slow = self._world.network.slow_processes
        slow[node_id] = self._random.choice((20.0, 200.0, 1000.0))
        self._for(self._span(6.0), lambda: slow.pop(node_id, None) and None)

    # The store, clocks, disks

    def _store_outage(self) -> None:
        store = self._world.store
        assert store
        if not store.is_out:
            self._world.note("store out")
            store.is_out = True
            self._for(self._span(6.0), store.end_outage)

    def _lose_answers(self) -> None:
        store = self._world.store
        assert store
        store.lost_answers = self._random.choice((0.05, 0.3))
        self._world.note(f"store loses answers {store.lost_answers}")
        self._for(self._span(6.0), lambda: setattr(store, "lost_answers", 0.0))

    def _clock_jump(self) -> None:
        name = self._random.choice([*self._world.node_names, *self._world.controller_names])
        self._world.clock(name).ahead_seconds += self._random.choice((-1.0, 1.0)) * 10 ** self._random.uniform(0, 5)
        self._world.note(f"clock of {name} jumps")

    def _fill_disk(self) -> None:
        platter = self._world.platters[NodeId(self._random.choice(self._world.node_names))]
        platter.is_full = True
        self._world.note(f"disk of {platter.node_id} is full")
        self._for(self._span(5.0), lambda: setattr(platter, "is_full", False))

    def _may_lose(self, disk_ids: Set[DiskId]) -> bool:
        """Only where enough is left elsewhere, and one thing at a time: nobody promised more than that."""
        now = self._world.loop.time()
        if now - self._destroyed_at < _BETWEEN_LOSSES_SECONDS or not self._world.checks.may_lose(disk_ids):
            return False
        self._destroyed_at = now
        return True

    def _destroy_disk(self) -> None:
        """For good, with all that is on it."""
        platter = self._world.platters[NodeId(self._random.choice(self._world.node_names))]
        disk_id = self._random.choice(list(platter.disks))
        if not self._may_lose({disk_id}):
            return
        self._world.note(f"disk of {platter.node_id} is destroyed")
        self._world.checks.destroyed.add(disk_id)
        if self._world.nodes[platter.node_id].process.is_alive:
            self._world.nodes[platter.node_id].process.kill()
            self._for(self._span(6.0), lambda: self._world.start_node(platter.node_id))
        del platter.disks[disk_id]
        platter.disks[self._world.new_disk_id()] = {}

    def _wreck_node(self) -> None:
        """The whole machine. It has to be removed by name, and may then come back as another one."""
        node_id = self._random.choice(self._world.node_names)
        if node_id not in self._world.checks.wrecked and self._may_lose(self._world.platters[node_id].disks.keys()):
            self._world.note(f"{node_id} is wrecked")
            self._world.wreck_node(node_id)

    def _rot(self) -> None:
        """A bit flips on a disk, in something that is on record; nobody is told."""
        checks = self._world.checks
        found = [
            (blob, holder)
            for save, _, blob in checks.wanted_blobs()
            if save.state.is_readable
            for holder in checks.holders_of(blob)
            if is_readable(blob, _of_sound_shares(blob, checks.holders_of(blob), holder))
        ]
        if found:
            blob, holder = self._random.choice(found)
            platter = self._world.platters[holder.node_id]
            self._world.note(f"fragment {holder.fragment_index} of blob {blob.id} rots on {holder.node_id}")
            self._world.has_rot = True
            checks.rotted.add((blob.id, holder.node_id))
            for held in platter.find(blob.id, holder.fragment_index):
                platter.put(held.rotten())


def _of_sound_shares(blob: Blob, sound: list[Holder], besides: Holder) -> list[Holder]:
    """What is left if all are let go of whose twins are bad."""
    bad = [holder for holder in blob.holders if holder not in sound or holder == besides]
    if blob.code == MIRROR and len(bad) > 1:
        return []
    return [holder for holder in sound if all(share(blob, holder) != share(blob, other) for other in bad)]
