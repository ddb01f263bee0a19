"""Compare two places scene by scene, and list the differences.

What is compared depends on the places:

    two places with processed scenes   arrays and metadata, except the version of the program
    a manifest.json on either side     entries of manifests: size and CRC-32 of the scene's file,
                                       vertices per class, warnings; and the options
    raw trees, or their scannet.lock   size and SHA-256 of the files

Raw files that scenes are processed from must exist on both sides. All others, such as sensor
streams, are compared only if both sides have them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

from scannet_prep.base.errors import FileError, MissingFileError, UsageError
from scannet_prep.base.files import Fingerprint, read_file
from scannet_prep.base.typed_json import to_plain
from scannet_prep.processed.manifest import SceneEntry, parse_manifest
from scannet_prep.processed.scene import ProcessedScene, ProcessOptions
from scannet_prep.raw.layout import find_shared_files
from scannet_prep.raw.lock import LockEntry, digest_file, read_lock
from scannet_prep.release.files import INPUT_KINDS, KINDS, TASKS_DIR
from scannet_prep.release.findings import Finding, Findings, sort_findings
from scannet_prep.release.label_map import LABEL_MAP_NAME, find_label_map
from scannet_prep.release.scene import SceneId
from scannet_prep.report.scenes import ReportedScenes, open_scenes
from scannet_prep.report.table import Table
from scannet_prep.source import Place, describe_file
from scannet_prep.source.raw_scenes import RawScenes

SceneFacts: TypeAlias = Mapping[str, str]
"""The values of a scene to compare, as texts by name."""

Differences: TypeAlias = Mapping[str, tuple[str, str]]
"""The facts that differ, by name: the value here and the value there, `-` for none."""

_NONE = "-"
_INPUT_SUFFIXES = {kind.suffix for kind in INPUT_KINDS}
_SUFFIXES = {kind.suffix for kind in KINDS.values()}
_DIGEST = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{48}\b")
# A longer text is represented by its length and CRC-32.
_MAX_FACT_LETTERS = 90


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        here: The name of the first place.
        there: The name of the second place.
        same: Number of scenes that are the same in both places.
        only_here: Scenes that only the first place has.
        only_there: Scenes that only the second place has.
        differences: The differences of each scene that both places have, by scene id. For raw
            scenes, the keys `label map` and `tasks` may follow, with the differences of the label
            map and of the files in `tasks/`.
        findings: The errors of scenes that cannot be read.
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
        """Whether both places hold the same data."""
        return not (self.only_here or self.only_there or self.differences or self.findings)

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        verdict = "the same data" if self.is_same else "not the same data"
        counts = [
            f"same: {self.same:,}",
            f"different: {len(self.differences):,}",
            f"only here: {len(self.only_here):,}",
            f"only there: {len(self.only_there):,}",
        ]
        if self.findings:
            counts.append(f"errors: {len(self.findings):,}")
        return f"{verdict}; {', '.join(counts)}"

    @property
    def table(self) -> Table:
        """All differences, with shortened digests."""
        rows = []
        for scene_id, differences in self.differences.items():
            for name, values in differences.items():
                cells = [_DIGEST.sub(r"\1...", value) for value in values]
                rows.append([scene_id, name, *cells])
        rows += [[scene_id, "scene", "present", _NONE] for scene_id in self.only_here]
        rows += [[scene_id, "scene", _NONE, "present"] for scene_id in self.only_there]
        # An error has no values here and there: its message and its hint take these two columns.
        for finding in self.findings:
            message = f"{finding.subject}: {finding.message}"
            rows.append([finding.scene_id, "error", message, finding.hint])
        return Table("Differences", ["scene", "what", "here", "there"], rows)


class Sides(NamedTuple):
    """The two places to compare. Picklable."""

    here: _Side
    there: _Side

    @property
    def common(self) -> list[str]:
        """The ids of the scenes that both places have, sorted."""
        return sorted(self.here.scene_ids & self.there.scene_ids)

    def compare_scene(self, scene_id: str) -> Differences:
        """Compare a scene that both places have.

        The arrays are compared only if both places hold the scenes themselves.

        Raises:
            FileError: A file of the scene cannot be read, or is damaged.
        """
        here, there = self
        if here.kind == "raw":
            return _compare_raw_files(
                here.find_raw_files(scene_id), there.find_raw_files(scene_id), scene_id
            )
        compares_arrays = here.scenes is not None and there.scenes is not None
        return _compare_facts(
            here.collect_facts(scene_id, compares_arrays=compares_arrays),
            there.collect_facts(scene_id, compares_arrays=compares_arrays),
        )

    def conclude(self, compared: Mapping[str, Differences], findings: Findings) -> Comparison:
        """Combine the results of all scenes.

        Args:
            compared: The differences of each scene that was compared; empty if it is the same.
            findings: The findings of opening the places and of reading the scenes.
        """
        here, there = self
        differences = {scene_id: result for scene_id, result in compared.items() if result}
        same = len(compared) - len(differences)
        # These are not scenes, and do not count as such: they are added after `same` is computed.
        differences |= _compare_shared_files(here, there)
        return Comparison(
            here=here.name,
            there=there.name,
            same=same,
            only_here=tuple(sorted(here.scene_ids - there.scene_ids)),
            only_there=tuple(sorted(there.scene_ids - here.scene_ids)),
            differences=differences,
            findings=sort_findings(finding for finding in findings.found if finding.is_error),
        )


def open_sides(
    here: Sequence[Place],
    there: Sequence[Place],
    certificates: bool | Path,
    findings: Findings,
) -> Sides:
    """Open two places, or read their records.

    Args:
        here: A processed folder, an archive or all its shards, or a `manifest.json`; or a raw tree
            or a `scannet.lock`.
        there: Another place of the same kind.
        certificates: The certificates to trust for addresses, as `RangeSource` takes them.
        findings: Receives the faults of the places.

    Raises:
        UsageError: One holds raw scenes and the other processed ones.
        FileError: A place cannot be read, or names no scene.
        TransferError: An archive on a web server cannot be read.
    """
    sides = Sides(
        _open_side(here, certificates, findings), _open_side(there, certificates, findings)
    )
    if sides.here.kind != sides.there.kind:
        raise UsageError(
            f"{sides.here.name} holds {sides.here.kind} scenes, "
            f"{sides.there.name} holds {sides.there.kind} scenes: they cannot be compared",
            "name two raw folders, or two processed folders or archives",
        )
    return sides


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the places, or the record of one. Picklable.

    Attributes:
        name: Path or address.
        kind: `processed` or `raw`.
        scenes: The scenes themselves; None if only records are known.
        entries: Records of processed scenes, if only these are known.
        locked: Records of raw scenes, by the name of the file, if only these are known.
        options: The options of a processed folder; None for raw scenes.
        shared_files: For raw scenes, the label map and the files in `tasks/`, or their records, by
            path in the tree.
    """

    name: str
    kind: str
    scenes: ReportedScenes | None = None
    entries: Mapping[str, SceneEntry] = field(default_factory=dict)
    locked: Mapping[str, Mapping[str, LockEntry]] = field(default_factory=dict)
    options: ProcessOptions | None = None
    shared_files: Mapping[str, Path | LockEntry] = field(default_factory=dict)

    @property
    def scene_ids(self) -> set[str]:
        """The ids of all scenes."""
        if self.scenes is not None:
            return set(self.scenes.scene_ids)
        return set(self.entries or self.locked)

    def find_raw_files(self, scene_id: str) -> Mapping[str, Path | LockEntry]:
        """Find the files of a raw scene, or their records, by name.

        Raises:
            MissingFileError: The scene has no files.
        """
        if not isinstance(self.scenes, RawScenes):
            # The side is a scannet.lock.
            return self.locked[scene_id]
        raw, _ = self.scenes.scenes[scene_id]
        paths = [raw.path(kind) for kind in KINDS.values()]
        files = {path.name: path for path in paths if path.exists()}
        if not files:
            command = f"scannet-prep download --types seg --scenes {raw.scene_id}"
            raise MissingFileError(raw.directory, "holds none of the scene's files", command)
        return files

    def digest_shared_file(self, name: str) -> str:
        """Return the SHA-256 of one of the shared files; `-` if it does not exist."""
        file = self.shared_files.get(name)
        return _NONE if file is None else _digest(file).sha256

    def collect_facts(self, scene_id: str, *, compares_arrays: bool) -> SceneFacts:
        """Collect the facts of a processed scene.

        Args:
            scene_id: The scene.
            compares_arrays: Whether to collect facts of its arrays rather than of its record.
        """
        if self.scenes is None:
            return self._flatten_entry(self.entries[scene_id])
        # The entry is made from the content of the scene, not read from its manifest: damage to the
        # file is detected even if only the entries are compared.
        scene, entry = self.scenes.load(scene_id)
        if compares_arrays:
            return _collect_array_facts(scene)
        return self._flatten_entry(entry)

    def _flatten_entry(self, entry: SceneEntry) -> SceneFacts:
        """Return the facts of a record, with the options of its folder."""
        return _flatten(entry) | _flatten(self.options, "options")


