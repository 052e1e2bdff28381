// SPDX-License-Identifier: Apache-2.0
//! The C ABI of downloads from the Hugging Face Hub; textkit.h documents each function. The crate warprow-hub does the
//! work. It is linked here because a program can have only one Rust library.

use crate::abi::{guarded, Owned, Text};
use std::ffi::c_void;
use std::time::Duration;
use warprow_hub::Repo;

#[repr(C)]
pub struct HubRepo {
    name: Text,
    revision: Text,
    cache_dir: Text,
    endpoint: Text,
    token: Text,
    timeout_s: f64,
}

#[repr(C)]
pub struct HubFile {
    name: Text,
    size: u64,
    sha256: Text,
}

impl HubRepo {
    unsafe fn read(&self) -> Result<Repo<'_>, String> {
        Ok(Repo {
            name: self.name.utf8("the model's name")?,
            revision: self.revision.utf8("the revision")?,
            cache_dir: self.cache_dir.utf8("the cache's path")?,
            endpoint: self.endpoint.utf8("the endpoint")?,
            token: self.token.utf8("the token")?,
            stall: Duration::try_from_secs_f64(self.timeout_s)
                .map_err(|error| format!("the time-out: {error}"))?,
        })
    }
}

impl HubFile {
    unsafe fn read(&self) -> Result<warprow_hub::HubFile<'_>, String> {
        Ok(warprow_hub::HubFile {
            name: self.name.utf8("the file's name")?,
            size: self.size,
            sha256: self.sha256.utf8("the file's SHA-256")?,
        })
    }
}

#[no_mangle]
pub unsafe extern "C" fn wr_hub_list(
    repo: *const HubRepo,
    json: *mut Owned,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        let text = warprow_hub::list(&(*repo).read()?)?;
        *json = Owned::from_bytes(text.into_bytes());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn wr_hub_fetch(
    repo: *const HubRepo,
    commit: Text,
    file: *const HubFile,
    progress: extern "C" fn(*mut c_void, u64, u64),
    context: *mut c_void,
    error: *mut Owned,
) -> i32 {
    guarded(error, || {
        let commit = commit.utf8("the commit")?;
        let mut tell = |done, total| progress(context, done, total);
        warprow_hub::fetch(&(*repo).read()?, commit, &(*file).read()?, &mut tell)
    })
}
