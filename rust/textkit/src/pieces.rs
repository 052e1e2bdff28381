// SPDX-License-Identifier: Apache-2.0
//! Per token id: the text in the vocabulary, the bytes it decodes to, and what kind of token it is.

pub const KIND_NORMAL: u8 = 0;
/// Dropped from the output when special tokens are skipped.
pub const KIND_SPECIAL: u8 = 1;
/// The id is in the range of the vocabulary but has no token.
pub const KIND_HOLE: u8 = 2;

/// A list of byte strings in one allocation.
#[derive(Default)]
pub struct StrList {
    blob: Vec<u8>,
    ends: Vec<u32>,
}

impl StrList {
    pub fn with_capacity(strings: usize, bytes: usize) -> Self {
        StrList {
            blob: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(strings),
        }
    }

    pub fn push(&mut self, s: &[u8]) {
        self.blob.extend_from_slice(s);
        self.close();
    }

    /// Adds one string through `fill`, which appends its bytes.
    pub fn push_with(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        fill(&mut self.blob);
        self.close();
    }

    fn close(&mut self) {
        assert!(
            self.blob.len() <= u32::MAX as usize,
            "the vocabulary's text exceeds 4 GiB"
        );
        self.ends.push(self.blob.len() as u32);
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.blob[start..self.ends[i] as usize]
    }
}

/// The tables of all ids, which the C side reads without a call per string.
#[derive(Default)]
pub struct Pieces {
    pub texts: StrList,
    pub bytes: StrList,
    pub kinds: Vec<u8>,
    /// One space at the very start of a decoded text is not part of it (the prefix that
    /// SentencePiece adds).
    pub strip_leading_space: bool,
}
