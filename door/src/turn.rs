//! The door: borrowed connections, the partitions that rows may name, and one turn over both.
//!
//! In: descriptors of connections, partitions, Python's answers. Out: rows, sorted by partition and then by arrival; the
//! bytes that are no row. It never decides about a row, and holds at most a few frames of a connection.
//!
//! A turn reads each ready connection once, until its bytes are cut into frames, at most `FRAMES_MAX` of them. A
//! connection's rows of one turn are of one partition, so Python may refuse one without reordering answers.
//! Connections left over come first in the next turn.
//!
//! A Fetch ends its connection's turn. The connection waits with it, at the front of its bytes, until Python delivers the
//! answer; if the client sends more or leaves meanwhile, Python gets the connection back with the request.

use crate::fetch;
use crate::produce::{parse, write, Answer, Request, Topic};
use crate::system::{receive, send_some, Event, Poll};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::RawFd;

pub const ROWS_MAX: usize = 256;
pub const ROW_FIELDS: usize = 21;
pub const ANSWER_FIELDS: usize = 4;
pub const GROUP_FIELDS: usize = 5;
/// Of a fetch: its connection, and where its request begins and ends in `fetches`.
pub const FETCH_FIELDS: usize = 3;
pub const COUNTS: usize = 5;
/// The place of the bytes held among the counts. It is always up to date, the others after `read`.
pub(crate) const HELD: usize = 3;
/// The largest frame of a fetch that waits here: one partition, and names that are not unusually long.
const FETCH_BYTES_MAX: usize = 1 << 10;
pub const FETCHES_BYTES: usize = ROWS_MAX * FETCH_BYTES_MAX;
/// The largest frame of a row. Python receives larger ones straight into their memory.
pub const FRAME_BYTES_MAX: usize = 16 << 10;
pub const BATCHES_BYTES: usize = 1 << 20;
pub const READ_BYTES: usize = 64 << 10;
const FRAMES_MAX: usize = 32;
const EVENTS_MAX: usize = 256;
pub(crate) const LENGTH_BYTES: usize = 4;
const SLOT_BITS: u32 = 24;
const ANSWERED: i64 = 1;

pub(crate) struct Connection {
    pub(crate) fd: RawFd,
    /// Tells this use of the slot from earlier ones.
    pub(crate) id: i64,
    client_id: Vec<u8>,
    /// Bytes that are received and not cut into frames.
    pub(crate) rest: Vec<u8>,
    /// Bytes of answers that the socket did not take.
    pub(crate) unsent: Vec<u8>,
    pub(crate) is_queued: bool,
    /// The size of the Fetch that `rest` begins with and that waits for its answer; 0 for none.
    pub(crate) waiting: usize,
    /// Whether Python gets the connection back: the door reads no more of it.
    pub(crate) is_over: bool,
}

struct Partition {
    name: Vec<u8>,
    id: [u8; 16],
    index: i32,
}

struct Arrived {
    slot: usize,
    handle: usize,
    request: Request,
    /// The frame with its length, in `received`.
    frame: Range<usize>,
}

enum Next {
    Row(Box<Request>, usize, usize),
    Fetch(usize),
    Incomplete,
    NoRow,
}

#[derive(Default)]
pub struct Door {
    poll: Option<Poll>,
    pub(crate) connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    uses: i64,
    partitions: Vec<Option<Partition>>,
    free_handles: Vec<usize>,
    by_name: HashMap<Vec<u8>, usize>,
    by_id: HashMap<Vec<u8>, usize>,
    key: Vec<u8>,
    pub(crate) queue: VecDeque<usize>,
    pub(crate) bytes_held: usize,
    scratch: Vec<u8>,
    arrived: Vec<Arrived>,
    received: Vec<u8>,
    /// Places of rows in `arrived`, in the order of `rows`.
    order: Vec<usize>,
    pub rows: Vec<i64>,
    pub answers: Vec<i64>,
    pub groups: Vec<i64>,
    pub returned: Vec<i64>,
    pub counts: Vec<i64>,
    /// The batches of the rows, in the order of `rows`.
    pub batches: Vec<u8>,
    /// The turn's fetches, and how many there are.
    pub fetch_rows: Vec<i64>,
    pub(crate) fetch_count: usize,
    /// Their requests, without lengths and correlation ids: equal requests have equal bytes.
    pub fetches: Vec<u8>,
    pub(crate) fetches_end: usize,
    /// What `give_back` took from its connection: unsent answers, then bytes that are no rows.
    pub back: Vec<u8>,
    out: Vec<u8>,
}

fn keyed(key: &mut Vec<u8>, topic: &[u8], index: i32) {
    key.clear();
    key.extend_from_slice(topic);
    key.extend_from_slice(&index.to_be_bytes());
}

