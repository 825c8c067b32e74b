"""The segments of one store: what is in them, each opened once where it is needed often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.store.folder import Shelf
from torchx_cubicml.store.segment import decode_segment, segment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_MOST_OPEN = 4  # an order by time meets them one after the other
_AT_ONCE = 32  # fetched together, and in memory
_IMMUTABLE = 0  # stamp of what never changes


class Segments:
    """Segments by their places.

    Args:
        fetch: returns place -> bytes of some, or why one cannot be read; raises ``OSError`` or ``StoreError``.
    """

    def __init__(self, fetch: Callable[[Sequence[str]], Mapping[str, bytes | Exception]]) -> None:
        self._fetch = fetch
        self._open: dict[str, Mapping[str, bytes]] = {}

    def shelves(self, places: Iterable[str], known: Mapping[str, Shelf]) -> tuple[dict[str, Shelf], list[str]]:
        """Return segments as folders of objects, and which cannot be read and why.

        Args:
            places: of the segments.
            known: as listed before; what is known of a segment stays true.
        """
        places = list(places)
        shelves = {place: known[place] for place in places if place in known}
        problems = []
        unknown = [place for place in places if place not in known]
        for start in range(0, len(unknown), _AT_ONCE):
            batch = unknown[start : start + _AT_ONCE]
            for place, data in self._fetch(batch).items():
                try:
                    names = tuple(sorted(_decoded(data)))
                    shelves[place] = Shelf(place=place, names=names, stamp=_IMMUTABLE)
                except (OSError, StoreError, RecordError) as error:
                    problems.append(f"{place} ({error})")
        return shelves, problems

    def content(self, place: str) -> bytes | Exception:
        """Return the object at a place in a segment, or why it cannot be read."""
        try:
            return self._opened(segment_of(place))[place.rpartition("/")[2]]
        except (OSError, StoreError, RecordError) as error:
            return error
        except KeyError:
            return FileNotFoundError(f"no such object in {segment_of(place)}")

    def found(self, place: str, among: Iterable[str]) -> bytes | None:
        """Return an object that was at ``place`` from the segment ``among`` which it was folded into meanwhile."""
        folder, _, name = place.rpartition("/")
        of_its_day = f"{folder.rpartition('/')[2]}-"
        for segment in among:
            if not segment.rpartition("/")[2].startswith(of_its_day):
                continue
            content = self.content(f"{segment}/{name}")
            if isinstance(content, bytes):
                return content
        return None

    def _opened(self, place: str) -> Mapping[str, bytes]:
        if place not in self._open:
            content = _decoded(self._fetch([place])[place])
            while len(self._open) >= _MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[place] = content
        return self._open[place]


def _decoded(data: bytes | Exception) -> Mapping[str, bytes]:
    if isinstance(data, Exception):
        raise data
    return decode_segment(data)
