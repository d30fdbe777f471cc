"""Leader epochs: the start offset of each, and the epochs that remain after truncation."""

from stratalog.log.epochs import LeaderEpochs


def test_an_epoch_ends_where_the_next_begins():
    epochs = LeaderEpochs([(2, 0), (4, 10), (7, 25)])
    ends = {epoch: epochs.end_of(epoch, 40) for epoch in (-1, 1, 2, 3, 4, 5, 7, 8)}
    assert ends == {
        -1: (-1, -1),
        1: (1, 0),
        2: (2, 10),
        3: (2, 10),
        4: (4, 25),
        5: (4, 25),
        7: (7, 40),
        8: (-1, -1),
    }


def test_a_log_without_epochs_has_no_end_of_any_epoch():
    assert LeaderEpochs().end_of(0, 5) == (-1, -1)
    assert LeaderEpochs().epoch_of(3) == -1


def test_an_epoch_that_wrote_nothing_gives_way_to_the_next():
    epochs = LeaderEpochs([(1, 0)])
    epochs.assign(2, 10)
    epochs.assign(3, 10)
    assert epochs.entries() == [(1, 0), (3, 10)]


def test_an_older_epoch_changes_nothing():
    epochs = LeaderEpochs([(5, 10)])
    epochs.assign(5, 20)
    epochs.assign(4, 20)
    epochs.assign(-1, 20)
    assert epochs.entries() == [(5, 10)]
    assert not epochs.dirty


def test_truncation_at_either_end_keeps_the_epochs_of_the_remaining_records():
    epochs = LeaderEpochs([(1, 0), (2, 10), (3, 20)])
    epochs.truncate_start(15)
    assert epochs.entries() == [(2, 15), (3, 20)]
    epochs.truncate_end(20)
    assert epochs.entries() == [(2, 15)]
    assert epochs.dirty
    epochs.truncate_start(5)
    assert epochs.entries() == [(2, 15)]


def test_the_epochs_of_a_segment_are_clipped_to_it():
    epochs = LeaderEpochs([(1, 0), (2, 10), (3, 20)])
    assert epochs.between(5, 20) == [(1, 5), (2, 10)]
    assert epochs.between(10, 11) == [(2, 10)]
    assert epochs.between(30, 40) == [(3, 30)]
    assert [epochs.epoch_of(offset) for offset in (0, 9, 10, 99)] == [1, 1, 2, 3]


def test_the_checkpoint_is_read_as_it_was_written():
    epochs = LeaderEpochs([(1, 0), (2, 10)])
    assert epochs.encode() == b"0\n2\n1 0\n2 10\n"
    back = LeaderEpochs.decode(epochs.encode())
    assert back.entries() == epochs.entries()
    assert not back.dirty
