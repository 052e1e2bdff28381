// SPDX-License-Identifier: Apache-2.0
//! A tokenizer from a SentencePiece `tokenizer.model`, unigram or BPE, with the added tokens of tokenizer_config.json.

use crate::gguf::{build_marks, descending, parse_byte_token, replace_marks};
use crate::merge::Merger;
use crate::pieces::{Pieces, StrList, KIND_HOLE, KIND_NORMAL, KIND_SPECIAL};
use crate::spm_config::{AddedToken, SpmConfig};
use crate::spm_normalizer::{Normalizer, Rules};
use crate::spm_proto::{Algorithm, SpmProto, BYTE, CONTROL, UNKNOWN, UNUSED, USER_DEFINED};
use crate::str_table::StrTable;
use aho_corasick::{AhoCorasick, MatchKind};
use std::cell::RefCell;
use std::collections::HashMap;

/// How far the score of an unknown character is below the lowest score.
const UNKNOWN_PENALTY: f32 = 10.0;

enum Model {
    /// Finds all pieces that a text has at any place; the number of a pattern is an index of `ids`.
    Unigram {
        automaton: AhoCorasick,
        ids: Vec<u32>,
        min_score: f32,
        max_score: f32,
    },
    /// User-defined pieces are split off before characters are merged.
    Bpe { frozen: Option<AhoCorasick> },
}

/// A token that is found in the text before it is normalised.
struct Marks {
    automaton: AhoCorasick,
    ids: Vec<u32>,
    strips: Vec<(bool, bool)>, // white space on the left, on the right
}

pub struct SpTokenizer {
    pub pieces: Pieces,
    texts: StrList, // of the file's pieces, by id
    scores: Vec<f32>,
    types: Vec<u8>,
    ids: StrTable,
    model: Model,
    normalizer: Normalizer,
    marks: Option<Marks>,
    names: HashMap<Vec<u8>, u32>, // of added tokens
    bytes: Option<Box<[u32; 256]>>,
    unknown: u32,
    prefix: Option<u32>,
    suffix: Option<u32>,
    prefix_everywhere: bool,
}

impl SpTokenizer {
    /// config: the content of tokenizer_config.json; added: that of added_tokens.json. Both may be empty.
    pub fn new(file: &[u8], config: &[u8], added: &[u8]) -> Result<Self, String> {
        let proto = SpmProto::parse(file)?;
        let config = SpmConfig::parse(config, added)?;
        let of_type = |wanted: u8| -> Vec<usize> {
            let ids = 0..proto.types.len();
            ids.filter(|&id| proto.types[id] == wanted).collect()
        };
        let unknown = match of_type(UNKNOWN)[..] {
            [id] => id as u32,
            ref ids => {
                return Err(format!(
                    "it has {} pieces of type unknown, not one",
                    ids.len()
                ))
            }
        };
        let kept = of_type(USER_DEFINED);
        let kept: Vec<&[u8]> = kept.iter().map(|&id| proto.pieces.get(id)).collect();
        let rules = Rules {
            add_dummy_prefix: config.add_prefix_space.unwrap_or(proto.add_dummy_prefix),
            remove_extra_whitespaces: proto.remove_extra_whitespaces,
            escape_whitespaces: proto.escape_whitespaces,
        };
        let ids = StrTable::build(&proto.pieces);
        let strip_leading_space = rules.add_dummy_prefix;
        let normalizer = Normalizer::new(proto.charsmap, rules, &kept)?;
        let model = build_model(&proto, &kept)?;
        let bytes = if proto.byte_fallback {
            Some(find_bytes(&ids, &proto)?)
        } else {
            None
        };
        let names = config
            .added
            .iter()
            .map(|token| (token.text.as_bytes().to_vec(), token.id))
            .collect::<HashMap<_, _>>();
        let find = |name: &[u8]| {
            let of_file = || ids.find(&proto.pieces, name);
            names.get(name).copied().or_else(of_file)
        };
        let bos = find(config.bos.as_deref().map_or(proto.bos_piece, str::as_bytes));
        let eos = find(config.eos.as_deref().map_or(proto.eos_piece, str::as_bytes));
        let prefix = bos.filter(|_| config.add_bos);
        let suffix = eos.filter(|_| config.add_eos);
        let mut pieces = build_pieces(&proto, &config.added);
        pieces.strip_leading_space = strip_leading_space;
        Ok(SpTokenizer {
            marks: find_marks(&proto, &config.added)?,
            pieces,
            ids,
            model,
            normalizer,
            names,
            bytes,
            unknown,
            prefix,
            suffix,
            prefix_everywhere: config.legacy,
            texts: proto.pieces,
            scores: proto.scores,
            types: proto.types,
        })
    }

