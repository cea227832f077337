"""Every head and feed-forward row of a model is found once."""

from tests.prune.test_pruned_model import CONFIGS, built

from addnorm.prune.units import feedforward_rows, head_groups, stacks_of


def test_a_group_is_a_key_value_head_with_its_queries() -> None:
    model = built(CONFIGS["grouped"])
    found = head_groups(model)
    assert [(one.path, one.n, one.width) for one in found] == [
        (f"stack.blocks.{i}.attention", 4, 12) for i in range(3)
    ]


def test_cross_attention_and_both_stacks_are_counted() -> None:
    model = built(CONFIGS["translator_apart"])
    assert [one.path for one in head_groups(model)] == [
        *(f"encoder.blocks.{i}.attention" for i in range(3)),
        *(
            f"decoder.blocks.{i}.{kind}"
            for i in range(2)
            for kind in ("attention", "cross_attention")
        ),
    ]
    assert [one.n for one in head_groups(model)] == [4, 4, 4, 2, 2, 2, 2]
    assert len(feedforward_rows(model)) == 5
    assert list(stacks_of(model)) == ["encoder", "decoder"]