impl Door {
    pub fn new() -> std::io::Result<Door> {
        Ok(Door {
            poll: Some(Poll::new()?),
            scratch: vec![0; 2 * READ_BYTES],
            rows: vec![0; ROWS_MAX * ROW_FIELDS],
            answers: vec![0; ROWS_MAX * ANSWER_FIELDS],
            groups: vec![0; ROWS_MAX * GROUP_FIELDS],
            returned: vec![0; 2 * (ROWS_MAX + EVENTS_MAX)],
            counts: vec![0; COUNTS],
            batches: vec![0; BATCHES_BYTES],
            fetch_rows: vec![0; ROWS_MAX * FETCH_FIELDS],
            fetches: vec![0; FETCHES_BYTES],
            ..Door::default()
        })
    }

    pub fn fd(&self) -> RawFd {
        self.poll.as_ref().map_or(-1, |poll| poll.0)
    }

    pub fn host(&mut self, name: &[u8], id: [u8; 16], index: i32) -> usize {
        let partition = Some(Partition { name: name.to_vec(), id, index });
        let handle = match self.free_handles.pop() {
            Some(handle) => {
                self.partitions[handle] = partition;
                handle
            }
            None => {
                self.partitions.push(partition);
                self.partitions.len() - 1
            }
        };
        keyed(&mut self.key, name, index);
        self.by_name.insert(self.key.clone(), handle);
        keyed(&mut self.key, &id, index);
        self.by_id.insert(self.key.clone(), handle);
        handle
    }

    /// Forget a partition. A later one of the same name keeps its entry.
    pub fn drop_partition(&mut self, handle: usize) {
        let Some(partition) = self.partitions.get_mut(handle).and_then(Option::take) else { return };
        keyed(&mut self.key, &partition.name, partition.index);
        if self.by_name.get(&self.key) == Some(&handle) {
            self.by_name.remove(&self.key);
        }
        keyed(&mut self.key, &partition.id, partition.index);
        if self.by_id.get(&self.key) == Some(&handle) {
            self.by_id.remove(&self.key);
        }
        self.free_handles.push(handle);
    }

    /// Begin to read from a connection; return its id, or -1 where the system refuses.
    pub fn borrow(&mut self, fd: RawFd, client_id: &[u8]) -> i64 {
        let slot = self.free.pop().unwrap_or(self.connections.len());
        let Some(poll) = &self.poll else { return -1 };
        if poll.add(fd, slot as u64).is_err() {
            if slot < self.connections.len() {
                self.free.push(slot);
            }
            return -1;
        }
        self.uses += 1;
        let id = self.uses << SLOT_BITS | slot as i64;
        let made = Some(Connection {
            fd,
            id,
            client_id: client_id.to_vec(),
            rest: Vec::new(),
            unsent: Vec::new(),
            is_queued: false,
            waiting: 0,
            is_over: false,
        });
        if slot == self.connections.len() {
            self.connections.push(made);
        } else {
            self.connections[slot] = made;
        }
        id
    }

    /// Stop reading from a connection. Put its answers that are not sent into `back`, and then its bytes that are no rows;
    /// return both sizes.
    pub fn give_back(&mut self, id: i64) -> Option<(usize, usize)> {
        let slot = self.slot_of(id)?;
        let connection = self.connections[slot].take()?;
        if let Some(poll) = &self.poll {
            poll.remove(connection.fd);
        }
        if connection.is_queued {
            self.queue.retain(|one| *one != slot);
        }
        self.bytes_held -= connection.rest.len();
        self.counts[HELD] = self.bytes_held as i64;
        self.free.push(slot);
        let sizes = (connection.unsent.len(), connection.rest.len());
        self.back = connection.unsent;
        self.back.extend_from_slice(&connection.rest);
        Some(sizes)
    }

    pub(crate) fn slot_of(&self, id: i64) -> Option<usize> {
        let slot = usize::try_from(id & ((1 << SLOT_BITS) - 1)).ok()?;
        let found = self.connections.get(slot)?.as_ref()?;
        (found.id == id).then_some(slot)
    }