    pub fn find(&self, text: &[u8]) -> Option<u32> {
        let added = self.names.get(text).copied();
        let of_file = || self.ids.find(&self.texts, text);
        added.or_else(|| of_file().filter(|&id| self.pieces.texts.get(id as usize) == text))
    }

    /// Accepts any bytes. Invalid UTF-8 becomes byte tokens, or U+FFFD if there are none.
    pub fn encode(&self, text: &[u8], add_special: bool) -> Vec<u32> {
        let mut run = Run {
            tokenizer: self,
            merger: Merger::default(),
            out: Vec::with_capacity(text.len() / 3 + 4),
        };
        if add_special {
            run.out.extend(self.prefix);
        }
        let mut done = 0;
        if let Some(marks) = &self.marks {
            for m in marks.automaton.find_iter(text) {
                if m.start() < done {
                    continue; // within white space that the token before has taken
                }
                let (left, right) = marks.strips[m.pattern().as_usize()];
                let before = &text[done..m.start()];
                let before = if left {
                    before.trim_ascii_end()
                } else {
                    before
                };
                run.encode_part(before, done == 0 || self.prefix_everywhere);
                run.out.push(marks.ids[m.pattern().as_usize()]);
                let spaces = text[m.end()..].len() - text[m.end()..].trim_ascii_start().len();
                done = m.end() + if right { spaces } else { 0 };
            }
        }
        run.encode_part(&text[done..], done == 0 || self.prefix_everywhere);
        if add_special {
            run.out.extend(self.suffix);
        }
        run.out
    }

    fn is_piece(&self, id: u32) -> bool {
        !matches!(self.types[id as usize], UNKNOWN | CONTROL | BYTE)
    }
}

/// One call of encode.
struct Run<'a> {
    tokenizer: &'a SpTokenizer,
    merger: Merger,
    out: Vec<u32>,
}

