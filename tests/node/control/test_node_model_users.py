from quire.core.errors import EngineLost
from quire.core.ids import ModelId, ProgramId
from quire.node.control.model_users import ModelUsers

MODEL, OTHER = ModelId("model"), ModelId("other")
ERROR = EngineLost("it does not start").record()


def test_the_last_engine_of_a_model_strands_its_programs_and_no_others() -> None:
    users = ModelUsers({MODEL: 2, OTHER: 1})
    for number in (3, 1):
        assert users.add(MODEL, ProgramId(number)) is None
    users.add(OTHER, ProgramId(2))
    assert users.give_up_engine(MODEL, ERROR) is None
    assert users.add(MODEL, ProgramId(4)) is None
    users.forget(ProgramId(3))
    assert users.give_up_engine(MODEL, ERROR) == [ProgramId(1), ProgramId(4)]
    assert users.add(MODEL, ProgramId(5)) == ERROR
    assert users.add(OTHER, ProgramId(5)) is None


def test_a_model_nobody_uses_is_given_up_with_its_only_engine() -> None:
    assert ModelUsers({MODEL: 1}).give_up_engine(MODEL, ERROR) == []


def test_names_that_programs_make_up_are_not_kept() -> None:
    users = ModelUsers({MODEL: 1})
    for number in range(100):
        assert users.add(ModelId(f"made up {number}"), ProgramId(1)) is None
    assert list(users._users) == [MODEL]
