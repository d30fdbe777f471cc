//! The broker's door for small requests: docs/decisions/0019.
//!
//! In: calls of `adapters/compiled_door.py`, from one thread. Out: rows and answers, in the door's memory. Each exported
//! function catches a panic and returns `FAILED`; the caller then uses the door no more. All code that looks at a
//! client's bytes is safe Rust.

pub mod crc;
pub mod fetch;
pub mod produce;
pub mod records;
#[cfg(target_os = "linux")]
mod system;
#[cfg(target_os = "linux")]
mod turn;
#[cfg(target_os = "linux")]
mod waiting;

#[cfg(target_os = "linux")]
mod exported {
    use crate::turn::Door;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    const FAILED: i64 = -2;
    /// Grows with each change of a function's arguments or meaning: `adapters/compiled_door.py` uses no other library.
    const INTERFACE: i64 = 2;
    const NOT_CERTAIN: i64 = -3;

    fn guarded(call: impl FnOnce() -> i64) -> i64 {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or(FAILED)
    }

    #[no_mangle]
    pub extern "C" fn door_interface() -> i64 {
        INTERFACE
    }

    /// SAFETY of all: `door` is of `door_open`, used by one thread, until `door_close`; a pointer with a size is a
    /// readable (for `out`: writable) block of that size.
    #[no_mangle]
    pub extern "C" fn door_open() -> *mut Door {
        catch_unwind(Door::new).ok().and_then(Result::ok).map_or(std::ptr::null_mut(), |door| Box::into_raw(Box::new(door)))
    }

    #[no_mangle]
    pub unsafe extern "C" fn door_close(door: *mut Door) -> i64 {
        guarded(|| {
            drop(Box::from_raw(door));
            0
        })
    }

    #[no_mangle]
    pub unsafe extern "C" fn door_fd(door: *mut Door) -> i64 {
        i64::from((*door).fd())
    }

    /// Return the address of a part of the door's memory: rows, answers, groups, returned, counts, batches, fetch rows,
    /// fetches, back.
    #[no_mangle]
    pub unsafe extern "C" fn door_memory(door: *mut Door, part: i64) -> *const u8 {
        let door = &*door;
        match part {
            0 => door.rows.as_ptr().cast(),
            1 => door.answers.as_ptr().cast(),
            2 => door.groups.as_ptr().cast(),
            3 => door.returned.as_ptr().cast(),
            4 => door.counts.as_ptr().cast(),
            5 => door.batches.as_ptr(),
            6 => door.fetch_rows.as_ptr().cast(),
            7 => door.fetches.as_ptr(),
            _ => door.back.as_ptr(),
        }
    }

    #[no_mangle]
    pub unsafe extern "C" fn door_host(door: *mut Door, name: *const u8, size: usize, id: *const [u8; 16], index: i32) -> i64 {
        guarded(|| (*door).host(std::slice::from_raw_parts(name, size), *id, index) as i64)
    }

    #[no_mangle]
    pub unsafe extern "C" fn door_drop(door: *mut Door, handle: i64) -> i64 {
        guarded(|| {
            (*door).drop_partition(handle as usize);
            0
        })
    }

    #[no_mangle]
    pub unsafe extern "C" fn door_borrow(door: *mut Door, fd: i32, client_id: *const u8, size: usize) -> i64 {
        guarded(|| (*door).borrow(fd, std::slice::from_raw_parts(client_id, size)))
    }

    /// Put the connection's unsent answers and then its bytes that are no rows into `back`; return both sizes as
    /// `unsent << 24 | rest`, or -1 for an unknown connection. `rest` has less than 16 MiB.
    #[no_mangle]
    pub unsafe extern "C" fn door_give_back(door: *mut Door, id: i64) -> i64 {
        guarded(|| {
            let Some((unsent, rest)) = (*door).give_back(id) else { return -1 };
            assert!(rest < 1 << 24);
            (unsent as i64) << 24 | rest as i64
        })
    }

    #[no_mangle]
    pub unsafe extern "C" fn door_read(door: *mut Door) -> i64 {
        guarded(|| i64::from((*door).read()))
    }

    #[no_mangle]
    pub unsafe extern "C" fn door_refuse(door: *mut Door, place: i64) -> i64 {
        guarded(|| {
            (*door).refuse(place as usize);
            0
        })
    }

    #[no_mangle]
    pub unsafe extern "C" fn door_send(door: *mut Door) -> i64 {
        guarded(|| (*door).send() as i64)
    }

    /// Return the number of returned connections, and 1 << 32 where others have more rows. `returned` has two numbers of
    /// each: its id, and how many bytes of the answer its socket took.
    #[no_mangle]
    pub unsafe extern "C" fn door_deliver(door: *mut Door, ids: *const i64, count: usize, answer: *const u8, size: usize) -> i64 {
        guarded(|| {
            let (ids, answer) = (std::slice::from_raw_parts(ids, count), std::slice::from_raw_parts(answer, size));
            let (returned, has_more) = (*door).deliver(ids, answer);
            i64::from(has_more) << 32 | returned as i64
        })
    }

    /// Whether the frame, without its length, could be a row.
    #[no_mangle]
    pub unsafe extern "C" fn door_is_row(frame: *const u8, size: usize) -> i64 {
        guarded(|| i64::from(crate::produce::parse(std::slice::from_raw_parts(frame, size)).is_some()))
    }

    /// Return `largest_timestamp` of a batch, or `NOT_CERTAIN`: then Python names the fault.
    #[no_mangle]
    pub unsafe extern "C" fn door_largest_timestamp(batch: *const u8, size: usize, earliest: i64, latest: i64, is_keyed: bool) -> i64 {
        guarded(|| {
            let batch = std::slice::from_raw_parts(batch, size);
            crate::records::largest_timestamp(batch, earliest, latest, is_keyed).unwrap_or(NOT_CERTAIN)
        })
    }
}
