"""Compares two places, scene by scene: what proves that they hold the same data, or tells what differs.

Of processed scenes, arrays and descriptions are compared by what is in the files; only the version of the program does
not count. Of raw scenes, the SHA-256 of the files that scenes are made from. Where one side is only a `manifest.json`
or a `scannet.lock`, or no scene is to be read, what is on record of whole files is compared instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from scannet_prep.archive.source import Place
from scannet_prep.errors import FileError, UsageError
from scannet_prep.files import Fingerprint, read_file
from scannet_prep.labels import LABEL_MAP_NAME, find_label_map
from scannet_prep.processed.manifest import SceneEntry, parse_manifest
from scannet_prep.raw.lock import LockEntry, digest_file, parse_lock
from scannet_prep.release import INPUT_KINDS
from scannet_prep.scene import SceneId
from scannet_prep.stages.finding import CheckTask, Finding, Findings, sort_findings
from scannet_prep.stages.report.source import Reading, Source, Table, open_source
from scannet_prep.tree import is_archive
from scannet_prep.typed_json import to_plain

Facts = Mapping[str, str]
Scenes = Mapping[str, Sequence[Facts]]
"""Of each scene: what is on record, and what is in it, where that was read."""

_LABEL_MAP = "label map"
_SUFFIXES = {LABEL_MAP_NAME, *(kind.suffix for kind in INPUT_KINDS)}
_VERSION = "program_version"
_MAX_FACT = 90  # characters; what is longer is told by its digest


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two places have in common, and what not.

    Attributes:
        here: The first place.
        there: The second one.
        same: How many scenes are the same in both.
        other_version: How many scenes differ in nothing but the version of the program that made them.
        only_here: Scenes that only the first place has.
        only_there: Scenes that only the second one has.
        differences: By scene that both have (`label map` beside raw ones), what differs: values here and there.
        findings: What cannot be read.
    """

    here: str
    there: str
    same: int
    other_version: int
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    differences: Mapping[str, Mapping[str, tuple[str, str]]] = field(hash=False)
    findings: tuple[Finding, ...]

    @property
    def is_same(self) -> bool:
        """Whether both hold the same data."""
        return not (self.only_here or self.only_there or self.differences or self.findings)

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        verdict = "the same data" if self.is_same else "not the same data"
        versions = f" (by another version of the program: {self.other_version:,})" if self.other_version else ""
        only = f"only here: {len(self.only_here):,}, only there: {len(self.only_there):,}"
        return f"{verdict}; same: {self.same:,}{versions}, different: {len(self.differences):,}, {only}"

    @property
    def table(self) -> Table:
        """All that is not the same."""
        rows = [[name, what, *pair] for name, facts in self.differences.items() for what, pair in facts.items()]
        rows += [[name, "scene", "there", "-"] for name in self.only_here]
        rows += [[name, "scene", "-", "there"] for name in self.only_there]
        rows += [[item.scene_id, "error", item.message, item.hint] for item in self.findings]
        return Table("Differences", ["scene", "what", "here", "there"], rows)


def compare(here: Sequence[Place], there: Sequence[Place], reading: Reading) -> Comparison:
    """Compare two places.

    Args:
        here: A processed folder, an archive or all its shards, a `manifest.json`; or a raw tree, or a `scannet.lock`.
        there: Another one of the same kind.
        reading: How to read them.

    Raises:
        UsageError: One holds raw scenes and the other processed ones.
        FileError: A place cannot be read, or names no scene.
        TransferError: An archive is on a web server, which does not give it.
        WorkerDiedError: Worker processes cannot be started.
    """
    findings = Findings()
    mine, my_name, my_kind = _read_side(here, reading, findings)
    theirs, their_name, their_kind = _read_side(there, reading, findings)
    if my_kind != their_kind:
        told = f"{my_name} holds {my_kind} scenes, {their_name} {their_kind} ones: they cannot be compared"
        raise UsageError(told, "compare two raw trees, or what was processed from both")
    errors = sort_findings(item for item in findings.found if item.is_error)
    both = sorted((mine.keys() & theirs.keys()) - {item.scene_id for item in errors})
    found = {name: _find_differences(mine[name], theirs[name]) for name in both}
    differences = {name: facts for name, facts in found.items() if facts.keys() - {_VERSION}}
    return Comparison(
        here=my_name,
        there=their_name,
        same=sum(SceneId.is_valid(name) for name in both if name not in differences),
        other_version=sum(facts.keys() == {_VERSION} for facts in found.values()),
        only_here=tuple(sorted(mine.keys() - theirs.keys())),
        only_there=tuple(sorted(theirs.keys() - mine.keys())),
        differences=differences,
        findings=errors,
    )


