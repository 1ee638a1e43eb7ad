import pytest
import torch
from torch.utils.data import SequentialSampler

from tests.data_room.configs import fake_cfg
from tinyexp.data.sharing import OwnRows, Share
from tinyexp.process import Axis


def shares(size: int) -> list[Share]:
    return [Share(Axis(rank, size), lambda rows: rows) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("batch_size", [1, 2, 7, 8])
def test_each_row_of_a_batch_is_read_by_one_rank_unless_there_are_more_ranks_than_rows(size, batch_size):
    rows = [share.rows(batch_size) for share in shares(size)]
    if size > batch_size:
        assert rows == [range(batch_size)] * size
    else:
        assert [row for own in rows for row in own] == list(range(batch_size))
        assert max(map(len, rows)) - min(map(len, rows)) <= 1


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("length", [8, 10, 15])
def test_the_ranks_samplers_make_up_the_replicas_one(size, drop_last, length):
    whole = list(range(length // 4 * 4 if drop_last else length))
    own = [share.sampler(SequentialSampler(range(length)), 4, drop_last=drop_last) for share in shares(size)]
    read = [list(sampler) for sampler in own]
    assert sorted(index for indices in read for index in indices) == (
        whole if size > 1 else list(range(length))
    )  # a loader drops the rest of its own sampler
    if size > 1:
        assert [len(sampler) for sampler in own if isinstance(sampler, OwnRows)] == list(map(len, read))
    for rank, (share, indices) in enumerate(zip(shares(size), read, strict=True)):
        assert all(index % 4 in share.rows(4) for index in indices), rank


def test_rows_that_a_rank_does_not_have_fill_up_and_are_gone_after_the_join():
    sent = []
    share = Share(Axis(1, 2), lambda rows: sent.append(rows) or torch.cat([torch.ones_like(rows), rows]))
    images, classes = share.join(torch.full((1, 3, 2, 2), 5.0), torch.tensor([7]), batch_size=4)
    assert [tuple(rows.shape) for rows in sent] == [(2, 3, 2, 2), (2,)]
    assert classes.tolist() == [1, 1, 7]
    assert images[:, 0, 0, 0].tolist() == [1.0, 1.0, 5.0]


def test_who_reads_alone_gathers_nothing():
    images, classes = torch.ones(4, 3, 2, 2), torch.arange(4)
    for share in (Share(), Share(Axis(1, 8), lambda rows: pytest.fail("gathered"))):
        assert share.join(images, classes, batch_size=4) == (images, classes)


def test_a_rank_of_four_decodes_a_quarter_of_each_batch():
    share = Share(Axis(3, 4), lambda rows: torch.cat([rows] * 4))
    loader = fake_cfg(repeated_aug=False).build_train(Axis(), num_classes=4, seed=0, device_type="cpu", share=share)
    assert len(list(loader.sampler)) == 16
    [(images, classes), *rest] = loader
    assert (len(images), len(classes), len(rest), loader.batches_in_epoch) == (8, 8, 7, 8)
    assert torch.equal(images[:2], images[6:])
