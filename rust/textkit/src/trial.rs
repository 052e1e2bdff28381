// SPDX-License-Identifier: Apache-2.0
//! For fuzzing: templates that are parsed and rendered once, many by one helper. A process for each, as
//! template.rs has it, takes most of the time of a trial.

use crate::template::{TemplateLimits, TemplateWork};
use crate::worker_host::{Failure, Slots, WorkerHost};
use crate::worker_main::Work;
use crate::worker_wire::{Limits, WorkKind};
use std::sync::OnceLock;
use std::time::Duration;

static HOST: OnceLock<WorkerHost> = OnceLock::new();

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

pub fn try_template(
    source: &str,
    context: &[u8],
    limits: TemplateLimits,
) -> Result<Vec<u8>, Failure> {
    let host = HOST.get_or_init(|| {
        let slots = Slots {
            all: 1,
            max_wait: Duration::ZERO,
            slow: 0,
            keep_workers: true,
        };
        let setup_limits = Limits {
            cpu_ms: 1000,
            slow_ms: 0,
            memory_mb: 64,
        };
        WorkerHost::new(WorkKind::Trial, Vec::new(), setup_limits, slots)
    });
    let setup = limits.setup(source);
    let size = (setup.len() as u32).to_le_bytes();
    let work = [&size, &setup[..], context].concat();
    host.run(&work, limits.of(source.len() + context.len()))
}