def _compare_raw_files(
    here: Mapping[str, Path | LockEntry], there: Mapping[str, Path | LockEntry], scene_id: str
) -> Differences:
    """Compare the files of a raw scene by their digests."""
    names = []
    for name in {**here, **there}:
        is_input = name.removeprefix(scene_id) in _INPUT_SUFFIXES
        if is_input or (name in here and name in there):
            names.append(name)
    return _compare_facts(_digest_facts(here, names), _digest_facts(there, names))


def _digest_facts(files: Mapping[str, Path | LockEntry], names: Iterable[str]) -> SceneFacts:
    """Return size and SHA-256 of the named files that exist."""
    return _flatten({name: _digest(files[name]) for name in names if name in files})


def _digest(file: Path | LockEntry) -> LockEntry:
    """Return the record of a file, which is computed if the file itself is given."""
    if isinstance(file, LockEntry):
        return file
    return digest_file(file)


def _compare_facts(here: SceneFacts, there: SceneFacts) -> Differences:
    """Find the facts that differ."""
    differences = {}
    for name in {**here, **there}:
        value_here = here.get(name, _NONE)
        value_there = there.get(name, _NONE)
        if value_here != value_there:
            differences[name] = (value_here, value_there)
    return differences


def _compare_shared_files(here: _Side, there: _Side) -> dict[str, Differences]:
    """Compare the label maps of raw trees, and the files in `tasks/` that both have.

    Returns:
        The differences of the label maps by the key `label map`, and those of the other files by
        the key `tasks`. A key is missing if nothing differs, as for processed scenes.
    """
    differences: dict[str, Differences] = {}
    # Scenes are made from the label map: it also differs if only one side has it.
    label_map_here = here.digest_shared_file(LABEL_MAP_NAME)
    label_map_there = there.digest_shared_file(LABEL_MAP_NAME)
    if label_map_here != label_map_there:
        differences["label map"] = {LABEL_MAP_NAME: (label_map_here, label_map_there)}

    tasks = {}
    common = here.shared_files.keys() & there.shared_files.keys()
    for name in sorted(common - {LABEL_MAP_NAME}):
        digest_here = here.digest_shared_file(name)
        digest_there = there.digest_shared_file(name)
        if digest_here != digest_there:
            tasks[name] = (digest_here, digest_there)
    if tasks:
        differences["tasks"] = tasks
    return differences