    /// Read, and fill `rows`, `groups`, `returned`, `fetch_rows` and `counts`: rows, groups, returned connections, bytes
    /// held, fetches; return whether connections are left over.
    pub fn read(&mut self) -> bool {
        let mut events = [Event::default(); EVENTS_MAX];
        let count = self.poll.as_ref().map_or(0, |poll| poll.ready(&mut events));
        for event in &events[..count] {
            let slot = event.data as usize;
            if let Some(Some(connection)) = self.connections.get_mut(slot) {
                if !connection.is_queued && !connection.is_over {
                    connection.is_queued = true;
                    self.queue.push_back(slot);
                }
            }
        }
        self.arrived.clear();
        self.received.clear();
        (self.fetch_count, self.fetches_end) = (0, 0);
        let mut returned = 0;
        for _ in 0..self.queue.len() {
            if returned == self.returned.len() || self.is_full() {
                break;
            }
            let Some(slot) = self.queue.pop_front() else { break };
            let Some(mut connection) = self.connections[slot].take() else { continue };
            connection.is_queued = false;
            let held = connection.rest.len();
            let has_more = self.read_one(slot, &mut connection);
            self.bytes_held = self.bytes_held + connection.rest.len() - held;
            if connection.is_over {
                self.returned[returned] = connection.id;
                returned += 1;
            } else if has_more {
                connection.is_queued = true;
                self.queue.push_back(slot);
            }
            self.connections[slot] = Some(connection);
        }
        self.sort(returned);
        !self.queue.is_empty()
    }

    fn is_full(&self) -> bool {
        self.arrived.len() == ROWS_MAX
            || self.fetch_count == ROWS_MAX
            || self.received.len() + FRAME_BYTES_MAX + LENGTH_BYTES > BATCHES_BYTES
    }

