"""StopStringMatcher: nothing of a stop string gets out, and nothing else is kept back for good."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pellucid.engine.stop import StopStringMatcher


def feed(matcher: StopStringMatcher, pieces: list[str]) -> list[str]:
    """What each piece lets out, until a stop string is found; then the rest."""
    out = []
    for piece in pieces:
        out.append(matcher.push(piece))
        if matcher.matched is not None:
            return out
    out.append(matcher.flush())
    return out


def test_s25_no_prefix_of_a_stop_string_leaks() -> None:
    matcher = StopStringMatcher(["DEFGHIJ"])
    assert feed(matcher, ["ABC", "D", "EF", "GHI", "J and more"]) == ["ABC", "", "", "", ""]
    assert matcher.matched == "DEFGHIJ"


def test_s25_text_held_back_is_released_when_it_is_no_stop_string() -> None:
    matcher = StopStringMatcher(["DEFGHIJ"])
    assert feed(matcher, ["AB", "CDEF", "X", "DE"]) == ["AB", "C", "DEFX", "", "DE"]
    assert matcher.matched is None


def test_a_false_start_inside_a_match() -> None:
    matcher = StopStringMatcher(["aab"])
    assert "".join(feed(matcher, list("xaaab"))) == "xa"
    assert matcher.matched == "aab"


def test_the_string_complete_first_wins_then_the_longest() -> None:
    matcher = StopStringMatcher(["DEFG", "EF"])
    assert "".join(feed(matcher, ["ABCDEFGH"])) == "ABCD"
    assert matcher.matched == "EF"
    matcher = StopStringMatcher(["EF", "DEF"])
    assert "".join(feed(matcher, ["ABCDEFGH"])) == "ABC"
    assert matcher.matched == "DEF"


def test_include_keeps_the_stop_string_and_nothing_after_it() -> None:
    matcher = StopStringMatcher(["\n\n"], include_stop_str_in_output=True)
    assert "".join(feed(matcher, ["one\n", "\ntwo"])) == "one\n\n"


def test_a_match_before_min_tokens_is_text_like_any_other() -> None:
    matcher = StopStringMatcher(["ab"])
    assert matcher.push("xab", may_stop=False) == "xab"
    assert matcher.push("a", may_stop=False) == ""
    assert matcher.push("b", may_stop=True) == ""
    assert matcher.matched == "ab"


def test_s28_left_out_control_tokens_count_as_wholes() -> None:
    matcher = StopStringMatcher(["<|im_end|>"])
    assert matcher.push("yes") == "yes"
    assert matcher.push("<|im_end|>", is_shown=False) == ""
    assert matcher.matched == "<|im_end|>"
    matcher = StopStringMatcher(["end"])
    assert matcher.push("<|im_end|>", is_shown=False) == ""
    assert matcher.matched is None, "a stop string does not match inside a token the reader never sees"
    matcher = StopStringMatcher(["a<x>b"])
    assert [matcher.push("ca"), matcher.push("<x>", is_shown=False), matcher.push("bd")] == ["c", "", ""]
    assert matcher.matched == "a<x>b"
    matcher = StopStringMatcher(["<x>b"])
    assert [matcher.push("<x>", is_shown=False), matcher.push("b")] == ["", ""]
    assert matcher.matched == "<x>b"


def test_a_stop_string_split_by_a_left_out_token_is_one_to_the_reader() -> None:
    matcher = StopStringMatcher(["ab"])
    assert [matcher.push("xa"), matcher.push("<x>", is_shown=False), matcher.push("b")] == ["x", "", ""]
    assert matcher.matched == "ab"


@given(
    st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.booleans(),
)
def test_pieces_do_not_matter(stops: list[str], pieces: list[str], include: bool) -> None:
    """Any cutting of a text gives the same answer as looking at it character by character."""
    text = "".join(pieces)
    ends = [(end, stop) for end in range(len(text) + 1) for stop in stops if text[:end].endswith(stop)]
    expected, matched = text, None
    if ends:
        first = min(end for end, _ in ends)
        matched = max((stop for end, stop in ends if end == first), key=len)
        expected = text[: first if include else first - len(matched)]
    matcher = StopStringMatcher(stops, include_stop_str_in_output=include)
    out = feed(matcher, pieces)
    assert "".join(out) == expected
    assert matcher.matched == matched
    assert all(expected.startswith("".join(out[:i])) for i in range(len(out)))
