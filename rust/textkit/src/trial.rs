// SPDX-License-Identifier: Apache-2.0
//! Templates that are parsed and rendered once: those that requests bring, and for fuzzing. All are handled by one
//! helper; a helper for each, as template.rs has it, would take most of the time.

use crate::template::{TemplateLimits, TemplateWork};
use crate::worker_host::{Failure, Slots, WorkerHost};
use crate::worker_main::Work;
use crate::worker_wire::{Limits, WorkKind};
use std::sync::OnceLock;
use std::time::Duration;

static TRIALS: OnceLock<WorkerHost> = OnceLock::new();
static REQUESTS: OnceLock<WorkerHost> = OnceLock::new();

/// What a worker process does: a piece of work is a template's setup behind its size, and the context.
pub struct TrialWork;

impl Work for TrialWork {
    fn answer(&self, work: &[u8]) -> Result<Vec<u8>, String> {
        let parts = work
            .split_first_chunk()
            .and_then(|(size, rest)| rest.split_at_checked(u32::from_le_bytes(*size) as usize));
        let (setup, context) = parts.ok_or("no template")?;
        TemplateWork::new(setup)?.answer(context)
    }
}

fn run(
    host: &WorkerHost,
    source: &str,
    context: &[u8],
    limits: TemplateLimits,
) -> Result<Vec<u8>, Failure> {
    let setup = limits.setup(source);
    let size = (setup.len() as u32).to_le_bytes();
    let work = [&size, &setup[..], context].concat();
    host.run(&work, limits.of(source.len() + context.len()))
}

fn new_host(slots: Slots) -> WorkerHost {
    let setup_limits = Limits {
        cpu_ms: 1000,
        slow_ms: 0,
        memory_mb: 64,
    };
    WorkerHost::new(WorkKind::Trial, Vec::new(), setup_limits, slots)
}

/// A worker process tries one template after the other.
pub fn try_template(
    source: &str,
    context: &[u8],
    limits: TemplateLimits,
) -> Result<Vec<u8>, Failure> {
    let host = TRIALS.get_or_init(|| {
        new_host(Slots {
            all: 1,
            max_wait: Duration::ZERO,
            slow: 0,
            keep_workers: true,
        })
    });
    run(host, source, context, limits)
}

/// Each template gets a worker process of its own, which ends with it.
pub fn render_once(
    source: &str,
    context: &[u8],
    limits: TemplateLimits,
) -> Result<Vec<u8>, Failure> {
    let host = REQUESTS.get_or_init(|| {
        new_host(Slots {
            all: 4,
            max_wait: Duration::from_secs(5),
            slow: 0,
            keep_workers: false,
        })
    });
    run(host, source, context, limits)
}