impl Run<'_> {
    fn encode_part(&mut self, text: &[u8], prefix: bool) {
        let Some(bytes) = &self.tokenizer.bytes else {
            return self.encode_text(&String::from_utf8_lossy(text), prefix);
        };
        for (i, chunk) in text.utf8_chunks().enumerate() {
            self.encode_text(chunk.valid(), prefix && i == 0);
            let invalid = chunk.invalid().iter();
            self.out.extend(invalid.map(|&b| bytes[usize::from(b)]));
        }
    }

    fn encode_text(&mut self, text: &str, prefix: bool) {
        let normal = self.tokenizer.normalizer.run(text, prefix);
        let from = self.out.len();
        match &self.tokenizer.model {
            Model::Unigram {
                automaton,
                ids,
                min_score,
                max_score,
            } => self.encode_unigram(&normal, automaton, ids, *min_score, *max_score),
            Model::Bpe { frozen } => {
                let mut done = 0;
                if let Some(frozen) = frozen {
                    for m in frozen.find_iter(&normal) {
                        self.encode_bpe(&normal[done..m.start()]);
                        self.push(&normal[m.start()..m.end()]);
                        done = m.end();
                    }
                }
                self.encode_bpe(&normal[done..]);
            }
        }
        if self.tokenizer.bytes.is_none() {
            self.join_unknown(from);
        }
    }

    /// Neighbouring unknown characters are one token.
    fn join_unknown(&mut self, from: usize) {
        let unknown = self.tokenizer.unknown;
        let mut kept = from;
        for i in from..self.out.len() {
            if i == from || self.out[i] != unknown || self.out[i - 1] != unknown {
                self.out[kept] = self.out[i];
                kept += 1;
            }
        }
        self.out.truncate(kept);
    }

    fn push(&mut self, part: &str) {
        let tokenizer = self.tokenizer;
        match tokenizer.ids.find(&tokenizer.texts, part.as_bytes()) {
            Some(id) if tokenizer.is_piece(id) => self.out.push(id),
            _ => self.push_unknown(part),
        }
    }

    fn push_unknown(&mut self, part: &str) {
        match &self.tokenizer.bytes {
            Some(bytes) => self.out.extend(part.bytes().map(|b| bytes[usize::from(b)])),
            None => self.out.push(self.tokenizer.unknown),
        }
    }

    /// Pieces of type unused may be steps of merging. What remains of them is split again.
    fn encode_bpe(&mut self, text: &str) {
        let tokenizer = self.tokenizer;
        let mut merger = std::mem::take(&mut self.merger);
        let unused: RefCell<HashMap<&str, usize>> = RefCell::default();
        merger.merge(
            text,
            |start, split, end| {
                let part = &text[start..end];
                let id = tokenizer.ids.find(&tokenizer.texts, part.as_bytes())?;
                if tokenizer.types[id as usize] == UNUSED {
                    unused.borrow_mut().insert(part, split - start);
                }
                tokenizer
                    .is_piece(id)
                    .then(|| descending(tokenizer.scores[id as usize]))
            },
            |part| {
                let mut parts = vec![part];
                while let Some(part) = parts.pop() {
                    let id = tokenizer.ids.find(&tokenizer.texts, part.as_bytes());
                    let is_unused = id.is_some_and(|id| tokenizer.types[id as usize] == UNUSED);
                    match unused.borrow().get(part).filter(|_| is_unused) {
                        Some(&split) => parts.extend([&part[split..], &part[..split]]),
                        None => self.push(part),
                    }
                }
            },
        );
        self.merger = merger;
    }

    /// The best path through the text. best[i]: the score up to byte i, where the last piece begins, its id.
    fn encode_unigram(
        &mut self,
        text: &str,
        automaton: &AhoCorasick,
        ids: &[u32],
        min_score: f32,
        max_score: f32,
    ) {
        let tokenizer = self.tokenizer;
        let mut best: Vec<Option<(f32, usize, u32)>> = vec![None; text.len() + 1];
        best[0] = Some((0.0, 0, tokenizer.unknown));
        let mut matches = automaton.find_overlapping_iter(text).peekable();
        for (start, c) in text.char_indices() {
            let end = start + c.len_utf8();
            let mut has_char = false;
            // All ends at one place come together, the longest piece first.
            while let Some(m) = matches.next_if(|m| m.end() <= end) {
                let id = ids[m.pattern().as_usize()];
                has_char = has_char || m.start() == start;
                let score = if tokenizer.types[id as usize] == USER_DEFINED {
                    f64::from((m.end() - m.start()) as f32 * max_score) - 0.1
                } else {
                    f64::from(tokenizer.scores[id as usize])
                };
                improve(&mut best, m.start(), m.end(), score, id);
            }
            if !has_char {
                let score = f64::from(min_score - UNKNOWN_PENALTY);
                improve(&mut best, start, end, score, tokenizer.unknown);
            }
        }
        let mut path = Vec::new();
        let mut end = text.len();
        while end > 0 {
            let (_, start, id) = best[end].expect("every character has a path");
            path.push((start, end, id));
            end = start;
        }
        for (start, end, id) in path.into_iter().rev() {
            if id == tokenizer.unknown {
                self.push_unknown(&text[start..end]);
            } else {
                self.out.push(id);
            }
        }
    }
}

fn improve(best: &mut [Option<(f32, usize, u32)>], start: usize, end: usize, score: f64, id: u32) {
    let Some((before, ..)) = best[start] else {
        return;
    };
    let sum = f64::from(before) + score;
    if best[end].is_none_or(|(known, ..)| sum > f64::from(known)) {
        best[end] = Some((sum as f32, start, id));
    }
}

