"""From attention between tokens to attention between words."""

import torch

from addnorm.demo.words import gathered, words_of


def test_pieces_join_to_words_where_there_are_spaces() -> None:
    pieces = ["Don", "nerstag", ",", " 5", ".", " Mär", "z"]
    assert words_of(pieces) == [("Donnerstag,", [0, 1, 2]), ("5.", [3, 4]), ("März", [5, 6])]


def test_each_piece_is_a_word_where_there_are_none() -> None:
    assert words_of(["2026年", "3月", "5日"]) == [("2026年", [0]), ("3月", [1]), ("5日", [2])]
    assert words_of(["5日", " 16", ":06"]) == [("5日", [0]), ("16", [1]), (":06", [2])]


def test_no_pieces_are_no_words() -> None:
    assert words_of([]) == []


def test_gathering_sums_over_what_is_read_and_averages_over_what_is_written() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    found = gathered(weights, rows=[[0, 1], [2]], columns=[[0, 1], [2]])
    assert torch.allclose(found, torch.tensor([[0.65, 0.35], [0.0, 1.0]]))
    assert torch.allclose(found.sum(1), torch.ones(2))
