//! The system calls: epoll, recv, send, sendmsg. The only unsafe code beside the exported functions and the CRC instruction.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::RawFd;

pub const IN: u32 = 1;
const ADD: i32 = 1;
const DELETE: i32 = 2;
const CLOSE_ON_EXEC: i32 = 0o2_000_000;
const DO_NOT_WAIT: i32 = 0x40;
const NO_SIGNAL: i32 = 0x4000;

#[repr(C)]
#[cfg_attr(target_arch = "x86_64", repr(packed))]
#[derive(Clone, Copy, Default)]
pub struct Event {
    pub events: u32,
    pub data: u64,
}

/// `struct iovec`.
#[repr(C)]
struct Buffer {
    start: *const u8,
    size: usize,
}

/// `struct msghdr`, of a connected socket and without control data.
#[repr(C)]
struct Message {
    name: *const u8,
    name_size: u32,
    buffers: *const Buffer,
    count: usize,
    control: *const u8,
    control_size: usize,
    flags: i32,
}

impl Default for Message {
    fn default() -> Message {
        let none = std::ptr::null();
        Message { name: none, name_size: 0, buffers: std::ptr::null(), count: 0, control: none, control_size: 0, flags: 0 }
    }
}

extern "C" {
    fn epoll_create1(flags: i32) -> i32;
    fn epoll_ctl(epoll: i32, operation: i32, fd: i32, event: *mut Event) -> i32;
    fn epoll_wait(epoll: i32, events: *mut Event, events_max: i32, timeout_ms: i32) -> i32;
    fn recv(fd: i32, buffer: *mut u8, size: usize, flags: i32) -> isize;
    fn send(fd: i32, buffer: *const u8, size: usize, flags: i32) -> isize;
    fn sendmsg(fd: i32, message: *const Message, flags: i32) -> isize;
    fn close(fd: i32) -> i32;
}

fn checked(result: i32) -> Result<i32> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// The descriptor of an epoll instance, closed with the last use.
pub struct Poll(pub RawFd);

impl Poll {
    pub fn new() -> Result<Poll> {
        // SAFETY: the call takes no pointer.
        checked(unsafe { epoll_create1(CLOSE_ON_EXEC) }).map(Poll)
    }

    pub fn add(&self, fd: RawFd, data: u64) -> Result<()> {
        let mut event = Event { events: IN, data };
        // SAFETY: `event` lives through the call.
        checked(unsafe { epoll_ctl(self.0, ADD, fd, &mut event) }).map(|_| ())
    }

    pub fn remove(&self, fd: RawFd) {
        let mut event = Event::default();
        // SAFETY: as above. A failure means that the descriptor is gone, and with it its entry.
        unsafe { epoll_ctl(self.0, DELETE, fd, &mut event) };
    }

    /// Return how many of `events` are filled, without waiting.
    pub fn ready(&self, events: &mut [Event]) -> usize {
        // SAFETY: the pointer and the number describe one slice.
        let count = unsafe { epoll_wait(self.0, events.as_mut_ptr(), events.len() as i32, 0) };
        usize::try_from(count).unwrap_or(0)
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { close(self.0) };
    }
}

/// Receive the bytes that have arrived, without waiting: None where there are none yet, 0 at the end of the stream.
pub fn receive(fd: RawFd, buffer: &mut [u8]) -> Result<Option<usize>> {
    // SAFETY: the pointer and the size describe one slice.
    let size = unsafe { recv(fd, buffer.as_mut_ptr(), buffer.len(), DO_NOT_WAIT) };
    outcome(size)
}

/// Send what the socket takes: None for "nothing now".
pub fn send_some(fd: RawFd, data: &[u8]) -> Result<Option<usize>> {
    // SAFETY: as above.
    let size = unsafe { send(fd, data.as_ptr(), data.len(), DO_NOT_WAIT | NO_SIGNAL) };
    outcome(size)
}

/// Send two buffers, one after the other, as `send_some`.
pub fn send_both(fd: RawFd, head: &[u8], body: &[u8]) -> Result<Option<usize>> {
    let buffers = [head, body].map(|one| Buffer { start: one.as_ptr(), size: one.len() });
    let message = Message { buffers: buffers.as_ptr(), count: buffers.len(), ..Message::default() };
    // SAFETY: the message, the buffers and what they point to live through the call, which only reads them.
    outcome(unsafe { sendmsg(fd, &message, DO_NOT_WAIT | NO_SIGNAL) })
}

fn outcome(size: isize) -> Result<Option<usize>> {
    if size >= 0 {
        return Ok(Some(size as usize));
    }
    let error = Error::last_os_error();
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}
