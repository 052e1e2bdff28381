// SPDX-License-Identifier: Apache-2.0
//! A tokenizer from a Hugging Face tokenizer.json, run by the `tokenizers` crate.

use crate::byte_level;
use crate::gguf::parse_byte_token;
use crate::pieces::{Pieces, KIND_HOLE, KIND_NORMAL, KIND_SPECIAL};
use tokenizers::{Decoder, DecoderWrapper, Encoding, Model, Token, Tokenizer};

#[derive(Clone, Copy, PartialEq)]
enum Bytes {
    ByteLevel, // every byte has a character in the alphabet
    Fallback,  // bytes have tokens of their own, <0x41>
    None,      // bytes that are not UTF-8 become U+FFFD
}

pub struct HfTokenizer {
    tokenizer: Tokenizer,
    pub pieces: Pieces,
    bytes: Bytes,
}

impl HfTokenizer {
    pub fn new(json: &[u8]) -> Result<Self, String> {
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
        // Reset truncation and padding: the file's settings are for training batches. transformers resets both too.
        tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
        tokenizer.with_padding(None);
        let bytes = match tokenizer.get_decoder() {
            Some(d) if mentions(d, "ByteLevel") => Bytes::ByteLevel,
            Some(d) if mentions(d, "ByteFallback") => Bytes::Fallback,
            _ => Bytes::None,
        };
        let pieces = build_pieces(&tokenizer, bytes);
        Ok(HfTokenizer {
            tokenizer,
            pieces,
            bytes,
        })
    }

    pub fn find(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    pub fn encode(&self, text: &[u8], add_special: bool) -> Result<Vec<u32>, String> {
        let ids = match std::str::from_utf8(text) {
            Ok(text) => self.tokenizer.encode_fast(text, add_special),
            Err(_) if self.bytes == Bytes::None => self
                .tokenizer
                .encode_fast(String::from_utf8_lossy(text).as_ref(), add_special),
            Err(_) => self.encode_raw(text, add_special),
        };
        Ok(ids
            .map_err(|e| format!("tokenizer: {e}"))?
            .get_ids()
            .to_vec())
    }

    /// Two texts with the tokens around and between them, and the number of tokens before the second segment: all, if the
    /// tokenizer has one segment alone. Invalid bytes become U+FFFD.
    pub fn encode_pair(&self, a: &[u8], b: &[u8]) -> Result<(Vec<u32>, usize), String> {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let encoded = self
            .tokenizer
            .encode_fast((text(a), text(b)), true)
            .map_err(|e| format!("tokenizer: {e}"))?;
        let types = encoded.get_type_ids();
        let first = types.iter().position(|&t| t != 0).unwrap_or(types.len());
        Ok((encoded.get_ids().to_vec(), first))
    }

    /// The text between invalid bytes is encoded in parts. The special tokens are added once, around the whole.
    fn encode_raw(&self, text: &[u8], add_special: bool) -> tokenizers::Result<Encoding> {
        let mut whole = Encoding::default();
        for chunk in text.utf8_chunks() {
            if !chunk.valid().is_empty() {
                whole.merge_with(self.tokenizer.encode_fast(chunk.valid(), false)?, false);
            }
            if !chunk.invalid().is_empty() {
                whole.merge_with(
                    Encoding::from_tokens(self.byte_tokens(chunk.invalid())?, 0),
                    false,
                );
            }
        }
        self.tokenizer.post_process(whole, None, add_special)
    }

    fn byte_tokens(&self, bytes: &[u8]) -> tokenizers::Result<Vec<Token>> {
        if self.bytes == Bytes::ByteLevel {
            let mut word = String::new();
            byte_level::encode_into(bytes.iter().copied(), &mut word);
            return self.tokenizer.get_model().tokenize(&word);
        }
        let named = bytes.iter().map(|b| format!("<0x{b:02X}>"));
        Ok(named
            .filter_map(|s| self.find(&s).map(|id| Token::new(id, s, (0, 0))))
            .collect())
    }
}

/// Whether the decoder is or contains a step of this type.
fn mentions(decoder: &DecoderWrapper, step: &str) -> bool {
    fn search(v: &serde_json::Value, step: &str) -> bool {
        match v {
            serde_json::Value::Object(o) => {
                o.get("type").and_then(|t| t.as_str()) == Some(step)
                    || o.values().any(|v| search(v, step))
            }
            serde_json::Value::Array(a) => a.iter().any(|v| search(v, step)),
            _ => false,
        }
    }
    serde_json::to_value(decoder).is_ok_and(|v| search(&v, step))
}

fn build_pieces(tokenizer: &Tokenizer, bytes: Bytes) -> Pieces {
    let added = tokenizer.get_added_tokens_decoder();
    let vocab = tokenizer.get_vocab(true);
    let size = vocab.values().max().map_or(0, |&id| id as usize + 1);
    let mut texts: Vec<Option<&str>> = vec![None; size];
    for (text, &id) in &vocab {
        texts[id as usize] = Some(text);
    }
    let mut pieces = Pieces {
        strip_leading_space: tokenizer
            .get_decoder()
            .is_some_and(|d| decode(d, &["\u{2581}a"]) == "a"),
        ..Pieces::default()
    };
    for (id, text) in texts.iter().enumerate() {
        let text = text.unwrap_or_default();
        pieces.texts.push(text.as_bytes());
        pieces
            .bytes
            .push_with(|out| piece_bytes(tokenizer.get_decoder(), bytes, text, out));
        pieces.kinds.push(match added.get(&(id as u32)) {
            Some(token) if token.special => KIND_SPECIAL,
            _ if text.is_empty() => KIND_HOLE,
            _ => KIND_NORMAL,
        });
    }
    pieces
}

fn decode(decoder: &DecoderWrapper, tokens: &[&str]) -> String {
    let tokens = tokens.iter().map(|t| t.to_string()).collect();
    decoder
        .decode_chain(tokens)
        .map(|parts| parts.concat())
        .unwrap_or_default()
}

/// The bytes that a token adds to a text after other tokens.
fn piece_bytes(decoder: Option<&DecoderWrapper>, bytes: Bytes, text: &str, out: &mut Vec<u8>) {
    if bytes == Bytes::ByteLevel {
        byte_level::decode_into(text, out);
    } else if let Some(b) = parse_byte_token(text.as_bytes()).filter(|_| bytes == Bytes::Fallback) {
        out.push(b);
    } else if bytes == Bytes::Fallback && !text.contains('\u{2581}') {
        out.extend_from_slice(text.as_bytes()); // the decoders with this step touch only the space mark
    } else if let Some(decoder) = decoder {
        let joined = decode(decoder, &["a", text]);
        out.extend_from_slice(joined.strip_prefix('a').unwrap_or(&joined).as_bytes());
    } else {
        out.extend_from_slice(text.as_bytes());
    }
}
