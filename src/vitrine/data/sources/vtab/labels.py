"""Labels of the structured tasks, computed from the values in the original files.

Thresholds are those of VTAB's definition: a value on a threshold belongs to the class below it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLEVR_FEWEST_OBJECTS = 3
CLEVR_DEPTHS = (8.0, 8.5, 9.0, 9.5, 10.0)
KITTI_METRES = (8.0, 20.0)
KITTI_VEHICLES = ("Car", "Van", "Truck")
DSPRITES_CLASSES, DSPRITES_PLACES, DSPRITES_ANGLES = 16, 32, 40
NORB_AZIMUTH_STEP = 2  # the files count azimuths 0, 2, ... 34, in units of 10 degrees


def clevr_count(objects: Sequence[Mapping[str, Any]]) -> int:
    """Number of objects (3 to 10) as class 0 to 7."""
    return len(objects) - CLEVR_FEWEST_OBJECTS


def clevr_distance(objects: Iterable[Mapping[str, Any]]) -> int:
    """Depth of the nearest object (third of its pixel coordinates) as class 0 to 5."""
    return bisect_left(CLEVR_DEPTHS, min(float(item["pixel_coords"][2]) for item in objects))


def kitti_distance(lines: Iterable[str]) -> int:
    """Distance ahead of the nearest car, van or truck in metres as class 0 to 2; 3 if there is none."""
    rows = [line.split() for line in lines if line.strip()]
    # Columns: type, truncated, occluded, alpha, 4 of the box, 3 of the size, x, y, z of the place, rotation.
    ahead = [float(row[13]) for row in rows if row[0] in KITTI_VEHICLES]
    return bisect_left(KITTI_METRES, min(ahead)) if ahead else len(KITTI_METRES) + 1


def dsprites_location(places: NDArray[Any]) -> NDArray[np.int32]:
    """Horizontal place (0 to 31) as class 0 to 15: pairs."""
    return np.floor_divide(places, DSPRITES_PLACES / DSPRITES_CLASSES).astype(np.int32)


def dsprites_orientation(angles: NDArray[Any]) -> NDArray[np.int32]:
    """Orientation (0 to 39) as class 0 to 15: floor(v / 2.5)."""
    return np.floor_divide(angles, DSPRITES_ANGLES / DSPRITES_CLASSES).astype(np.int32)


def norb_azimuth(azimuths: NDArray[Any]) -> NDArray[np.int32]:
    """Azimuth (0, 2, ... 34) as class 0 to 17."""
    return (azimuths // NORB_AZIMUTH_STEP).astype(np.int32)


def norb_elevation(elevations: NDArray[Any]) -> NDArray[np.int32]:
    """Elevation (0 to 8) as it is."""
    return elevations.astype(np.int32)


def svhn_digit(digits: NDArray[Any]) -> NDArray[np.int32]:
    """Digit, where the files write 10 for a zero."""
    return (digits.ravel() % 10).astype(np.int32)
