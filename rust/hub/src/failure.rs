// SPDX-License-Identifier: Apache-2.0
//! Why a download did not succeed, in a line for a person.

use std::io;

#[derive(Debug)]
pub enum Failure {
    /// Another attempt would end the same way.
    Final(String),
    /// The network's, or a server's: another attempt may succeed.
    Passing(String),
    /// What came is not what was announced; it is removed.
    WrongContent(String),
}

/// The disk's. That of the network is a ureq::Error.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Final(format!("the cache: {error}"))
    }
}
