//! Fetches that wait at the door.
//!
//! In: a Fetch that ends its connection's turn; Python's answers. Out: the turn's fetches, and one answer to all connections
//! that Python names. A connection that waits has its request at the front of its bytes.

use crate::fetch::CORRELATION;
use crate::system::send_both;
use crate::turn::{is_whole, Door, FETCH_FIELDS, HELD, LENGTH_BYTES};

impl Door {
    pub(crate) fn take_fetch(&mut self, id: i64, frame: &[u8]) {
        let start = self.fetches_end;
        for part in [&frame[..CORRELATION.start], &frame[CORRELATION.end..]] {
            self.fetches[self.fetches_end..][..part.len()].copy_from_slice(part);
            self.fetches_end += part.len();
        }
        let row = [id, start as i64, self.fetches_end as i64];
        self.fetch_rows[self.fetch_count * FETCH_FIELDS..][..FETCH_FIELDS].copy_from_slice(&row);
        self.fetch_count += 1;
    }

    /// Send one answer to connections that wait with a fetch; each gets its own correlation id. Return how many connections
    /// are in `returned`, because their sockets did not take all, and whether others have more rows.
    ///
    /// With each of them stands how many of the answer's bytes its socket took. Only the head's rest is kept here: Python
    /// has the body, which all of them share.
    pub fn deliver(&mut self, ids: &[i64], answer: &[u8]) -> (usize, bool) {
        let mut returned = 0;
        let Some((length, body)) = answer.split_first_chunk::<LENGTH_BYTES>() else { return (0, false) };
        let Some((_, body)) = body.split_first_chunk::<{ CORRELATION.end - CORRELATION.start }>() else { return (0, false) };
        for id in ids {
            let Some(slot) = self.slot_of(*id) else { continue };
            let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
            if connection.waiting == 0 {
                continue;
            }
            let mut head = [0; 8];
            head[..LENGTH_BYTES].copy_from_slice(length);
            head[LENGTH_BYTES..].copy_from_slice(&connection.rest[LENGTH_BYTES..][CORRELATION]);
            connection.rest.drain(..connection.waiting);
            self.bytes_held -= connection.waiting;
            connection.waiting = 0;
            let sent = send_both(connection.fd, &head, body).unwrap_or(Some(answer.len())); // as in `send`
            let sent = sent.unwrap_or(0);
            if sent < answer.len() {
                connection.unsent.extend_from_slice(head.get(sent..).unwrap_or(&[]));
                connection.is_over = true;
                self.returned[2 * returned..][..2].copy_from_slice(&[connection.id, sent as i64]);
                returned += 1;
            } else if !connection.is_over && is_whole(&connection.rest) && !connection.is_queued {
                connection.is_queued = true;
                self.queue.push_back(slot);
            }
        }
        self.counts[HELD] = self.bytes_held as i64;
        (returned, !self.queue.is_empty())
    }
}
