// SPDX-License-Identifier: Apache-2.0
//! Watches how a worker process gets on: whether it uses CPU time, waits for a core, or sleeps.

use std::time::{Duration, Instant};

/// Work in a worker never sleeps, so one that has slept for this long hangs.
const MAX_SLEEP: Duration = Duration::from_secs(2);
/// The interval between two looks.
const INTERVAL: Duration = Duration::from_millis(500);
/// Looks in a row at a worker without a core, after which it starves.
const STARVED_LOOKS: u32 = 2;
/// A worker that uses less than a 20th of an interval has no core.
const MIN_SHARE: u32 = 20;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Progress {
    Works,
    /// It could run but gets next to no CPU time.
    Starves,
    /// It waits for something that never comes.
    Hangs,
}

pub struct WorkerWatch {
    pid: libc::pid_t,
    looked: Instant,
    cpu: Duration,
    slept: Duration,
    starved_looks: u32,
}

impl WorkerWatch {
    pub fn new(pid: libc::pid_t) -> Self {
        WorkerWatch {
            pid,
            looked: Instant::now(),
            cpu: cpu_time(pid),
            slept: Duration::ZERO,
            starved_looks: 0,
        }
    }

    /// When to look next.
    pub fn next_look(&self) -> Instant {
        self.looked + INTERVAL
    }

    pub fn look(&mut self) -> Progress {
        let (now, cpu) = (Instant::now(), cpu_time(self.pid));
        let (passed, used) = (now - self.looked, cpu.saturating_sub(self.cpu));
        (self.looked, self.cpu) = (now, cpu);
        if used * MIN_SHARE >= passed {
            self.starved_looks = 0;
            return Progress::Works;
        }
        if is_runnable(self.pid) {
            self.starved_looks += 1;
        } else {
            // A machine that was suspended, or this thread without a core, is no sleep of the worker.
            self.slept += passed.min(INTERVAL);
        }
        if self.slept >= MAX_SLEEP {
            Progress::Hangs
        } else if self.starved_looks >= STARVED_LOOKS {
            Progress::Starves
        } else {
            Progress::Works
        }
    }
}

/// CPU time of all threads of a process. Zero if it has ended.
fn cpu_time(pid: libc::pid_t) -> Duration {
    // SAFETY: both calls only write to their last argument.
    unsafe {
        let (mut clock, mut time) = (0, std::mem::zeroed::<libc::timespec>());
        if libc::clock_getcpuclockid(pid, &mut clock) != 0
            || libc::clock_gettime(clock, &mut time) != 0
        {
            return Duration::ZERO;
        }
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

/// Whether a thread of a process runs, waits for a core or waits for a disk.
fn is_runnable(pid: libc::pid_t) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses and may have any letters.
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes());
        state.is_some_and(|rest| matches!(rest.first(), Some(b'R' | b'D')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).spawn().unwrap()
    }

    fn watch(child: &mut Child, looks: u32) -> Vec<Progress> {
        let mut watch = WorkerWatch::new(child.id() as libc::pid_t);
        let seen = (0..looks).map(|_| {
            std::thread::sleep(watch.next_look() - Instant::now());
            watch.look()
        });
        let seen = seen.collect();
        child.kill().unwrap();
        child.wait().unwrap();
        seen
    }

    #[test]
    fn a_sleeper_hangs_after_two_seconds() {
        let seen = watch(&mut shell("sleep 60"), 8);
        assert!(!seen[..3].contains(&Progress::Hangs), "{seen:?}");
        assert_eq!(seen[7], Progress::Hangs, "{seen:?}");
    }

    #[test]
    fn one_that_runs_never_hangs() {
        let seen = watch(&mut shell("while :; do :; done"), 6);
        assert!(!seen.contains(&Progress::Hangs), "{seen:?}");
    }

    #[test]
    fn one_without_a_core_starves() {
        let mut child = shell("while :; do :; done");
        // SAFETY: sets masks of processes; the child shares one core with the others, which have a far higher weight.
        let core = |pid: libc::pid_t| unsafe {
            let mut cores: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut cores);
            libc::sched_setaffinity(pid, std::mem::size_of_val(&cores), &cores)
        };
        let pid = child.id() as libc::pid_t;
        // SAFETY: plain data, and a process of ours.
        unsafe {
            let priority: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(pid, libc::SCHED_IDLE, &priority);
        }
        let mut others: Vec<_> = (0..2).map(|_| shell("while :; do :; done")).collect();
        if core(pid) != 0 {
            return; // core 0 is not ours
        }
        for other in &others {
            core(other.id() as libc::pid_t);
        }
        let seen = watch(&mut child, 6);
        for other in &mut others {
            other.kill().unwrap();
            other.wait().unwrap();
        }
        assert!(seen.contains(&Progress::Starves), "{seen:?}");
        assert!(!seen.contains(&Progress::Hangs), "{seen:?}");
    }
}
