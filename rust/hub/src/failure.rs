// SPDX-License-Identifier: Apache-2.0
//! The causes of a failed download, each with a one-line message for the user.

use std::io;

#[derive(Debug)]
pub enum Failure {
    /// Another attempt would end the same way.
    Final(String),
    /// An error of the network or a server: another attempt may succeed.
    Passing(String),
    /// The content does not match the announced hash; it is removed.
    WrongContent(String),
}

/// Errors of the disk. Network errors are ureq::Error.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Final(format!("the cache: {error}"))
    }
}