fn build_model(proto: &SpmProto, kept: &[&[u8]]) -> Result<Model, String> {
    if proto.algorithm == Algorithm::Bpe {
        let frozen = match kept {
            [] => None,
            _ => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(kept)
                    .map_err(|e| format!("user-defined pieces: {e}"))?,
            ),
        };
        return Ok(Model::Bpe { frozen });
    }
    let of_text = |id: &u32| matches!(proto.types[*id as usize], 1 | USER_DEFINED);
    let ids: Vec<u32> = (0..proto.types.len() as u32).filter(of_text).collect();
    let scores = || {
        let normal = ids.iter().filter(|&&id| proto.types[id as usize] == 1);
        normal.map(|&id| proto.scores[id as usize])
    };
    Ok(Model::Unigram {
        automaton: AhoCorasick::new(ids.iter().map(|&id| proto.pieces.get(id as usize)))
            .map_err(|e| format!("pieces: {e}"))?,
        min_score: scores().reduce(f32::min).unwrap_or(0.0),
        max_score: scores().fold(f32::MIN_POSITIVE, f32::max), // as the original begins
        ids,
    })
}

fn find_bytes(ids: &StrTable, proto: &SpmProto) -> Result<Box<[u32; 256]>, String> {
    let mut bytes = Box::new([0; 256]);
    for (b, id) in bytes.iter_mut().enumerate() {
        let name = format!("<0x{b:02X}>");
        *id = ids
            .find(&proto.pieces, name.as_bytes())
            .filter(|&id| proto.types[id as usize] == BYTE)
            .ok_or_else(|| format!("byte_fallback is set, but there is no byte piece {name}"))?;
    }
    Ok(bytes)
}

fn build_pieces(proto: &SpmProto, added: &[AddedToken]) -> Pieces {
    let by_id: HashMap<usize, &AddedToken> = added.iter().map(|t| (t.id as usize, t)).collect();
    let past_added = by_id.keys().max().map_or(0, |&id| id + 1);
    let mut pieces = Pieces::default();
    for id in 0..proto.types.len().max(past_added) {
        if let Some(token) = by_id.get(&id) {
            pieces.texts.push(token.text.as_bytes());
            pieces.bytes.push(token.text.as_bytes());
            let kind = if token.special {
                KIND_SPECIAL
            } else {
                KIND_NORMAL
            };
            pieces.kinds.push(kind);
            continue;
        }
        let Some(&kind) = proto.types.get(id) else {
            pieces.texts.push(b"");
            pieces.bytes.push(b"");
            pieces.kinds.push(KIND_HOLE);
            continue;
        };
        let text = proto.pieces.get(id);
        pieces.texts.push(text);
        let byte = parse_byte_token(text).filter(|_| kind == BYTE);
        if matches!(kind, CONTROL | UNKNOWN) {
            pieces.bytes.push(text);
            pieces.kinds.push(KIND_SPECIAL);
            continue;
        }
        match byte {
            Some(byte) => pieces.bytes.push(&[byte]),
            None => pieces.bytes.push_with(|out| replace_marks(text, out)),
        }
        pieces.kinds.push(KIND_NORMAL);
    }
    pieces
}

fn find_marks(proto: &SpmProto, added: &[AddedToken]) -> Result<Option<Marks>, String> {
    let mut found: HashMap<&[u8], (u32, bool, bool)> = HashMap::new();
    for (id, &kind) in proto.types.iter().enumerate() {
        if matches!(kind, CONTROL | UNKNOWN) {
            found.insert(proto.pieces.get(id), (id as u32, false, false));
        }
    }
    for token in added {
        found.insert(
            token.text.as_bytes(),
            (token.id, token.lstrip, token.rstrip),
        );
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_unstable();
    let Some(automaton) = build_marks(found.iter().map(|(text, _)| *text))? else {
        return Ok(None);
    };
    Ok(Some(Marks {
        automaton,
        ids: found.iter().map(|(_, (id, ..))| *id).collect(),
        strips: found.iter().map(|(_, (_, l, r))| (*l, *r)).collect(),
    }))
}
