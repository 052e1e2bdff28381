// SPDX-License-Identifier: Apache-2.0
//! The helper process: this binary, run again with one thread, no descriptors of its parent and no device.
//!
//! It reads the setup of its kind (a vocabulary, a template) once, and then forks a worker for each socket that its
//! parent sends. A worker handles work items until its socket closes. Each item has limits on CPU time, memory and
//! stack, which end only the worker. The worker reports the limit that ended it.

use crate::abi::panic_text;
use crate::grammar::GrammarWork;
use crate::template::TemplateWork;
use crate::trial::TrialWork;
use crate::worker_wire::*;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicU8, Ordering};

/// The parsers recurse with the depth of their input.
pub const STACK_BYTES: usize = 64 << 20;
/// Work of clients runs below the engine's priority: a little for as much CPU time as usual work takes, far below after
/// that, or with Pace::Idle only when a core is idle.
const WORKER_NICE: libc::c_int = 2;
const USUAL_MS: u64 = 20;
const LONG_NICE: libc::c_int = 5;
const SLOW_NICE: libc::c_int = 10;
const SIGNAL_STACK_BYTES: usize = 64 << 10;
/// The signal stack of the work thread. A process has one such thread at a time.
static SIGNAL_STACK: SignalStack = SignalStack(UnsafeCell::new([0; SIGNAL_STACK_BYTES]));
/// AddressSanitizer accepts a signal stack only if its address is a multiple of 8.
#[repr(align(16))]
struct SignalStack(UnsafeCell<[u8; SIGNAL_STACK_BYTES]>);
// SAFETY: only the kernel accesses it.
unsafe impl Sync for SignalStack {}

/// With more address space than this, a sanitizer's shadow memory is present and no memory limit is set: the shadow
/// exceeds any limit.
const MAX_USUAL_ADDRESSES: u64 = 1 << 42;

/// The work that the workers of one kind do.
pub trait Work: Sync {
    fn answer(&self, work: &[u8]) -> Result<Vec<u8>, String>;
}

fn prepare(kind: WorkKind, setup: &[u8]) -> Result<Box<dyn Work + Send>, String> {
    Ok(match kind {
        WorkKind::Grammar => Box::new(GrammarWork::new(setup)?),
        WorkKind::Template => Box::new(TemplateWork::new(setup)?),
        WorkKind::Trial => Box::new(TrialWork),
    })
}

/// Never returns. Called before main, so no code of the program has run.
#[no_mangle]
pub extern "C" fn wr_helper_main() -> ! {
    // SAFETY: the parent opened this descriptor for us; the calls change only this process.
    let parent = unsafe {
        libc::prctl(libc::PR_SET_NAME, c"wr-helper".as_ptr());
        // The parent ends this process by closing the socket. Ignore signals to the parent's process group: the parent
        // handles them.
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
        // Use one heap for all threads: each further heap would take 64 MiB of address space.
        libc::mallopt(libc::M_ARENA_MAX, 1);
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        OwnedFd::from_raw_fd(HELPER_SOCKET)
    };
    let code = if serve_parent(parent).is_some() { 0 } else { 1 };
    // SAFETY: no destructor of the program needs to run.
    unsafe { libc::_exit(code) }
}

fn serve_parent(parent: OwnedFd) -> Option<()> {
    let mut kind = [0];
    receive_all(&parent, &mut kind).ok()?;
    let kind = WorkKind::from_raw(kind[0])?;
    let (setup, limits, pace) = receive_work(&parent)?;
    let made = bounded(&parent, limits, pace, || prepare(kind, &setup));
    drop(setup);
    let work = match made {
        Ok(Ok(work)) => work,
        Ok(Err(message)) | Err(message) => {
            reply(&parent, REFUSED, message.as_bytes())?;
            return Some(());
        }
    };
    reply(&parent, DONE, &[])?;
    let mut workers = HashMap::new();
    loop {
        reap(&mut workers);
        // While workers are running, the helper checks for ended ones every 200 ms.
        let max_wait = if workers.is_empty() { -1 } else { 200 };
        if !wait_readable(&parent, max_wait) {
            continue;
        }
        let (bytes, socket) = receive_command(&parent).ok()?;
        let number = u64::from_le_bytes(bytes[1..].try_into().ok()?);
        match (bytes[0], socket) {
            (BEGIN_WORKER, Some(socket)) => {
                // SAFETY: this process has one thread.
                let (helper, pid) = unsafe { (libc::getpid(), libc::fork()) };
                match pid {
                    0 => {
                        drop(parent);
                        serve_work(&socket, work.as_ref(), helper);
                        // SAFETY: as in wr_helper_main.
                        unsafe { libc::_exit(0) }
                    }
                    pid if pid > 0 => {
                        workers.insert(number, pid);
                    }
                    _ => {} // fork failed: the socket closes without a reply
                }
            }
            (KILL_WORKER, None) => {
                if let Some(pid) = workers.get(&number) {
                    // SAFETY: a child that is not reaped yet keeps its pid.
                    unsafe { libc::kill(*pid, libc::SIGKILL) };
                }
            }
            _ => return None,
        }
    }
}

