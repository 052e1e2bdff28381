// SPDX-License-Identifier: Apache-2.0
//! Files of a model on the Hugging Face Hub, brought into the Hub's own cache layout:
//! `models--org--name/{refs, blobs, snapshots/<commit>}`. The crate `hf-hub` speaks HTTP; here are the
//! parts around it: what to do when a download was broken off, what is already there, what an error
//! means for a person.

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::api::Progress;
use hf_hub::{Cache, CacheRepo, RepoType};
use ring::digest;
use serde_json::{json, Value};
use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Attempts at one file; a connection that breaks costs nothing that has arrived.
const ATTEMPTS: u32 = 5;

pub struct Repo<'a> {
    pub name: &'a str,
    pub revision: &'a str,
    pub cache_dir: &'a str,
    pub endpoint: &'a str,
    /// Empty: none.
    pub token: &'a str,
}

impl Repo<'_> {
    fn api(&self) -> Result<Api, String> {
        let token = (!self.token.is_empty()).then(|| self.token.to_string());
        ApiBuilder::from_cache(Cache::new(PathBuf::from(self.cache_dir)))
            .with_endpoint(self.endpoint.trim_end_matches('/').to_string())
            .with_token(token)
            .with_progress(false)
            .with_user_agent("warprow", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|error| self.explain(&error))
    }

    fn at(&self, revision: &str) -> hf_hub::Repo {
        hf_hub::Repo::with_revision(
            self.name.to_string(),
            RepoType::Model,
            revision.to_string(),
        )
    }

    fn explain(&self, error: &ApiError) -> String {
        let what = format!("{}@{} at {}", self.name, self.revision, self.endpoint);
        match status_of(error) {
            Some(401 | 403) => format!(
                "{what}: no such model, or it is private or gated (HF_TOKEN, or a token file, gives access)"
            ),
            Some(404) => format!("{what}: no such model, revision or file"),
            _ => format!("{what}: {error}"),
        }
    }
}

fn status_of(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(code) => Some(code),
            _ => None,
        },
        _ => None,
    }
}

/// Names that come from a server become parts of paths.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// The same of a file's, which may lie in one folder, as the parts of large GGUF files do.
fn is_plain_path(name: &str) -> bool {
    name.split('/').count() <= 2 && name.split('/').all(is_plain)
}

/// `{"commit": "...", "files": [{"name": "...", "size": 0}, ...]}`: what the revision is now, without
/// files in folders of folders and those of unheard-of names.
pub fn list(repo: &Repo) -> Result<String, String> {
    let api = repo.api()?;
    let text = api
        .repo(repo.at(repo.revision))
        .info_request()
        .query("blobs", "true")
        .call()
        .and_then(|mut response| response.body_mut().read_to_string())
        .map_err(|error| repo.explain(&ApiError::RequestError(Box::new(error))))?;
    let info: Value = serde_json::from_str(&text)
        .map_err(|error| format!("{} at {}: {error}", repo.name, repo.endpoint))?;
    let commit = info["sha"].as_str().unwrap_or_default();
    let siblings = info["siblings"].as_array();
    let (true, Some(siblings)) = (is_plain(commit), siblings) else {
        return Err(format!(
            "{} at {}: the answer names no commit or no files",
            repo.name, repo.endpoint
        ));
    };
    let files: Vec<Value> = siblings
        .iter()
        .filter_map(|file| Some((file["rfilename"].as_str()?, file["size"].as_u64().unwrap_or(0))))
        .filter(|(name, _)| is_plain_path(name))
        .map(|(name, size)| json!({"name": name, "size": size}))
        .collect();
    Ok(json!({"commit": commit, "files": files}).to_string())
}

struct Report<'a> {
    done: u64,
    total: u64,
    tell: &'a mut dyn FnMut(u64, u64),
}

impl Progress for &mut Report<'_> {
    fn init(&mut self, size: usize, _filename: &str) {
        self.done = 0;
        self.total = size as u64;
    }
    fn update(&mut self, size: usize) {
        self.done += size as u64;
        (self.tell)(self.done, self.total);
    }
    fn finish(&mut self) {}
}

/// A file on its way into the cache.
struct Target<'a> {
    api: &'a Api,
    remote: ApiRepo,
    local: CacheRepo,
    commit: &'a str,
    file: &'a str,
}

fn len_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.len())
}

