// SPDX-License-Identifier: Apache-2.0
//! A tokenizer from GGUF metadata: `gpt2` (byte-level BPE with a named pre-tokenizer) and `llama` (SentencePiece BPE,
//! merges by score, byte tokens as a fallback).

use crate::byte_level;
use crate::merge::Merger;
use crate::pieces::{Pieces, StrList, KIND_NORMAL, KIND_SPECIAL};
use crate::pre_tokenizer::PreTokenizer;
use crate::str_table::{MergeTable, StrTable};
use aho_corasick::{AhoCorasick, MatchKind};
use unicode_normalization_alignments::UnicodeNormalization;

// tokenizer.ggml.token_type
const TYPE_UNKNOWN: i32 = 2;
const TYPE_CONTROL: i32 = 3;
const TYPE_USER_DEFINED: i32 = 4;
const TYPE_BYTE: i32 = 6;

const SPACE_MARK: &str = "\u{2581}"; // SentencePiece's visible space

/// The metadata, unchanged.
pub struct Vocab<'a> {
    pub model: &'a str,
    pub pre: &'a str,
    pub tokens: StrList,
    pub merges: StrList,
    pub scores: &'a [f32], // empty, or one per token
    pub types: &'a [i32],  // empty, or one per token
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
}

enum Model {
    ByteLevel {
        merges: StrList,
        ranks: MergeTable,
        pre: PreTokenizer,
        has_byte: Box<[bool; 256]>,
    },
    SentencePiece {
        scores: Vec<f32>,
        add_space_prefix: bool,
        byte_ids: Box<[Option<u32>; 256]>,
    },
}

pub struct GgufTokenizer {
    pub pieces: Pieces,
    ids: StrTable,
    model: Model,
    marks: Option<(AhoCorasick, Vec<u32>)>, // tokens to find in the text before it is split
    prefix: Option<u32>,
    suffix: Option<u32>,
    unk: Option<u32>,
}

impl GgufTokenizer {
    pub fn new(vocab: Vocab) -> Result<Self, String> {
        let n = vocab.tokens.len();
        if n == 0 {
            return Err("the vocabulary (tokenizer.ggml.tokens) is empty".into());
        }
        if !vocab.types.is_empty() && vocab.types.len() != n {
            return Err(format!(
                "tokenizer.ggml.token_type has {} entries for {} tokens",
                vocab.types.len(),
                n
            ));
        }
        for (name, id) in [
            ("bos", vocab.bos),
            ("eos", vocab.eos),
            ("unknown", vocab.unk),
        ] {
            if id.is_some_and(|id| id as usize >= n) {
                return Err(format!(
                    "tokenizer.ggml.{name}_token_id {} is not below the vocabulary's {n}",
                    id.unwrap()
                ));
            }
        }
        let ids = StrTable::build(&vocab.tokens);
        let (model, add_bos) = match vocab.model {
            "gpt2" => {
                let pre = PreTokenizer::new(vocab.pre)?;
                let add_bos = pre.add_bos;
                let ranks = MergeTable::build(&vocab.merges)?;
                (
                    Model::ByteLevel {
                        merges: vocab.merges,
                        ranks,
                        pre,
                        has_byte: find_bytes(&ids, &vocab.tokens),
                    },
                    add_bos,
                )
            }
            "llama" => {
                if vocab.scores.len() != n {
                    return Err(format!(
                        "tokenizer.ggml.scores has {} entries for {n} tokens",
                        vocab.scores.len()
                    ));
                }
                let mut byte_ids = Box::new([None; 256]);
                for (b, id) in byte_ids.iter_mut().enumerate() {
                    *id = ids.find(&vocab.tokens, format!("<0x{b:02X}>").as_bytes());
                }
                let add_space_prefix = vocab.add_space_prefix.unwrap_or(true);
                (
                    Model::SentencePiece {
                        scores: vocab.scores.to_vec(),
                        add_space_prefix,
                        byte_ids,
                    },
                    true,
                )
            }
            other => {
                return Err(format!(
                    "tokenizer model \"{other}\" (tokenizer.ggml.model) is not supported"
                ))
            }
        };
        let pieces = build_pieces(vocab.tokens, vocab.types, &model);
        Ok(GgufTokenizer {
            marks: find_marks(&pieces, vocab.types)?,
            pieces,
            ids,
            model,
            prefix: if vocab.add_bos.unwrap_or(add_bos) {
                vocab.bos
            } else {
                None
            },
            suffix: if vocab.add_eos.unwrap_or(false) {
                vocab.eos
            } else {
                None
            },
            unk: vocab.unk,
        })
    }

