// SPDX-License-Identifier: Apache-2.0
//! Downloads a model's files from the Hugging Face Hub into the Hub's own cache layout.

mod client;
mod download;
mod failure;
mod hash;
mod store;

use client::{Client, Follow};
use download::Download;
use failure::Failure;
use serde_json::{json, Value};
use std::thread;
use std::time::Duration;
use store::Store;
use ureq::http::Method;

/// Limit of consecutive failed attempts without PROGRESS more bytes than before.
const ATTEMPTS: u32 = 5;
const PROGRESS: u64 = 16 << 20;

pub struct Repo<'a> {
    pub name: &'a str,
    pub revision: &'a str,
    pub cache_dir: &'a str,
    pub endpoint: &'a str,
    /// Empty: none.
    pub token: &'a str,
    /// Time-out of a host that sends nothing.
    pub stall: Duration,
}

pub struct HubFile<'a> {
    pub name: &'a str,
    pub size: u64,
    /// Empty: use the hash that the Hub announces.
    pub sha256: &'a str,
}

impl Repo<'_> {
    fn client(&self) -> Result<Client, Failure> {
        Client::new(self.endpoint, self.token, self.stall)
    }

    fn refused(&self, status: u16) -> Failure {
        match status {
            401 | 403 => Failure::Final(
                "no such model, or it is private or gated (HF_TOKEN, or a token file, gives access)"
                    .to_string(),
            ),
            404 => Failure::Final("no such model, revision or file".to_string()),
            408 | 429 | 500.. => Failure::Passing(format!("the server answers with status {status}")),
            _ => Failure::Final(format!("the server answers with status {status}")),
        }
    }

    fn explain(&self, failure: Failure) -> String {
        let (Failure::Final(reason) | Failure::Passing(reason) | Failure::WrongContent(reason)) =
            failure;
        format!(
            "{}@{} at {}: {reason}",
            self.name, self.revision, self.endpoint
        )
    }
}

/// Whether a name from a server is safe as a part of a path.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// The same for a file's name. It may have one folder, as the parts of large GGUF files do.
fn is_plain_path(name: &str) -> bool {
    name.split('/').count() <= 2 && name.split('/').all(is_plain)
}

/// `{"commit": "...", "files": [{"name": "...", "size": 0}, ...]}`: the revision's current commit and files. Omits
/// files in nested folders, with unsafe names or without a size.
pub fn list(repo: &Repo) -> Result<String, String> {
    listing(repo).map_err(|failure| repo.explain(failure))
}

fn listing(repo: &Repo) -> Result<String, Failure> {
    let client = repo.client()?;
    let revision = repo.revision.replace('/', "%2F");
    let path = format!("/api/models/{}/revision/{revision}?blobs=true", repo.name);
    let mut answer = client.send(Method::GET, &path, 0, Follow::All)?;
    if answer.status != 200 {
        return Err(repo.refused(answer.status));
    }
    let text = answer
        .body
        .read_to_string()
        .map_err(|error| client.failure(error))?;
    let info: Value =
        serde_json::from_str(&text).map_err(|error| Failure::Final(error.to_string()))?;
    let commit = info["sha"].as_str().unwrap_or_default();
    let siblings = info["siblings"].as_array();
    let (true, Some(siblings)) = (is_plain(commit), siblings) else {
        return Err(Failure::Final(
            "the answer names no commit or no files".to_string(),
        ));
    };
    let files: Vec<Value> = siblings
        .iter()
        .filter_map(|file| Some((file["rfilename"].as_str()?, file["size"].as_u64()?)))
        .filter(|(name, _)| is_plain_path(name))
        .map(|(name, size)| json!({"name": name, "size": size}))
        .collect();
    Ok(json!({"commit": commit, "files": files}).to_string())
}

/// Downloads one file of a commit into the cache and resumes an earlier attempt. `tell` gets the number of present
/// bytes and the file's size.
pub fn fetch(
    repo: &Repo,
    commit: &str,
    file: &HubFile,
    tell: &mut dyn FnMut(u64, u64),
) -> Result<(), String> {
    if !is_plain(commit) || !is_plain_path(file.name) || !is_plain_path(repo.name) {
        return Err(format!(
            "{}: '{}' is no name of a file",
            repo.name, file.name
        ));
    }
    let store = Store::new(repo.cache_dir, repo.name);
    if store.pointer(commit, file.name).exists() {
        return Ok(());
    }
    repo.client()
        .and_then(|client| {
            let download = Download {
                repo,
                client: &client,
                store: &store,
                commit,
                file,
            };
            try_often(&download, repo.stall, tell)
        })
        .map_err(|failure| format!("{}: {}", file.name, repo.explain(failure)))
}

/// Repeats failed attempts. A file with wrong content is downloaded once more. The waits between attempts double.
fn try_often(
    download: &Download,
    stall: Duration,
    tell: &mut dyn FnMut(u64, u64),
) -> Result<(), Failure> {
    let (mut best, mut counted_from, mut failed, mut wrong) = (0, 0, 0, 0);
    loop {
        match download.attempt(&mut best, tell) {
            Err(Failure::Passing(reason)) => {
                if best >= counted_from + PROGRESS {
                    (counted_from, failed) = (best, 0);
                }
                failed += 1;
                if failed == ATTEMPTS {
                    return Err(Failure::Passing(format!(
                        "{reason}; given up after {ATTEMPTS} attempts"
                    )));
                }
            }
            Err(Failure::WrongContent(_)) if wrong == 0 => wrong += 1,
            outcome => return outcome,
        }
        thread::sleep(stall / 40 * (1 << failed));
    }
}
