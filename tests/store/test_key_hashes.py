from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orbitmq.store import key_hashes
from orbitmq.store.key_hashes import KeyHasher, plain_hash

prefix_texts = st.sampled_from(["T#", "TopicA#", "%RETRY%g#", "话题#"])
key_texts = st.one_of(
    st.sampled_from(["k1", "k2", "order-1", "AaAa", "BBBB", "订单5", ""]),
    st.text(st.characters(min_codepoint=1, max_codepoint=0x1FFFF, exclude_categories=["Cs"]), max_size=12),
)


@given(st.lists(st.tuples(prefix_texts, key_texts), min_size=1, max_size=80))
def test_hash_columns_equal_plain_hashes(rows: list[tuple[str, str]]) -> None:
    prefixes = [prefix.encode() for prefix, _ in rows]
    keys = [key.encode() for _, key in rows]
    expected = [plain_hash(prefix, key) for prefix, key in zip(prefixes, keys, strict=True)]
    assert KeyHasher().columns(prefixes, keys).tolist() == expected


def test_hash_columns_keep_the_odd_hash_of_java() -> None:
    # "polygenelubricants" hashes to Integer.MIN_VALUE, whose absolute value Java cannot express.
    assert plain_hash(b"", b"polygenelubricants") == 0
    assert KeyHasher().columns([b""] * 40, [b"polygenelubricants"] * 40).tolist() == [0] * 40


def test_the_hash_known_from_java() -> None:
    assert plain_hash(b"TopicA#", b"k1") == 1903240649
    assert KeyHasher().columns([b"TopicA#"] * 3, [b"k1"] * 3).tolist() == [1903240649] * 3


def test_bytes_that_are_no_text_are_hashed_alike() -> None:
    keys = [b"\xff\xfe", b"ok", b"\xc3"] * 20
    prefixes = [b"T#"] * len(keys)
    assert KeyHasher().columns(prefixes, keys).tolist() == [plain_hash(b"T#", key) for key in keys]


def test_a_flood_of_topics_does_not_grow_the_cache_for_ever() -> None:
    hasher = KeyHasher()
    for start in range(0, 3 * key_hashes.CACHED_PREFIXES, 1024):
        prefixes = [b"T%d#" % n for n in range(start, start + 1024)]
        hasher.columns(prefixes, [b"key"] * 1024)
    assert len(hasher._prefixes) <= key_hashes.CACHED_PREFIXES