    pub fn find(&self, text: &[u8]) -> Option<u32> {
        self.ids.find(&self.pieces.texts, text)
    }

    /// Accepts any bytes. Invalid UTF-8 becomes byte tokens.
    pub fn encode(&self, text: &[u8], add_special: bool) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 4);
        let mut merger = Merger::default();
        if add_special {
            out.extend(self.prefix);
        }
        let mut done = 0;
        if let Some((automaton, ids)) = &self.marks {
            for m in automaton.find_iter(text) {
                self.encode_plain(&text[done..m.start()], &mut merger, &mut out);
                out.push(ids[m.pattern().as_usize()]);
                done = m.end();
            }
        }
        self.encode_plain(&text[done..], &mut merger, &mut out);
        if add_special {
            out.extend(self.suffix);
        }
        out
    }

    fn encode_plain(&self, text: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        let mut first = true;
        for chunk in text.utf8_chunks() {
            if !chunk.valid().is_empty() {
                match &self.model {
                    Model::ByteLevel { .. } => self.encode_byte_level(chunk.valid(), merger, out),
                    Model::SentencePiece { .. } => {
                        self.encode_sentence_piece(chunk.valid(), first, merger, out)
                    }
                }
            }
            if !chunk.invalid().is_empty() {
                self.encode_bytes(chunk.invalid(), merger, out);
            }
            first = false;
        }
    }

    fn encode_byte_level(&self, text: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let Model::ByteLevel { pre, .. } = &self.model else {
            unreachable!()
        };
        let composed: String;
        let text = if pre.nfc && !text.is_ascii() {
            composed = text.nfc().map(|(c, _)| c).collect();
            &composed
        } else {
            text
        };
        for (start, end) in pre.split(text) {
            self.encode_word(&text.as_bytes()[start..end], merger, out);
        }
    }

    /// Bytes without a token of their own are dropped before merging, as in the models' original tokenizers.
    fn encode_word(&self, raw: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        let Model::ByteLevel {
            merges,
            ranks,
            pre,
            has_byte,
        } = &self.model
        else {
            unreachable!()
        };
        let known = raw.iter().copied().filter(|&b| has_byte[b as usize]);
        let whole = known.clone().count() == raw.len();
        let mut word = String::with_capacity(2 * raw.len());
        byte_level::encode_into(known, &mut word);
        if pre.ignore_merges && whole {
            if let Some(id) = self.find(word.as_bytes()) {
                out.push(id);
                return;
            }
        }
        let bytes = word.as_bytes();
        merger.merge(
            &word,
            |start, split, end| ranks.rank(merges, &bytes[start..split], &bytes[split..end]),
            |part| match self.find(part.as_bytes()) {
                Some(id) => out.push(id),
                // The merged text is not a token, so emit its characters.
                None => {
                    for (i, c) in part.char_indices() {
                        out.extend(self.find(&part.as_bytes()[i..i + c.len_utf8()]));
                    }
                }
            },
        );
    }

    fn encode_sentence_piece(
        &self,
        text: &str,
        first: bool,
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        let Model::SentencePiece {
            scores,
            add_space_prefix,
            ..
        } = &self.model
        else {
            unreachable!()
        };
        let mut marked = String::with_capacity(text.len() + text.len() / 4 + 3);
        if *add_space_prefix && first {
            marked.push_str(SPACE_MARK);
        }
        for c in text.chars() {
            if c == ' ' {
                marked.push_str(SPACE_MARK);
            } else {
                marked.push(c);
            }
        }
        let mut missing: Vec<u8> = Vec::new();
        merger.merge(
            &marked,
            |start, _, end| {
                self.find(&marked.as_bytes()[start..end])
                    .map(|id| descending(scores[id as usize]))
            },
            |part| match self.find(part.as_bytes()) {
                Some(id) => out.push(id),
                None => {
                    missing.clear();
                    missing.extend_from_slice(part.as_bytes());
                    self.push_byte_tokens(&missing, out);
                }
            },
        );
    }

    fn encode_bytes(&self, bytes: &[u8], merger: &mut Merger, out: &mut Vec<u32>) {
        match &self.model {
            Model::ByteLevel { .. } => self.encode_word(bytes, merger, out),
            Model::SentencePiece { .. } => self.push_byte_tokens(bytes, out),
        }
    }

    fn push_byte_tokens(&self, bytes: &[u8], out: &mut Vec<u32>) {
        let Model::SentencePiece { byte_ids, .. } = &self.model else {
            unreachable!()
        };
        for &b in bytes {
            out.extend(byte_ids[b as usize].or(self.unk));
        }
    }
}