def _find_differences(here: Sequence[Facts], there: Sequence[Facts]) -> dict[str, tuple[str, str]]:
    """What differs between two scenes, as deep as both are known."""
    mine, theirs = (facts[min(len(here), len(there)) - 1] for facts in (here, there))
    pairs = {what: (mine.get(what, "-"), theirs.get(what, "-")) for what in {**mine, **theirs}}
    return {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}


def _read_side(places: Sequence[Place], reading: Reading, findings: Findings) -> tuple[Scenes, str, str]:
    """Read what is to be compared of one place; gives also its name, and the kind of its scenes."""
    path = Path(str(places[0])).expanduser()
    scenes: dict[str, Sequence[Facts]]
    if len(places) == 1 and path.is_file() and not is_archive(path):
        data, name = read_file(path), str(path)
        is_raw = not data.lstrip().startswith(b"{")
        scenes = _parse_lock(data, path) if is_raw else _tell_entries(parse_manifest(data, path).scenes)
    else:
        source = open_source(places, reading, findings)
        name, is_raw, scenes = source.place.name, source.raw is not None, _tell_entries(source.place.entries)
        if not reading.is_quick:
            looked = source.look_at(source.scene_ids, _look, findings, reading)
            scenes = {scene_id: looked.get(SceneId(scene_id), [{}]) for scene_id in source.scene_ids}
        if is_raw and (label_map := find_label_map(path)) is not None:
            scenes[_LABEL_MAP] = [_flatten({LABEL_MAP_NAME: digest_file(label_map)})]
    if not any(map(SceneId.is_valid, scenes)):  # to find no difference would prove nothing
        raise FileError(name, "names no scene: there is nothing to compare", "give a place that holds scenes")
    return scenes, name, "raw" if is_raw else "processed"


def _parse_lock(data: bytes, path: Path) -> dict[str, Sequence[Facts]]:
    found: dict[str, dict[str, LockEntry]] = {}
    for name, entry in parse_lock(data, path).items():
        file = PurePosixPath(name)
        scene_id = file.parent.name if file.name != LABEL_MAP_NAME else _LABEL_MAP
        if file.name.removeprefix(scene_id) in _SUFFIXES:
            found.setdefault(scene_id, {})[file.name] = entry
    return {name: [_flatten(files)] for name, files in found.items()}


def _look(task: CheckTask, source: Source, findings: Findings) -> list[Facts]:  # noqa: ARG001
    """Read one scene, in a worker."""
    if source.raw is not None:
        raw, _ = source.raw[task.scene_id]
        paths = [path for kind in INPUT_KINDS if (path := raw.path(kind)).exists()]
        return [_flatten({path.name: digest_file(path) for path in paths})]
    scene, entry = source.load(task.scene_id)
    arrays = {f"array {key}": array for key, array in scene.arrays().items() if key != "meta"}
    facts = {
        key: f"{array.dtype} {array.shape}, CRC-32 {Fingerprint.from_bytes(array.reshape(-1).view('u1').data).crc32}"
        for key, array in arrays.items()
    }
    return [_flatten(entry), facts | _flatten(scene.meta)]


def _tell_entries(entries: Mapping[str, SceneEntry]) -> dict[str, Sequence[Facts]]:
    return {name: [_flatten(entry)] for name, entry in entries.items()}


def _flatten(value: object, name: str = "") -> dict[str, str]:
    """The facts that a description holds, by name."""
    plain = to_plain(value)
    if isinstance(plain, dict):
        parts = [_flatten(item, f"{name} {key}".lstrip()) for key, item in plain.items()]
        return {key: text for part in parts for key, text in part.items()}
    text = str(plain)
    digest = f"{len(text):,} characters, CRC-32 {Fingerprint.from_bytes(text.encode()).crc32}"
    return {name: text if len(text) <= _MAX_FACT else digest}
