// SPDX-License-Identifier: Apache-2.0
//! The protocol between the process and its helper, over Unix sockets. Both run the same binary on one machine.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The first argument of a helper's command line, which `src/text/helper_entry.cpp` checks.
pub const HELPER_ARGUMENT: &str = "--textkit-helper";
/// The descriptor of the helper's socket to its parent.
pub const HELPER_SOCKET: RawFd = 3;

/// The kind of work of a helper's workers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum WorkKind {
    Grammar = 0,
    Template = 1,
    Trial = 2,
}

impl WorkKind {
    pub fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(WorkKind::Grammar),
            1 => Some(WorkKind::Template),
            2 => Some(WorkKind::Trial),
            _ => None,
        }
    }
}

/// The limits of one work item.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub cpu_ms: u64,
    /// After this much of cpu_ms the worker reports that it is slow. 0: never.
    pub slow_ms: u64,
    /// In addition to the worker's memory at the start of the work.
    pub memory_mb: u64,
}

/// How work goes on after the CPU time that usual work takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// When a core is idle.
    Idle = 0,
    /// At a low priority, which finishes on a busy machine too.
    Low = 1,
    /// As before: the work is the operator's.
    Same = 2,
}

/// The results of work. DONE, REFUSED and PANICKED carry a text. An exiting worker sends the others.
pub const DONE: u8 = b'D';
pub const REFUSED: u8 = b'R';
pub const PANICKED: u8 = b'P';
pub const OUT_OF_TIME: u8 = b'T';
pub const OUT_OF_MEMORY: u8 = b'M';
pub const OUT_OF_STACK: u8 = b'S';
/// Sent during slow work.
pub const SLOW: u8 = b'L';
/// A worker has started. Sent once, before any work, with the worker's process id as the size.
pub const READY: u8 = b'H';

/// Commands to a helper, each with the number of a worker. BEGIN_WORKER carries the worker's socket.
pub const BEGIN_WORKER: u8 = b'B';
pub const KILL_WORKER: u8 = b'K';
pub const COMMAND_BYTES: usize = 9;

pub fn command(what: u8, worker: u64) -> [u8; COMMAND_BYTES] {
    let mut out = [what; COMMAND_BYTES];
    out[1..].copy_from_slice(&worker.to_le_bytes());
    out
}

pub const REPLY_HEAD_BYTES: usize = 9;

pub fn reply_head(tag: u8, size: usize) -> [u8; REPLY_HEAD_BYTES] {
    command(tag, size as u64)
}

pub const WORK_HEAD_BYTES: usize = 40;

pub fn work_head(size: usize, limits: Limits, pace: Pace) -> [u8; WORK_HEAD_BYTES] {
    let mut out = [0; WORK_HEAD_BYTES];
    let words = [
        size as u64,
        limits.cpu_ms,
        limits.slow_ms,
        limits.memory_mb,
        pace as u64,
    ];
    for (place, word) in out.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    out
}

pub fn read_work_head(bytes: &[u8; WORK_HEAD_BYTES]) -> (usize, Limits, Pace) {
    let word =
        |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap_or_default());
    let limits = Limits {
        cpu_ms: word(1),
        slow_ms: word(2),
        memory_mb: word(3),
    };
    let pace = match word(4) {
        0 => Pace::Idle,
        1 => Pace::Low,
        _ => Pace::Same,
    };
    (word(0) as usize, limits, pace)
}

/// A pair of connected sockets, both close-on-exec.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two.
    let failed = unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
            ends.as_mut_ptr(),
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are open and have no other owner.
    unsafe { Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))) }
}

pub fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: pointer and length are those of a slice.
        let sent = unsafe {
            libc::send(
                socket.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        if sent >= 0 {
            bytes = &bytes[sent as usize..];
            continue;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// Fills `bytes`. UnexpectedEof if the peer closes the socket earlier.
pub fn receive_all(socket: &OwnedFd, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: as in send_all.
        let got = unsafe {
            libc::recv(
                socket.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                0,
            )
        };
        if got > 0 {
            bytes = &mut bytes[got as usize..];
            continue;
        }
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// Space for one descriptor and its header, with the alignment that the kernel requires.
#[repr(align(8))]
struct Ancillary([u8; 64]);

/// Sends one command, with a descriptor if there is one.
pub fn send_command(
    socket: &OwnedFd,
    bytes: &[u8; COMMAND_BYTES],
    carried: Option<&OwnedFd>,
) -> io::Result<()> {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut extra = Ancillary([0; 64]);
    // SAFETY: the message points at `part` and `extra`, which outlive the call.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if let Some(fd) = carried {
            let size = std::mem::size_of::<RawFd>() as u32;
            message.msg_control = extra.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as _;
            let head = libc::CMSG_FIRSTHDR(&message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(size) as _;
            libc::CMSG_DATA(head)
                .cast::<RawFd>()
                .write_unaligned(fd.as_raw_fd());
        }
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(COMMAND_BYTES) => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives a command of send_command.
pub fn receive_command(socket: &OwnedFd) -> io::Result<([u8; COMMAND_BYTES], Option<OwnedFd>)> {
    let mut bytes = [0; COMMAND_BYTES];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut extra = Ancillary([0; 64]);
    let mut carried = None;
    // SAFETY: as in send_command.
    let got = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = extra.0.as_mut_ptr().cast();
        message.msg_controllen = extra.0.len() as _;
        let flags = libc::MSG_WAITALL | libc::MSG_CMSG_CLOEXEC;
        let got = libc::recvmsg(socket.as_raw_fd(), &mut message, flags);
        let head = libc::CMSG_FIRSTHDR(&message);
        if got > 0 && !head.is_null() && (*head).cmsg_type == libc::SCM_RIGHTS {
            let fd = libc::CMSG_DATA(head).cast::<RawFd>().read_unaligned();
            carried = Some(OwnedFd::from_raw_fd(fd));
        }
        got
    };
    match usize::try_from(got) {
        Ok(COMMAND_BYTES) => Ok((bytes, carried)),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Waits for data or the peer's close; false after `ms`.
pub fn wait_readable(socket: &OwnedFd, ms: i32) -> bool {
    let mut watched = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut watched, 1, ms) > 0 }
}
