from __future__ import annotations

import pytest
import torch

from npgxd.bridge.untouched import untouched


def write_in_place(x, _):
    x.add_(1)


def write_through_a_view(x, _):
    x[1:, ::2].mul_(3)
    x.t()[0] += 5


def write_twice_over_each_other(x, _):
    x[:2].fill_(1)
    x[1:].fill_(2)
    x.zero_()


def write_by_index(x, y):
    x.index_put_((torch.tensor([0, 2]),), y[:2])


def write_a_list(x, y):
    torch._foreach_add_([x, y], 1)


def write_by_out(x, y):
    torch.add(y, y, out=x)


def write_behind_an_alias(x, _):
    x.view(-1).detach().clamp_(0, 0)


def resize_nothing(x, _):
    x[:0].add_(1)


def write_to_a_copy(x, _):
    made = x * 2
    made.add_(1)
    made[0].zero_()


WRITES = [
    write_in_place,
    write_through_a_view,
    write_twice_over_each_other,
    write_by_index,
    write_a_list,
    write_by_out,
    write_behind_an_alias,
    resize_nothing,
    write_to_a_copy,
]


@pytest.mark.parametrize("write", WRITES)
def test_what_a_run_writes_to_is_afterwards_as_before(write):
    x, y = torch.arange(12.0).reshape(3, 4), torch.ones(3, 4)
    before = x.clone(), y.clone()
    with untouched():
        write(x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_a_run_that_fails_is_taken_back_too():
    x = torch.zeros(3)

    def fail():
        x.add_(1)
        raise RuntimeError("theirs")

    with pytest.raises(RuntimeError, match="theirs"), untouched():
        fail()
    assert torch.equal(x, torch.zeros(3))


def test_random_numbers_go_on_as_if_the_run_had_not_been():
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    with untouched():
        torch.rand(10)
        torch.nn.functional.dropout(torch.ones(4), 0.5)
    assert torch.equal(torch.rand(3), wanted)


def test_what_the_run_makes_itself_is_not_copied(monkeypatch):
    from npgxd.bridge import copies

    kept = []
    monkeypatch.setattr(
        "npgxd.bridge.untouched.Kept", type("K", (), {"of": staticmethod(lambda t: kept.append(t) or copies.Kept(t, t.clone()))})
    )
    x = torch.zeros(3)
    with untouched():
        y = x + 1
        y.mul_(2)
        x.add_(y)
        x.add_(y)
    assert len(kept) == 1
    assert kept[0] is x


def test_what_cannot_be_copied_is_written_to_and_said_once(monkeypatch, caplog):
    def no_memory(_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("npgxd.bridge.untouched.Kept", type("K", (), {"of": staticmethod(no_memory)}))
    monkeypatch.setattr("npgxd.client.notice._said", set())
    x = torch.zeros(3)
    with untouched():
        x.add_(1)
        x[0].add_(1)
    assert x.tolist() == [2, 1, 1]
    assert [record.levelname for record in caplog.records if "cannot be copied" in record.message] == ["WARNING"]
