// SPDX-License-Identifier: Apache-2.0
//! A repository in the Hub's cache: `models--org--name/{blobs, snapshots/<commit>}`. A blob's name is its hash. A part
//! is a blob that is not complete.

use crate::hash::Hash;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Interval of attempts to take a lock that another process holds.
const LOCK_POLL: Duration = Duration::from_millis(200);

pub fn len_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.len())
}

pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub struct Store {
    folder: PathBuf,
}

/// A lock across processes, held by one download at a time. Released by drop or at the end of the process.
pub struct Lock {
    _file: File,
}

impl Store {
    pub fn new(cache_dir: &str, repo: &str) -> Self {
        let folder = format!("models--{}", repo.replace('/', "--"));
        Store {
            folder: Path::new(cache_dir).join(folder),
        }
    }

    pub fn blob(&self, hash: &Hash) -> PathBuf {
        self.folder.join("blobs").join(hash.hex())
    }

    pub fn part(&self, hash: &Hash) -> PathBuf {
        self.blob(hash).with_extension("part")
    }

    /// Waits for other processes that download the same file. Calls `waiting` during the wait.
    pub fn lock(&self, hash: &Hash, waiting: &mut dyn FnMut()) -> io::Result<Lock> {
        fs::create_dir_all(self.folder.join("blobs"))?;
        let file = File::create(self.blob(hash).with_extension("lock"))?;
        // SAFETY: the descriptor is open.
        while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            waiting();
            thread::sleep(LOCK_POLL);
        }
        Ok(Lock { _file: file })
    }

    /// The path under which users of the cache find a file of a commit.
    pub fn pointer(&self, commit: &str, file: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit).join(file)
    }

    /// Links a blob as that file for users of the cache. The link is set atomically: another process may be reading.
    pub fn show(&self, commit: &str, file: &str, hash: &Hash) -> io::Result<()> {
        let pointer = self.pointer(commit, file);
        if let Some(folder) = pointer.parent() {
            fs::create_dir_all(folder)?;
        }
        let link = self.blob(hash).with_extension("link");
        remove_if_there(&link)?;
        let up = "../".repeat(2 + file.matches('/').count());
        std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(hash.hex()), &link)?;
        fs::rename(link, pointer)
    }
}
