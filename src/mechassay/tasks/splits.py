"""Rows that belong together, so that splits share nothing.

What two rows have in common (a prompt, a group, a word) is given as equal 64-bit hashes. Rows that
share one are connected, directly or through others, and a connected component goes into one split
as a whole. It is known by its least hash, so that nothing depends on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate

import numpy as np
from jaxtyping import Float, UInt64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

# 60 % train, 20 % validation, 20 % test.
SHARES = {"train": 0.6, "validation": 0.2, "test": 0.2}
HASH_BYTES = 8
NONE = 0
NO_HASH = NONE.to_bytes(HASH_BYTES, "little")
# What others call our splits, in lower case.
USUAL_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing"),
    "private": ("private",),
}


def names_of(split: str) -> tuple[str, ...]:
    """The usual names of one of our splits, ours first."""
    return USUAL_NAMES.get(split, (split,))


def split_named(name: str) -> str | None:
    """Our split of a usual name, in whatever case and with space around it; None if it is none."""
    plain = name.strip().lower()
    return next((split for split, names in USUAL_NAMES.items() if plain in names), None)


def text_hash(text: str, kind: bytes = b"") -> bytes:
    """The hash of a text, 8 bytes, least first; texts of another kind (up to 16 bytes) never share
    it.
    """
    return blake2b(text.encode(), digest_size=HASH_BYTES, person=kind).digest()


def share_of(text: str) -> str:
    """The split of a text of which nothing but its hash says where it belongs."""
    place = int.from_bytes(text_hash(text), "little") * 2.0**-64
    ends = zip(SHARES, accumulate(SHARES.values()), strict=True)
    # The shares may add up to a little less than 1.
    return next((name for name, end in ends if place < end), [*SHARES][-1])


def hash_columns(*columns: Sequence[bytes]) -> UInt64[np.ndarray, "rows columns"]:
    """Hashes of rows as numbers, from one list a column; `NO_HASH` where a row has none."""
    numbers = [np.frombuffer(b"".join(column), "<u8") for column in columns]
    return np.stack(numbers, axis=1).astype(np.uint64)


def least_hash(hashes: UInt64[np.ndarray, "rows columns"]) -> UInt64[np.ndarray, "rows"]:
    """The least hash of each row's component. `NONE` connects nothing; a first column has none of
    it.
    """
    values, nodes = np.unique(hashes, return_inverse=True)
    nodes = nodes.reshape(hashes.shape)
    linked = [
        (nodes[there, 0], nodes[there, column])
        for column in range(hashes.shape[1])
        for there in [hashes[:, column] != NONE]
    ]
    begin, end = np.concatenate([a for a, _ in linked]), np.concatenate([b for _, b in linked])
    graph = coo_array(
        (np.ones(len(begin), dtype=np.bool_), (begin, end)), shape=(len(values), len(values))
    )
    _, component = connected_components(graph, directed=False)
    # Values are sorted, so the first of a component is its least.
    _, first = np.unique(component, return_index=True)
    return values[first][component[nodes[:, 0]]]


def uniform(hashes: UInt64[np.ndarray, "rows"]) -> Float[np.ndarray, "rows"]:
    """A number in [0, 1) for each hash, also where the hash is the least of several."""
    # The finalizer of SplitMix64 (Steele et al. 2014); uint64 arithmetic wraps around.
    mixed = hashes + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