def _collect_array_facts(scene: ProcessedScene) -> SceneFacts:
    """Return the metadata of a scene, and type, shape and CRC-32 of each array."""
    facts = _flatten(replace(scene.meta, program_version=""))
    for key, array in scene.arrays().items():
        if key != "meta":
            crc32 = Fingerprint.from_bytes(array.reshape(-1).view("u1").data).crc32
            facts[f"array {key}"] = f"{array.dtype} {array.shape}, CRC-32 {crc32}"
    return facts


def _open_side(places: Sequence[Place], certificates: bool | Path, findings: Findings) -> _Side:
    """Open a place, or read the record of one.

    Raises:
        FileError: The place names no scene.
    """
    path = Path(str(places[0])).expanduser()
    if len(places) == 1 and _is_record(path):
        side = _read_record(path)
    else:
        side = _open_place(open_scenes(places, certificates, findings))
    if not side.scene_ids:
        # A comparison of nothing must not report that the data are the same.
        raise FileError(
            side.name,
            "names no scene: there is nothing to compare",
            "name a folder or an archive that holds scenes",
        )
    return side


def _is_record(path: Path) -> bool:
    """Whether a path is a file but not an archive: a `manifest.json` or a `scannet.lock`."""
    return path.is_file() and path.suffix != ".zst" and describe_file(path) != "a zstd file"


def _open_place(scenes: ReportedScenes) -> _Side:
    """Make the side of a place that holds the scenes themselves."""
    name = scenes.name
    if not isinstance(scenes, RawScenes):
        return _Side(name=name, kind="processed", scenes=scenes, options=scenes.options)
    raw_dir = Path(name)
    shared_files: dict[str, Path | LockEntry] = {}
    for file in find_shared_files(raw_dir).values():
        shared_files[f"{TASKS_DIR}/{file.name}"] = file
    label_map = find_label_map(raw_dir)
    if label_map is not None:
        shared_files[LABEL_MAP_NAME] = label_map
    return _Side(name=name, kind="raw", scenes=scenes, shared_files=shared_files)


def _read_record(path: Path) -> _Side:
    """Read a `manifest.json` or a `scannet.lock`."""
    data = read_file(path)
    if data.lstrip().startswith(b"{"):
        manifest = parse_manifest(data, path)
        return _Side(
            name=str(path),
            kind="processed",
            entries=manifest.scenes,
            options=manifest.options,
        )
    locked: dict[str, dict[str, LockEntry]] = {}
    shared_files: dict[str, Path | LockEntry] = {}
    for name, entry in read_lock(path, data).items():
        file = PurePosixPath(name)
        # `tasks`, or the id of a scene.
        folder = file.parent.name
        is_raw_file = file.name.removeprefix(folder) in _SUFFIXES
        if file.name == LABEL_MAP_NAME:
            shared_files[LABEL_MAP_NAME] = entry
        elif folder == TASKS_DIR:
            shared_files[f"{TASKS_DIR}/{file.name}"] = entry
        elif SceneId.is_valid(folder) and is_raw_file:
            locked.setdefault(folder, {})[file.name] = entry
    return _Side(name=str(path), kind="raw", locked=locked, shared_files=shared_files)


def _flatten(value: object, name: str = "") -> dict[str, str]:
    """Return the facts in a value, by name; the name of a nested value is the path to it."""
    plain = to_plain(value)
    if isinstance(plain, dict):
        facts = {}
        for key, nested in plain.items():
            facts.update(_flatten(nested, f"{name} {key}".lstrip()))
        return facts
    text = str(plain)
    if len(text) > _MAX_FACT_LETTERS:
        crc32 = Fingerprint.from_bytes(text.encode()).crc32
        text = f"{len(text):,} characters, CRC-32 {crc32}"
    return {name: text}
