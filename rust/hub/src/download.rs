// SPDX-License-Identifier: Apache-2.0
//! The download of one file into the cache.

use crate::client::{Answer, Client, Follow};
use crate::failure::Failure;
use crate::hash::Hash;
use crate::store::{len_of, remove_if_there, Store};
use crate::{HubFile, Repo};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use ureq::http::header::{HeaderMap, CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use ureq::http::Method;

pub struct Download<'a> {
    pub repo: &'a Repo<'a>,
    pub client: &'a Client,
    pub store: &'a Store,
    pub commit: &'a str,
    pub file: &'a HubFile<'a>,
}

/// The file's hash and size, which the Hub announces before the download.
struct Announced {
    hash: Hash,
    size: u64,
}

fn text<'a>(
    headers: &'a HeaderMap,
    name: impl ureq::http::header::AsHeaderName,
) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn hash_in(headers: &HeaderMap) -> Option<Hash> {
    Hash::of_etag(text(headers, "x-linked-etag").or(text(headers, ETAG))?)
}

/// First byte and whole size of `Content-Range: bytes FIRST-LAST/SIZE`.
fn range_in(headers: &HeaderMap) -> Option<(u64, u64)> {
    let (range, size) = text(headers, CONTENT_RANGE)?
        .strip_prefix("bytes ")?
        .split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, size.parse().ok()?))
}

impl Download<'_> {
    fn path(&self) -> String {
        format!(
            "/{}/resolve/{}/{}",
            self.repo.name, self.commit, self.file.name
        )
    }

    /// Asks the Hub for hash and size, and checks them against the listing's or alias's values.
    fn announced(&self) -> Result<Announced, Failure> {
        let answer = self
            .client
            .send(Method::HEAD, &self.path(), 0, Follow::Hub)?;
        if !(200..400).contains(&answer.status) {
            return Err(self.repo.refused(answer.status));
        }
        let headers = &answer.hub_headers;
        let commit = text(headers, "x-repo-commit").unwrap_or_default();
        if commit != self.commit {
            return Err(Failure::Final(format!(
                "the Hub answers for commit '{commit}' instead of '{}'",
                self.commit
            )));
        }
        let hash = hash_in(headers).ok_or_else(|| {
            Failure::Final("the Hub gives no hash to check it against (ETag)".to_string())
        })?;
        if !self.file.sha256.is_empty() && hash.hex() != self.file.sha256 {
            return Err(Failure::Final(format!(
                "the Hub announces the {} {} instead of {}",
                hash.name(),
                hash.hex(),
                self.file.sha256
            )));
        }
        let size = text(headers, "x-linked-size")
            .or(text(headers, CONTENT_LENGTH).filter(|_| answer.status == 200))
            .map_or(Some(self.file.size), |size| size.parse().ok());
        if size != Some(self.file.size) {
            return Err(Failure::Final(format!(
                "the Hub announces a size of {} bytes instead of {}",
                size.map_or("unknown".to_string(), |size| size.to_string()),
                self.file.size
            )));
        }
        Ok(Announced {
            hash,
            size: self.file.size,
        })
    }

    /// Requests the file from the byte `have` on. The response begins at byte 0 if the server does not support ranges.
    fn ask(&self, announced: &Announced, have: u64, part: &Path) -> Result<(Answer, u64), Failure> {
        let answer = self
            .client
            .send(Method::GET, &self.path(), have, Follow::All)?;
        let first = match answer.status {
            200 => 0,
            206 => match range_in(&answer.headers) {
                Some((first, size)) if first == have && size == announced.size => have,
                _ => {
                    remove_if_there(part)?;
                    return Err(Failure::Passing(
                        "the server sends another range than asked for".to_string(),
                    ));
                }
            },
            416 => {
                remove_if_there(part)?;
                return Err(Failure::Passing(format!(
                    "the server has no bytes from {have} on"
                )));
            }
            status => return Err(self.repo.refused(status)),
        };
        if hash_in(&answer.hub_headers).as_ref() != Some(&announced.hash) {
            return Err(Failure::Passing(
                "its hash at the Hub has changed meanwhile".to_string(),
            ));
        }
        Ok((answer, first))
    }

    /// Appends to the partial file until it is complete. If the connection breaks, the received bytes stay.
    fn receive(
        &self,
        announced: &Announced,
        part: &Path,
        tell: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Failure> {
        let have = len_of(part).unwrap_or(0);
        let (answer, mut have) = self.ask(announced, have, part)?;
        let mut file = OpenOptions::new().append(true).create(true).open(part)?;
        file.set_len(have)?;
        let mut reader = answer.body.into_reader();
        let mut buffer = vec![0; 1 << 18];
        loop {
            let len = match reader.read(&mut buffer) {
                Ok(len) => len as u64,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.client.failure(error.into())),
            };
            if len == 0 {
                break;
            }
            if have + len > announced.size {
                drop(file);
                remove_if_there(part)?;
                return Err(Failure::WrongContent(format!(
                    "more came than its {} bytes",
                    announced.size
                )));
            }
            file.write_all(&buffer[..len as usize])?;
            have += len;
            tell(have, announced.size);
        }
        if have < announced.size {
            return Err(Failure::Passing(format!(
                "the connection ended after {have} of {} bytes",
                announced.size
            )));
        }
        Ok(())
    }

    /// Downloads the missing bytes. `best`: the greatest length that the partial file has had.
    pub fn attempt(&self, best: &mut u64, tell: &mut dyn FnMut(u64, u64)) -> Result<(), Failure> {
        let announced = self.announced()?;
        let (hash, size) = (&announced.hash, announced.size);
        let (blob, part) = (self.store.blob(hash), self.store.part(hash));
        let _lock = self
            .store
            .lock(hash, &mut || tell(len_of(&part).unwrap_or(0), size))?;
        if len_of(&blob) != Some(size) {
            if len_of(&part).is_some_and(|len| len > size) {
                remove_if_there(&part)?;
            }
            if len_of(&part) != Some(size) {
                let received = self.receive(&announced, &part, tell);
                *best = (*best).max(len_of(&part).unwrap_or(0));
                received?;
            }
            if !hash.is_of(&part)? {
                remove_if_there(&part)?;
                return Err(Failure::WrongContent(format!(
                    "its {} is not the announced one, {}",
                    hash.name(),
                    hash.hex()
                )));
            }
            File::open(&part)?.sync_all()?;
            fs::rename(&part, &blob)?;
        }
        tell(size, size);
        Ok(self.store.show(self.commit, self.file.name, hash)?)
    }
}
