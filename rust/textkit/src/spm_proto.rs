// SPDX-License-Identifier: Apache-2.0
//! A SentencePiece `tokenizer.model`: a protobuf message with the pieces and the rules of training and normalisation.
//! The reader takes the fields that decide how a text is encoded, and skips the others. It checks every length against
//! the file. A message of the format has at most two levels, so nothing recurses.

use crate::pieces::StrList;

const MAX_PIECES: usize = 1 << 22;
const MAX_PIECE_BYTES: usize = 1024;

// SentencePiece.Type, the same numbers as tokenizer.ggml.token_type
pub const UNKNOWN: u8 = 2;
pub const CONTROL: u8 = 3;
pub const USER_DEFINED: u8 = 4;
pub const UNUSED: u8 = 5;
pub const BYTE: u8 = 6;

#[derive(Clone, Copy, PartialEq)]
pub enum Algorithm {
    Unigram,
    Bpe,
}

/// The message's content; defaults are those of the format.
pub struct SpmProto<'a> {
    pub algorithm: Algorithm,
    pub pieces: StrList,
    pub scores: Vec<f32>,
    pub types: Vec<u8>,
    pub byte_fallback: bool,
    pub bos_piece: &'a [u8],
    pub eos_piece: &'a [u8],
    pub charsmap: &'a [u8],
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub escape_whitespaces: bool,
}

enum Field<'a> {
    Number(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn flag(&self) -> Result<bool, String> {
        match self {
            Field::Number(n) => Ok(*n != 0),
            _ => Err("a flag is not a number".into()),
        }
    }

    fn bytes(&self) -> Result<&'a [u8], String> {
        match self {
            Field::Bytes(bytes) => Ok(bytes),
            _ => Err("a text is a number".into()),
        }
    }
}

/// The fields of one message, in the order of the file.
struct Message<'a> {
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or("a number is cut off")?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number has more than 64 bits".into())
    }

    fn take(&mut self, size: u64) -> Result<&'a [u8], String> {
        let left = self.rest.len();
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let (taken, rest) = self
            .rest
            .split_at_checked(size)
            .ok_or_else(|| format!("a field of {size} bytes has {left}"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// None at the end. Fields of 64 bits are not used by the format and are skipped as bytes.
    fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, String> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => Field::Bytes(self.take(8)?),
            2 => {
                let size = self.varint()?;
                Field::Bytes(self.take(size)?)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().unwrap())),
            other => return Err(format!("field {} has the unknown form {other}", key >> 3)),
        };
        Ok(Some((key >> 3, field)))
    }
}

impl<'a> SpmProto<'a> {
    pub fn parse(file: &'a [u8]) -> Result<Self, String> {
        let mut out = SpmProto {
            algorithm: Algorithm::Unigram,
            pieces: StrList::default(),
            scores: Vec::new(),
            types: Vec::new(),
            byte_fallback: false,
            bos_piece: b"<s>",
            eos_piece: b"</s>",
            charsmap: b"",
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        };
        let mut message = Message { rest: file };
        while let Some((number, field)) = message.next()? {
            match number {
                1 => out.add_piece(field.bytes()?)?,
                2 => out.read_trainer(field.bytes()?)?,
                3 => out.read_normalizer(field.bytes()?)?,
                5 => check_denormalizer(field.bytes()?)?,
                _ => {}
            }
        }
        if out.scores.is_empty() {
            return Err("it has no pieces".into());
        }
        Ok(out)
    }

    fn add_piece(&mut self, bytes: &'a [u8]) -> Result<(), String> {
        let index = self.scores.len();
        if index >= MAX_PIECES {
            return Err(format!("it has more than {MAX_PIECES} pieces"));
        }
        let (mut text, mut score, mut kind) = (&b""[..], 0.0, 1);
        let mut message = Message { rest: bytes };
        while let Some((number, field)) = message.next()? {
            match (number, field) {
                (1, Field::Bytes(bytes)) => text = bytes,
                (2, Field::Fixed32(bits)) => score = f32::from_bits(bits),
                (3, Field::Number(n)) => kind = n,
                (1..=3, _) => return Err(format!("piece {index} is malformed")),
                _ => {}
            }
        }
        if text.is_empty() || text.len() > MAX_PIECE_BYTES {
            return Err(format!(
                "piece {index} has {} bytes, 1 to {MAX_PIECE_BYTES} are taken",
                text.len()
            ));
        }
        if std::str::from_utf8(text).is_err() {
            return Err(format!("piece {index} is not UTF-8"));
        }
        if !score.is_finite() {
            return Err(format!("piece {index} has the score {score}"));
        }
        if !(1..=6).contains(&kind) {
            return Err(format!(
                "piece {index} has the type {kind}, 1 to 6 are known"
            ));
        }
        self.pieces.push(text);
        self.scores.push(score + 0.0); // no negative zero: equal scores have equal keys
        self.types.push(kind as u8);
        Ok(())
    }

    fn read_trainer(&mut self, bytes: &'a [u8]) -> Result<(), String> {
        let mut message = Message { rest: bytes };
        while let Some((number, field)) = message.next()? {
            match (number, &field) {
                (3, Field::Number(1)) => self.algorithm = Algorithm::Unigram,
                (3, Field::Number(2)) => self.algorithm = Algorithm::Bpe,
                (3, Field::Number(n)) => {
                    return Err(format!(
                        "its model_type is {n}; 1 (unigram) and 2 (bpe) are supported"
                    ))
                }
                (24, _) if field.flag()? => {
                    return Err("treat_whitespace_as_suffix is not supported".into())
                }
                (35, _) => self.byte_fallback = field.flag()?,
                (46, _) => self.bos_piece = field.bytes()?,
                (47, _) => self.eos_piece = field.bytes()?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, bytes: &'a [u8]) -> Result<(), String> {
        let mut message = Message { rest: bytes };
        while let Some((number, field)) = message.next()? {
            match number {
                2 => self.charsmap = field.bytes()?,
                3 => self.add_dummy_prefix = field.flag()?,
                4 => self.remove_extra_whitespaces = field.flag()?,
                5 => self.escape_whitespaces = field.flag()?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Rules that change decoded texts; no model of the supported families has them.
fn check_denormalizer(bytes: &[u8]) -> Result<(), String> {
    let mut message = Message { rest: bytes };
    while let Some((number, field)) = message.next()? {
        if number == 2 && !field.bytes()?.is_empty() {
            return Err("a denormalizer is not supported".into());
        }
    }
    Ok(())
}