    /// Read a connection and take its rows; return whether more of them wait.
    fn read_one(&mut self, slot: usize, connection: &mut Connection) -> bool {
        if connection.waiting > 0 {
            connection.is_over = true;
            return false;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let kept = connection.rest.len();
        scratch[..kept].copy_from_slice(&connection.rest);
        let mut end = kept;
        // Whole frames that are left from the last turn come first: nothing more is received until they are cut.
        if !is_whole(&scratch[..kept]) {
            match receive(connection.fd, &mut scratch[kept..kept + READ_BYTES]) {
                Ok(Some(0)) | Err(_) => connection.is_over = true,
                Ok(Some(size)) => end += size,
                Ok(None) => {}
            }
        }
        let mut at = 0;
        let mut handle = None;
        let mut has_more = false;
        for taken in 0.. {
            if taken == FRAMES_MAX || self.is_full() {
                has_more = is_whole(&scratch[at..end]);
                break;
            }
            match self.next(&scratch[at..end], connection) {
                Next::Incomplete => break,
                Next::NoRow => {
                    connection.is_over = true;
                    break;
                }
                // The answers before it leave first.
                Next::Fetch(_) if handle.is_some() => {
                    has_more = true;
                    break;
                }
                Next::Fetch(size) => {
                    self.take_fetch(connection.id, &scratch[at + LENGTH_BYTES..at + size]);
                    connection.waiting = size;
                    break;
                }
                Next::Row(_, found, _) if handle.is_some_and(|one| one != found) => {
                    has_more = true;
                    break;
                }
                Next::Row(request, found, size) => {
                    handle = Some(found);
                    let start = self.received.len();
                    self.received.extend_from_slice(&scratch[at..at + size]);
                    let frame = start..start + size;
                    self.arrived.push(Arrived { slot, handle: found, request: *request, frame });
                    at += size;
                }
            }
        }
        connection.rest.clear();
        connection.rest.extend_from_slice(&scratch[at..end]);
        self.scratch = scratch;
        has_more
    }

    /// Return the row that the bytes begin with, the handle of its partition, and its size with its length.
    fn next(&mut self, data: &[u8], connection: &Connection) -> Next {
        let Some(prefix) = data.first_chunk::<LENGTH_BYTES>() else { return Next::Incomplete };
        let length = i32::from_be_bytes(*prefix);
        let Ok(length) = usize::try_from(length) else { return Next::NoRow };
        if length > FRAME_BYTES_MAX {
            return Next::NoRow;
        }
        let Some(frame) = data.get(LENGTH_BYTES..LENGTH_BYTES + length) else { return Next::Incomplete };
        if let Some(client_id) = fetch::client_id(frame) {
            let is_row = length <= FETCH_BYTES_MAX && client_id == &connection.client_id[..];
            return if is_row { Next::Fetch(LENGTH_BYTES + length) } else { Next::NoRow };
        }
        let Some(request) = parse(frame) else { return Next::NoRow };
        if frame[request.client_id.clone()] != connection.client_id[..] {
            return Next::NoRow; // Python notes each client id
        }
        let handles = match &request.topic {
            Topic::Name(place) => {
                keyed(&mut self.key, &frame[place.clone()], request.index);
                &self.by_name
            }
            Topic::Id(place) => {
                keyed(&mut self.key, &frame[place.clone()], request.index);
                &self.by_id
            }
        };
        match handles.get(&self.key) {
            Some(handle) => Next::Row(Box::new(request), *handle, LENGTH_BYTES + length),
            None => Next::NoRow,
        }
    }

    fn sort(&mut self, returned: usize) {
        self.order.clear();
        self.order.extend(0..self.arrived.len());
        let arrived = &self.arrived;
        self.order.sort_by_key(|at| arrived[*at].handle); // stable: arrival order within a partition
        let (mut groups, mut end) = (0, 0);
        let mut handle = usize::MAX;
        for (place, at) in self.order.iter().enumerate() {
            let one = &self.arrived[*at];
            let size = one.request.records.len();
            if one.handle != handle {
                handle = one.handle;
                let group = [handle as i64, place as i64, 0, end as i64, end as i64];
                self.groups[groups * GROUP_FIELDS..][..GROUP_FIELDS].copy_from_slice(&group);
                groups += 1;
            }
            let group = &mut self.groups[(groups - 1) * GROUP_FIELDS..][..GROUP_FIELDS];
            group[2] += 1;
            group[4] += size as i64;
            let records = &self.received[one.frame.clone()][LENGTH_BYTES..][one.request.records.clone()];
            self.batches[end..end + size].copy_from_slice(records);
            end += size;
            let id = self.connections[one.slot].as_ref().map_or(-1, |found| found.id);
            let row = &mut self.rows[place * ROW_FIELDS..][..ROW_FIELDS];
            row[..13].copy_from_slice(&one.request.batch.header);
            row[13..].copy_from_slice(&[
                id,
                i64::from(one.request.version),
                i64::from(one.request.correlation),
                i64::from(one.request.acks),
                i64::from(one.request.timeout_ms),
                one.request.batch.least_timestamp,
                i64::from(one.request.batch.has_keys),
                one.frame.len() as i64,
            ]);
        }
        self.answers[..self.arrived.len() * ANSWER_FIELDS].fill(0);
        let numbers = [self.arrived.len(), groups, returned, self.bytes_held, self.fetch_count];
        self.counts.copy_from_slice(&numbers.map(|one| one as i64));
    }

    /// Take the connection's row at `place`, and those behind it in this turn, back into its bytes: Python serves them.
    pub fn refuse(&mut self, place: usize) {
        let Some(first) = self.order.get(place).copied() else { return };
        let slot = self.arrived[first].slot;
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        let mut frames = Vec::new();
        for one in &self.arrived[first..] {
            if one.slot != slot {
                break;
            }
            frames.extend_from_slice(&self.received[one.frame.clone()]);
        }
        self.bytes_held += frames.len();
        self.counts[HELD] = self.bytes_held as i64;
        frames.extend_from_slice(&connection.rest);
        connection.rest = frames;
        connection.is_over = true;
    }

    /// Send the answers of the rows that have one; return how many connections are in `returned`, because their sockets
    /// did not take all.
    pub fn send(&mut self) -> usize {
        let mut by_arrival = vec![0; self.order.len()];
        for (place, at) in self.order.iter().enumerate() {
            by_arrival[*at] = place;
        }
        let mut returned = 0;
        let mut at = 0;
        let mut out = std::mem::take(&mut self.out);
        while at < self.arrived.len() {
            let slot = self.arrived[at].slot;
            out.clear();
            while at < self.arrived.len() && self.arrived[at].slot == slot {
                self.put_answer(&mut out, at, by_arrival[at]);
                at += 1;
            }
            let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
            if out.is_empty() {
                continue;
            }
            let sent = send_some(connection.fd, &out).unwrap_or(Some(out.len())); // a dead socket shows when it is read
            let sent = sent.unwrap_or(0);
            if sent < out.len() {
                connection.unsent.extend_from_slice(&out[sent..]);
                if !connection.is_over {
                    connection.is_over = true;
                    self.returned[returned] = connection.id;
                    returned += 1;
                }
            }
        }
        self.out = out;
        returned
    }

    fn put_answer(&self, out: &mut Vec<u8>, at: usize, place: usize) {
        let one = &self.arrived[at];
        let values = &self.answers[place * ANSWER_FIELDS..][..ANSWER_FIELDS];
        let Some(Some(partition)) = self.partitions.get(one.handle) else { return };
        if values[0] != ANSWERED {
            return;
        }
        let answer = Answer {
            version: one.request.version,
            correlation: one.request.correlation,
            name: &partition.name,
            id: &partition.id,
            index: partition.index,
            base_offset: values[1],
            log_append_time: values[2],
            log_start_offset: values[3],
        };
        write(out, &answer);
    }
}

/// Whether a whole frame is there, or one that is none: the next turn deals with it.
pub(crate) fn is_whole(data: &[u8]) -> bool {
    let Some(prefix) = data.first_chunk::<LENGTH_BYTES>() else { return false };
    let length = i64::from(i32::from_be_bytes(*prefix));
    length < 0 || length > FRAME_BYTES_MAX as i64 || data.len() - LENGTH_BYTES >= length as usize
}
