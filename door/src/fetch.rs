//! Recognize a Fetch request.
//!
//! In: a frame without its length. Out: its client id, or nothing for any other request. It reads the header alone:
//! Python decodes the request, once for all equal ones.

use std::ops::Range;

const FETCH: [u8; 2] = [0, 1];
/// Where a request's correlation id is. The version stands before it, and the client id behind it.
pub const CORRELATION: Range<usize> = 4..8;

/// Return the client id, empty where it is null, if the frame is a Fetch of any version.
pub fn client_id(frame: &[u8]) -> Option<&[u8]> {
    if !frame.starts_with(&FETCH) {
        return None;
    }
    let (length, rest) = frame.get(CORRELATION.end..)?.split_first_chunk()?;
    match i16::from_be_bytes(*length) {
        -1 => Some(&[]),
        length => rest.get(..usize::try_from(length).ok()?),
    }
}
