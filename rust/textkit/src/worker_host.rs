// SPDX-License-Identifier: Apache-2.0
//! Runs work on untrusted input in worker processes, which can be killed.
//!
//! A `WorkerHost` starts a helper process (worker_main.rs) on the first work, and requests workers from it. A worker
//! that exceeds a limit exits and reports which limit. The next work gets a new worker, forked in a millisecond. Long
//! work moves to one of a few slow slots, so that quick work always finds a slot. Work that takes longer than usual goes
//! on when a core is idle; if none is, another worker begins it again at a low priority.

use crate::worker_watch::{Progress, WorkerWatch};
use crate::worker_wire::*;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Time-out for the start of a helper: exec, and a vocabulary of any size on a busy machine.
const MAX_START: Duration = Duration::from_secs(120);
/// Time-out for a forked worker to report that it is ready.
const MAX_FORK: Duration = Duration::from_secs(10);
/// The wall-clock time-out is WALL_FACTOR times the CPU time limit plus WALL_EXTRA: work at a low priority gets a
/// twentieth of a core on a busy machine. A worker that hangs is ended long before that, see worker_watch.rs.
const WALL_FACTOR: u32 = 10;
const WALL_EXTRA: Duration = Duration::from_secs(30);
/// Limit of work items per worker, because a worker's memory grows a little with each.
const MAX_WORK_OF_WORKER: u32 = 200;

#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The input is invalid: the work's own message.
    Refused(String),
    /// The input exceeds a limit: which one.
    TooMuch(String),
    /// A library panicked on the input: a bug, and its message.
    Panicked(String),
    /// The input is not the cause: all slots are taken, or no process is available.
    Busy(String),
}

pub struct Slots {
    /// Limit of concurrent work items.
    pub all: usize,
    /// How long work waits for a slot.
    pub max_wait: Duration,
    /// Slow work (Limits::slow_ms) needs one of these slots; without a free one it is ended.
    pub slow: usize,
    /// Whether a worker handles several work items, one after the other. Else each item gets a new worker.
    pub keep_workers: bool,
}

pub struct WorkerHost {
    kind: WorkKind,
    setup: Vec<u8>,
    setup_limits: Limits,
    slots: Slots,
    helper: Mutex<Option<Helper>>,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    taken: usize,
    slow: usize,
    idle: Vec<Worker>,
    next: u64,
}

struct Worker {
    number: u64,
    pid: libc::pid_t,
    socket: OwnedFd,
    done: u32,
}

struct Helper {
    socket: OwnedFd,
    pid: libc::pid_t, // 0: already reaped
}