fn reap(workers: &mut HashMap<u64, libc::pid_t>) {
    // SAFETY: no status is requested.
    workers
        .retain(|_, pid| unsafe { libc::waitpid(*pid, std::ptr::null_mut(), libc::WNOHANG) == 0 });
}

fn serve_work(socket: &OwnedFd, work: &dyn Work, helper: libc::pid_t) {
    // SAFETY: only this process is changed. The helper may have ended before the first call.
    let orphaned = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid() != helper
    };
    if orphaned {
        return;
    }
    // SAFETY: changes this process only. If it fails, the work runs at the usual priority.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, WORKER_NICE) };
    if send_all(socket, &reply_head(READY, std::process::id() as usize)).is_err() {
        return;
    }
    while let Some((text, limits, pace)) = receive_work(socket) {
        let (tag, answer) = match bounded(socket, limits, pace, || work.answer(&text)) {
            Ok(Ok(answer)) => (DONE, answer),
            Ok(Err(message)) => (REFUSED, message.into_bytes()),
            Err(panic) => (PANICKED, panic.into_bytes()),
        };
        if reply(socket, tag, &answer).is_none() {
            return;
        }
    }
}

fn receive_work(socket: &OwnedFd) -> Option<(Vec<u8>, Limits, Pace)> {
    let mut head = [0; WORK_HEAD_BYTES];
    receive_all(socket, &mut head).ok()?;
    let (size, limits, pace) = read_work_head(&head);
    let mut text = vec![0; size];
    receive_all(socket, &mut text).ok()?;
    Some((text, limits, pace))
}

fn reply(socket: &OwnedFd, tag: u8, text: &[u8]) -> Option<()> {
    send_all(socket, &reply_head(tag, text.len())).ok()?;
    send_all(socket, text).ok()
}

/// Runs `body` on a thread with a large stack. A panic is the error. If `body` exceeds a limit, this process reports that
/// and exits.
fn bounded<T: Send>(
    socket: &OwnedFd,
    limits: Limits,
    pace: Pace,
    body: impl FnOnce() -> T + Send,
) -> Result<T, String> {
    catch_limits(socket);
    limit_memory(Some(limits.memory_mb));
    let says_slow = (1..limits.cpu_ms).contains(&limits.slow_ms);
    let quick_ms = if says_slow {
        limits.slow_ms
    } else {
        limits.cpu_ms
    };
    SLOW_TIME_MS.store(limits.cpu_ms - quick_ms, Ordering::Relaxed);
    MAY_IDLE.store(pace == Pace::Idle, Ordering::Relaxed);
    let run = || {
        // SAFETY: returns the id of this thread.
        WORK_THREAD.store(unsafe { libc::gettid() }, Ordering::Relaxed);
        let _stack = SignalStackInUse::take();
        let (stage, first_ms) = if pace != Pace::Same && quick_ms > USUAL_MS {
            (USUAL_STAGE, USUAL_MS)
        } else {
            (LONG_STAGE, quick_ms)
        };
        STAGE.store(stage, Ordering::Relaxed);
        limit_time(first_ms, quick_ms - first_ms);
        let body = std::panic::AssertUnwindSafe(body);
        std::panic::catch_unwind(body).map_err(|panic| panic_text(panic.as_ref()))
    };
    let result = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, run) {
            Ok(running) => running
                .join()
                .unwrap_or_else(|panic| Err(panic_text(panic.as_ref()))),
            Err(e) => Err(format!("no thread to run on: {e}")),
        }
    });
    limit_time(0, 0);
    limit_memory(None);
    result
}

/// The socket to which the signal handler writes the exceeded limit.
static REPLY_SOCKET: AtomicI32 = AtomicI32::new(-1);
/// The thread of the current work item.
static WORK_THREAD: AtomicI32 = AtomicI32::new(0);
/// What the next timer signal means: the end of the usual time (USUAL), of the time that is not slow (LONG), or of all.
static STAGE: AtomicU8 = AtomicU8::new(SLOW_STAGE);
const USUAL_STAGE: u8 = 0;
const LONG_STAGE: u8 = 1;
const SLOW_STAGE: u8 = 2;
/// CPU time of slow work. 0: no work counts as slow, and the time ends with LONG_STAGE.
static SLOW_TIME_MS: AtomicU64 = AtomicU64::new(0);
/// Whether the current work item's pace is Pace::Idle.
static MAY_IDLE: AtomicBool = AtomicBool::new(false);