/// Which bytes have a token of their own in a byte-level vocabulary.
fn find_bytes(ids: &StrTable, tokens: &StrList) -> Box<[bool; 256]> {
    let mut has_byte = Box::new([false; 256]);
    for b in 0..=255u8 {
        let mut character = String::new();
        byte_level::encode_into(std::iter::once(b), &mut character);
        has_byte[b as usize] = ids.find(tokens, character.as_bytes()).is_some();
    }
    has_byte
}

/// A key that sorts floats from high to low.
pub fn descending(score: f32) -> u32 {
    let bits = score.to_bits();
    let ascending = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 0x8000_0000
    };
    !ascending
}

fn build_pieces(tokens: StrList, types: &[i32], model: &Model) -> Pieces {
    let n = tokens.len();
    let mut bytes = StrList::with_capacity(n, n * 8);
    let mut kinds = Vec::with_capacity(n);
    for id in 0..n {
        let text = tokens.get(id);
        let kind = types.get(id).copied().unwrap_or(1);
        kinds.push(if kind == TYPE_CONTROL || kind == TYPE_UNKNOWN {
            KIND_SPECIAL
        } else {
            KIND_NORMAL
        });
        if kind == TYPE_CONTROL || kind == TYPE_UNKNOWN || kind == TYPE_USER_DEFINED {
            bytes.push(text);
            continue;
        }
        match model {
            Model::ByteLevel { .. } => bytes.push_with(|out| match std::str::from_utf8(text) {
                Ok(text) => byte_level::decode_into(text, out),
                Err(_) => out.extend_from_slice(text),
            }),
            Model::SentencePiece { .. } => {
                let may_be_byte = kind == TYPE_BYTE || types.is_empty();
                match parse_byte_token(text).filter(|_| may_be_byte) {
                    Some(b) => bytes.push(&[b]),
                    None => bytes.push_with(|out| replace_marks(text, out)),
                }
            }
        }
    }
    let strip_leading_space = matches!(
        model,
        Model::SentencePiece {
            add_space_prefix: true,
            ..
        }
    );
    Pieces {
        texts: tokens,
        bytes,
        kinds,
        strip_leading_space,
    }
}

/// `<0x41>` -> 0x41
pub fn parse_byte_token(text: &[u8]) -> Option<u8> {
    let hex = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if hex.len() != 2 {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
}

pub fn replace_marks(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    let mark = SPACE_MARK.as_bytes();
    while let Some(at) = rest.windows(mark.len()).position(|w| w == mark) {
        out.extend_from_slice(&rest[..at]);
        out.push(b' ');
        rest = &rest[at + mark.len()..];
    }
    out.extend_from_slice(rest);
}

fn find_marks(pieces: &Pieces, types: &[i32]) -> Result<Option<(AhoCorasick, Vec<u32>)>, String> {
    let ids: Vec<u32> = types
        .iter()
        .enumerate()
        .filter(|&(id, &t)| {
            (t == TYPE_CONTROL || t == TYPE_USER_DEFINED || t == TYPE_UNKNOWN)
                && !pieces.texts.get(id).is_empty()
        })
        .map(|(id, _)| id as u32)
        .collect();
    let automaton = build_marks(ids.iter().map(|&id| pieces.texts.get(id as usize)))?;
    Ok(automaton.map(|automaton| (automaton, ids)))
}

/// Finds tokens in a text, the longest of those that begin first. None if there are none.
pub fn build_marks<'a>(
    texts: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Result<Option<AhoCorasick>, String> {
    if texts.len() == 0 {
        return Ok(None);
    }
    let automaton = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(texts);
    automaton
        .map(Some)
        .map_err(|e| format!("special tokens: {e}"))
}
