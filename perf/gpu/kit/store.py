"""What was measured so far: one file, written anew when a part ends, so that a cut at any second loses only the part at work."""

import json
import os
import shutil
from pathlib import Path

LISTS = ("calibration", "counters", "rows", "absent", "timelines")


def empty(header: dict) -> dict:
    return {"header": header, "parts": [], **{name: [] for name in LISTS}}


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a file that is there is whole."""
    temporary = path.with_name(path.name + ".new")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def as_text(result: dict) -> str:
    """Readable: a row, a counter, a timeline a line."""
    lines = ["{", ' "header": ' + json.dumps(result["header"], indent=2).replace("\n", "\n ")]
    for key in ("parts", *LISTS):
        lines[-1] += ","
        items = [f"  {json.dumps(item)}" for item in result[key]]
        lines += [f' "{key}": [', ",\n".join(items), " ]"] if items else [f' "{key}": []']
    return "\n".join([*lines, "}", ""])


class Store:
    def __init__(self, folder: Path, header: dict):
        """`header` names commit and card: what another commit or another card gave is put aside, not mixed in."""
        self.folder, self.path, self.page = folder, folder / "results.json", folder / "page.md"
        self.said: list[str] = []  # what people should know
        self.unwritten = ""  # why the newest is not in the file
        folder.mkdir(parents=True, exist_ok=True)
        self.result = empty(header)
        if not self.path.exists():
            return
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            same = all(found["header"].get(k) == header[k] for k in ("commit", "gpu", "quick"))
        except (ValueError, KeyError, TypeError):
            self._put_aside("is not whole")
            return
        if same:
            self.result = found | {"header": found["header"] | {"machine": header["machine"]}}
        else:
            self._put_aside("is of another commit, card or mode")

    def _put_aside(self, why: str) -> None:
        number = 1
        while (aside := self.folder / f"results-{number}.json").exists():
            number += 1
        self.path.rename(aside)
        self.said.append(f"{self.path.name} {why}: it is {aside.name} now")

    def status(self, name: str) -> str:
        return next((p["status"] for p in self.result["parts"] if p["name"] == name), "")

    def put(self, part: dict, items: dict) -> None:
        """A part that has ended, in place of what an earlier run of it gave."""
        self.result["parts"] = [p for p in self.result["parts"] if p["name"] != part["name"]] + [part]
        for name in LISTS:
            kept = [item for item in self.result[name] if item["part"] != part["name"]]
            self.result[name] = kept + [item | {"part": part["name"]} for item in items.get(name, [])]

    def save(self, page: str) -> bool:
        """Writes the file and the page, and copies both to $OUT if that is set. A disk that is full is told, and kept from nobody."""
        try:
            _write(self.path, as_text(self.result))
            _write(self.page, page)
            self.unwritten = ""
        except OSError as error:
            self.unwritten = str(error)
            return False
        out = os.environ.get("OUT")
        if out and Path(out).resolve() != self.folder.resolve():
            try:
                Path(out).mkdir(parents=True, exist_ok=True)
                for file in (self.path, self.page):
                    shutil.copyfile(file, Path(out) / (file.name + ".new"))
                    os.replace(Path(out) / (file.name + ".new"), Path(out) / file.name)
            except OSError as error:
                self.said.append(f"not copied to {out}: {error}")
        return True
