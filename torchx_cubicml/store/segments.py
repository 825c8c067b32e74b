"""The segments of one store: what is in them, each opened once where it is needed often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_cubicml.errors import RecordError, StoreError
from torchx_cubicml.store.folder import Shelf
from torchx_cubicml.store.segment import decode_segment, segment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_MOST_OPEN = 4  # an order by time meets them one after the other
_IMMUTABLE = 0  # stamp of what never changes


class Segments:
    """Segments by their places.

    Args:
        fetch: returns the bytes of one; raises ``OSError`` or ``StoreError``.
    """

    def __init__(self, fetch: Callable[[str], bytes]) -> None:
        self._fetch = fetch
        self._open: dict[str, Mapping[str, bytes]] = {}

    def shelves(self, places: Iterable[str], known: Mapping[str, Shelf]) -> tuple[dict[str, Shelf], list[str]]:
        """Return segments as folders of objects, and which cannot be read and why.

        Args:
            places: of the segments.
            known: as listed before; what is known of a segment stays true.
        """
        shelves, problems = {}, []
        for place in places:
            try:
                shelves[place] = known.get(place) or self._listed(place)
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
        name = place.rpartition("/")[2]
        for segment in among:
            content = self.content(f"{segment}/{name}")
            if isinstance(content, bytes):
                return content
        return None

    def _listed(self, place: str) -> Shelf:
        return Shelf(place=place, names=tuple(sorted(self._opened(place))), stamp=_IMMUTABLE)

    def _opened(self, place: str) -> Mapping[str, bytes]:
        if place not in self._open:
            content = decode_segment(self._fetch(place))
            while len(self._open) >= _MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[place] = content
        return self._open[place]