impl Helper {
    /// Whether the helper has ended. Waits up to 50 ms for its end.
    fn has_ended(&mut self) -> bool {
        // SAFETY: the pid is our child, which no other code waits for; no status is requested.
        let ended = |pid| unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) != 0 };
        for _ in 0..10 {
            if self.pid == 0 || ended(self.pid) {
                self.pid = 0;
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if self.pid == 0 {
            return;
        }
        // SAFETY: as above. The kernel kills its workers when it ends.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            while libc::waitpid(self.pid, std::ptr::null_mut(), 0) < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

const TOO_BUSY: &str = "the machine is too busy to finish this in time";

fn busy(what: &str) -> Failure {
    Failure::Busy(format!("{what}; try again later"))
}

impl WorkerHost {
    pub fn new(kind: WorkKind, setup: Vec<u8>, setup_limits: Limits, slots: Slots) -> Self {
        WorkerHost {
            kind,
            setup,
            setup_limits,
            slots,
            helper: Mutex::new(None),
            state: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    /// Starts the helper if it is not running. Returns the error of its setup.
    pub fn start(&self) -> Result<(), Failure> {
        self.with_helper(|_| Ok(()))
    }

    /// Runs one work item and returns its result. Blocks; any threads at once.
    pub fn run(&self, work: &[u8], limits: Limits) -> Result<Vec<u8>, Failure> {
        let mut slot = Slot::take(self)?;
        let cpu = Duration::from_millis(limits.cpu_ms);
        let deadline = Instant::now() + cpu * WALL_FACTOR + WALL_EXTRA;
        for pace in [Pace::Idle, Pace::Low] {
            let head = work_head(work.len(), limits, pace);
            let mut worker = match self.idle_worker() {
                Some(worker) => worker,
                None => self.begin_worker()?,
            };
            // Ignore a send error: a worker that exits while it reads may have sent the reason.
            let _ = send_all(&worker.socket, &head).and_then(|()| send_all(&worker.socket, work));
            let result = self.reply(&worker, &mut slot, limits, pace, deadline);
            match &result {
                Ok(Some(_)) | Err(Failure::Refused(_)) => {
                    worker.done += 1;
                    if self.slots.keep_workers && worker.done < MAX_WORK_OF_WORKER {
                        locked(&self.state).idle.push(worker);
                    }
                }
                _ => self.kill(&worker),
            }
            if let Some(result) = result.transpose() {
                return result;
            }
        }
        Err(busy(TOO_BUSY))
    }

    fn idle_worker(&self) -> Option<Worker> {
        locked(&self.state).idle.pop()
    }

    /// None: the worker starves, and Pace::Idle is the cause.
    fn reply(
        &self,
        worker: &Worker,
        slot: &mut Slot,
        limits: Limits,
        pace: Pace,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let mut watch = WorkerWatch::new(worker.pid);
        let mut head = [SLOW; REPLY_HEAD_BYTES];
        let lost = |_| busy("a worker process was killed");
        while head[0] == SLOW {
            while !wait_until(&worker.socket, deadline.min(watch.next_look())) {
                if Instant::now() >= deadline {
                    return Err(busy(TOO_BUSY));
                }
                match watch.look() {
                    Progress::Hangs => return Err(busy("a worker process hangs")),
                    Progress::Starves if pace == Pace::Idle => return Ok(None),
                    _ => {}
                }
            }
            receive_all(&worker.socket, &mut head).map_err(lost)?;
            if head[0] == SLOW {
                slot.become_slow()?;
            }
        }
        match head[0] {
            DONE => read_text(&worker.socket, &head).map_err(lost).map(Some),
            REFUSED => {
                let text = read_text(&worker.socket, &head).map_err(lost)?;
                Err(Failure::Refused(String::from_utf8_lossy(&text).into()))
            }
            PANICKED => {
                let text = read_text(&worker.socket, &head).map_err(lost)?;
                Err(Failure::Panicked(String::from_utf8_lossy(&text).into()))
            }
            tag => Err(limit_failure(tag, limits)),
        }
    }

    fn kill(&self, worker: &Worker) {
        if let Some(helper) = locked(&self.helper).as_ref() {
            let _ = send_command(&helper.socket, &command(KILL_WORKER, worker.number), None);
        }
    }

    fn begin_worker(&self) -> Result<Worker, Failure> {
        let failed = |e: io::Error| busy(&format!("no worker process: {e}"));
        let number = {
            let mut state = locked(&self.state);
            state.next += 1;
            state.next
        };
        let mut last = busy("no worker process");
        for _ in 0..2 {
            let (socket, theirs) = socket_pair().map_err(failed)?;
            let sent = self.with_helper(|helper| {
                send_command(
                    &helper.socket,
                    &command(BEGIN_WORKER, number),
                    Some(&theirs),
                )
                .map_err(failed)
            });
            drop(theirs);
            let mut head = [0; REPLY_HEAD_BYTES];
            match sent {
                Ok(()) => {
                    if !wait_until(&socket, Instant::now() + MAX_FORK) {
                        return Err(busy("the machine is too busy to begin a worker process"));
                    }
                    if receive_all(&socket, &mut head).is_ok() && head[0] == READY {
                        return Ok(Worker {
                            number,
                            pid: size_of_reply(&head) as libc::pid_t,
                            socket,
                            done: 0,
                        });
                    }
                }
                Err(Failure::Busy(why)) => last = Failure::Busy(why),
                Err(failure) => return Err(failure),
            }
            let mut helper = locked(&self.helper);
            if !helper.as_mut().is_some_and(Helper::has_ended) {
                break; // the helper runs but cannot fork
            }
            *helper = None;
        }
        Err(last)
    }

    fn with_helper<T>(
        &self,
        with: impl FnOnce(&Helper) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut helper = locked(&self.helper);
        if helper.is_none() {
            *helper = Some(self.start_helper()?);
        }
        match helper.as_ref() {
            Some(helper) => with(helper),
            None => Err(busy("no helper process")),
        }
    }

    fn start_helper(&self) -> Result<Helper, Failure> {
        let failed = |e: io::Error| busy(&format!("no helper process: {e}"));
        let (socket, theirs) = socket_pair().map_err(failed)?;
        let helper = Helper {
            pid: spawn(&theirs).map_err(failed)?,
            socket,
        };
        drop(theirs);
        let gone = |_| busy("the helper process is gone");
        send_all(&helper.socket, &[self.kind as u8]).map_err(gone)?;
        let head = work_head(self.setup.len(), self.setup_limits, Pace::Same);
        send_all(&helper.socket, &head).map_err(gone)?;
        send_all(&helper.socket, &self.setup).map_err(gone)?;
        if !wait_until(&helper.socket, Instant::now() + MAX_START) {
            return Err(busy("the helper process did not begin in time"));
        }
        let mut head = [0; REPLY_HEAD_BYTES];
        receive_all(&helper.socket, &mut head).map_err(gone)?;
        match head[0] {
            DONE => Ok(helper),
            REFUSED => {
                let text = read_text(&helper.socket, &head).map_err(gone)?;
                Err(Failure::Refused(String::from_utf8_lossy(&text).into()))
            }
            tag => Err(limit_failure(tag, self.setup_limits)),
        }
    }
}

fn limit_failure(tag: u8, limits: Limits) -> Failure {
    let Limits {
        cpu_ms, memory_mb, ..
    } = limits;
    Failure::TooMuch(match tag {
        OUT_OF_TIME => format!("takes more than {cpu_ms} ms of processor time"),
        OUT_OF_MEMORY => format!("takes more than {memory_mb} MiB of memory"),
        OUT_OF_STACK => "nests too deeply: takes more than 64 MiB of stack".into(),
        _ => return busy("a worker process failed"),
    })
}

fn size_of_reply(head: &[u8; REPLY_HEAD_BYTES]) -> u64 {
    u64::from_le_bytes(head[1..].try_into().unwrap_or_default())
}

fn read_text(socket: &OwnedFd, head: &[u8; REPLY_HEAD_BYTES]) -> io::Result<Vec<u8>> {
    let mut text = vec![0; size_of_reply(head) as usize];
    receive_all(socket, &mut text)?;
    Ok(text)
}

/// Waits for data or a close. false: neither before the deadline.
fn wait_until(socket: &OwnedFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if wait_readable(socket, left.as_millis() as i32) {
            return true;
        }
        if left.is_zero() {
            return false;
        }
    }
}

/// One of a host's slots, released by drop.
struct Slot<'a> {
    host: &'a WorkerHost,
    slow: bool,
}

impl<'a> Slot<'a> {
    fn take(host: &'a WorkerHost) -> Result<Self, Failure> {
        let full = |state: &mut State| state.taken >= host.slots.all;
        let state = locked(&host.state);
        let waited = host
            .freed
            .wait_timeout_while(state, host.slots.max_wait, full);
        let (mut state, _) = waited.unwrap_or_else(|e| e.into_inner());
        if full(&mut state) {
            return Err(busy("all worker processes are taken"));
        }
        state.taken += 1;
        Ok(Slot { host, slow: false })
    }

    fn become_slow(&mut self) -> Result<(), Failure> {
        if self.slow {
            return Ok(());
        }
        let mut state = locked(&self.host.state);
        if state.slow >= self.host.slots.slow {
            return Err(busy("all worker processes for slow work are taken"));
        }
        state.slow += 1;
        state.taken -= 1;
        self.slow = true;
        self.host.freed.notify_one();
        Ok(())
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.host.state);
        if self.slow {
            state.slow -= 1;
        } else {
            state.taken -= 1;
        }
        self.host.freed.notify_one();
    }
}

/// The program of helpers, if it is not this one.
static PROGRAM: OnceLock<CString> = OnceLock::new();

/// Helpers started from now on are this program: for a process that is not a warprow binary, such as an interpreter.
/// The first call decides; false if an earlier one named another program.
pub fn set_program(path: CString) -> bool {
    *PROGRAM.get_or_init(|| path.clone()) == path
}

/// Starts this binary again, or the one of set_program, with the socket and no other descriptor of ours, in its own
/// process group.
fn spawn(socket: &OwnedFd) -> io::Result<libc::pid_t> {
    let kept = [
        "TZ",
        "LD_LIBRARY_PATH",
        "ASAN_OPTIONS",
        "TSAN_OPTIONS",
        "UBSAN_OPTIONS",
    ];
    let environment: Vec<_> = kept
        .iter()
        .filter_map(|name| {
            std::env::var(name)
                .ok()
                .map(|value| format!("{name}={value}"))
        })
        .filter_map(|text| std::ffi::CString::new(text).ok())
        .collect();
    let mut environment: Vec<_> = environment.iter().map(|e| e.as_ptr().cast_mut()).collect();
    environment.push(std::ptr::null_mut());
    let argument = std::ffi::CString::new(HELPER_ARGUMENT)?;
    let program = PROGRAM.get().map_or(c"/proc/self/exe", |path| path);
    let arguments = [
        c"warprow".as_ptr().cast_mut(),
        argument.as_ptr().cast_mut(),
        std::ptr::null_mut(),
    ];
    let mut pid = 0;
    // SAFETY: all objects are initialised by their functions and outlive the call.
    let failed = unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&mut actions);
        libc::posix_spawnattr_init(&mut attributes);
        // Duplicate the socket first: its number may be one of those opened below.
        libc::posix_spawn_file_actions_adddup2(&mut actions, socket.as_raw_fd(), HELPER_SOCKET);
        for (fd, flags) in [
            (0, libc::O_RDONLY),
            (1, libc::O_WRONLY),
            (2, libc::O_WRONLY),
        ] {
            let null = c"/dev/null".as_ptr();
            libc::posix_spawn_file_actions_addopen(&mut actions, fd, null, flags, 0);
        }
        libc::posix_spawn_file_actions_addclosefrom_np(&mut actions, HELPER_SOCKET + 1);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::posix_spawnattr_setsigmask(&mut attributes, &none);
        libc::posix_spawnattr_setpgroup(&mut attributes, 0);
        let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETPGROUP;
        libc::posix_spawnattr_setflags(&mut attributes, flags as _);
        let failed = libc::posix_spawn(
            &mut pid,
            program.as_ptr(),
            &actions,
            &attributes,
            arguments.as_ptr(),
            environment.as_ptr(),
        );
        libc::posix_spawnattr_destroy(&mut attributes);
        libc::posix_spawn_file_actions_destroy(&mut actions);
        failed
    };
    if failed == 0 {
        Ok(pid)
    } else {
        Err(io::Error::from_raw_os_error(failed))
    }
}
