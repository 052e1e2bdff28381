// SPDX-License-Identifier: Apache-2.0
//! Cancels grammar steps that take too much CPU time. One thread checks all running steps every 50 ms, and sleeps while
//! there are none.

use llguidance::CancellationHandle;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

const GLANCE: Duration = Duration::from_millis(50);

struct Step {
    number: u64,
    clock: libc::clockid_t, // CPU clock of the thread that runs the step
    until: Duration,        // on that clock
    handle: CancellationHandle,
}

#[derive(Default)]
struct Steps {
    under_way: Vec<Step>,
    next: u64,
}

#[derive(Default)]
struct Watch {
    steps: Mutex<Steps>,
    begun: Condvar,
}

static WATCH: OnceLock<&'static Watch> = OnceLock::new();

impl Watch {
    fn locked(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn run(&self) {
        loop {
            let none = |steps: &mut Steps| steps.under_way.is_empty();
            let begun = self.begun.wait_while(self.locked(), none);
            drop(begun);
            // Do not wait on the condition here: each step would wake this thread.
            std::thread::sleep(GLANCE);
            for step in &self.locked().under_way {
                if cpu_time(step.clock) > step.until {
                    step.handle.cancel();
                }
            }
        }
    }
}

/// Zero for a clock that cannot be read.
fn cpu_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is ours.
    unsafe { libc::clock_gettime(clock, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

extern "C" {
    fn pthread_getcpuclockid(thread: libc::pthread_t, clock: *mut libc::clockid_t) -> libc::c_int;
}

struct UnderWay(&'static Watch, u64);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let steps = &mut self.0.locked().under_way;
        if let Some(at) = steps.iter().position(|step| step.number == self.1) {
            steps.swap_remove(at);
        }
    }
}

/// Runs `step` on this thread and cancels `handle` after `limit` of CPU time.
pub fn watched<T>(limit: Duration, handle: CancellationHandle, step: impl FnOnce() -> T) -> T {
    let watch = *WATCH.get_or_init(|| {
        let watch: &'static Watch = Box::leak(Box::default());
        let thread = std::thread::Builder::new().name("wr-step-watch".into());
        // If the thread cannot start, only the library's own limits apply to steps.
        let _ = thread.spawn(|| watch.run());
        watch
    });
    let mut clock = libc::CLOCK_MONOTONIC;
    // SAFETY: this thread is running, and outlives the entry with its clock.
    unsafe { pthread_getcpuclockid(libc::pthread_self(), &mut clock) };
    let until = cpu_time(clock) + limit;
    let under_way = {
        let mut steps = watch.locked();
        steps.next += 1;
        let number = steps.next;
        steps.under_way.push(Step {
            number,
            clock,
            until,
            handle,
        });
        if steps.under_way.len() == 1 {
            watch.begun.notify_one();
        }
        UnderWay(watch, number)
    };
    let result = step();
    drop(under_way);
    result
}
