//! Damaged Produce frames against the parser, and against that of a Fetch's header: it must neither panic nor read beyond its input.
//!
//! usage: cargo run --release --example fuzz -- FRAMES [SEED]
//!
//! In: a number of frames, a seed. Out: one line with how many were rows. The frames are of each version, with good CRCs
//! where only the inner bytes are damaged, so that the walk over records is reached.

use stratalog_door::crc::crc32c;
use stratalog_door::fetch::client_id;
use stratalog_door::produce::parse;

struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

fn batch(records: u8) -> Vec<u8> {
    let mut body = Vec::new();
    for at in 0..records {
        // length 12, attributes, timestamp delta, offset delta, key "k", value "vv", one header "h": "x"
        body.extend_from_slice(&[24, 0, at * 2, at * 2, 2, b'k', 4, b'v', b'v', 2, 2, b'h', 2, b'x']);
        let last = body.len() - 14;
        body[last] = 26;
    }
    let mut made = vec![0u8; 61];
    made[8..12].copy_from_slice(&((49 + body.len()) as u32).to_be_bytes());
    made[16] = 2;
    made[23..27].copy_from_slice(&(u32::from(records) - 1).to_be_bytes());
    made[27..35].copy_from_slice(&1000u64.to_be_bytes());
    made[35..43].copy_from_slice(&(999 + u64::from(records)).to_be_bytes());
    made[43..51].copy_from_slice(&7u64.to_be_bytes());
    made[57..61].copy_from_slice(&u32::from(records).to_be_bytes());
    made.extend_from_slice(&body);
    made
}

fn seal(batch: &mut [u8]) {
    if batch.len() >= 21 {
        let crc = crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
    }
}

fn frame(version: i16, batch: &[u8]) -> (Vec<u8>, usize) {
    let flexible = version >= 9;
    let mut made = vec![0, 0];
    made.extend_from_slice(&version.to_be_bytes());
    made.extend_from_slice(&[0, 0, 0, 9, 0, 2, b'm', b'e']);
    made.extend_from_slice(if flexible { &[0, 0] } else { &[0xff, 0xff] });
    made.extend_from_slice(&[0, 1, 0, 0, 0x10, 0]);
    made.extend_from_slice(if flexible { &[2] } else { &[0, 0, 0, 1] });
    match (flexible, version >= 13) {
        (_, true) => made.extend_from_slice(&[3; 16]),
        (true, _) => made.extend_from_slice(&[4, b't', b'o', b'p']),
        _ => made.extend_from_slice(&[0, 3, b't', b'o', b'p']),
    }
    made.extend_from_slice(if flexible { &[2] } else { &[0, 0, 0, 1] });
    made.extend_from_slice(&[0, 0, 0, 0]);
    if flexible {
        let size = batch.len() + 1;
        made.extend_from_slice(&[(size & 127) as u8 | 128, (size >> 7) as u8]);
    } else {
        made.extend_from_slice(&(batch.len() as u32).to_be_bytes());
    }
    let at = made.len();
    made.extend_from_slice(batch);
    if flexible {
        made.extend_from_slice(&[0, 0, 0]);
    }
    (made, at)
}

fn main() {
    let mut words = std::env::args().skip(1);
    let count: u64 = words.next().and_then(|word| word.parse().ok()).expect("usage: fuzz FRAMES [SEED]");
    let seed = words.next().and_then(|word| word.parse().ok()).unwrap_or(0x9e37_79b9_7f4a_7c15);
    let mut chance = Chance(seed);
    let mut seeds = Vec::new();
    for version in 3..=13 {
        for records in [1, 3, 12] {
            let mut inner = batch(records);
            seal(&mut inner);
            let (made, at) = frame(version, &inner);
            assert!(parse(&made).is_some(), "version {version} of {records} records is a row");
            seeds.push((made, at, inner.len()));
        }
    }
    let (mut rows, mut fetches) = (0u64, 0u64);
    for _ in 0..count {
        let (good, at, size) = &seeds[chance.below(seeds.len())];
        let mut damaged = good.clone();
        for _ in 0..1 + chance.below(3) {
            let place = chance.below(damaged.len());
            match chance.below(6) {
                0 => damaged[place] = chance.next() as u8,
                1 => damaged[place] ^= 1 << chance.below(8),
                2 => damaged[place] = [0, 127, 128, 255][chance.below(4)],
                3 => damaged.truncate(place.max(1)),
                4 => damaged.insert(place, chance.next() as u8),
                _ => {
                    damaged.remove(place);
                    if damaged.is_empty() {
                        damaged.push(0);
                    }
                }
            }
        }
        if chance.below(2) == 0 && damaged.len() >= at + size {
            seal(&mut damaged[*at..at + size]);
        }
        rows += u64::from(parse(&damaged).is_some());
        if damaged.len() > 1 {
            damaged[..2].copy_from_slice(&[0, 1]);
            fetches += u64::from(client_id(&damaged).is_some());
        }
    }
    println!("{count} frames, {rows} rows, {fetches} fetches, seed {seed}");
}
