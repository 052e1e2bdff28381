// SPDX-License-Identifier: Apache-2.0
//! Grammars in EBNF with `::=`, as llama.cpp (GBNF) and xgrammar write them: rules, alternatives,
//! literals, classes of characters, `.`, groups, `* + ? {m,n}`, comments. The first rule is `root`.

use std::collections::HashMap;

const ROOT: &str = "root";
const MAX_NESTING: usize = 100;
/// Limit of consecutive `* + ? {m,n}`, which nest a rule like groups.
const MAX_REPEATED: usize = 10;
const MAX_REPEATS: u32 = 2000;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Node {
    Text(String),
    Class(CharClass),
    Rule(usize),
    Seq(Vec<Node>),
    Alt(Vec<Node>),
    /// The least and the greatest number of repetitions. `None`: no upper limit.
    Repeat(Box<Node>, u32, Option<u32>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CharClass {
    pub negated: bool,
    pub ranges: Vec<(char, char)>,
}

pub struct Ebnf {
    pub rules: Vec<Node>,
    pub root: usize,
}

/// Whether a line begins with `name ::=`. No line of Lark does.
pub fn is_ebnf(text: &str) -> bool {
    text.lines().any(|line| {
        let rest = line.trim_start().trim_start_matches(is_name_char);
        rest.len() < line.trim_start().len() && rest.trim_start().starts_with("::=")
    })
}

/// Errors begin with "at LINE(COLUMN): ", both from 1.
pub fn read(text: &str) -> Result<Ebnf, String> {
    let mut reader = Reader {
        text,
        at: 0,
        nesting: 0,
        names: HashMap::new(),
        rules: Vec::new(),
    };
    reader.read_rules()?;
    let root = *reader.names.get(ROOT).ok_or("no rule is named 'root'")?;
    let mut rules = Vec::new();
    for (name, rule) in reader.rules {
        let missing = || at(text, rule.first_seen, &format!("no rule is named '{name}'"));
        rules.push(rule.body.ok_or_else(missing)?);
    }
    Ok(Ebnf { rules, root })
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

fn at(text: &str, position: usize, message: &str) -> String {
    let before = &text[..position];
    let line_begin = before.rfind('\n').map_or(0, |i| i + 1);
    let line = before.matches('\n').count() + 1;
    let column = before[line_begin..].chars().count() + 1;
    format!("at {line}({column}): {message}")
}

struct NamedRule {
    first_seen: usize,
    body: Option<Node>,
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    nesting: usize,
    names: HashMap<&'a str, usize>,
    rules: Vec<(&'a str, NamedRule)>,
}

impl<'a> Reader<'a> {
    fn fail<T>(&self, message: &str) -> Result<T, String> {
        Err(at(self.text, self.at, message))
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self, what: &str) -> bool {
        let found = self.rest().starts_with(what);
        self.at += if found { what.len() } else { 0 };
        found
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let text = rest.trim_start();
            self.at += rest.len() - text.len();
            if !text.starts_with('#') {
                return;
            }
            self.at += text.find('\n').unwrap_or(text.len());
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let len = rest.find(|c| !is_name_char(c)).unwrap_or(rest.len());
        // A name must not begin with `.`, which matches any character.
        let starts = rest.starts_with(|c: char| c != '.' && is_name_char(c));
        self.at += if starts { len } else { 0 };
        starts.then(|| &rest[..len])
    }

    fn index_of(&mut self, name: &'a str, position: usize) -> usize {
        let next = self.rules.len();
        let index = *self.names.entry(name).or_insert(next);
        if index == next {
            let rule = NamedRule {
                first_seen: position,
                body: None,
            };
            self.rules.push((name, rule));
        }
        index
    }

    fn read_rules(&mut self) -> Result<(), String> {
        self.skip_blanks();
        while self.peek().is_some() {
            let begin = self.at;
            let Some(name) = self.name() else {
                return self.fail("a rule begins with its name and '::='");
            };
            self.skip_blanks();
            if !self.take("::=") {
                return self.fail("'::=' is missing");
            }
            let index = self.index_of(name, begin);
            if self.rules[index].1.body.is_some() {
                self.at = begin;
                return self.fail(&format!("'{name}' is defined twice"));
            }
            let body = self.alternatives()?;
            self.rules[index].1.body = Some(body);
            if self.peek() == Some(')') {
                return self.fail("')' without '('");
            }
        }
        Ok(())
    }

    fn alternatives(&mut self) -> Result<Node, String> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return self.fail(&format!("groups nest deeper than {MAX_NESTING}"));
        }
        let mut all = vec![self.sequence()?];
        while self.take("|") {
            all.push(self.sequence()?);
        }
        self.nesting -= 1;
        Ok(only_or(all, Node::Alt))
    }

    /// Reads up to `|`, `)`, the next rule or the end, and stops there.
    fn sequence(&mut self) -> Result<Node, String> {
        let mut all = Vec::new();
        loop {
            self.skip_blanks();
            let begin = self.at;
            let node = match self.peek() {
                None | Some('|' | ')') => break,
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('(') => {
                    self.at += 1;
                    let group = self.alternatives()?;
                    if !self.take(")") {
                        return self.fail("')' is missing");
                    }
                    group
                }
                Some(_) => match self.name() {
                    Some(name) => {
                        let end = self.at;
                        self.skip_blanks();
                        if self.rest().starts_with("::=") {
                            self.at = begin;
                            break;
                        }
                        self.at = end;
                        Node::Rule(self.index_of(name, begin))
                    }
                    None if self.take(".") => Node::Class(CharClass {
                        negated: false,
                        ranges: vec![('\0', char::MAX)],
                    }),
                    None => return self.fail("this is no part of a rule"),
                },
            };
            all.push(self.repeated(node)?);
        }
        Ok(only_or(all, Node::Seq))
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node, String> {
        for _ in 0..=MAX_REPEATED {
            self.skip_blanks();
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat(Box::new(node), least, most);
        }
        self.fail("a repetition of repetitions of repetitions")
    }

    /// Reads the bounds of `{m}`, `{m,}`, `{,n}` or `{m,n}`. Stops at the `}`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), String> {
        let begin = self.at;
        let inner = self.rest().find('}').map(|len| &self.rest()[1..len]);
        let read = |digits: &str| digits.trim().parse::<u32>().ok();
        let bounds = inner.and_then(|inner| match inner.split_once(',') {
            None => read(inner).map(|n| (n, Some(n))),
            Some((m, n)) if n.trim().is_empty() => read(m).map(|m| (m, None)),
            Some((m, n)) if m.trim().is_empty() => read(n).map(|n| (0, Some(n))),
            Some((m, n)) => read(m).zip(read(n).map(Some)),
        });
        let fits =
            |(m, n): &(u32, Option<u32>)| *m <= n.unwrap_or(*m) && n.unwrap_or(*m) <= MAX_REPEATS;
        let Some(bounds) = bounds.filter(fits) else {
            return self.fail(&format!(
                "'{{m,n}}' wants numbers up to {MAX_REPEATS}, m <= n"
            ));
        };
        self.at = begin + inner.map_or(0, str::len) + 1;
        Ok(bounds)
    }

    fn literal(&mut self) -> Result<Node, String> {
        let begin = self.at;
        self.at += 1;
        let mut text = String::new();
        while !self.take("\"") {
            match self.peek() {
                None | Some('\n') => {
                    self.at = begin;
                    return self.fail("the string has no end");
                }
                Some(_) => text.push(self.character()?),
            }
        }
        Ok(Node::Text(text))
    }

    fn class(&mut self) -> Result<Node, String> {
        let begin = self.at;
        self.at += 1;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            if matches!(self.peek(), None | Some('\n')) {
                self.at = begin;
                return self.fail("the class has no end");
            }
            let position = self.at;
            let first = self.character()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            self.at += usize::from(is_range);
            let last = if is_range { self.character()? } else { first };
            if first > last {
                self.at = position;
                return self.fail("the range is empty");
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() {
            self.at = begin;
            return self.fail("the class is empty");
        }
        Ok(Node::Class(CharClass { negated, ranges }))
    }

    /// One character of a literal or a class, which may be an escape.
    fn character(&mut self) -> Result<char, String> {
        let Some(c) = self.peek() else {
            return self.fail("a character is missing");
        };
        let begin = self.at;
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let Some(kind) = self.peek() else {
            return self.fail("a character is missing");
        };
        self.at += kind.len_utf8();
        let digits = match kind {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ if kind.is_ascii_punctuation() => return Ok(kind),
            _ => 0,
        };
        let code = self.rest().get(..digits).filter(|hex| !hex.is_empty());
        self.at += digits;
        code.filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|hex| u32::from_str_radix(hex, 16).ok())
            .and_then(char::from_u32)
            .ok_or_else(|| at(self.text, begin, "this escape names no character"))
    }
}

fn only_or(mut all: Vec<Node>, join: fn(Vec<Node>) -> Node) -> Node {
    if all.len() == 1 {
        all.remove(0)
    } else {
        join(all)
    }
}
