// SPDX-License-Identifier: Apache-2.0
//! The size of a Lark grammar's terminals after expansion of the terminals that they refer to.

use std::collections::HashMap;

/// Limit of the expanded bytes of all terminals. The library joins adjacent literals, so a few lines of `A: B B` can
/// describe a text that exceeds any memory.
const MAX_EXPANDED: usize = 8 << 20;

pub fn check_expanded(lark: &str) -> Result<(), String> {
    let mut terminals = Terminals::read(lark);
    let names: Vec<&str> = terminals.bodies.keys().copied().collect();
    let mut total = 0usize;
    for name in names {
        total = total.saturating_add(terminals.size(name)?);
    }
    if total > MAX_EXPANDED {
        return Err(format!(
            "too large: {MAX_EXPANDED} bytes are not enough for its terminals, put into each other"
        ));
    }
    Ok(())
}

/// The contents of a terminal: its bytes, and the terminals that it refers to.
#[derive(Default)]
struct Body<'a> {
    bytes: usize,
    names: Vec<&'a str>,
}

struct Terminals<'a> {
    bodies: HashMap<&'a str, Body<'a>>,
    /// None while the size is being computed.
    sizes: HashMap<&'a str, Option<usize>>,
}

impl<'a> Terminals<'a> {
    /// Divides the text as the library does: into names, and tokens that contain no names.
    fn read(lark: &'a str) -> Self {
        let mut bodies: HashMap<&str, Body> = HashMap::new();
        let mut open = "";
        let mut rest = lark;
        while let Some(c) = rest.chars().next() {
            let len = token_len(rest, c);
            let (token, behind) = rest.split_at(len);
            rest = behind;
            // Only a defined name is followed by these: a priority, attributes, the body.
            let defines = is_name(token) && rest.trim_start().starts_with([':', '.', '[']);
            if defines {
                open = token;
            }
            let body = bodies.entry(open).or_default();
            body.bytes += len;
            if is_terminal(token) && !defines {
                body.names.push(token);
            }
        }
        bodies.retain(|name, _| is_terminal(name));
        Terminals {
            bodies,
            sizes: HashMap::new(),
        }
    }

    fn size(&mut self, name: &'a str) -> Result<usize, String> {
        match self.sizes.get(name) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => return Err(format!("the terminal {name} recurs")),
            None => self.sizes.insert(name, None),
        };
        let Some(body) = self.bodies.get_mut(name) else {
            return Ok(0); // the library reports the undefined name
        };
        let mut size = body.bytes;
        for inner in std::mem::take(&mut body.names) {
            size = size.saturating_add(self.size(inner)?);
        }
        self.sizes.insert(name, Some(size));
        Ok(size)
    }
}

/// The length of the token at the beginning of `text`, at least its first character `c`.
fn token_len(text: &str, c: char) -> usize {
    let name = text.strip_prefix('_').unwrap_or(text);
    let end_of = |belongs: fn(char) -> bool| text.find(|c| !belongs(c)).unwrap_or(text.len());
    match c {
        _ if name.starts_with(|c: char| c.is_ascii_uppercase()) => {
            end_of(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || matches!(c, '_' | '-'))
        }
        _ if name.starts_with(|c: char| c.is_ascii_lowercase()) => {
            end_of(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-'))
        }
        '#' => text.find('\n').unwrap_or(text.len()),
        '/' if text.starts_with("//") => text.find('\n').unwrap_or(text.len()),
        '"' | '/' => quoted_len(text, c),
        '<' => {
            let end = text[1..].find(|c: char| matches!(c, '<' | '>') || c.is_whitespace());
            match end {
                Some(end) if end > 0 && text[1 + end..].starts_with('>') => end + 2,
                _ => 1,
            }
        }
        _ => c.len_utf8(),
    }
}

fn quoted_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

fn is_name(token: &str) -> bool {
    let name = token.trim_start_matches('_');
    name.starts_with(|c: char| c.is_ascii_alphabetic())
}

fn is_terminal(token: &str) -> bool {
    let name = token.trim_start_matches('_');
    name.starts_with(|c: char| c.is_ascii_uppercase())
}
