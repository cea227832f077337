"""Every head and feed-forward row of a model is found once."""

from tests.prune.test_pruned_model import CONFIGS, built

from addnorm.prune.units import feedforward_rows, head_groups, stacks_of


def test_a_group_is_a_key_value_head_with_its_queries() -> None:
    model = built(CONFIGS["grouped"])
    groups = head_groups(model)
    assert [(units.path, units.n, units.width) for units in groups] == [
        (f"stack.blocks.{i}.attention", 4, 12) for i in range(3)
    ]


def test_cross_attention_and_both_stacks_are_counted() -> None:
    model = built(CONFIGS["translator_apart"])
    assert [units.path for units in head_groups(model)] == [
        *(f"encoder.blocks.{i}.attention" for i in range(3)),
        *(
            f"decoder.blocks.{i}.{kind}"
            for i in range(2)
            for kind in ("attention", "cross_attention")
        ),
    ]
    assert [units.n for units in head_groups(model)] == [4, 4, 4, 2, 2, 2, 2]
    assert len(feedforward_rows(model)) == 5
    assert list(stacks_of(model)) == ["encoder", "decoder"]