extern "C" fn report_limit(signal: libc::c_int) {
    let slow_time = SLOW_TIME_MS.load(Ordering::Relaxed);
    let stage = STAGE.load(Ordering::Relaxed);
    if signal == libc::SIGPROF && stage == USUAL_STAGE {
        STAGE.store(LONG_STAGE, Ordering::Relaxed);
        lower_priority(LONG_NICE);
        return;
    }
    let tag = match signal {
        libc::SIGPROF if stage == LONG_STAGE && slow_time > 0 => SLOW,
        libc::SIGPROF => OUT_OF_TIME,
        libc::SIGABRT => OUT_OF_MEMORY,
        _ => OUT_OF_STACK,
    };
    let head = reply_head(tag, 0);
    // SAFETY: all calls are async-signal-safe.
    unsafe {
        let errno = *libc::__errno_location();
        libc::send(
            REPLY_SOCKET.load(Ordering::Relaxed),
            head.as_ptr().cast(),
            head.len(),
            libc::MSG_NOSIGNAL,
        );
        if tag != SLOW {
            libc::_exit(1);
        }
        STAGE.store(SLOW_STAGE, Ordering::Relaxed);
        lower_priority(SLOW_NICE);
        limit_time(slow_time, 0);
        *libc::__errno_location() = errno;
    }
}

/// Of the work thread. Async-signal-safe; keeps errno.
fn lower_priority(nice: libc::c_int) {
    let thread = WORK_THREAD.load(Ordering::Relaxed);
    // SAFETY: changes this thread's priority only. If it fails, the work keeps its priority.
    unsafe {
        let errno = *libc::__errno_location();
        libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, nice);
        if MAY_IDLE.load(Ordering::Relaxed) {
            let priority: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(thread, libc::SCHED_IDLE, &priority);
        }
        *libc::__errno_location() = errno;
    }
}

fn catch_limits(socket: &OwnedFd) {
    use std::os::fd::AsRawFd;
    REPLY_SOCKET.store(socket.as_raw_fd(), Ordering::Relaxed);
    // SAFETY: the handler is our function, and runs on the signal stack of the work thread.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = report_limit as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        for signal in [libc::SIGPROF, libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Sets the signal stack: after a stack overflow the usual stack has no room for a handler. Drop restores the thread's
/// previous signal stack, because the code that set it (a sanitizer, for instance) frees the current one later.
struct SignalStackInUse {
    before: libc::stack_t,
}

impl SignalStackInUse {
    fn take() -> Self {
        let stack = libc::stack_t {
            ss_sp: SIGNAL_STACK.0.get().cast(),
            ss_flags: 0,
            ss_size: SIGNAL_STACK_BYTES,
        };
        // SAFETY: the memory is static.
        unsafe {
            let mut before: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(&stack, &mut before);
            SignalStackInUse { before }
        }
    }
}

impl Drop for SignalStackInUse {
    fn drop(&mut self) {
        // SAFETY: the thread's previous signal stack.
        unsafe { libc::sigaltstack(&self.before, std::ptr::null_mut()) };
    }
}

/// Requests a signal after cpu_ms of user and system time of all threads, and then one after every `then` ms more. 0:
/// no signal.
fn limit_time(cpu_ms: u64, then: u64) {
    let time = |ms: u64| libc::timeval {
        tv_sec: (ms / 1000) as _,
        tv_usec: (ms % 1000 * 1000) as _,
    };
    let value = libc::itimerval {
        it_interval: time(then),
        it_value: time(cpu_ms),
    };
    // SAFETY: `value` outlives the call.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &value, std::ptr::null_mut()) };
}

/// Limits the address space to more_mb more than the current use. None: no limit.
fn limit_memory(more_mb: Option<u64>) {
    let taken = addresses_taken();
    // SAFETY: plain data.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_AS, &mut limit) != 0 {
            return;
        }
        limit.rlim_cur = match (more_mb, taken) {
            (Some(mb), Some(taken)) if taken < MAX_USUAL_ADDRESSES => {
                limit.rlim_max.min(taken + STACK_BYTES as u64 + (mb << 20))
            }
            _ => limit.rlim_max,
        };
        libc::setrlimit(libc::RLIMIT_AS, &limit);
    }
}

fn addresses_taken() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').next()?.parse().ok()?;
    // SAFETY: the argument is a constant.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Some(pages * page.max(1) as u64)
}
