// SPDX-License-Identifier: Apache-2.0
//! The alphabet of GPT-2's byte-level BPE: each byte stands as one printable character. Bytes that
//! print already keep their code point; the 68 others take U+0100, U+0101 and so on, in order of
//! their value.

use std::sync::OnceLock;

const fn prints(b: u32) -> bool {
    (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff)
}

struct Alphabet {
    to_char: [char; 256],
    to_byte: [i16; 0x144], // code point -> byte, or -1
}

fn alphabet() -> &'static Alphabet {
    static ALPHABET: OnceLock<Alphabet> = OnceLock::new();
    ALPHABET.get_or_init(|| {
        let mut a = Alphabet {
            to_char: ['\0'; 256],
            to_byte: [-1; 0x144],
        };
        let mut next = 0x100;
        for b in 0..256u32 {
            let code = if prints(b) {
                b
            } else {
                next += 1;
                next - 1
            };
            a.to_char[b as usize] = char::from_u32(code).unwrap();
            a.to_byte[code as usize] = b as i16;
        }
        a
    })
}

/// Appends the characters that stand for `bytes`.
pub fn encode_into(bytes: impl Iterator<Item = u8>, out: &mut String) {
    let a = alphabet();
    out.extend(bytes.map(|b| a.to_char[b as usize]));
}

/// Appends the bytes that `text` stands for. If a character is not in the alphabet, appends the whole text unchanged.
/// Added tokens decode in this way.
pub fn decode_into(text: &str, out: &mut Vec<u8>) {
    let a = alphabet();
    let start = out.len();
    for c in text.chars() {
        match a.to_byte.get(c as usize) {
            Some(&b) if b >= 0 => out.push(b as u8),
            _ => {
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}
