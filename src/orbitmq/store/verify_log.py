"""Check the commit log: every record sound, no stretch unaccounted for, the end where it should be."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from orbitmq.store.log_scan import (
    FileBytes,
    ScannedRecord,
    SegmentScan,
    Stop,
    read_record,
    resync,
    scan_segment,
)
from orbitmq.store.store_files import COMMIT_LOG, StoreFiles, segment_path, unmap
from orbitmq.store.verify_report import RESTORE_LOG, Damage, VerifyReport

_CHUNK_BYTES = 1 << 20


class LogCheck:
    """Walks the log once, handing each sound record on, and fills the report's figures about the log."""

    def __init__(
        self,
        files: StoreFiles,
        file_bytes: int,
        report: VerifyReport,
        take: Callable[[ScannedRecord], None],
        progress: Callable[[int, int], None],
    ) -> None:
        self._files = files
        self._file_bytes = file_bytes
        self._report = report
        self._take = take
        self._progress = progress
        self._name = ""

    def run(self) -> None:
        bases = self._files.bases(COMMIT_LOG)
        report = self._report
        if not bases:
            report.info(COMMIT_LOG, None, "there is no commit log: the store is empty")
            return
        self._check_names(bases)
        report.log_start = bases[0]
        used = [base for base in bases if self._holds_data(base)]
        last = used[-1] if used else bases[0]
        for number, base in enumerate(base for base in bases if base <= last):
            self._progress(number, len(bases))
            self._name = segment_path(COMMIT_LOG, base)
            buf = self._files.map(self._name)
            try:
                self._walk(buf, base, base == last)
            finally:
                unmap(buf)
        self._progress(len(bases), len(bases))

    def _check_names(self, bases: list[int]) -> None:
        size, report = self._file_bytes, self._report
        for base in bases:
            name = segment_path(COMMIT_LOG, base)
            actual = self._files.size(name)
            if actual != size:
                text = f"has {actual} bytes, the files of this log have {size}"
                report.error(name, None, text, RESTORE_LOG)
            if base % size:
                report.error(name, None, f"its name is no multiple of the file size {size}", RESTORE_LOG)
        for before, base in itertools.pairwise(bases):
            if base != before + size:
                text = f"the files for offsets {before + size} to {base - 1} are missing"
                report.error(COMMIT_LOG, None, text, RESTORE_LOG)

    def _holds_data(self, base: int) -> bool:
        """False for a file that was only prepared for what comes next."""
        buf = self._files.map(segment_path(COMMIT_LOG, base))
        try:
            return _last_data(buf, 0) > 0
        finally:
            unmap(buf)

    def _walk(self, buf: FileBytes, base: int, is_last: bool) -> None:
        report = self._report
        pos = 0
        damages: list[tuple[Damage, int]] = []
        while True:
            scan = scan_segment(buf, base, pos)
            for record in scan:
                self._see(record)
            report.log_end = base + scan.pos
            if scan.stop is Stop.BLANK:
                report.blanks += 1
                report.log_end = base + len(buf)
                break
            behind = resync(buf, base, scan.pos) if scan.stop is not Stop.END else None
            if behind is not None and not (is_last and self._is_leftover(buf, base, behind)):
                problem = scan.problem or "it reads as zeros"
                damage = Damage(base + scan.pos, base + behind, problem)
                # Known to the report at once: what comes behind is judged in its light.
                report.damage.append(damage)
                damages.append((damage, report.records))
                pos = behind
                continue
            self._end_of_file(buf, base, scan, is_last, behind)
            break
        for damage, records_before in damages:
            self._report_damage(base, damage, report.records - records_before)

    def _see(self, record: ScannedRecord) -> None:
        report = self._report
        report.records += 1
        if record.store_ms < report.last_ms:
            report.warning(
                self._name,
                record.offset % self._file_bytes,
                f"the record at {record.offset} has a store time {report.last_ms - record.store_ms} ms "
                "before the one in front of it: the clock was set back, or one of the two is damaged",
                "nothing; search by time may miss records around it",
                kind="store time",
            )
        report.last_ms = record.store_ms
        self._take(record)

    def _is_leftover(self, buf: FileBytes, base: int, pos: int) -> bool:
        """A record from before a recovery cut the log: older than what was written since, in its place."""
        record = read_record(buf, base, pos)
        return record is not None and record.store_ms < self._report.last_ms

    def _end_of_file(
        self, buf: FileBytes, base: int, scan: SegmentScan, is_last: bool, leftover: int | None
    ) -> None:
        report, pos = self._report, scan.pos
        if not is_last:
            problem = scan.problem or "there is neither a record nor a blank marker"
            damage = Damage(base + pos, base + max(len(buf), self._file_bytes), problem)
            if damage.start == damage.end:
                return
            report.damage.append(damage)
            self._report_damage(base, damage, 0)
            return
        data_end = _last_data(buf, pos)
        if data_end <= pos:
            return
        if leftover is not None:
            text = "behind the end of the log lie records from before an earlier recovery"
            report.info(self._name, pos, text, "nothing: they will be overwritten")
        elif report.clean_stop:
            # Whether something was lost here, the queues know: their units would point at it.
            report.damage.append(Damage(base + pos, base + data_end, scan.problem))
            report.warning(
                self._name,
                pos,
                f"{data_end - pos} bytes behind the last sound record are no record: "
                f"{scan.problem or 'they begin with zeros'}",
                "nothing, unless a queue points here: the next start cuts them off",
            )
        else:
            text = f"an unfinished write of {data_end - pos} bytes at the end of the log: {scan.problem}"
            report.info(self._name, pos, text, "nothing: the next start cuts it off")

    def _report_damage(self, base: int, damage: Damage, good_after: int) -> None:
        index = self._report.damage.index(damage)
        self._report.damage[index] = Damage(damage.start, damage.end, damage.problem, good_after)
        text = (
            f"offsets {damage.start} to {damage.end - 1} hold no sound record: {damage.problem}; "
            f"{good_after} sound records follow in this file"
        )
        self._report.error(self._name, damage.start - base, text, RESTORE_LOG, kind="log damage")


def _last_data(buf: FileBytes, start: int) -> int:
    """Position behind the last byte that is not zero, `start` when there is none from there on."""
    end = len(buf)
    while end > start:
        first = max(start, end - _CHUNK_BYTES)
        filled = len(buf[first:end].rstrip(b"\0"))
        if filled:
            return first + filled
        end = first
    return start
