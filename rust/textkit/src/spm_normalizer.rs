// SPDX-License-Identifier: Apache-2.0
//! SentencePiece's normalisation of a text: replacements of character sequences (the precompiled charsmap), white
//! space, and the mark U+2581 for a space.

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};

pub const SPACE_MARK: &str = "\u{2581}";

/// The longest prefixes that a text has in a double array of Darts-clone. A unit has a label in its low byte, the
/// offset of its children in its high 22 bits, and says in bit 8 whether a value stands at label 0.
struct DoubleArray {
    units: Vec<u32>,
}

impl DoubleArray {
    /// The length and the value of the longest key that `text` begins with.
    fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut found = None;
        let mut at = offset(*self.units.first()?);
        for (i, &byte) in text.iter().enumerate() {
            at ^= usize::from(byte);
            let Some(&unit) = self.units.get(at) else {
                break;
            };
            if unit & 0x8000_00ff != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit & (1 << 8) != 0 {
                let value = self.units.get(at)?;
                found = Some((i + 1, (value & 0x7fff_ffff) as usize));
            }
        }
        found
    }
}

pub struct Rules {
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub escape_whitespaces: bool,
}

pub struct Normalizer {
    pub rules: Rules,
    replacements: Option<(DoubleArray, Vec<u8>)>, // each value is the place of a text that ends with NUL
    kept: Option<AhoCorasick>,                    // user-defined pieces, which nothing replaces
}

impl Normalizer {
    /// charsmap: the size of the double array, its units, and the replacements.
    pub fn new(charsmap: &[u8], rules: Rules, kept: &[&[u8]]) -> Result<Self, String> {
        let kept = match kept {
            [] => None,
            _ => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .start_kind(StartKind::Anchored)
                    .build(kept)
                    .map_err(|e| format!("user-defined pieces: {e}"))?,
            ),
        };
        let replacements = if charsmap.is_empty() {
            None
        } else {
            let (size, rest) = charsmap
                .split_first_chunk()
                .ok_or("precompiled_charsmap is cut off")?;
            let size = u32::from_le_bytes(*size) as usize;
            if size % 4 != 0 || size > rest.len() {
                return Err(format!(
                    "precompiled_charsmap names an array of {size} bytes and has {}",
                    rest.len()
                ));
            }
            let (units, texts) = rest.split_at(size);
            let units = units
                .chunks_exact(4)
                .map(|unit| u32::from_le_bytes(unit.try_into().unwrap()))
                .collect();
            Some((DoubleArray { units }, texts.to_vec()))
        };
        Ok(Normalizer {
            rules,
            replacements,
            kept,
        })
    }

    /// What the beginning of `text` becomes, and how many of its bytes that takes.
    fn next<'a>(&'a self, text: &'a str) -> (&'a str, usize) {
        if let Some(kept) = &self.kept {
            if let Some(m) = kept.find(Input::new(text).anchored(Anchored::Yes)) {
                return (&text[..m.end()], m.end());
            }
        }
        if let Some((array, texts)) = &self.replacements {
            if let Some((len, value)) = array.longest(text.as_bytes()) {
                let replacement = texts.get(value..).unwrap_or_default();
                let end = replacement.iter().position(|&b| b == 0).unwrap_or(0);
                if let (Ok(replacement), true) = (
                    std::str::from_utf8(&replacement[..end]),
                    text.is_char_boundary(len),
                ) {
                    return (replacement, len);
                }
            }
        }
        let len = text.chars().next().map_or(0, char::len_utf8);
        (&text[..len], len)
    }

    /// prefix: whether a space may be put in front.
    pub fn run(&self, text: &str, prefix: bool) -> String {
        let strips = self.rules.remove_extra_whitespaces;
        let space = if self.rules.escape_whitespaces {
            SPACE_MARK
        } else {
            " "
        };
        let mut rest = text;
        while strips && !rest.is_empty() {
            let (part, len) = self.next(rest);
            if part != " " {
                break;
            }
            rest = &rest[len..];
        }
        let mut out = String::with_capacity(text.len() + text.len() / 4 + 3);
        if rest.is_empty() {
            return out;
        }
        if prefix && self.rules.add_dummy_prefix {
            out.push_str(space);
        }
        let mut after_space = strips;
        while !rest.is_empty() {
            let (mut part, len) = self.next(rest);
            while after_space && part.starts_with(' ') {
                part = &part[1..];
            }
            for (i, run) in part.split(' ').enumerate() {
                out.push_str(if i > 0 { space } else { "" });
                out.push_str(run);
            }
            if !part.is_empty() {
                after_space = strips && part.ends_with(' ');
            }
            rest = &rest[len..];
        }
        while strips && out.ends_with(space) {
            out.truncate(out.len() - space.len());
        }
        out
    }
}
