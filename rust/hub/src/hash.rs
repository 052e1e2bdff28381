// SPDX-License-Identifier: Apache-2.0
//! The hash of a file's content, as the Hub announces it.

use ring::digest;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// For large files (LFS): the SHA-256 of the content.
    Sha256,
    /// For all other files: git's blob hash of the content.
    GitBlob,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Hash {
    kind: Kind,
    hex: String,
}

impl Hash {
    /// Parses an ETag, which may be quoted or weak. None if it is neither kind of hash.
    pub fn of_etag(etag: &str) -> Option<Self> {
        let hex = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
        let kind = match hex.len() {
            64 => Kind::Sha256,
            40 => Kind::GitBlob,
            _ => return None,
        };
        let is_hex = hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| Hash {
            kind,
            hex: hex.to_ascii_lowercase(),
        })
    }

    pub fn hex(&self) -> &str {
        &self.hex
    }

    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Sha256 => "SHA-256",
            Kind::GitBlob => "git hash (SHA-1)",
        }
    }

    /// Whether the file's content has this hash. Reads the whole file.
    pub fn is_of(&self, path: &Path) -> io::Result<bool> {
        let mut file = File::open(path)?;
        let mut context = match self.kind {
            Kind::Sha256 => digest::Context::new(&digest::SHA256),
            Kind::GitBlob => {
                let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {}\0", file.metadata()?.len()).as_bytes());
                context
            }
        };
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
        Ok(hex == self.hex)
    }
}
