"""Compares two places, scene by scene: what proves that they hold the same data, or tells what differs.

Of processed scenes, arrays and descriptions are compared by what is in the files; only the version of the program does
not count. Of raw scenes, the SHA-256 of the files that scenes are made from. Where one side is only a `manifest.json`
or a `scannet.lock`, what is on record of whole files is compared instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from scannet_prep.archive.source import Place
from scannet_prep.base.errors import FileError, MissingFileError, UsageError
from scannet_prep.base.files import Fingerprint, read_file
from scannet_prep.base.typed_json import to_plain
from scannet_prep.processed.manifest import SceneEntry, parse_manifest
from scannet_prep.processed.scene import ProcessOptions
from scannet_prep.raw.lock import LockEntry, digest_file, read_lock
from scannet_prep.release.files import INPUT_KINDS
from scannet_prep.release.label_map import LABEL_MAP_NAME, find_label_map
from scannet_prep.release.scene import SceneId
from scannet_prep.stages.finding import CheckTask, Finding, Findings, sort_findings
from scannet_prep.stages.report.source import Reading, Source, Table, open_source
from scannet_prep.tree import is_archive

Facts = Mapping[str, str]
Differences = Mapping[str, tuple[str, str]]
_SUFFIXES = {kind.suffix for kind in INPUT_KINDS}
_DIGEST = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{48}\b")
_MAX_FACT = 90  # characters; what is longer is told by its digest


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two places have in common, and what not.

    Attributes:
        here: The first place.
        there: The second one.
        same: How many scenes are the same in both.
        only_here: Scenes that only the first place has.
        only_there: Scenes that only the second one has.
        differences: By scene that both have (`label map` beside raw ones), what differs: values here and there.
        findings: What cannot be read.
    """

    here: str
    there: str
    same: int
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    differences: Mapping[str, Differences] = field(hash=False)
    findings: tuple[Finding, ...]

    @property
    def is_same(self) -> bool:
        """Whether both hold the same data."""
        return not (self.only_here or self.only_there or self.differences or self.findings)

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        verdict = "the same data" if self.is_same else "not the same data"
        only = f"only here: {len(self.only_here):,}, only there: {len(self.only_there):,}"
        errors = f", errors: {len(self.findings):,}" if self.findings else ""
        return (
            f"{verdict}; same: {self.same:,}, different: {len(self.differences):,}, {only}{errors}"
        )

    @property
    def table(self) -> Table:
        """All that is not the same; of digests, the beginning."""
        rows = [
            [name, what, *(_DIGEST.sub(r"\1...", text) for text in pair)]
            for name, facts in self.differences.items()
            for what, pair in facts.items()
        ]
        rows += [[name, "scene", "there", "-"] for name in self.only_here]
        rows += [[name, "scene", "-", "there"] for name in self.only_there]
        rows += [
            [item.scene_id, "error", f"{item.path}: {item.message}", item.hint]
            for item in self.findings
        ]
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
    sides = [_open_side(places, reading, findings) for places in (here, there)]
    mine, theirs = sides
    if mine.kind != theirs.kind:
        told = f"{mine.name} holds {mine.kind} scenes, {theirs.name} {theirs.kind} ones: they cannot be compared"
        raise UsageError(told, "name two raw folders, or two processed folders or archives")
    scene_ids = sorted(mine.scenes & theirs.scenes)
    found = reading.look(_look, scene_ids, sides, findings)
    differences = {name: facts for name, facts in found.items() if facts}
    if mine.label_map != theirs.label_map:
        differences["label map"] = {LABEL_MAP_NAME: (mine.label_map, theirs.label_map)}
    return Comparison(
        here=mine.name,
        there=theirs.name,
        same=len(found.keys() - differences.keys()),
        only_here=tuple(sorted(mine.scenes - theirs.scenes)),
        only_there=tuple(sorted(theirs.scenes - mine.scenes)),
        differences=differences,
        findings=sort_findings(item for item in findings.found if item.is_error),
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the places. Picklable.

    Attributes:
        name: Path or address.
        kind: `processed` or `raw`.
        records: What is on record of each scene, where only that is known.
        options: The options of a processed folder; None for raw scenes.
        source: The scenes themselves; None where they are not there.
        label_map: Beside raw scenes, its digest; `-` for none.
    """

    name: str
    kind: str
    records: Mapping[str, SceneEntry | Mapping[str, LockEntry]]
    options: ProcessOptions | None = None
    source: Source | None = None
    label_map: str = "-"

    @property
    def scenes(self) -> set[str]:
        """All scenes."""
        return set(self.records if self.source is None else self.source.scene_ids)

    def tell(self, scene_id: str, *, is_deep: bool) -> Facts:
        """What is known of a scene's files; or, of a processed one, of what is in it."""
        if self.source is None:
            return self._flatten_entry(self.records[scene_id])
        if self.source.raw is not None:
            raw, _ = self.source.raw[scene_id]
            paths = [path for kind in INPUT_KINDS if (path := raw.path(kind)).exists()]
            if not paths:
                raise MissingFileError(
                    raw.directory,
                    "holds none of the scene's files",
                    f"scannet-prep download --types seg --scenes {raw.scene_id}",
                )
            return _flatten({path.name: digest_file(path) for path in paths})
        scene, entry = self.source.load(scene_id)
        if not is_deep:
            return self._flatten_entry(entry)
        facts, arrays = _flatten(replace(scene.meta, program_version="")), scene.arrays()
        del arrays["meta"]
        for key, array in arrays.items():
            crc32 = Fingerprint.from_bytes(array.reshape(-1).view("u1").data).crc32
            facts[f"array {key}"] = f"{array.dtype} {array.shape}, CRC-32 {crc32}"
        return facts

    def _flatten_entry(self, entry: SceneEntry | Mapping[str, LockEntry]) -> Facts:
        """The facts of a record, with the options of its folder."""
        facts = _flatten(entry)
        if self.options is not None:
            facts |= _flatten(self.options, "options")
        return facts


def _look(task: CheckTask, sides: Sequence[_Side], findings: Findings) -> Differences:  # noqa: ARG001
    """What differs between two scenes, as deep as both are known."""
    mine, theirs = (
        side.tell(task.scene_id, is_deep=all(side.source for side in sides)) for side in sides
    )
    pairs = {what: (mine.get(what, "-"), theirs.get(what, "-")) for what in {**mine, **theirs}}
    return {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}


def _open_side(places: Sequence[Place], reading: Reading, findings: Findings) -> _Side:
    path = Path(str(places[0])).expanduser()
    if len(places) == 1 and path.is_file() and not is_archive(path):
        side = _read_record(path)
    else:
        source = open_source(places, reading, findings)
        name = source.place.name
        if source.raw is None:
            side = _Side(
                name=name, kind="processed", records={}, options=source.place.options, source=source
            )
        else:
            label_map = find_label_map(path)
            digest = digest_file(label_map).sha256 if label_map else "-"
            side = _Side(name=name, kind="raw", records={}, source=source, label_map=digest)
    if not side.scenes:  # to find no difference would prove nothing
        raise FileError(
            side.name,
            "names no scene: there is nothing to compare",
            "name a folder or an archive that holds scenes",
        )
    return side


def _read_record(path: Path) -> _Side:
    """Read a `manifest.json` or a `scannet.lock`."""
    data, found, label_map = read_file(path), dict[str, dict[str, LockEntry]](), "-"
    if data.lstrip().startswith(b"{"):
        manifest = parse_manifest(data, path)
        return _Side(
            name=str(path), kind="processed", records=manifest.scenes, options=manifest.options
        )
    for name, entry in read_lock(path, data).items():
        file = PurePosixPath(name)
        if file.name == LABEL_MAP_NAME:
            label_map = entry.sha256
        elif (
            SceneId.is_valid(file.parent.name)
            and file.name.removeprefix(file.parent.name) in _SUFFIXES
        ):
            found.setdefault(file.parent.name, {})[file.name] = entry
    return _Side(name=str(path), kind="raw", records=found, label_map=label_map)


def _flatten(value: object, name: str = "") -> dict[str, str]:
    """The facts that a description holds, by name."""
    plain = to_plain(value)
    if isinstance(plain, dict):
        parts = [_flatten(item, f"{name} {key}".lstrip()) for key, item in plain.items()]
        return {key: text for part in parts for key, text in part.items()}
    text = str(plain)
    digest = f"{len(text):,} characters, CRC-32 {Fingerprint.from_bytes(text.encode()).crc32}"
    return {name: text if len(text) <= _MAX_FACT else digest}