/// Whether a file's content is what its etag says: for large files (LFS) the Hub's is their SHA-256. That of
/// others, a git hash, says nothing here.
fn is_genuine(path: &Path, etag: &str) -> Result<bool, ApiError> {
    if etag.len() != 2 * digest::SHA256_OUTPUT_LEN {
        return Ok(true);
    }
    let mut file = fs::File::open(path)?;
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let len = file.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        context.update(&buffer[..len]);
    }
    let mut hex = String::new();
    for byte in context.finish().as_ref() {
        let _ = write!(hex, "{byte:02x}");
    }
    Ok(hex.eq_ignore_ascii_case(etag))
}

/// What became of an attempt that no error has ended.
enum Outcome {
    Whole,
    Nothing,
    WrongLength,
    WrongContent,
}

impl Target<'_> {
    fn pointer(&self) -> PathBuf {
        self.local.pointer_path(self.commit).join(self.file)
    }

    /// Uses what another revision or a broken run has left in whole. A part is checked first.
    fn adopt(&self, etag: &str, size: u64) -> Result<Outcome, ApiError> {
        let blob = self.local.blob_path(etag);
        let part = blob.with_extension("part");
        if len_of(&blob) != Some(size) {
            match len_of(&part) {
                Some(len) if len == size => {
                    if !is_genuine(&part, etag)? {
                        fs::remove_file(&part)?;
                        return Ok(Outcome::WrongContent);
                    }
                    fs::rename(&part, &blob)?;
                }
                Some(len) if len > size => fs::remove_file(&part)?,
                _ => (),
            }
        }
        if len_of(&blob) != Some(size) {
            return Ok(Outcome::Nothing);
        }
        let pointer = self.pointer();
        if let Some(folder) = pointer.parent() {
            fs::create_dir_all(folder)?;
        }
        let _ = fs::remove_file(&pointer);
        let up = "../".repeat(2 + self.file.matches('/').count());
        std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(etag), &pointer)?;
        Ok(Outcome::Whole)
    }

    fn attempt(&self, tell: &mut dyn FnMut(u64, u64)) -> Result<Outcome, ApiError> {
        let metadata = self.api.metadata(&self.remote.url(self.file))?;
        let (etag, size) = (metadata.etag(), metadata.size() as u64);
        if !is_plain(etag) {
            return Err(ApiError::InvalidHeader("etag"));
        }
        if !is_plain(metadata.commit_hash()) || metadata.commit_hash() != self.commit {
            return Err(ApiError::InvalidHeader("x-repo-commit"));
        }
        match self.adopt(etag, size)? {
            Outcome::Nothing => (),
            outcome => {
                tell(size, size);
                return Ok(outcome);
            }
        }
        let mut report = Report {
            done: 0,
            total: size,
            tell,
        };
        self.remote.download_with_progress(self.file, &mut report)?;
        // The crate shows the file at once. It is a part again until its content is known to be right.
        let blob = self.local.blob_path(etag);
        fs::remove_file(self.pointer())?;
        if len_of(&blob) != Some(size) {
            fs::remove_file(blob)?;
            return Ok(Outcome::WrongLength);
        }
        fs::rename(&blob, blob.with_extension("part"))?;
        self.adopt(etag, size)
    }
}

/// Brings one file of a commit into the cache, from where an earlier try has stopped. `tell` gets the
/// bytes that are there and those of the whole.
pub fn fetch(
    repo: &Repo,
    commit: &str,
    file: &str,
    tell: &mut dyn FnMut(u64, u64),
) -> Result<(), String> {
    if !is_plain(commit) || !is_plain_path(file) {
        return Err(format!("{}: '{file}' is no name of a file", repo.name));
    }
    let api = repo.api()?;
    let target = Target {
        api: &api,
        remote: api.repo(repo.at(commit)),
        local: Cache::new(PathBuf::from(repo.cache_dir)).repo(repo.at(commit)),
        commit,
        file,
    };
    if target.pointer().exists() {
        return Ok(());
    }
    let mut failure = String::new();
    for attempt in 0..ATTEMPTS {
        match target.attempt(tell) {
            Ok(Outcome::Whole) => return Ok(()),
            Ok(Outcome::WrongContent) => failure = "its SHA-256 is not the announced one".to_string(),
            Ok(_) => failure = "it came with another length than announced".to_string(),
            Err(error) if status_of(&error).is_some_and(|code| code < 500) => {
                return Err(format!("{file}: {}", repo.explain(&error)));
            }
            Err(error) => failure = repo.explain(&error),
        }
        thread::sleep(Duration::from_millis(100 << attempt));
    }
    Err(format!("{file}: {failure}"))
}
