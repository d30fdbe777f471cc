//! Read a Produce request of one batch, and write its answer.
//!
//! In: a frame without its length. Out: its fields as numbers and ranges, or nothing for any other request: the broker's
//! Python serves those. Versions 3 to 13. The layouts are Kafka's `ProduceRequest.json` and `ProduceResponse.json`.

use crate::records::{check, Batch};
use std::ops::Range;

const PRODUCE: i16 = 0;
const VERSIONS: std::ops::RangeInclusive<i16> = 3..=13;
const LOG_START_FROM: i16 = 5;
const RECORD_ERRORS_FROM: i16 = 8;
const FLEXIBLE_FROM: i16 = 9;
const TOPIC_IDS_FROM: i16 = 13;

/// The topic as the request names it.
pub enum Topic {
    Name(Range<usize>),
    Id(Range<usize>),
}

/// One row: a Produce request of one sound batch. Ranges are places in the frame.
pub struct Request {
    pub version: i16,
    pub correlation: i32,
    pub client_id: Range<usize>,
    pub acks: i16,
    pub timeout_ms: i32,
    pub topic: Topic,
    pub index: i32,
    pub records: Range<usize>,
    pub batch: Batch,
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let end = self.at.checked_add(N)?;
        let found = self.data.get(self.at..end)?.try_into().ok()?;
        self.at = end;
        Some(found)
    }

    fn i16(&mut self) -> Option<i16> {
        self.bytes().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.bytes().map(i32::from_be_bytes)
    }

    /// Return an unsigned varint of at most 28 bits: more than any length here.
    fn uvarint(&mut self) -> Option<usize> {
        let mut value = 0usize;
        for shift in [0, 7, 14, 21] {
            let [byte] = self.bytes()?;
            value |= usize::from(byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }

    fn text(&mut self, length: usize) -> Option<Range<usize>> {
        let found = self.range(length)?;
        std::str::from_utf8(&self.data[found.clone()]).ok()?;
        Some(found)
    }

    fn range(&mut self, length: usize) -> Option<Range<usize>> {
        let end = self.at.checked_add(length)?;
        if end > self.data.len() {
            return None;
        }
        let found = self.at..end;
        self.at = end;
        Some(found)
    }

    /// Return the place of a string that is not null.
    fn string(&mut self, flexible: bool) -> Option<Range<usize>> {
        let length = if flexible {
            self.uvarint()?.checked_sub(1)?
        } else {
            usize::try_from(self.i16()?).ok()?
        };
        self.text(length)
    }

    fn is_null_string(&mut self, flexible: bool) -> Option<bool> {
        Some(if flexible { self.uvarint()? == 0 } else { self.i16()? == -1 })
    }

    /// Whether an array of one item begins here.
    fn is_one(&mut self, flexible: bool) -> Option<bool> {
        Some(if flexible { self.uvarint()? == 2 } else { self.i32()? == 1 })
    }

    /// Whether there are no tagged fields here.
    fn is_untagged(&mut self, flexible: bool) -> Option<bool> {
        Some(!flexible || self.uvarint()? == 0)
    }
}

/// Return the request in `frame`, if it is a Produce of one plain, sound batch.
pub fn parse(frame: &[u8]) -> Option<Request> {
    let mut reader = Reader { data: frame, at: 0 };
    let (key, version) = (reader.i16()?, reader.i16()?);
    if key != PRODUCE || !VERSIONS.contains(&version) {
        return None;
    }
    let flexible = version >= FLEXIBLE_FROM;
    let correlation = reader.i32()?;
    let client_id = match reader.i16()? {
        -1 => 0..0,
        length => reader.text(usize::try_from(length).ok()?)?,
    };
    if !reader.is_untagged(flexible)? || !reader.is_null_string(flexible)? {
        return None;
    }
    let (acks, timeout_ms) = (reader.i16()?, reader.i32()?);
    if !reader.is_one(flexible)? {
        return None;
    }
    let topic = if version >= TOPIC_IDS_FROM {
        Topic::Id(reader.range(16)?)
    } else {
        Topic::Name(reader.string(flexible)?)
    };
    if !reader.is_one(flexible)? {
        return None;
    }
    let index = reader.i32()?;
    let length = if flexible {
        reader.uvarint()?.checked_sub(1)?
    } else {
        usize::try_from(reader.i32()?).ok()?
    };
    let records = reader.range(length)?;
    for _ in 0..3 {
        if !reader.is_untagged(flexible)? {
            return None;
        }
    }
    if reader.at != frame.len() {
        return None;
    }
    let batch = check(frame.get(records.clone())?)?;
    Some(Request { version, correlation, client_id, acks, timeout_ms, topic, index, records, batch })
}

/// The values of an answer without an error.
pub struct Answer<'a> {
    pub version: i16,
    pub correlation: i32,
    pub name: &'a [u8],
    pub id: &'a [u8; 16],
    pub index: i32,
    pub base_offset: i64,
    pub log_append_time: i64,
    pub log_start_offset: i64,
}

fn put_uvarint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 128 {
        out.push((value & 127) as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Append the answer's frame, its length first, to `out`.
pub fn write(out: &mut Vec<u8>, answer: &Answer) {
    let start = out.len();
    let flexible = answer.version >= FLEXIBLE_FROM;
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&answer.correlation.to_be_bytes());
    if flexible {
        out.extend_from_slice(&[0, 2]); // no tags; one topic
    } else {
        out.extend_from_slice(&1i32.to_be_bytes());
    }
    if answer.version >= TOPIC_IDS_FROM {
        out.extend_from_slice(answer.id);
    } else if flexible {
        put_uvarint(out, answer.name.len() + 1);
        out.extend_from_slice(answer.name);
    } else {
        out.extend_from_slice(&(answer.name.len() as u16).to_be_bytes());
        out.extend_from_slice(answer.name);
    }
    if flexible {
        out.push(2); // one partition
    } else {
        out.extend_from_slice(&1i32.to_be_bytes());
    }
    out.extend_from_slice(&answer.index.to_be_bytes());
    out.extend_from_slice(&0i16.to_be_bytes());
    out.extend_from_slice(&answer.base_offset.to_be_bytes());
    out.extend_from_slice(&answer.log_append_time.to_be_bytes());
    if answer.version >= LOG_START_FROM {
        out.extend_from_slice(&answer.log_start_offset.to_be_bytes());
    }
    if flexible {
        out.extend_from_slice(&[1, 0, 0, 0]); // no record errors, no message, no tags of partition and topic
    } else if answer.version >= RECORD_ERRORS_FROM {
        out.extend_from_slice(&0i32.to_be_bytes());
        out.extend_from_slice(&(-1i16).to_be_bytes());
    }
    out.extend_from_slice(&0i32.to_be_bytes()); // throttle time
    if flexible {
        out.push(0);
    }
    let size = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
}
