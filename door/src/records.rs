//! Check one produced batch: its header, its CRC, each of its records.
//!
//! In: the bytes of a records field. Out: the header's fields, or nothing. It accepts only what is certainly sound and
//! has no feature beyond plain records; everything else goes to the broker's Python, which names the fault. The rules are
//! those of `wire/batch.py` and `wire/walk.py`.

use crate::crc::crc32c;

pub const HEADER_BYTES: usize = 61;
const CRC_START: usize = 21;
const RECORD_BYTES_MIN: usize = 7;
const RECORD_LENGTH_MIN: i64 = 6;
const FAR: i64 = 1 << 61;
const NO_TIMESTAMP: i64 = -1;

/// A sound batch. `header` has the fields of `BatchHeader`, in its order.
pub struct Batch {
    pub header: [i64; 13],
    /// The least timestamp of a record that has one; -1 without any.
    pub least_timestamp: i64,
    pub has_keys: bool,
}

fn number<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn i16_at(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from(i16::from_be_bytes(number(data, at)?)))
}

fn i32_at(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from(i32::from_be_bytes(number(data, at)?)))
}

fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(number(data, at)?))
}

/// Return the batch that fills `data`, if it is one plain, sound batch.
pub fn check(data: &[u8]) -> Option<Batch> {
    if data.len() < HEADER_BYTES {
        return None;
    }
    let size = i32_at(data, 8)?.checked_add(12)?;
    let magic = i64::from(*data.get(16)? as i8);
    if size != data.len() as i64 || magic != 2 {
        return None;
    }
    let crc = u32::from_be_bytes(number(data, 17)?);
    let attributes = i16_at(data, 21)?;
    let delta = i32_at(data, 23)?;
    let (first, largest) = (i64_at(data, 27)?, i64_at(data, 35)?);
    let (producer, epoch, sequence) = (i64_at(data, 43)?, i16_at(data, 51)?, i32_at(data, 53)?);
    let count = i32_at(data, 57)?;
    let records = data.get(HEADER_BYTES..)?;
    // No codec, no transaction, no control batch, no broker's time: bits that mean more go to Python.
    if attributes != 0 || count < 1 || delta != count - 1 || first < NO_TIMESTAMP || largest < NO_TIMESTAMP {
        return None;
    }
    if (records.len() / RECORD_BYTES_MIN) as i64 > i64::MAX - 1 || records.len() < count as usize * RECORD_BYTES_MIN {
        return None;
    }
    if producer >= 0 && (sequence < 0 || epoch < 0) {
        return None;
    }
    if crc32c(data.get(CRC_START..)?) != crc {
        return None;
    }
    let found = walk(records, count, first)?;
    if found.largest != largest {
        return None; // Python writes the true one into the batch
    }
    Some(Batch {
        header: [
            i64_at(data, 0)?,
            size,
            i32_at(data, 12)?,
            magic,
            i64::from(crc),
            attributes,
            delta,
            first,
            largest,
            producer,
            epoch,
            sequence,
            count,
        ],
        least_timestamp: found.least,
        has_keys: found.has_keys,
    })
}

/// Return the largest timestamp of a batch's records, if they are certainly sound and within the topic's demands; -1
/// without timestamps. `data` is one batch without compression, whose header and CRC hold.
pub fn largest_timestamp(data: &[u8], earliest: i64, latest: i64, is_keyed: bool) -> Option<i64> {
    let found = walk(data.get(HEADER_BYTES..)?, i32_at(data, 57)?, i64_at(data, 27)?)?;
    let is_timely = found.largest == NO_TIMESTAMP || (earliest <= found.least && found.largest <= latest);
    (is_timely && (found.has_keys || !is_keyed)).then_some(found.largest)
}

struct Walked {
    least: i64,
    largest: i64,
    has_keys: bool,
}

struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// Return the zigzag varint of at most `bits` bits here.
    fn varint(&mut self, bits: u32) -> Option<i64> {
        let mut value: u64 = 0;
        let mut shift = 0;
        while shift < bits {
            let byte = *self.data.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some((value >> 1) as i64 ^ -((value & 1) as i64));
            }
            shift += 7;
        }
        None
    }

    fn skip(&mut self, length: i64) -> Option<()> {
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        if end > self.data.len() {
            return None;
        }
        self.at = end;
        Some(())
    }

    /// Skip a field with a length, and return whether it is not null.
    fn field(&mut self) -> Option<bool> {
        match self.varint(35)? {
            -1 => Some(false),
            length => {
                self.skip(length)?;
                Some(true)
            }
        }
    }
}

fn walk(records: &[u8], count: i64, base: i64) -> Option<Walked> {
    let mut reader = Reader { data: records, at: 0 };
    let mut found = Walked { least: NO_TIMESTAMP, largest: NO_TIMESTAMP, has_keys: true };
    for index in 0..count {
        let length = reader.varint(35)?;
        if length < RECORD_LENGTH_MIN {
            return None;
        }
        let stop = reader.at.checked_add(usize::try_from(length).ok()?)?;
        if *records.get(reader.at)? >= 128 {
            return None;
        }
        reader.at += 1;
        let delta = reader.varint(63)?;
        if reader.varint(35)? != index {
            return None;
        }
        found.has_keys &= reader.field()?;
        reader.field()?;
        let headers = reader.varint(35)?;
        if headers < 0 {
            return None;
        }
        for _ in 0..headers {
            let length = reader.varint(35)?;
            let start = reader.at;
            reader.skip(length)?;
            std::str::from_utf8(records.get(start..reader.at)?).ok()?;
            reader.field()?;
        }
        if reader.at != stop || delta.abs() >= FAR || base >= FAR || base <= -FAR {
            return None;
        }
        let timestamp = base + delta;
        if timestamp != NO_TIMESTAMP {
            if found.least == NO_TIMESTAMP || timestamp < found.least {
                found.least = timestamp;
            }
            if timestamp > found.largest {
                found.largest = timestamp;
            }
        }
    }
    if reader.at != records.len() || found.least < NO_TIMESTAMP {
        return None;
    }
    Some(found)
}
